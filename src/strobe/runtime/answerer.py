"""Answers the managers' queries: small ones on the driver, large ones through Spark, each in one snapshot of its
source.

A source has as many connections as it allows (two by default), so that one view's slow question does not hold up
another's. Questions that fail are asked again, with back-off, for as long as the coordinator runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.errors import LostGuarantee, StrobeError
from strobe.messages import Answer, Query, Seen
from strobe.runtime.backoff import Backoff
from strobe.runtime.failpoints import reach
from strobe.sources.base import Source, TooLarge, answer_on_driver

DRIVER_ROWS = 100_000
"""Answers with more rows than this are read and joined by Spark."""

SAMPLE = 50
"""Rows of an answer whose size is looked at; the others are taken to be as large."""


@dataclass
class Asked:
    """What a source was asked so far."""

    queries: int = 0
    keys: int = 0
    rows: int = 0
    milliseconds: float = 0.0
    through_spark: int = 0
    """Answers that Spark read, whose rows and bytes are not counted."""
    bytes: int = 0
    """About how many: from a sample of the rows."""


SparkAnswer = Callable[[Source, Query], tuple[tuple[Relation, ...], Seen]]
"""Answers the first look-up of a query through Spark."""


class Answerer:
    def __init__(
        self,
        sources: Mapping[str, Source],
        *,
        deliver: Callable[[Answer], None],
        fail: Callable[[BaseException], None],
        through_spark: SparkAnswer,
        from_copy: Callable[[Query], tuple[tuple[Relation, ...], Seen]],
        evaluate: str,
        connections: int = 2,
    ) -> None:
        """`from_copy` answers what is asked of a copy that the warehouse keeps."""
        self._sources = dict(sources)
        self._deliver, self._fail = deliver, fail
        self._through_spark = through_spark
        self._from_copy = from_copy
        self._evaluate = evaluate
        self._stop = threading.Event()
        self._pools = {
            name: ThreadPoolExecutor(connections, thread_name_prefix=f"answer-{name}") for name in self._sources
        }
        self._at_home = ThreadPoolExecutor(1, thread_name_prefix="answer-copies")
        self.asked = {name: Asked() for name in self._sources}
        self.problems: dict[str, StrobeError] = {}

    def ask(self, query: Query) -> None:
        reach("asked")
        pool = self._at_home if query.at_home else self._pools[query.source]
        pool.submit(self._answer, query)

    def stop(self) -> None:
        self._stop.set()
        for pool in (*self._pools.values(), self._at_home):
            pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, query: Query) -> None:
        backoff = Backoff(self._stop)
        while not self._stop.is_set():
            try:
                started = time.perf_counter()
                relations, seen = self._evaluate_query(query)
                self._count(query, relations, time.perf_counter() - started)
                self.problems.pop(query.source, None)
                reach("answered")
                self._deliver(Answer(query.view, query.id, query.source, relations, seen))
                return
            except LostGuarantee as error:
                self._fail(error)
                return
            except StrobeError as error:
                self.problems[query.source] = error
                if not backoff.pause():
                    return
            except BaseException as error:  # nobody waits for this future: hand the failure to the coordinator
                self._fail(error)
                return

    def _evaluate_query(self, query: Query) -> tuple[tuple[Relation, ...], Seen]:
        if query.at_home:
            return self._from_copy(query)
        source = self._sources[query.source]
        if self._evaluate != "spark":
            try:
                limit = DRIVER_ROWS if self._evaluate == "auto" else 2**62
                return answer_on_driver(source.reader(), query, limit)
            except TooLarge:
                pass
        return self._through_spark(source, query)

    def _count(self, query: Query, relations: tuple[Relation, ...], seconds: float) -> None:
        if query.at_home:
            return
        asked = self.asked[query.source]
        asked.queries += 1
        asked.keys += sum(len(lookup.keys) for lookup in query.lookups if isinstance(lookup.keys, Bag))
        asked.rows += sum(len(relation) for relation in relations if isinstance(relation, Bag))
        asked.bytes += sum(_size(relation) for relation in relations if isinstance(relation, Bag))
        asked.milliseconds += seconds * 1000
        asked.through_spark += any(not isinstance(relation, Bag) for relation in relations)


def _size(rows: Bag) -> int:
    """About how many bytes these rows have: text and binary by their length, anything else as 8."""
    sample = [row for row, _ in islice(rows.items(), SAMPLE)]
    found = sum(len(value) if isinstance(value, (str, bytes)) else 8 for row in sample for value in row)
    return found * len(rows) // len(sample) if sample else 0
