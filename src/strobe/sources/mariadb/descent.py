"""Which generations of a table come from which, by changes that the log announced.

When a table has another generation than at the last look, the log is read from that look on, up to its present end, and
every statement that concerns the table is judged. This does not wait for the stream, which may be far behind, and does
not hold it up. At the first look there is no look before: then the log is read from where the stream began.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from strobe.errors import Damaged, SourceUnavailable
from strobe.messages import Position
from strobe.sources.mariadb.binlog import protocol as binlog
from strobe.sources.mariadb.binlog.events import rotated, statement
from strobe.sources.mariadb.binlog.sql import Statement
from strobe.sources.mariadb.binlog.statements import Scene, Verdict, judge
from strobe.sources.mariadb.connection import ConnectionSettings
from strobe.sources.mariadb.fingerprint import ANY
from strobe.sources.mariadb.position import Whereabouts, file_number
from strobe.sources.mariadb.snapshot import End

MOST_ANCESTORS = 20


@dataclass(frozen=True)
class Descended:
    """How a table came to its generation."""

    ancestors: tuple[tuple[str, Mapping[str, str]], ...] = ()
    announced: str = ""
    harm: str = ""


@dataclass
class _Line:
    """One table."""

    read: End
    """Statements up to here are judged."""
    generation: str = ""
    """At the last look."""
    descended: Descended = field(default_factory=Descended)
    verdicts: list[tuple[End, Verdict]] = field(default_factory=list)
    """Of statements that concern it, each with where it ends; those that the generation may not have yet."""


class Descents:
    """Of the tables of one source."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._lines: dict[str, _Line] = {}
        self._start: End | None = None
        self._lock = threading.Lock()

    def begin(self, after: Position) -> None:
        """The log is read from here: whatever was proven before was proven at a look after this place."""
        at = Whereabouts.parse(after.text)
        with self._lock:
            self._start = at.file, at.offset

    def of(
        self, generations: Mapping[str, str], low: End, high: End, scene: Scene, charsets: Mapping[int, str]
    ) -> Mapping[str, Descended]:
        """How tables came to their generations, which were read while the end of the log moved from `low` to `high`.
        Without those for which the log could not be read up to there yet."""
        with self._lock:
            lines = {table: self._lines.setdefault(table, _Line(self._start or high)) for table in generations}
            renewed = {table: line for table, line in lines.items() if line.generation != generations[table]}
            self._read(renewed, high, scene, charsets)
            found = {}
            for table, line in lines.items():
                if table in renewed:
                    if _order(line.read) < _order(high):
                        continue
                    line.descended, line.generation = _descended(table, line), generations[table]
                # What was logged while the generation was read may not be in it.
                line.verdicts = [(end, verdict) for end, verdict in line.verdicts if _order(end) > _order(low)]
                line.read = max(line.read, low, key=_order)
                found[table] = line.descended
            return found

    def _read(self, lines: Mapping[str, _Line], high: End, scene: Scene, charsets: Mapping[int, str]) -> None:
        """Judge the statements up to an end of the log; what takes too long is left for the next look."""
        if not lines:
            return
        until = time.monotonic() + self._settings.timing.parts
        start = min((line.read for line in lines.values()), key=_order)
        for end, said in statements(self._settings, start, high, charsets):
            verdict = judge(said, scene) if said is not None else Verdict()
            for table, line in lines.items():
                if _order(line.read) < _order(end):
                    line.read = end
                    if verdict.concerns(table):
                        line.verdicts.append((end, verdict))
            if time.monotonic() > until:
                break


def _descended(table: str, line: _Line) -> Descended:
    touched: dict[str, str] = {}
    for _, verdict in line.verdicts:
        effect = verdict.harm or verdict.doubt
        if effect is not None and effect.table in (table, None):
            return Descended(harm=effect.what)
        touched |= verdict.announced.get(table, {})
    if not line.verdicts:
        return Descended()
    older = tuple((generation, {**columns, **touched}) for generation, columns in line.descended.ancestors)
    file, offset = line.verdicts[-1][0]
    return Descended((*older, (line.generation or ANY, touched))[-MOST_ANCESTORS:], f"{file}:{offset}")


def statements(
    settings: ConnectionSettings, start: End, end: End, charsets: Mapping[int, str]
) -> Iterator[tuple[End, Statement | None]]:
    """The statements between two places of the log, each with where it ends; None stands for anything else."""
    at = Whereabouts(*start, 0)
    if at.order >= _order(end):
        return
    if at.offset >= settings.limits.offset:
        raise SourceUnavailable("the log cannot be read from beyond 4 GiB of one file", where=settings.where)
    try:
        with binlog.dump(settings, at.file, at.offset, forever=False) as connection:
            while at.order < _order(end):
                event = connection.next()
                if event is None:
                    continue
                if event.type == binlog.ROTATE and (event.flags & binlog.ARTIFICIAL or not event.timestamp):
                    file = rotated(event)
                    if file != at.file:
                        at = Whereabouts(file, 4, 0)
                elif event.end and not event.flags & binlog.ARTIFICIAL:
                    at.advance(event.end)
                    is_statement = event.type in (binlog.QUERY, binlog.QUERY_COMPRESSED)
                    yield (at.file, at.offset), statement(event, charsets, settings.limits) if is_statement else None
    except EOFError:
        return
    except Damaged as error:
        raise error.of(f"the event of the binlog after {at.file}:{at.offset}", settings.where) from None
    except binlog.Broken as error:
        raise SourceUnavailable(f"its binlog could not be read: {error}", where=settings.where) from error


def _order(end: End) -> tuple[int, int]:
    return file_number(end[0]), end[1]
