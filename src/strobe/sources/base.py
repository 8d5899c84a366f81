"""What Strobe asks of a source: the exactness contract, as an interface.

A source is two things: a *monitor*, which reports transactions, and an *answerer* of queries. Both speak in canonical
values (`algebra.bag.canonical`), each decoded in one way only, whether it comes from the change stream, from an
answer or from a bulk load.

The contract, which one conformance suite (`tests/conformance`) holds every source to:

* Transactions come out whole and in commit order, each with a position. Reading again from a position repeats exactly,
  and no transaction spans a position given in `stops`.
* An answer carries what its snapshot had seen, read inside that snapshot. It has seen a transaction wholly or not at
  all.
* A position belongs to one log. `identity` names it, and `verify` says whether the log still goes back to a position.
* Nothing is written to the users' tables, and no writer waits for longer than the database itself requires.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_tb
from typing import Any, ClassVar

from strobe.algebra.bag import Row
from strobe.algebra.schema import RelationSchema
from strobe.data.scratch import Scratch
from strobe.errors import LostGuarantee, SourceLost, SourceUnavailable, StrobeError, UserError
from strobe.messages import Lookup, Parts, Position, Seen, Transaction


@dataclass(frozen=True)
class Finding:
    """Something that preflight found: `error` stops, `warning` does not."""

    severity: str
    where: str
    message: str
    fix: str = ""


@dataclass(frozen=True)
class Kept:
    """The log that a source keeps for Strobe, and what is to be said about it."""

    bytes: int
    warning: str = ""


class NotUndone(UserError):
    """What Strobe's role may not take out again, with the statements that do; everything else is out."""

    def __init__(
        self, message: str, *, removed: Sequence[str] = (), left: Sequence[str] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.removed, self.left = tuple(removed), tuple(left)


class TooLarge(Exception):
    """An answer or a transaction has more rows than the driver should hold: read it through Spark instead."""


@contextmanager
def contained(source: str) -> Iterator[None]:
    """Around whatever calls a source: what goes wrong in it is a problem of this source, whatever it is, and the views
    of others go on. The error says where, and nothing of the values that were at hand."""
    try:
        yield
    except SourceLost:
        raise
    except LostGuarantee as error:
        where = error.where or f"source {source}"
        raise SourceLost(error.message, source=source, where=where, fix=error.fix) from error
    except (StrobeError, TooLarge, GeneratorExit, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a library that is written in Rust raises no Exception when it panics
        places = [f"{frame.f_globals.get('__name__')}:{line}" for frame, line in walk_tb(error.__traceback__)]
        place = next((found for found in reversed(places) if found.startswith("strobe.")), places[-1])
        message = f"reading it failed in a way that nobody expected: {type(error).__name__} in {place}"
        fix = "It is tried again, and views of other sources go on. If it stays so, please report it."
        raise SourceUnavailable(message, where=f"source {source}", fix=fix) from None


class Reader(ABC):
    """Reads one snapshot of a source. Picklable before it is opened, so that Spark executors can use it as the driver
    does.

    `seen` is fixed when the reader is opened, and everything is read in that one snapshot until it is closed.
    """

    @abstractmethod
    def open(self) -> Seen: ...

    @abstractmethod
    def lookup(self, lookup: Lookup, keys: Iterable[Row] | None) -> Iterator[Row]:
        """Rows over `lookup.columns` in which `lookup.on` equals some of `keys` (distinct), or all rows when keys is
        None. NULL in a key finds NULL: whoever asks leaves out keys that are to find nothing. May yield more rows than
        asked for, never fewer, never one twice for the keys of one call."""

    @abstractmethod
    def scan(self, relation: str, columns: Sequence[str]) -> Iterator[Row]:
        """All rows of a relation, for bulk loads."""

    def rows(self, relation: str) -> int | None:
        """How many rows a relation has, about; None where only reading it would tell."""
        return None

    @contextmanager
    def shared(self, relations: Sequence[str], most: int) -> Iterator[Shared | None]:
        """A new snapshot that several processes, `most` of them at a time, may read as long as this lasts; None where
        only one can. Raises at the end if it did not last."""
        yield None

    def scan_portion(self, relation: str, columns: Sequence[str], number: int) -> Iterator[Row]:
        """All rows of a relation in one of the portions that `Shared` speaks of: every row is in exactly one."""
        raise NotImplementedError

    @abstractmethod
    def close(self) -> None: ...


@dataclass(frozen=True)
class Shared:
    """One snapshot of a source for several processes."""

    seen: Seen
    reader: Reader
    """Opened, it sees the shared snapshot; it may be pickled, and opened as often as one likes."""
    tasks: int
    """How many may read at a time."""
    portions: Mapping[str, int]
    """In how many portions each relation is read."""


SparkStarter = Callable[[], Any]
"""Returns the Spark session, which is started when it is first needed."""


@dataclass(frozen=True)
class Spill:
    """Where the rows of a transaction go that is too large for memory: into files that belong to whoever gets the
    transaction."""

    scratch: Scratch
    rows: int = 100_000
    """That are held in memory."""
    bytes: int = 64 * 2**20
    """That they may have had in the log."""


@dataclass(frozen=True)
class SourceContext:
    """What a source may need of its project, besides its own configuration."""

    project: str
    """What is put into a database carries this name."""
    warehouse: Path
    spark: SparkStarter | None
    """None where Spark must not be started."""


class Source(ABC):
    """One database. All methods may raise `SourceUnavailable` (try again) or `UserError` (mend something first)."""

    name: str
    follows_ddl = False
    """Whether it has `follow_ddl`."""
    unlogged: ClassVar[str] = ""
    """How rows can be changed here so that neither the log nor a fingerprint shows it, as a clause; empty if they
    cannot."""
    spill: Spill | None = None
    """Where the rows of large transactions go; None if they are to be held in memory."""

    @classmethod
    @abstractmethod
    def from_config(cls, name: str, config: Any, context: SourceContext) -> Source:
        """The source that `strobe.yml` describes under this name."""

    @abstractmethod
    def schemas(self) -> tuple[RelationSchema, ...]:
        """The relations on offer, whether watched or not."""

    def focus(self, columns: Mapping[str, Collection[str]]) -> None:  # noqa: B027  # optional: saves work only
        """The relations and columns that views use: others need neither be decoded nor reported in transactions."""

    def beside(self, other: Source) -> None:  # noqa: B027  # optional: most sources can be read twice
        """`other` is the same source, which this process reads already: both will be read for some time."""

    @abstractmethod
    def check(self, relations: Sequence[str]) -> list[Finding]:
        """Preflight: what is missing before these relations can be watched and asked."""

    @abstractmethod
    def prepare_script(self, relations: Sequence[str]) -> list[str]:
        """What `prepare` would execute, statement by statement, for the DBA; empty if nothing is needed."""

    @abstractmethod
    def prepare(self, relations: Sequence[str]) -> None:
        """Put into the source what watching these relations needs; what is there already stays."""

    def partition_keys(self, relations: Sequence[str]) -> Mapping[str, Sequence[str] | None]:
        """Where views follow partitions that leave, the columns whose values tell the partitions of a relation apart;
        None if none do."""
        return {}

    def ddl_script(self) -> list[str]:
        """What `follow_ddl` would execute; empty if nothing is needed."""
        return []

    def follow_ddl(self) -> None:
        """Put into the source what brings statements that take rows out of tables into its log."""
        raise NotImplementedError

    @abstractmethod
    def undo(self) -> list[str]:
        """Take every trace out of the source again; returns what was taken out. `NotUndone` if that may not be done
        with all."""

    @abstractmethod
    def identity(self) -> str:
        """Which database and which log this is; stored in every header and compared at every start."""

    @abstractmethod
    def position(self, text: str) -> Position:
        """A stored position, comparable again."""

    @abstractmethod
    def now(self) -> Position:
        """Where the log ends now: everything committed so far is at or before it."""

    log_unit = "transactions"
    """In which `distance` counts."""

    def distance(self, start: Position, end: Position) -> int:
        """How much log lies between two positions; 0 if the second is not behind the first."""
        return max(0, end.order[0] - start.order[0])

    @abstractmethod
    def verify(self, position: Position) -> None:
        """Raise `LostGuarantee` unless the log still reaches back to this position and really passed through it."""

    @abstractmethod
    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        """What these relations are at this moment, as text for `changed`; empty for one that is not there (any more).

        A fingerprint holds generations, never counts or names alone: of everything on which a relation's rows, what
        Strobe sees of them, or their way into the log depend. If two are equal, nothing of that was touched between the
        two looks, not even to be put back. One that is left out cannot be told at the moment, because a change of it is
        under way. One question to the source, whose cost does not grow with the tables.
        """

    @abstractmethod
    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        """What happened to a relation between two fingerprints, as a clause ("its column price was rewritten"); empty
        if that cannot have altered anything that views see which use these columns, in the rows or in their way into
        the log. What is not known to be harmless is not."""

    def proven(self, before: str, after: str) -> str:
        """What a view rests on from now on that rested on one fingerprint, and has been proven with another."""
        return after

    def was_known(self, partition: int, fingerprint: str) -> bool:
        """Whether a view that rests on this fingerprint has had rows of a partition that left (`Departed`)."""
        return True

    @abstractmethod
    def transactions(
        self, after: Position, stops: Sequence[Position], stopped: Callable[[], bool]
    ) -> Iterator[Transaction]:
        """The transactions after a position, for ever, as they come; blocks while there are none, and returns soon
        after `stopped()` turns true. No transaction spans a position in `stops`."""

    @property
    def warning(self) -> str:
        """About something in the log that is ignored, and that somebody may want to change; empty if there is none."""
        return ""

    def parts(self, through: Position) -> Parts:
        """The global transactions whose parts here are at or before a position, as far back as the log still goes."""
        return Parts()

    @abstractmethod
    def reader(self, *, at_a_position: bool = False) -> Reader:
        """A new reader, not yet open.

        With `at_a_position` its snapshot is exactly what the log had brought by `seen.through`: what a load needs.
        Without, it may have missed a transaction before that position, where log order is not visibility order.
        """

    @contextmanager
    def elsewhere(self) -> Iterator[Callable[[Seen], None]]:
        """While a reader of this source reads in another process; it is told what the reader's snapshot had seen.

        No transaction may be reported that such a snapshot had seen only in part. A source that reports real
        transactions need do nothing about that; one that reports what happened between two looks must not look
        meanwhile.
        """
        yield lambda _seen: None

    def kept(self) -> Kept | None:
        """How much log the source keeps until it may be discarded; None where it keeps none for Strobe."""
        return None

    def guard(self) -> None:  # noqa: B027  # optional: most sources have no limit
        """Raise `LostGuarantee` if more log is kept than may be. Looks now and then, however often it is called."""

    def renew(self) -> None:  # noqa: B027  # optional, like `guard`
        """Let log go if more is kept than may be, and begin a new one: for views that `guard` has had rebuilt."""

    @abstractmethod
    def discard(self, through: Position) -> None:
        """Every view has durably passed this position: log before it may go. Best effort, soon and without blocking."""

    def close(self) -> None:  # noqa: B027  # optional: most sources hold nothing open between calls
        """Release what is held."""
