"""The audit in the background: compares every row of every view with the sources, a part at a time.

A *round* goes through all parts of a view: the keys that one of its relations has when the round begins, and those that
the view shows, each in one part by its hash. A part is right if the view's rows with its keys, at a commit, are what
Spark computes from the sources at exactly the positions of that commit (see `pipeline.part_reader`). When all parts
were right, the view is *verified through* the commit at which the round began: nothing that was there at that commit
was left out, since a key that was there then is still in the relation, or in the view, or was deleted by the log, which
every append is checked for.

What differs is looked at a second time, and after the sources have proven that their tables are what they were: then
the view is wrong. It stops, like one whose changes contradict its rows.

Commits never wait for it. It takes up a small share of the time only, so that a round of a large view may take longer
than it should.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import TYPE_CHECKING

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import View
from strobe.auditor.compare import Difference, differences
from strobe.coordinator.timing import USUAL, Timing
from strobe.data.scratch import Scratch
from strobe.errors import LostGuarantee, NotNow, StrobeError
from strobe.messages import Position
from strobe.pipeline.part_reader import COVERED, Contested, PartReader, anchor
from strobe.pipeline.pipeline import Pipeline
from strobe.pipeline.tap import Tap
from strobe.retry import ASK_SOURCE, AUDIT, Retry
from strobe.sources.base import TooLarge
from strobe.spark import staging
from strobe.spark.failures import FAILURES, cause
from strobe.spark.session import in_background, own_session
from strobe.warehouse import inspect, reader
from strobe.warehouse.control import verified
from strobe.warehouse.control.verified import Round, Verified
from strobe.warehouse.parts import Parts, computed
from strobe.warehouse.warehouse import Warehouse

if TYPE_CHECKING:
    from strobe.spark.session import SparkSession

LOOK = 0.5
"""Seconds between two looks whether a part is due."""

STEP = 0.05
"""Seconds between two looks whether a view has come to where it can be compared."""

Found = tuple[int, int, Sequence[Difference]]
"""The commit at which a part was compared, how many rows differ, and the first of them."""

_SHOWN, _ROW = 5, 300
"""Rows of a difference that are named, and characters of one."""


class Watchman(threading.Thread):
    def __init__(
        self,
        pipeline: Pipeline,
        warehouse: Warehouse,
        spark: SparkSession,
        scratch: Scratch,
        period: float,
        timing: Timing = USUAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`period` is in how many seconds a round is to be done."""
        super().__init__(name="audit", daemon=True)
        self._pipeline, self._warehouse, self._scratch = pipeline, warehouse, scratch
        self._main_session, self._spark = spark, own_session(spark)
        self._period, self._timing, self._clock = period, timing, clock
        self._control = warehouse.layout.control
        self._views = {n: p.view for n, p in pipeline.topology.views.items() if p.level in COVERED}
        self._keys: dict[str, staging.Staged] = {}
        """Of the relation by which a view is taken apart, as they were at or after the beginning of its round."""
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._rests_until = float("-inf")
        self._ended = threading.Event()
        self.known: Mapping[str, Verified] = self._begun()

    def _begun(self) -> dict[str, Verified]:
        """What is known of the views, as an earlier run has left it."""
        definitions, now = self._warehouse.definitions, self._clock()
        found = verified.read(self._control, definitions)
        loaded = {n: Verified.as_loaded(d, now) for n, d in definitions.items() if n in self._views}
        return {name: found.get(name, each) for name, each in loaded.items()}

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        try:
            verified.write(self._control, self.known)
            while not self._ended.wait(LOOK):
                if (name := self._due()) is not None:
                    began = time.monotonic()
                    self._check(name)
                    ended = time.monotonic()
                    self._rests_until = ended + (ended - began) * (1 / self._timing.audit_share - 1)
        except BaseException as error:  # the coordinator ends with it
            if not self._ended.is_set():
                self._pipeline.fail(error)
        finally:
            for staged in self._keys.values():
                staged.lease.release()

    def _due(self) -> str | None:
        """The view that has waited for longest for its next part."""
        if time.monotonic() < self._rests_until or self._pipeline.operation_open:
            return None
        due = {name: self._due_at(name, each) for name, each in self.known.items()}
        name = min(due, key=due.__getitem__, default=None)
        return name if name is not None and due[name] <= self._clock() else None

    def _due_at(self, name: str, known: Verified) -> float:
        """Parts are spread over the period."""
        if known.round is None:
            at = known.at + self._period
        else:
            at = known.round.began + self._period * known.round.next / known.round.parts
        return max(at, self._not_before.get(name, at))

    def _note(self, name: str, known: Verified) -> None:
        if not self._ended.is_set():
            self.known = {**self.known, name: known}
            verified.write(self._control, self.known)

    def _check(self, name: str) -> None:
        """The next part of a view. What cannot be done now is done later."""
        try:
            with in_background(self._main_session):
                self._check_part(name)
        except StrobeError as error:
            self._put_off(name, error.message)
        except FAILURES as error:
            self._put_off(name, cause(error))
        else:
            self._failures.pop(name, None)

    def _put_off(self, name: str, why: str) -> None:
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        self._not_before[name] = self._clock() + ASK_SOURCE.wait(failures)
        self._note(name, replace(self.known[name], problem=why))

    def _end_run(self, error: LostGuarantee) -> None:
        if not self._ended.is_set():
            self._ended.set()
            self._pipeline.fail(error)

    # One part.

    def _check_part(self, name: str) -> None:
        known = self.known[name]
        round_, parts = self._round(name, known)
        try:
            found = self._difference(name, parts, round_.next)
            if found is not None:  # and again
                found = self._difference(name, parts, round_.next)
        except TooLarge:
            round_ = replace(round_, gap=self._gap(name, parts))
            found = None
        if found is not None:
            self._stop(name, known, *found)
            return
        self._note(name, replace(known, round=round_).checked())
        if self.known[name].round is None and name in self._keys:
            self._keys.pop(name).lease.release()

    def _gap(self, name: str, parts: Parts | None) -> str:
        most = f"more than {self._timing.audit_rows:,} rows"
        if self._views[name].tree is not None:
            return f"it is more than inner joins and is compared whole, for which {most} would have to be read at once"
        if parts is None:
            return f"it shows the key of none of its tables, and {most} would have to be read at once"
        return f"a row of {parts.anchor.relation.id} joins with {most}"

    def _stop(self, name: str, known: Verified, commit: int, total: int, rows: Sequence[Difference]) -> None:
        """The view is wrong, unless its tables have changed in a way that the log does not report: then that is what is
        said."""
        try:
            held = self._pipeline.prover.prove(self._views[name].sources)
        except LostGuarantee as error:
            self._end_run(error)
            return
        if held:
            raise NotNow(f"the tables of {', '.join(sorted(held))} cannot be proven now", fix="Try again.")
        shown = "; ".join(_cut(str(row)) for row in rows[:_SHOWN])
        differ = "1 row differs" if total == 1 else f"{total} rows differ"
        wrong = (
            f"the audit compared it with its sources at exactly the positions of commit {commit}, and {differ}: "
            f"{shown}. It was verified through commit {known.commit}"
        )
        if (found := self._warehouse.found_wrong(name, known.generation, wrong)) is not None:
            self._end_run(found)

    def _round(self, name: str, known: Verified) -> tuple[Round, Parts | None]:
        """The round that a view is in, or a new one; and how the view is taken apart, if it is."""
        view, commit, now = self._views[name], self._pipeline.committer.last.number, self._clock()
        first = anchor(view)
        if first is None:
            return known.round or Round(commit, now, 1), None
        if name not in self._keys:
            relation, source = first.relation, self._pipeline.topology.sources[first.source]
            chosen: staging.Chosen = [(relation, relation.key)]
            self._keys[name] = staging.snapshot(self._spark, source.reader(), chosen, self._scratch)
        round_ = known.round
        if round_ is None:
            most = max(self._keys[name].rows(first.relation), inspect.rows_of(self._warehouse.layout, name))
            round_ = Round(commit, now, max(1, ceil(most / self._timing.audit_keys)))
        return round_, Parts(view, first, round_.parts)

    def _difference(self, name: str, parts: Parts | None, part: int) -> Found | None:
        """What differs in a part; None if nothing does."""
        if parts is None:
            return self._compared(name, None, ())
        keys = parts.keys_of_relation(self._keys[name].dataframe(parts.anchor.relation), part)
        shown = reader.snapshot(self._spark, self._warehouse.layout).table(name)
        keys |= parts.keys_of_view(parts.of_view(shown, part))
        return self._compared(name, parts, list(keys))

    def _compared(self, name: str, parts: Parts | None, keys: Sequence[Row]) -> Found | None:
        """The rows of these keys; in halves, where they join with too many."""
        try:
            return self._compared_at_once(name, parts, keys)
        except TooLarge:
            if len(keys) < 2:
                raise
        half = len(keys) // 2
        return self._compared(name, parts, keys[:half]) or self._compared(name, parts, keys[half:])

    def _compared_at_once(self, name: str, parts: Parts | None, keys: Sequence[Row]) -> Found | None:
        view = self._views[name]
        commit, relations = self._read(view, parts, keys)
        rows = reader.snapshot(self._spark, self._warehouse.layout, commit).table(name)
        recomputed = computed(self._spark, view, relations)
        if parts is not None:
            rows, recomputed = (parts.with_keys(self._spark, each, keys) for each in (rows, recomputed))
        total, found = differences(rows, recomputed)
        return (commit, total, found) if total else None

    def _read(self, view: View, parts: Parts | None, keys: Sequence[Row]) -> tuple[int, dict[str, Bag]]:
        """A commit, and the rows of the view's relations at its positions."""
        sources, timing = self._pipeline.topology.sources, self._timing
        retry = Retry(AUDIT, self._ended.wait)
        while True:
            with self._pipeline.tapped(view) as tap:
                commit, at = self._standing(view.name, tap)
                part = PartReader(view, sources, tap, self._ended.is_set, timing.audit_rows, timing.audit_wait)
                try:
                    return commit, part.read(at, None if parts is None else parts.anchor, keys)
                except Contested:
                    if not retry.again():
                        raise

    def _standing(self, name: str, tap: Tap) -> tuple[int, dict[str, Position]]:
        """A commit, and the view's positions at it, from which on the tap has everything."""
        deadline = time.monotonic() + self._timing.audit_wait
        while True:
            for source in tap.since:
                tap.kept(source)  # raises if there is too much
            last, at = self._pipeline.standing(name)
            if all(tap.since[source] <= at[source] for source in tap.since):
                return last.number, at
            if self._ended.wait(STEP) or time.monotonic() > deadline:
                raise NotNow("commits are behind what has been read of the sources", fix="Try again.")


def _cut(text: str) -> str:
    return text if len(text) <= _ROW else f"{text[: _ROW - 1]}…"
