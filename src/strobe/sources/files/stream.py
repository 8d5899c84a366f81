"""Stages drops as they come, and reports the difference that each makes as a transaction.

A drop that has stopped changing is copied, checked by Spark from the first record to the last, and only then written
over the staged table. The difference between two neighbouring versions is the same whenever it is read again.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from strobe.algebra.bag import Bag
from strobe.data.arrow import from_arrow
from strobe.errors import BrokenInvariant, UserError
from strobe.messages import Position, Transaction
from strobe.sources.base import SparkStarter
from strobe.sources.files.drops import Drop, Expected, columns_of, copy_whole, require_columns, waiting_drops
from strobe.sources.files.limits import Limits, Timing
from strobe.sources.files.versions import StagedTable, identity_of, names_of, position_at

_one_at_a_time = threading.Lock()
"""Two streams of a source in one process must not both stage a drop."""


class Stream:
    """All that happens to one source's drops, whether they are reported or only staged."""

    def __init__(
        self,
        source: str,
        table: StagedTable,
        expected: Expected,
        spark: SparkStarter | None,
        timing: Timing,
        limits: Limits,
    ) -> None:
        self._source, self._table, self._expected, self._spark = source, table, expected, spark
        self._timing, self._limits = timing, limits
        self._looks: dict[Drop, float] = {}
        self._refused: tuple[Drop, UserError] | None = None
        self.answered_at: int | None = None
        """The version that answers are read at while drops are being reported; None before."""

    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        self.verify(after)
        done = after.order[0]
        self.answered_at = max([done, *(stop.order[0] for stop in stops)])
        last = self._table.drop(done)
        while not stopped():
            if self._table.has(done + 1):
                done += 1
                last = self._table.drop(done)
                difference = self._difference(done)
                self.answered_at = max(done, self.answered_at)
                yield difference
                continue
            drops = waiting_drops(self._expected.pattern, last)
            if drops and self._refused and self._refused[0] == drops[0]:
                raise self._refused[1]
            if drops and self._settled(drops[0]):
                with _one_at_a_time:  # views that are about to join have a stream of their own
                    if self.waiting()[:1] == drops[:1]:
                        self._stage(drops[0])
            else:
                time.sleep(self._timing.poll)

    def verify(self, position: Position) -> None:
        self._table.verify(position, self.now().order[0])

    def now(self) -> Position:
        """Behind the drops that wait to be staged."""
        table = self._table.open()
        return position_at(identity_of(table), table.version() + len(self.waiting()))

    def _difference(self, version: int) -> Transaction:
        from strobe.spark.drop_versions import difference

        table = self._table.open()
        names = names_of(table)
        change = difference(self._session(), self._table.path, version, names)
        most = self._limits.driver_rows
        rows = list(from_arrow(change.dataframe().limit(most + 1).toArrow()))
        bag = Bag(names, {row[:-1]: row[-1] for row in rows})
        changes = {self._expected.relation: change if len(rows) > most else bag}
        drop = self._table.drop(version)
        at = datetime.fromtimestamp(drop["mtime_ns"] / 1e9, timezone.utc) if drop else None
        return Transaction(
            self._source, position_at(identity_of(table), version), changes=changes if rows else {}, committed_at=at
        )

    # Which drops there are

    def waiting(self) -> list[Drop]:
        """The drops not staged yet."""
        return waiting_drops(self._expected.pattern, self._table.drop(self._table.open().version()))

    def _settled(self, drop: Drop) -> bool:
        """Whether it looked the same some time ago: a drop that is still being written is left alone."""
        first = self._looks.get(drop)
        if first is None:
            self._looks = {drop: time.monotonic()}
            return False
        return time.monotonic() - first >= self._timing.settle

    def columns(self) -> dict[str, str]:
        """The columns and their types: as staged, or else as the first drop and the configuration say."""
        if self._table.exists:
            return self._table.columns()
        expected = self._expected
        drops = waiting_drops(expected.pattern, None)
        found = columns_of(drops[0].path, expected.format, drops[0].path) if drops else {}
        if drops:
            require_columns([*expected.declared, *expected.key], found, drops[0].path)
        return {**found, **expected.declared} if expected.format != "parquet" else found

    # Staging

    def prepare(self) -> None:
        """Make the table with the columns of the first drop, and stage what is there if that may start Spark."""
        if not self._table.exists:
            if not waiting_drops(self._expected.pattern, None):
                self._require_optional()
            self._table.create(self.columns())
        if self._spark is not None:
            self._stage_all()

    def stage_first(self) -> None:
        """Stage the drops that are there if none is staged yet: what is loaded has them, and need not wait for them."""
        if self._spark is not None and self._table.open().version() == 0:
            with _one_at_a_time:
                self._stage_all()

    def _stage_all(self) -> None:
        """Stage every drop that is there, as soon as it has stopped changing."""
        while drops := self.waiting():
            if not self._settled(drops[0]):
                time.sleep(min(self._timing.settle, self._timing.poll))
            else:
                self._stage(drops[0])

    def _require_optional(self) -> None:
        lacking = self._expected.lacking()
        if not self._expected.optional:
            raise UserError(lacking.message, where=f"source {self._source}", fix=lacking.fix)
        if not self._expected.declared:
            message = "an optional source has to declare its columns: there is no file to take them from"
            raise UserError(message, where=f"source {self._source}", fix="Write `columns` with the type of each.")

    def _stage(self, drop: Drop) -> None:
        """Make a drop the next version of the table, or refuse it and leave everything as it was."""
        copy = self._table.path.parent / f"incoming-{uuid.uuid4().hex}"  # no leading dot: Spark overlooks such files
        try:
            copy_whole(drop, copy, self._expected.format)
            if Drop.of(drop.path) == drop:
                self._check_and_write(drop, copy)
        except UserError as problem:
            self._refused = (drop, problem)
            raise
        finally:
            copy.unlink(missing_ok=True)

    def _check_and_write(self, drop: Drop, copy: Path) -> None:
        from strobe.spark.drop_reader import read_checked
        from strobe.spark.drop_versions import write_version

        columns, format_ = self.columns(), self._expected.format
        found = list(columns) if format_ == "jsonl" else list(columns_of(copy, format_, drop.path))
        require_columns(columns, found, drop.path)
        spark = self._session()
        frame = read_checked(spark, copy, format_, found, columns, self._expected.key, str(drop.path))
        before = self._table.open().version()
        write_version(spark, frame, self._table.path, json.dumps(drop.identity))
        if self._table.open().version() == before:
            where = f"{self._source}: {drop.path}"
            raise BrokenInvariant("a drop was written, but there is no new version", where=where)

    def _session(self) -> Any:
        if self._spark is None:
            raise BrokenInvariant("a command that only looks wants to stage a drop", where=self._source)
        return self._spark()
