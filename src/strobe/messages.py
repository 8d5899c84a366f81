"""What the boxes say to each other.

    source ── Transaction ──▶ integrator ── Update ──▶ view manager ── ActionList ──▶ merge ── WarehouseTransaction
    ── Commit ──▶ warehouse
                                  ├── Cut ──▶ view manager                              ▲
                                  └── Rel ────────────────────────────────────────────────┘
    view manager ── Query ──▶ source ── Answer ──▶ view manager

All are frozen, can be printed, and (with `strobe.engine.recording`) written down and replayed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from typing import TypeVar

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound
from strobe.algebra.relation import Relation

T = TypeVar("T")


class Immutable:
    """A copy of it is itself: the simulator copies whole worlds at every fork of a schedule."""

    __slots__ = ()

    def __deepcopy__(self: T, _memo: object) -> T:
        return self


@dataclass(frozen=True, slots=True)
class Position(Immutable):
    """A place in a source's log. `text` is what is stored and shown; `order` is what is compared."""

    text: str = field(compare=False)
    order: tuple[int, ...]

    def __lt__(self, other: Position) -> bool:
        return self.order < other.order

    def __le__(self, other: Position) -> bool:
        return self.order <= other.order

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class GlobalTransaction(Immutable):
    """A transaction over several sources, by the identifier that its parts carry, and the sources that take part."""

    id: str
    participants: frozenset[str]


@dataclass(frozen=True)
class Parts(Immutable):
    """What a source's log has of global transactions up to some position: each with the time at which its part there
    was committed."""

    committed: Mapping[GlobalTransaction, datetime] = field(default_factory=dict)
    since: datetime | None = None
    """From when on none is missing here; None if that cannot be told."""

    @property
    def ids(self) -> frozenset[str]:
        return frozenset(part.id for part in self.committed)


@dataclass(frozen=True, slots=True)
class TransactionInfo(Immutable):
    """Which transaction of a source it is, without its rows."""

    source: str
    position: Position
    committed_at: datetime | None = None
    part_of: tuple[GlobalTransaction, ...] = ()
    """The global transactions of which this is the part at its source, where the source reports them."""
    xid: int | None = None
    """The source's own identifier, where it decides which transactions a snapshot includes."""


@dataclass(frozen=True)
class Departed(Immutable):
    """Rows that left a relation all at once, by a statement, as a partition's do when it is dropped."""

    what: str
    """What happened, as a clause."""
    bound: Bound | None = None
    """Which rows they are; None where that cannot be said."""
    unknown: str = ""
    """Why it cannot be said."""
    partition: int | None = None
    """The partition that they were in, as the source numbers it."""
    seen: bool = True
    """Whether rows have come through it since the log is read."""
    late: bool = False
    """Whether they left after the transaction's changes of the relation, and not before: rows in the bound that it
    brought left with them."""


@dataclass(frozen=True, slots=True)
class Transaction(TransactionInfo):
    """A whole source transaction (or what the source reports as one: see the source), in commit order.

    `changes` maps a relation's name to a signed bag over all its watched columns: a modification is one row going and
    one coming, in one message. A transaction without changes says only that the log was read up to `position`.
    """

    changes: Mapping[str, Relation] = field(default_factory=dict)
    gone: Mapping[str, Relation] = field(default_factory=dict)
    """For relations without old row images: the keys of rows that go, over the key's columns. A modification is a key
    that goes and a row, in `changes`, that comes."""
    departed: Mapping[str, tuple[Departed, ...]] = field(default_factory=dict)
    """By relation, rows that went all at once, of which `changes` and `gone` say nothing."""

    @property
    def info(self) -> TransactionInfo:
        return TransactionInfo(self.source, self.position, self.committed_at, self.part_of, self.xid)

    def touched(self, relation: str) -> bool:
        return relation in self.changes or relation in self.gone or relation in self.departed


@dataclass(frozen=True)
class Seen(Immutable):
    """What the snapshot behind an answer had seen, read inside that snapshot.

    Every transaction that it had seen has been reported once the stream has been read up to `through`. A source whose
    log order is not its visibility order overrides `saw`.
    """

    through: Position

    def saw(self, transaction: TransactionInfo) -> bool:
        return transaction.position <= self.through


@dataclass(frozen=True)
class SeenByXid(Seen):
    """What a snapshot had seen where log order is not visibility order: decided by transaction identifiers.

    It had seen those below `xmax`, but for the ones in `running`. It may have seen a later transaction without an
    earlier one.
    """

    xmax: int
    running: frozenset[int] = frozenset()

    def saw(self, transaction: TransactionInfo) -> bool:
        if transaction.xid is None:
            return super().saw(transaction)
        return transaction.xid < self.xmax and transaction.xid not in self.running


