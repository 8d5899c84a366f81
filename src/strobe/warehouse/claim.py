"""Fences: why a coordinator that was replaced can commit no more.

A coordinator claims an *epoch*, a number above all that were ever claimed, and adds a constraint to the log:

    fence_7: CHECK (epoch >= 7 OR commit <= 1234)

Every row of the log carries the epoch of the coordinator that appended it. Delta checks constraints inside the append,
and an append that races with the new constraint fails because the metadata changed. So from the moment the fence stands
nobody of an older epoch can add a commit after 1234, and the last header read *then* is the last one.

* The name is unique per epoch: of two rivals that claim the same epoch, one fails.
* Against a former coordinator that appends without a pause, the exact bound is overtaken again and again. Then a fence
  with slack goes in first; it stops the appender a few commits later at the latest, and the exact one follows.
* Older fences stay while commits below them remain: a coordinator three epochs old, with an older idea of the next
  number, would pass the newest fence. A fence is dropped when a newer one with the same bound implies it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyspark.sql import SparkSession

from strobe.errors import Fenced, NotNow
from strobe.retry import FENCE
from strobe.warehouse import inspect, storage, tables
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.layout import Layout, sql_path

SLACK = 8
"""Commits that a busy appender may still add before the first fence stops it."""
_PROPERTY = re.compile(r"delta\.constraints\.(fence_(\d+)(_slack)?)")
_BOUND = re.compile(r"commit\s*<=\s*(\d+)")


@dataclass(frozen=True)
class Fence:
    name: str
    epoch: int
    bound: int
    slack: bool


def fences(properties: dict[str, str]) -> list[Fence]:
    """The fences among a log's properties, oldest first."""
    found = []
    for key, expression in properties.items():
        match, bound = _PROPERTY.fullmatch(key), _BOUND.search(expression)
        if match and bound:
            found.append(Fence(match[1], int(match[2]), int(bound[1]), bool(match[3])))
    return sorted(found, key=lambda fence: (fence.epoch, not fence.slack))


def current_epoch(layout: Layout) -> int:
    """The newest epoch that anybody has claimed."""
    return max((fence.epoch for fence in fences(inspect.properties(inspect.open_log(layout)))), default=0)


class Claim:
    """The right to write to a warehouse: its lock, and an epoch above all that were ever claimed."""

    def __init__(self, layout: Layout, lock: CoordinatorLock) -> None:
        self._layout, self._lock = layout, lock
        self.epoch = 0
        """0 while nothing may be appended: before the fence stands, and after an append whose outcome is not known."""

    def lock(self, take_over: bool) -> None:
        """`NotNow` if another coordinator is alive, unless taking over from it."""
        self._lock.acquire(take_over)

    def fence(self, spark: SparkSession) -> None:
        """When this returns, no other coordinator can commit any more."""
        self.epoch = claim(spark, self._layout)

    def ensure(self) -> None:
        """Raise `Fenced` if another coordinator has claimed a newer epoch."""
        self.ensure_there()
        ensure_ours(self._layout, self.epoch)

    def ensure_there(self) -> None:
        """Raise `UserError` if the warehouse was deleted: who writes to it now would begin another one."""
        if self._lock.lost or not storage.exists(self._layout.log):
            raise tables.deleted(self._layout)

    def void(self) -> None:
        """Nothing may be appended until the warehouse is fenced again."""
        self.epoch = 0

    def release(self) -> None:
        self._lock.release()


def claim(spark: SparkSession, layout: Layout) -> int:
    """Claim a new epoch; when this returns, no older coordinator can commit any more."""
    log = inspect.open_log(layout)
    last = inspect.last_header_of(log)
    epoch = 1 + max(current_epoch(layout), last.epoch if last else 0)
    bound = last.number if last else 0
    if not add_fence(spark, layout, f"fence_{epoch}", epoch, bound):
        _insist(spark, layout, epoch)
    drop_implied(spark, layout)
    return epoch


def ensure_ours(layout: Layout, epoch: int) -> None:
    """Raise `Fenced` if another coordinator has claimed a newer epoch."""
    newest = current_epoch(layout)
    if newest > epoch:
        raise Fenced(
            f"another coordinator has taken over (epoch {newest}; this one has {epoch})",
            where=str(layout.root),
            fix="Nothing is lost: the other one goes on from the last commit.",
        )


def drop_implied(spark: SparkSession, layout: Layout, oldest: int = 0) -> None:
    """Drop fences that a newer one implies, and those below which no commit remains."""
    standing = fences(inspect.properties(inspect.open_log(layout)))
    exact = [fence for fence in standing if not fence.slack]
    for fence in standing:
        newer = [other for other in exact if other.epoch >= fence.epoch and other != fence]
        if any(other.bound <= fence.bound for other in newer) or (newer and fence.bound < oldest):
            spark.sql(f"ALTER TABLE {sql_path(layout.log)} DROP CONSTRAINT IF EXISTS {fence.name}")


def _insist(spark: SparkSession, layout: Layout, epoch: int) -> None:
    """Fence off a busy appender: with slack first, more each time that it is overtaken, then exactly."""
    for name, slack in ((f"fence_{epoch}_slack", SLACK), (f"fence_{epoch}", 0)):
        for attempt in range(FENCE.attempts):
            last = inspect.last_header_of(inspect.open_log(layout))
            if add_fence(spark, layout, name, epoch, (last.number if last else 0) + slack * 2**attempt):
                break
        else:
            raise NotNow("the other coordinator could not be fenced off", where=str(layout.root), fix="Try again.")


def add_fence(spark: SparkSession, layout: Layout, name: str, epoch: int, bound: int) -> bool:
    """Whether the fence stands. False if an append came in between; `NotNow` if a rival has claimed the epoch."""
    try:
        spark.sql(
            f"ALTER TABLE {sql_path(layout.log)} ADD CONSTRAINT {name} CHECK (epoch >= {epoch} OR commit <= {bound})"
        )
    except Exception as error:
        message = str(error)
        if "DELTA_NEW_CHECK_CONSTRAINT_VIOLATION" in message or "DELTA_CONCURRENT_APPEND" in message:
            return False
        if "DELTA_CONSTRAINT_ALREADY_EXISTS" in message or "DELTA_METADATA_CHANGED" in message:
            raise NotNow(
                "another coordinator is starting at the same moment",
                where=str(layout.root),
                fix="Leave it to the other one, or try again.",
            ) from error
        raise
    return True
