"""One append at a time, and what it means if one fails."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from strobe.errors import BrokenInvariant, CommitUnknown, Fenced
from strobe.messages import Commit, CommitHeader
from strobe.spark.failures import FAILURES, cause, remedy
from strobe.warehouse import fragments, inspect, log
from strobe.warehouse.claim import Claim
from strobe.warehouse.evaluation import UNFIT, failing_view
from strobe.warehouse.folding import Hook
from strobe.warehouse.layout import Layout
from strobe.warehouse.log import Batch
from strobe.warehouse.reader import ViewsAtCommit

APPENDS = "strobe appends"
"""The group of Spark jobs under which appends run: one job each, if all goes well."""


class Appender:
    def __init__(self, spark: SparkSession, layout: Layout, claim: Claim, at: Hook) -> None:
        self._spark, self._layout, self._claim, self._at = spark, layout, claim, at
        self._one_task = fragments.one_task_session(spark)
        self.last: CommitHeader | None = None
        """The last header, as this coordinator knows it."""
        self.appending = threading.RLock()
        """Whoever holds it keeps others from appending."""

    def append(self, batches: Sequence[Batch]) -> CommitHeader:
        """Append all commits or none, in one Spark job; returns the last header, as it is in the log."""
        commits = [commit for batch in batches for commit in batch.commits]
        with self.appending:
            self.check_numbers(commits)
            self._claim.ensure_there()
            self._at("append.before")
            described = f"Strobe: commits {commits[0].number} to {commits[-1].number}"
            self._spark.sparkContext.setJobGroup(APPENDS, described)
            try:
                few = all(small for batch in batches for _, small in batch.carried.values())
                spark = self._one_task if few and fragments.in_memory(commits) else self._spark
                log.append(spark, self._layout, self._claim.epoch, batches, self.stored)
            except (Py4JError, PySparkException, *UNFIT) as error:
                raise self._diagnosis(batches, error) from error
            except OSError as error:
                raise self._unknown(error) from error
            self.last = batches[-1].headers(self._claim.epoch)[-1]
            self._at("append.after")
            return self.last

    def check_numbers(self, commits: Sequence[Commit]) -> None:
        """That these commits are the next ones, and may be appended."""
        where = str(self._layout.root)
        if not self._claim.epoch:
            raise BrokenInvariant("an append without a fence", where=where)
        first = self.last.number + 1 if self.last else 1
        numbers = [commit.number for commit in commits]
        if not numbers or numbers != list(range(first, first + len(numbers))):
            raise BrokenInvariant(f"commits {numbers} do not follow commit {first - 1}", where=where)

    def stored(self, view: str, spark: SparkSession | None = None) -> tuple[DataFrame, int]:
        """A view's rows at the last commit, for whoever looks for a few of them."""
        if self.last is None:
            raise BrokenInvariant("rows are removed before the first commit", where=f"view {view}")
        return ViewsAtCommit(spark or self._spark, self._layout, inspect.open_log(self._layout), self.last).pieces(view)

    def _diagnosis(self, batches: Sequence[Batch], error: Exception) -> Exception:
        """What a failed append means: another coordinator took over, a row cannot be computed, or nobody knows."""
        try:
            self._claim.ensure()
            last = inspect.last_header_of(inspect.open_log(self._layout))
            untouched = (last.number if last else 0) < batches[0].commits[0].number
            found = (failing_view(self._spark, b.members, b.commits, b.carried) for b in batches if untouched)
            return next(filter(None, found), None) or self._unknown(error)
        except Fenced as fenced:
            return fenced
        except Exception:
            return self._unknown(error)

    def _unknown(self, error: Exception) -> CommitUnknown:
        self._claim.void()
        return unknown(self._layout, "an append failed, and whether it took place is unknown", error)


def unknown(layout: Layout, what: str, error: Exception) -> CommitUnknown:
    """What Spark or the file system could not do may be done in part: as after a crash."""
    why = cause(error)
    fix = f"{remedy(why)}Strobe starts again from the last commit in the log."
    return CommitUnknown(f"{what}: {why}", where=str(layout.root), fix=fix)


@contextmanager
def guarded(layout: Layout, what: str) -> Iterator[None]:
    """Whatever Spark or the file system cannot do in here is not known to be done or not."""
    try:
        yield
    except FAILURES as error:
        raise unknown(layout, what, error) from error