@dataclass(frozen=True)
class BroughtBack(Seen):
    """What is left in an answer of what its snapshot had `seen`, after everything later than `through` was taken out
    again."""

    seen: Seen

    def saw(self, transaction: TransactionInfo) -> bool:
        return super().saw(transaction) and self.seen.saw(transaction)


@dataclass(frozen=True, slots=True)
class Update(Immutable):
    """A transaction with the integrator's number."""

    number: int
    transaction: Transaction

    @property
    def source(self) -> str:
        return self.transaction.source


@dataclass(frozen=True)
class Cut(Immutable):
    """Numbers up to and including this one end a block of these views: a strongly consistent manager's action lists end
    at cuts only, so that those of different views can meet."""

    number: int
    views: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Rel(Immutable):
    """The relevant set of an update: which views will send an action list that covers it."""

    number: int
    info: TransactionInfo
    views: frozenset[str]
    empty: bool = False
    """Whether it only moves the position: then it is no transaction of the source's."""
    rows: int = 0
    """How many changed rows it has in memory."""


@dataclass(frozen=True)
class Lookup(Immutable):
    """Rows of one relation, found by equality of columns with keys.

    `keys` is a relation with one attribute for each of `on`, in order; or the index of an earlier look-up of the same
    query together with its columns (`keys_from`), whose values in the rows found there are the keys; or neither, when
    every row is asked for. NULL finds nothing; with `null_safe` it finds NULL. An answer may hold more rows than match,
    never fewer, and never a row twice that is there once.
    """

    occurrence: int
    relation: str
    columns: tuple[str, ...]
    on: tuple[str, ...] = ()
    keys: Relation | None = None
    keys_from: tuple[int, tuple[str, ...]] | None = None
    null_safe: bool = False


@dataclass(frozen=True)
class Query(Immutable):
    """A fragment that one source can answer, in one snapshot. With `whole` an answer to a part of it is no use.

    With `copy` the warehouse is asked for what it keeps of the source, as of its last commit, and not the source; with
    `own` for what the view itself shows, which may be a part of it only.
    """

    view: str
    id: int
    source: str
    lookups: tuple[Lookup, ...]
    whole: bool = False
    copy: bool = False
    own: bool = False

    @property
    def at_home(self) -> bool:
        """Whether it is no question to a source."""
        return self.copy or self.own


@dataclass(frozen=True)
class Answer(Immutable):
    """The rows that each look-up found, over its `columns`, all in one snapshot.

    A source may answer only the first look-ups of a query that is not `whole`; the asker asks again for the rest.
    """

    view: str
    id: int
    source: str
    relations: tuple[Relation, ...]
    seen: Seen


@dataclass(frozen=True)
class KeyDelete(Immutable):
    """*key_delete* of the Strobe paper (5.1): every row of the view with one of these keys in one occurrence goes.

    `keys` is over the attributes of the occurrence's key. What goes is found in the view itself, at the commit.
    """

    occurrence: int
    keys: Relation

    @property
    def empty(self) -> bool:
        return self.keys.known_empty

    def rest(self, rows: Relation) -> Relation:
        """What it leaves of rows of the view."""
        return rows.key_delete(self.keys, [(a, a) for a in self.keys.attributes])


@dataclass(frozen=True)
class BoundDelete(Immutable):
    """Every row of the view goes whose part from one occurrence is in a bound, over the attributes of the view."""

    occurrence: int
    bound: Bound
    empty = False

    def rest(self, rows: Relation) -> Relation:
        return rows.outside(self.bound)


Delete = KeyDelete | BoundDelete


@dataclass(frozen=True)
class Covered(Immutable):
    """Which groups, or partitions of a window, are whole in a fragment: those with one of these keys, over some columns
    by which they are formed. NULL is a key like any other."""

    keys: Relation


