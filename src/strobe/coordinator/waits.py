"""Who waits until views show all that the sources had committed, and cannot ask the sources themselves."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial

from strobe.errors import NotNow, StrobeError
from strobe.messages import Position
from strobe.pipeline.background import begin
from strobe.pipeline.pipeline import Pipeline
from strobe.sources.base import Source
from strobe.warehouse.control import requests
from strobe.warehouse.control.store import ControlStore


@dataclass(frozen=True)
class _Waiting:
    number: str
    goal: Future[dict[str, Position]]
    until: float


class Waits:
    """Each is answered when its views are there, however many wait."""

    def __init__(self, control: ControlStore, pipeline: Pipeline) -> None:
        self._control, self._pipeline = control, pipeline
        self._waiting: list[_Waiting] = []

    def add(self, number: str, views: Collection[str], seconds: float) -> None:
        """Wait for these views, or for all; whoever asks gives up after so many seconds."""
        kept = self._pipeline.topology.views
        known = {*self._pipeline.committer.last.positions, *kept}
        if missing := sorted(set(views or known) - kept.keys()):
            stale = f"view {', '.join(missing)} is not kept at the moment"
            self._refuse(number, NotNow(stale, fix="See `strobe status`."))
            return
        wanted = {source for name in views or kept for source in kept[name].view.sources}
        asked = {name: self._pipeline.topology.sources[name] for name in sorted(wanted)}
        self._waiting.append(_Waiting(number, begin(partial(_now, asked), "wait"), time.monotonic() + seconds))

    def look(self) -> None:
        """Answer those whose views are there."""
        self._waiting = [waiting for waiting in self._waiting if not self._over(waiting)]

    def abandon(self) -> None:
        for waiting in self._waiting:
            self._refuse(waiting.number, NotNow("the coordinator was interrupted", fix="Try again."))
        self._waiting = []

    def _over(self, waiting: _Waiting) -> bool:
        if time.monotonic() > waiting.until:
            return True
        if not waiting.goal.done():
            return False
        try:
            goal = waiting.goal.result()
        except StrobeError as error:
            self._refuse(waiting.number, error)
            return True
        if not all(position <= self._pipeline.visible(source) for source, position in goal.items()):
            return False
        positions = {source: position.text for source, position in goal.items()}
        commit = self._pipeline.committer.last.number
        requests.reply(self._control, waiting.number, {"commit": commit, "positions": positions})
        return True

    def _refuse(self, number: str, error: StrobeError) -> None:
        requests.reply(self._control, number, error.document())


def _now(sources: Mapping[str, Source]) -> dict[str, Position]:
    return {name: source.now() for name, source in sources.items()}
