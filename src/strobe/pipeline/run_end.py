"""Why a run of the pipeline has ended: a value that it returns. What follows is the coordinator's to say."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from strobe import errors

Error = TypeVar("Error", bound=BaseException)


class RunEnd:
    def check(self) -> None:
        """Raise what the run failed with, if it did."""


@dataclass(frozen=True)
class Stopped(RunEnd):
    """It was asked to: by a signal, because its time is over, or because nothing is left to do."""


@dataclass(frozen=True)
class MembersChanged(RunEnd):
    """Sources came or went, or a global transaction ties groups together: other views are kept, or in other groups."""

    detached: frozenset[str] = frozenset()
    """The sources without which to go on."""


@dataclass(frozen=True)
class CutOver(RunEnd):
    """Views have joined or left with the last commit, or could not: its header says which."""


@dataclass(frozen=True)
class Failure(RunEnd, Generic[Error]):
    """Nothing was committed but what was being appended."""

    error: Error

    def check(self) -> None:
        raise self.error


class SourceLost(Failure[errors.SourceLost]):
    """A source, or relations of it, cannot be followed any more."""


class AppendUnknown(Failure[errors.CommitUnknown]):
    """It is not known whether the last append happened."""


class SparkEnded(Failure[errors.SparkLost]):
    """Spark's process is gone."""


class Fenced(Failure[errors.Fenced]):
    """Another coordinator has taken over."""


class Failed(Failure[BaseException]):
    """Anything else."""


def ended_with(error: BaseException) -> Failure[Any]:
    """How a run ends in which this happened."""
    if isinstance(error, errors.SourceLost):
        return SourceLost(error)
    if isinstance(error, errors.CommitUnknown):
        return AppendUnknown(error)
    if isinstance(error, errors.SparkLost):
        return SparkEnded(error)
    if isinstance(error, errors.Fenced):
        return Fenced(error)
    return Failed(error)


def decided(end: RunEnd, late: Iterable[BaseException]) -> RunEnd:
    """How a run has ended that came to this end, and in which more failed `late`, until everything had stopped.

    The first failure counts; but an append of unknown outcome counts more than a lost source, which would be found
    again."""
    failed = [end, *map(ended_with, late)] if isinstance(end, Failure) else [ended_with(error) for error in late]
    if failed and isinstance(failed[0], SourceLost):
        return next((found for found in failed if isinstance(found, AppendUnknown)), failed[0])
    return failed[0] if failed else end
