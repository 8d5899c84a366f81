"""Answers the managers' queries: small ones on the driver, large ones through Spark, each in one snapshot of its
source.

A source has as many connections as it allows (two by default), so that one view's slow question does not hold up
another's. Questions of all views that wait for a connection are pooled: they are answered one after another in one
snapshot, and what several of them ask for is read once. Questions that fail are asked again, with back-off, for as
long as the run lasts. Those that fail for a reason of a table, while the source answers others (permission denied, a
lock), have a connection of their own for that: they hold up no view but those that ask this table.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.errors import LostGuarantee, RowOf, StrobeError
from strobe.failpoints import reach
from strobe.messages import Answer, Lookup, Query, Seen
from strobe.pipeline.health import Failing, Health, Refused
from strobe.retry import ASK_SOURCE, Retry
from strobe.sources.base import Reader, Source, TooLarge, contained
from strobe.sources.lookups import answer_on_driver, answer_within, read_bag

POOLED = 16
"""Questions that are answered in one snapshot, at the most."""

REMEMBERED = 10_000
"""Larger results are not kept for other questions."""

SAMPLE = 50
"""Rows of an answer whose size is looked at; the others are taken to be as large."""


@dataclass
class QueryCounts:
    """What a source was asked so far."""

    queries: int = 0
    snapshots: int = 0
    """In how many snapshots these were answered."""
    keys: int = 0
    rows: int = 0
    milliseconds: float = 0.0
    through_spark: int = 0
    """Answers that Spark read, whose rows and bytes are not counted."""
    bytes: int = 0
    """About how many: from a sample of the rows."""


Found = tuple[Query, tuple[Relation, ...], Seen]

Answers = Callable[[Sequence[Query]], Iterator[Found]]


class Unanswered(StrobeError):
    """A question met an error after its snapshot had been opened: a reason of the table that was read."""

    def __init__(self, query: Query, relation: str, error: StrobeError) -> None:
        super().__init__(error.message, where=error.where, fix=error.fix)
        self.query, self.relation, self.error = query, relation, error


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
        most: int,
        health: Health,
        connections: int = 2,
    ) -> None:
        """`from_copy` answers what is asked of a copy that the warehouse keeps. Answers with more rows than `most` are
        read by Spark, unless `evaluate` says otherwise."""
        self._sources = dict(sources)
        self._deliver, self._fail = deliver, fail
        self._through_spark = through_spark
        self._from_copy = from_copy
        self._evaluate, self._most, self._health = evaluate, most, health
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._pools = {
            name: ThreadPoolExecutor(connections, thread_name_prefix=f"answer-{name}") for name in self._sources
        }
        self._waiting: dict[str, deque[Query]] = {name: deque() for name in self._sources}
        self._again = {name: ThreadPoolExecutor(1, thread_name_prefix=f"again-{name}") for name in self._sources}
        self._failures: dict[tuple[str, int], int] = {}
        """By question, how often a table was the reason that it was not answered."""
        self._at_home = ThreadPoolExecutor(1, thread_name_prefix="answer-copies")
        self.asked = {name: QueryCounts() for name in self._sources}

    def ask(self, query: Query) -> None:
        """May be called from any thread; after `stop` nobody waits for an answer."""
        reach("asked")
        if query.at_home:
            self._submit(self._at_home, self._answer, [query], self._from_home)
        else:
            self._wait_in_line([query])

    def stop(self) -> None:
        self._stop.set()
        for pool in (*self._pools.values(), *self._again.values(), self._at_home):
            pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, pool: ThreadPoolExecutor, work: Callable[..., None], *arguments: Any) -> None:
        with self._lock:
            if not self._stop.is_set():
                pool.submit(work, *arguments)

    def _wait_in_line(self, queries: Sequence[Query]) -> None:
        for query in queries:
            if self._health.refuses(query.source, {lookup.relation for lookup in query.lookups}):
                self._ask_again(query)
            else:
                self._waiting[query.source].append(query)
                self._submit(self._pools[query.source], self._serve, query.source)

    def _ask_again(self, query: Query) -> None:
        self._submit(self._again[query.source], self._answer, [query], self._pooled)

    def _serve(self, source: str) -> None:
        """Answer all that wait for a source by now; nothing, if another connection did."""
        with self._lock:
            taken = _together(self._waiting[source])
        self._answer(taken, self._pooled)

    def _answer(self, queries: list[Query], answers: Answers) -> None:
        """Until all have been answered. What one of them meets must not hold up the others: after a failure they wait
        in line again, and the first is tried alone."""
        retry = Retry(ASK_SOURCE, self._stop.wait)
        while queries and not self._stop.is_set():
            source = queries[0].source
            try:
                self._deliver_all(queries, answers)
                self._health.succeeded(source, Failing.QUERIES)
            except LostGuarantee as error:
                self._fail(error)
                return
            except Unanswered as unanswered:
                self._set_aside(unanswered)
                queries.remove(unanswered.query)
                self._wait_in_line(queries)
                return
            except StrobeError as error:
                self._health.failed(source, Failing.QUERIES, error)
                self._wait_in_line(queries[1:])
                del queries[1:]
                if not retry.again():
                    return
            except BaseException as error:  # nobody waits for this future: hand the failure to the loop
                self._fail(error)
                return

    def _set_aside(self, unanswered: Unanswered) -> None:
        """Ask this question again later, and let the others go on."""
        query = unanswered.query
        self._health.succeeded(query.source, Failing.QUERIES)
        self._health.refused(query, unanswered.relation, unanswered.error)
        failures = self._failures[query.view, query.id] = self._failures.get((query.view, query.id), 0) + 1
        later = threading.Timer(ASK_SOURCE.wait(failures), self._ask_again, [query])
        later.daemon = True
        later.start()

    def _deliver_all(self, queries: list[Query], answers: Answers) -> None:
        """Deliver each answer as soon as it is there; what is left of `queries` has not been answered."""
        started = time.perf_counter()
        for query, relations, seen in answers(tuple(queries)):
            queries.remove(query)
            now = time.perf_counter()
            self._count(query, relations, now - started)
            started = now
            reach("answered")
            self._health.answered(query)
            self._failures.pop((query.view, query.id), None)
            self._deliver(Answer(query.view, query.id, query.source, relations, seen))

    def _from_home(self, queries: Sequence[Query]) -> Iterator[Found]:
        for query in queries:
            yield query, *self._from_copy(query)

    def _pooled(self, queries: Sequence[Query]) -> Iterator[Found]:
        """Answer these in one snapshot; then, each in its own, those that are too large for the driver."""
        source = self._sources[queries[0].source]
        large = list(queries) if self._evaluate == "spark" else []
        if not large:
            limit = self._most if self._evaluate == "auto" else 2**62
            self.asked[source.name].snapshots += 1
            with contained(source.name), PooledSnapshot(source.reader(), queries) as snapshot:
                for query in queries:
                    try:
                        with contained(source.name):
                            relations = answer_within(query, limit, snapshot.read)
                    except TooLarge:
                        large.append(query)
                    except LostGuarantee:
                        raise
                    except StrobeError as error:
                        raise Unanswered(query, snapshot.reads, error) from error
                    else:
                        yield query, relations, snapshot.seen
        for query in large:
            self.asked[source.name].snapshots += 1
            with contained(source.name):
                answered = self._through_spark(source, query)
            yield query, *answered

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


def _together(waiting: deque[Query]) -> list[Query]:
    """The next questions to answer: all that wait, but one that reads a whole relation alone: nobody awaits it."""
    taken: list[Query] = []
    while waiting and len(taken) < POOLED and not (taken and any(map(_reads_all, (taken[0], waiting[0])))):
        taken.append(waiting.popleft())
    return taken


def _reads_all(query: Query) -> bool:
    return any(lookup.keys is None and lookup.keys_from is None for lookup in query.lookups)


class PooledSnapshot:
    """One snapshot of a source, in which several questions are answered; what more than one asks for is read once."""

    def __init__(self, reader: Reader, queries: Sequence[Query]) -> None:
        self._reader = reader
        lookups = [lookup for query in queries for lookup in query.lookups]
        self._columns = {
            relation: tuple(
                dict.fromkeys(c for lookup in lookups if lookup.relation == relation for c in lookup.columns)
            )
            for relation in {lookup.relation for lookup in lookups}
        }
        self._alone = len(queries) == 1
        self.reads = ""
        """The relation that was looked up last."""
        self._found: dict[tuple[str, tuple[str, ...], frozenset[Row] | None], Bag] = {}

    def __enter__(self) -> PooledSnapshot:
        self.seen = self._reader.open()
        return self

    def __exit__(self, *_: object) -> None:
        self._reader.close()

    def read(self, lookup: Lookup, keys: list[Row] | None, limit: int) -> Bag:
        self.reads = lookup.relation
        if self._alone:
            return read_bag(self._reader, lookup, keys, limit)
        asked = lookup.relation, lookup.on, None if keys is None else frozenset(keys)
        found = self._found.get(asked)
        if found is None:
            found = read_bag(self._reader, replace(lookup, columns=self._columns[lookup.relation]), keys, limit)
            if len(found) <= REMEMBERED:
                self._found[asked] = found
        if len(found) > limit:
            raise TooLarge
        return found.project(lookup.columns)


def can_be_asked(source: Source, refused: Refused) -> bool:
    """Whether the table answers again because of which a question was not answered."""
    lookup = next(found for found in refused.query.lookups if found.relation == refused.relation)
    keys = lookup.keys if isinstance(lookup.keys, Bag) else None
    question = replace(refused.query, lookups=(replace(lookup, keys=keys, keys_from=None),))
    try:
        with contained(source.name):
            answer_on_driver(source.reader(), question, 0)
    except TooLarge:
        return True
    except StrobeError:
        return False
    return True


def has_changed(source: Source, row: RowOf) -> bool:
    """Whether a source has not this row any more, but another one or none with its key; asked by the key alone."""
    key = tuple(row.values[row.columns.index(column)] for column in row.key)
    lookup = Lookup(0, row.relation, row.columns, row.key, Bag.of(row.key, [key]))
    try:
        with contained(source.name):
            ((found,), _) = answer_on_driver(source.reader(), Query("", 0, source.name, (lookup,)), REMEMBERED)
    except (TooLarge, StrobeError):
        return False
    return row.values not in dict(found.items())


def _size(rows: Bag) -> int:
    """About how many bytes these rows have: text and binary by their length, anything else as 8."""
    sample = [row for row, _ in islice(rows.items(), SAMPLE)]
    found = sum(len(value) if isinstance(value, (str, bytes)) else 8 for row in sample for value in row)
    return found * len(rows) // len(sample) if sample else 0
