"""Brings all views of a run to one vector, while everybody goes on writing: for an audit, and for views that join.

Three steps, each an operation of the loop: no source lets anything more in; then the vector is chosen, each source is
read exactly up to there, and the block ends; then they go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

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

    def pause(self, seconds: float) -> Operation:
        """Let nothing more in from any source."""
        deadline = time.monotonic() + seconds
        for monitor in self._monitors.values():
            monitor.pause()
        while not all(monitor.at_rest for monitor in self._monitors.values()):
            if time.monotonic() > deadline:
                busy = [name for name, monitor in self._monitors.items() if not monitor.at_rest]
                raise NotNow(f"{', '.join(busy)} could not be paused within {seconds:.0f} s", fix="Try again.")
            yield

    def bring_to(self, positions: Mapping[str, Position], seconds: float, *, hold: bool = False) -> Operation:
        """Commit exactly this vector, or `hold` what brings the views there. The monitors have been paused before these
        positions were read.

        The sources are read up to there and the block ends; then they go on, because answers may have to wait for what
        came after, but the merge lets nothing of that through until `resume`.
        """
        deadline = time.monotonic() + seconds
        for source, position in positions.items():
            monitor = self._monitors.get(source)
            if monitor is None or position < monitor.position:
                raise NotNow(f"source {source} is down, or past the position that was read", fix="Try again.")
            monitor.hold_at(position)
        while not (all(self._monitors[source].holds for source in positions) and self._handled()):
            yield from _until(deadline)
        yield
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
        raise NotNow("the views could not be brought to the vector that was read in time", fix="Try again.")
    yield
