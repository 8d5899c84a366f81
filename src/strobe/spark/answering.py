"""Answers queries that are too large for the driver, for as long as a run lasts.

What was read lies in files. Plans of commits read them, so they are kept until everything that was computed from them
has been committed; then whoever runs the pipeline calls `release`, and `close` at its end.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import SparkSession

from strobe.algebra.relation import Relation
from strobe.algebra.view import View
from strobe.data.scratch import Lease, Scratch
from strobe.messages import Query, Seen
from strobe.sources.base import Source
from strobe.spark import staging
from strobe.spark.failures import reading


class LargeAnswers:
    def __init__(self, spark: Callable[[], SparkSession], view: Callable[[str], View], scratch: Scratch) -> None:
        """`view` is the view of a name."""
        self._spark, self._view, self._scratch = spark, view, scratch
        self._leases: list[Lease] = []
        self._closed = False

    def answer(self, source: Source, query: Query) -> tuple[tuple[Relation, ...], Seen]:
        with source.elsewhere() as taken, reading(source.name):
            reader, view = source.reader(), self._view(query.view)
            relations, staged = staging.answer(self._spark(), reader, query, view, self._scratch)
            taken(staged.seen)
        self._leases.append(staged.lease)
        if self._closed:
            self.release()
        return relations, staged.seen

    def release(self) -> None:
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.release()

    def close(self) -> None:
        """The run has ended: nothing needs them, nor what is still being read."""
        self._closed = True
        self.release()