@dataclass(frozen=True)
class Fragment(Immutable):
    """What changes a view that is a tree of operators: of each occurrence the rows that matter, by its index, over its
    attributes, before and after. The view changes by what the tree yields over `after`, minus what it yields over
    `before`. An occurrence that is missing has no row that matters.

    `covered` says by the number of an operator which of its groups are whole; where an operator is missing, all are.
    """

    before: Mapping[int, Relation]
    after: Mapping[int, Relation]
    covered: Mapping[int, tuple[Covered, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class ActionList(Immutable):
    """The change of a view that brings it from the state before the covered updates to the state after them.

    First what `deletes` says goes from the view as it is (everything, where the list `replaces` the view); then `delta`
    is added: net and signed, over all attributes of the view. Spark selects and projects it in the plan of the commit.
    Of a view that is a tree of operators there are `fragments` instead of a delta.
    """

    view: str
    covers: tuple[int, ...]
    delta: Relation
    deletes: tuple[Delete, ...] = ()
    replaces: bool = False
    fragments: tuple[Fragment, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether it is certain, without work, that the view stays as it is."""
        return self.delta.known_empty and not self.deletes and not self.replaces and not self.fragments

    @property
    def relations(self) -> tuple[Relation, ...]:
        """All rows that it brings."""
        sides = [side for fragment in self.fragments for side in (fragment.before, fragment.after)]
        return (self.delta, *(rows for side in sides for rows in side.values()))

    @property
    def number(self) -> int:
        return self.covers[-1]


@dataclass(frozen=True)
class WarehouseTransaction(Immutable):
    """Rows of the view-update table that reach the warehouse together: one commit.

    `positions` is the vector of source positions that every view reflects afterwards, as far as it uses those sources;
    `ahead` says it of views that reflect more.
    """

    numbers: tuple[int, ...]
    actions: tuple[ActionList, ...]
    positions: Mapping[str, Position]
    as_of: Mapping[str, datetime] = field(default_factory=dict)
    ahead: Mapping[str, Mapping[str, Position]] = field(default_factory=dict)


@dataclass(frozen=True)
class Removal(Immutable):
    """What a commit takes out of a view, before it adds anything."""

    deletes: tuple[Delete, ...] = ()
    everything: bool = False

    @property
    def empty(self) -> bool:
        return not self.deletes and not self.everything

    def rest(self, rows: Relation) -> Relation:
        """What it leaves of these rows."""
        if self.everything:
            return Bag(rows.attributes)
        for delete in self.deletes:
            rows = delete.rest(rows)
        return rows

    def then(self, other: Removal) -> Removal:
        """Both, one after the other."""
        return other if other.everything else Removal(self.deletes + other.deletes, self.everything)


Positions = Mapping[str, Mapping[str, str]]
Times = Mapping[str, Mapping[str, datetime]]
_EARLIEST = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class CommitHeader(Immutable):
    """What the log says about a commit: where each view stands after it. Without arguments, before the first.

    `generations` names the definition of each view that is in force; it and the epoch of the coordinator that appends
    are the warehouse's to say.
    """

    number: int = 0
    committed_at: datetime = _EARLIEST
    positions: Positions = field(default_factory=dict)
    as_of: Times = field(default_factory=dict)
    identity: Mapping[str, str] = field(default_factory=dict)
    generations: Mapping[str, int] = field(default_factory=dict)
    epoch: int = 0

    def following(self, now: datetime, positions: Positions, as_of: Times) -> CommitHeader:
        """The next one, after which these views stand elsewhere. Times never go back, even if the clock does."""
        return replace(
            self,
            number=self.number + 1,
            committed_at=max(now, self.committed_at + timedelta(microseconds=1)),
            positions={**self.positions, **positions},
            as_of={**self.as_of, **as_of},
        )

    def cut_over(self, now: datetime, arrived: CommitHeader, left: Collection[str] = ()) -> CommitHeader:
        """The next one, with which views come in where another header has them, and others leave."""
        gone = {*arrived.positions, *left}
        kept = {view: times for view, times in self.as_of.items() if view not in gone}
        following = self.following(now, arrived.positions, {})
        return replace(
            following,
            positions={view: vector for view, vector in following.positions.items() if view not in left},
            as_of={**kept, **arrived.as_of},
            identity={**self.identity, **arrived.identity},
        )


@dataclass(frozen=True)
class Commit(Immutable):
    """One atomic step of all views, to be appended to the log: where they stand afterwards, and how their rows change.

    First `removals` go from the views as the commit before left them; then `changes` are added. A view's change is over
    its raw attributes. Spark finds what goes, and selects, projects and nets what comes, in the plan of the append; it
    evaluates the `fragments` of views that are trees of operators.
    """

    header: CommitHeader
    changes: Mapping[str, Relation] = field(default_factory=dict)
    removals: Mapping[str, Removal] = field(default_factory=dict)
    fragments: Mapping[str, tuple[Fragment, ...]] = field(default_factory=dict)

    @property
    def number(self) -> int:
        return self.header.number


Message = Transaction | Update | Cut | Rel | Query | Answer | ActionList | WarehouseTransaction
