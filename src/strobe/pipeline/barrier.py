"""Brings all views of a run to one vector, while everybody goes on writing: for an audit, and for views that join.

Three steps, each an operation of the loop: no source lets anything more in; then the vector is chosen, each source is
read exactly up to there, and the block ends; then they go on. A vector at which all can stand cuts no global
transaction in two: where one part has come, sources are read on up to the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

from strobe.engine.engine import Effect, Engine
from strobe.errors import NotNow
from strobe.messages import Position
from strobe.pipeline.committer import Committer
from strobe.pipeline.monitor import Monitor

PAUSE = 60.0
"""Seconds in which the sources must come to rest for an operation."""

BRING = 100.0
"""Seconds in which the views must come to a vector."""

Operation = Iterator[None]
"""Work that takes several turns of the loop: it yields when it has to wait."""


class Barrier:
    def __init__(
        self,
        monitors: Mapping[str, Monitor],
        engine: Engine,
        committer: Committer,
        *,
        carry_out: Callable[[Iterable[Effect]], None],
        handled: Callable[[], bool],
    ) -> None:
        """`handled` says whether the loop has nothing left to take in."""
        self._monitors, self._engine, self._committer = monitors, engine, committer
        self._carry_out, self._handled = carry_out, handled

    def pause(self, seconds: float, beyond: Mapping[str, Position] | None = None) -> Operation:
        """Let nothing more in from any source, once it is at or beyond a position; and no sooner than all parts have
        come of every global transaction of which one has."""
        deadline = time.monotonic() + seconds
        for monitor in self._monitors.values():
            monitor.pause()
        yield from self._at_rest(deadline)
        for source, position in (beyond or {}).items():
            if source in self._monitors and self._monitors[source].position < position:
                self._monitors[source].hold_at(position)
        yield from self._whole(deadline, self._monitors.keys())

    def _at_rest(self, deadline: float) -> Operation:
        """Wait until no source is being read, and what has been read has been taken in."""
        while not (all(monitor.at_rest for monitor in self._monitors.values()) and self._handled()):
            if time.monotonic() > deadline:
                for name, sources in sorted(self._engine.missing_parts().items()):
                    raise missing_part(name, sources)
                busy = [name for name, monitor in self._monitors.items() if not monitor.at_rest]
                raise NotNow(f"{', '.join(busy) or 'the loop'} did not come to rest in time", fix="Try again.")
            yield
        yield

    def _whole(self, deadline: float, free: Collection[str]) -> Operation:
        """Read on at the sources that are `free` to, up to the parts that are missing there, until none is."""
        yield from self._at_rest(deadline)
        while missing := self._engine.missing_parts():
            for name, sources in sorted(missing.items()):
                if not sources <= set(free):
                    raise missing_part(name, sources)
            for source in frozenset().union(*missing.values()):
                wanted = [name for name, sources in missing.items() if source in sources]
                self._monitors[source].hold_behind(wanted)
            yield from self._at_rest(deadline)

    def bring_to(self, positions: Mapping[str, Position], seconds: float, *, hold: bool = False) -> Operation:
        """Commit exactly this vector, or `hold` what brings the views there. The monitors have been paused before these
        positions were read.

        It has to hold all parts of every global transaction of which it holds one; sources that it does not name are
        read on up to theirs. The sources are read up to there and the block ends; then they go on, because answers may
        have to wait for what came after, but the merge lets nothing of that through until `resume`.
        """
        deadline = time.monotonic() + seconds
        for source, position in positions.items():
            monitor = self._monitors.get(source)
            if monitor is None or position < monitor.position:
                raise NotNow(f"source {source} is down, or past the position that was read", fix="Try again.")
            monitor.hold_at(position)
        yield from self._whole(deadline, self._monitors.keys() - positions.keys())
        if not all(self._monitors[source].holds for source in positions):
            raise _not_brought()
        if hold:
            self._committer.hold()
        self._carry_out(self._engine.stop_here(time.monotonic()))
        for monitor in self._monitors.values():
            monitor.resume()
        while not self._engine.stands:
            yield from _until(deadline)
        if not hold:
            self._committer.flush()
        while self._committer.working if hold else self._committer.busy:
            yield from _until(deadline)

    def resume(self) -> None:
        """Go on after an operation, however it ended."""
        for monitor in self._monitors.values():
            monitor.resume()
        self._committer.release()
        self._carry_out(self._engine.go_on())


def _until(deadline: float) -> Operation:
    if time.monotonic() > deadline:
        raise _not_brought()
    yield


def _not_brought() -> NotNow:
    return NotNow("the views could not be brought to the vector that was read in time", fix="Try again.")


def missing_part(name: str, sources: Iterable[str]) -> NotNow:
    """Nothing can be shown at a place that cuts a global transaction in two."""
    there = ", ".join(sorted(sources))
    message = f"global transaction {name} has come in part: its part at {there} is missing"
    never = f"If it is never to come there, commit a transaction at {there} that has this name and changes nothing."
    return NotNow(message, fix=f"Try again. {never}")
