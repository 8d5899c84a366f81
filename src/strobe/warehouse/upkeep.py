"""Work on the tables that takes long, one piece at a time: fold, drop what is old, compact, empty.

It has a Spark session of its own, because what is set there (Delta's transaction numbers) must not leak into appends,
which go on meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

from pyspark.sql import SparkSession

from strobe.spark.session import in_background, own_session
from strobe.warehouse import folding, retention, storage, view_table
from strobe.warehouse.appender import Appender, guarded
from strobe.warehouse.claim import Claim
from strobe.warehouse.control import todo
from strobe.warehouse.folding import FoundWrong, Hook
from strobe.warehouse.generations import Generations
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Published


class Upkeep:
    def __init__(
        self,
        spark: SparkSession,
        layout: Layout,
        kept: timedelta,
        claim: Claim,
        appender: Appender,
        generations: Callable[[], Generations],
        found_wrong: FoundWrong,
        at: Hook,
    ) -> None:
        """`kept` is how far back commits can be read; `generations` are those of the moment."""
        self._found_wrong = found_wrong
        self._spark, self._session = spark, own_session(spark)
        self._layout, self._kept, self._at = layout, kept, at
        self._claim, self._appender, self._generations = claim, appender, generations
        self.alone = threading.RLock()
        """Whoever holds it has the tables for himself."""

    @contextmanager
    def work(self, failed: str) -> Iterator[SparkSession]:
        """Work alone, in the session for it; `failed` says what could not be done, if something goes wrong."""
        with self.alone, in_background(self._spark), guarded(self._layout, failed):
            yield self._session

    @property
    def busy(self) -> bool:
        """Whether another thread is at it."""
        free = self.alone.acquire(blocking=False)
        if free:
            self.alone.release()
        return not free

    def fold(self) -> Published | None:
        """Bring the view tables up to the last commit and publish their versions; nothing if they are there already."""
        with self.work("the view tables could not be folded") as spark:
            now = self._generations()
            there = tuple(now.in_force.values())
            left = folding.left_since(now.definitions, folding.newest_published(self._layout))
            return folding.fold(
                spark, self._layout, there, left, self._kept, self._at, now.unguaranteed, self._found_wrong
            )

    @property
    def unpublished(self) -> bool:
        """Whether views have come or left with a commit that is not published yet."""
        generations = self._generations()
        newest = folding.newest_published(self._layout)
        came = any(newest is None or d.from_commit > newest.commit for d in generations.in_force.values())
        return came or bool(folding.left_since(generations.definitions, newest))

    def maintain(self) -> None:
        """Drop what is older than the horizon, join small files, delete files that nothing uses."""
        with self.work("old parts of the warehouse could not be dropped") as spark:
            self._claim.ensure()
            newest = self.fold()
            if newest is not None:
                folding.renew(spark, self._layout, newest, self._kept)
            retention.drop_old(spark, self._layout, self._kept, self._appender.appending)
            generations = self._generations()
            in_force = generations.in_force
            if retention.compact(spark, self._layout, tuple(in_force)) and newest is not None:
                folding.publish(self._layout, tuple(in_force.values()), newest.commit)
            known = dict.fromkeys(d.view for d in generations.definitions)
            retention.vacuum(spark, self._layout, [v for v in known if storage.exists(self._layout.view(v))])

    def empty(self) -> None:
        """Take the rows out of the tables of views that have left, where that was asked for.

        The tables stay, and with them the versions that past commits name; their files go when nothing needs them.
        """
        control = self._layout.control
        if not todo.read(control, todo.EMPTY):
            return
        with self.work("tables of views that have left could not be emptied") as spark:
            self._claim.ensure()
            wanted, known = todo.read(control, todo.EMPTY), self._generations().definitions
            gone = [d for d in known if d.to_commit is not None and wanted.get(d.view) == d.generation]
            folding.settle(spark, self._layout, gone, self._at)
            for definition in gone:
                view_table.empty(spark, self._layout, definition)
            todo.clear(control, todo.EMPTY)
