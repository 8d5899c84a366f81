"""What others ask of a running coordinator through files: one request at a time, and every one is answered."""

from __future__ import annotations

import threading
import time
from typing import Any

from strobe.apply.cutover import Cutover
from strobe.coordinator.availability import Availability
from strobe.coordinator.rebuilding import rebuild_lost
from strobe.coordinator.waits import Waits
from strobe.errors import NotNow, SourceUnavailable, UserError
from strobe.pipeline.background import aside
from strobe.pipeline.barrier import BRING, PAUSE, Operation
from strobe.pipeline.pipeline import Pipeline
from strobe.retry import REBUILD
from strobe.warehouse.control import requests
from strobe.warehouse.warehouse import Warehouse

EDITS = ("rebuild", "apply")
LOOK = 0.5
"""Seconds between two looks for requests, where whoever asks cannot wake the coordinator."""

FREEZE = 60.0
"""Seconds for which a coordinator stands still for an auditor that has gone silent."""


class RequestHandler:
    """Takes up requests, one at a time, and answers every one of them."""

    def __init__(
        self, warehouse: Warehouse, cutover: Cutover, pipeline: Pipeline, asked: threading.Event | None = None
    ) -> None:
        """`asked` is set by whoever has posted a request."""
        self._warehouse = warehouse
        self._control = warehouse.layout.control
        self._cutover, self._pipeline = cutover, pipeline
        self._asked = asked or threading.Event()
        self._next_look = self._next_rebuild = 0.0
        self._open: str | None = None
        self._document: dict[str, Any] = {}
        self._brought: dict[str, Any] | None = None
        self._frozen_until = 0.0
        self._waits = Waits(self._control, pipeline)

    def look(self) -> None:
        self._waits.look()
        now = time.monotonic()
        if now < self._next_look and not self._asked.is_set():
            return
        self._next_look = now + LOOK
        self._asked.clear()
        for number, document in requests.requests(self._control):
            self._take(number, document)

    def rebuild(self, availability: Availability) -> None:
        """Unasked: views that needed log which is let go."""
        if availability.to_rebuild and not self._pipeline.operation_open and time.monotonic() >= self._next_rebuild:
            self._pipeline.start_operation(self._rebuild(availability))

    def _rebuild(self, availability: Availability) -> Operation:
        yield from rebuild_lost(self._warehouse, self._pipeline, self._cutover, availability)
        self._next_rebuild = time.monotonic() + REBUILD.wait(1)

    def put_back(self) -> None:
        """The coordinator starts anew without some views: an edit that was under way is begun anew with it."""
        if self._open is not None and self._document.get("kind") in EDITS and not self._cutover.ready:
            requests.put_back(self._control, self._open, self._document)
            self._open = None

    def _take(self, number: str, document: dict[str, Any]) -> None:
        kind = document.get("kind")
        if kind in ("renew", "bring"):
            if document.get("freeze") != self._open:
                self._refuse(number, "the coordinator has gone on meanwhile")
            elif kind == "renew":
                self._frozen_until = time.monotonic() + FREEZE
            else:
                self._brought = {"request": number, **document}
        elif kind == "wait":
            self._waits.add(number, document["views"], document["seconds"])
        elif self._pipeline.operation_open:
            self._refuse(number, "the coordinator is busy with another request")
        elif kind in EDITS:
            self._start(number, document, self._edit(number, document))
        elif kind == "freeze":
            self._start(number, document, self._audit(number))
        elif kind == "fold":
            self._start(number, document, self._fold(number))

    def _edit(self, number: str, document: dict[str, Any]) -> Operation:
        if document["kind"] == "rebuild":
            return self._cutover.rebuild(self._warehouse, self._pipeline, number, document["views"])
        return self._cutover.apply(self._warehouse, self._pipeline, number, bool(document.get("drop_tables")))

    def _start(self, number: str, document: dict[str, Any], operation: Operation) -> None:
        self._open, self._document, self._brought = number, document, None
        self._pipeline.start_operation(self._answered(number, operation))

    def _answered(self, number: str, operation: Operation) -> Operation:
        """An operation that fails is answered with its error, and everything goes on."""
        try:
            yield from operation
        except (UserError, NotNow, SourceUnavailable) as error:
            self._pipeline.barrier.resume()
            requests.reply(self._control, (self._brought or {}).get("request", number), error.document())
        self._open = None

    def abandon(self) -> None:
        """The coordinator ends or starts anew: whoever still waits for an answer is told."""
        self._waits.abandon()
        cutover = self._cutover.ready and self._cutover.asked_by == self._open  # then it is told what becomes of it
        if self._open is not None and not cutover:
            self._refuse((self._brought or {}).get("request", self._open), "the coordinator was interrupted")

    def _refuse(self, number: str, why: str) -> None:
        requests.reply(self._control, number, NotNow(why, fix="Try again.").document())

    def _fold(self, request: str) -> Operation:
        """Bring the view tables up to the last commit."""
        yield from aside(self._warehouse.fold, "fold")
        requests.reply(self._control, request, {"commit": self._pipeline.committer.last.number})

    def _audit(self, request: str) -> Operation:
        """Stand still until the auditor has read the sources, commit exactly the vector that it read, and go on."""
        yield from self._pipeline.barrier.pause(PAUSE)
        requests.reply(self._control, request, {"freeze": request})
        self._frozen_until = time.monotonic() + FREEZE
        while self._brought is None:
            if time.monotonic() > self._frozen_until:
                self._pipeline.barrier.resume()
                return
            yield
        sources = self._pipeline.topology.sources
        wanted = {s: text for s, text in self._brought["positions"].items() if s in self._pipeline.monitors}
        vector = {s: sources[s].position(text) for s, text in wanted.items()}  # of others only views that stand still
        yield from self._pipeline.barrier.bring_to(vector, BRING)
        commit = self._pipeline.committer.last.number
        self._pipeline.barrier.resume()
        requests.reply(self._control, self._brought["request"], {"commit": commit})
