"""Trees as they grow while SQL is read: operators over values, before it is known which columns are used.

What a draft makes and nobody uses is left out when it becomes a tree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strobe.algebra import tree
from strobe.algebra.schema import RelationSchema
from strobe.algebra.sql_names import Column, Made, Parts, Ref, Value, columns_of, rendered
from strobe.algebra.view import Occurrence, Output

Columns = frozenset[Column]
Sure = frozenset[Parts]
_MOST_KEYS = 8


@dataclass(eq=False)
class Draft:
    """An operator. `needed` is what the operators above it use."""

    needed: Columns = field(default_factory=frozenset, init=False)


@dataclass(eq=False)
class Scanned(Draft):
    occurrence: int
    relation: RelationSchema


@dataclass(eq=False)
class Filtered(Draft):
    child: Draft
    condition: Value
    certain: Sure = frozenset()
    """Values that are not NULL where the condition is true."""


@dataclass(eq=False)
class Projected(Draft):
    """What its child has, and computed columns."""

    child: Draft
    made: dict[Made, Value]


@dataclass(frozen=True)
class Match:
    """An equality between columns of two sides."""

    left: Column
    right: Column
    null_safe: bool = False

    @property
    def turned(self) -> Match:
        return Match(self.right, self.left, self.null_safe)


@dataclass(eq=False)
class Joined(Draft):
    left: Draft
    right: Draft
    kind: tree.JoinKind
    pairs: tuple[Match, ...]
    conditions: tuple[Value, ...] = ()
    merged: dict[Made, tuple[Column, Column]] = field(default_factory=dict)


@dataclass(eq=False)
class Kept(Draft):
    left: Draft
    right: Draft
    pairs: tuple[Match, ...]
    conditions: tuple[Value, ...]
    negated: bool


@dataclass(eq=False)
class United(Draft):
    branches: tuple[Draft, ...]
    outputs: dict[Made, tuple[Column, ...]]
    cast: frozenset[Made]


@dataclass(eq=False)
class Exploded(Draft):
    child: Draft
    generator: Value
    made: tuple[Made, ...]
    outer: bool


@dataclass(eq=False)
class Grouped(Draft):
    child: Draft
    by: tuple[Column, ...]
    outputs: dict[Made, Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Ties:
    """What breaks the ties of a window: columns of the query in which it is."""

    place: int
    columns: tuple[Column, ...]
    whole: bool
    """Whether all of them are needed, rather than those that are used anyway."""


@dataclass(frozen=True)
class Over:
    """A window function: its text, cut wherever OVER and its parentheses go, in which the ties come after the order."""

    pieces: tuple[Parts, ...]
    order: tuple[Value, ...]
    frame: Parts
    ties: Ties | None

    @property
    def columns(self) -> Columns:
        return columns_of((*map(Value, self.pieces), Value(self.frame), *self.order))


@dataclass(eq=False)
class Windowed(Draft):
    child: Draft
    by: tuple[Column, ...]
    outputs: dict[Made, Over]


def below(draft: Draft) -> tuple[Draft, ...]:
    if isinstance(draft, (Joined, Kept)):
        return (draft.left, draft.right)
    if isinstance(draft, United):
        return draft.branches
    return () if isinstance(draft, Scanned) else (draft.child,)  # type: ignore[attr-defined]


def offered(draft: Draft) -> Callable[[Column], bool]:
    """Whether a draft's rows have a column."""
    occurrences: set[int] = set()
    made: set[Made] = set()
    exactly: set[Column] = set()
    waiting = [draft]
    while waiting:
        found = waiting.pop()
        if isinstance(found, Scanned):
            occurrences.add(found.occurrence)
        elif isinstance(found, United):
            made |= found.outputs.keys()
        elif isinstance(found, Grouped):
            made |= found.outputs.keys()
            exactly |= set(found.by)
        elif isinstance(found, Kept):
            waiting.append(found.left)
        else:
            waiting += below(found)
            made |= set(_made(found))
    return lambda c: c in exactly or (c.occurrence in occurrences if isinstance(c, Ref) else c in made)


def _made(draft: Draft) -> Iterable[Made]:
    if isinstance(draft, (Projected, Exploded)):
        return draft.made
    if isinstance(draft, Joined):
        return draft.merged
    return draft.outputs if isinstance(draft, Windowed) else ()


# ── what is certain of rows ──────────────────────────────────────────────────────────────────────────────────────────


def certain(draft: Draft) -> Sure:
    """Values that are never NULL: columns, and what a filter says of more."""
    if isinstance(draft, Scanned):
        return frozenset((Ref(draft.occurrence, column),) for column in draft.relation.key)
    if isinstance(draft, Filtered):
        return certain(draft.child) | draft.certain
    if isinstance(draft, Joined):
        if draft.kind is tree.JoinKind.FULL:
            return frozenset()
        if draft.kind is tree.JoinKind.LEFT:
            return certain(draft.left)
        equal = {(c,) for pair in draft.pairs if not pair.null_safe for c in (pair.left, pair.right)}
        return certain(draft.left) | certain(draft.right) | equal
    if isinstance(draft, Kept):
        equal = {(pair.left,) for pair in draft.pairs if not pair.null_safe and not draft.negated}
        return certain(draft.left) | equal
    if isinstance(draft, United):
        each = [certain(branch) for branch in draft.branches]
        return frozenset(
            (made,) for made, of in draft.outputs.items() if all((c,) in sure for c, sure in zip(of, each, strict=True))
        )
    if isinstance(draft, Grouped):
        return certain(draft.child) & frozenset((column,) for column in draft.by)
    if isinstance(draft, Projected):
        sure = certain(draft.child)
        return sure | {(made,) for made, value in draft.made.items() if value.parts in sure}
    return certain(draft.child)  # type: ignore[attr-defined]


def keys(draft: Draft) -> list[Columns]:
    """Sets of columns, never NULL, of which no two rows have the same values."""
    if isinstance(draft, Scanned):
        key = draft.relation.key
        return [frozenset(Ref(draft.occurrence, column) for column in key)] if key else []
    if isinstance(draft, Joined):
        return _keys_of_join(draft)
    if isinstance(draft, Kept):
        return keys(draft.left)
    if isinstance(draft, Grouped):
        by = frozenset(draft.by)
        return [by] if by and {(column,) for column in by} <= certain(draft.child) else []
    if isinstance(draft, (United, Exploded)):
        return []
    return keys(draft.child)  # type: ignore[attr-defined]


def _groups(draft: Draft) -> list[Columns]:
    """What rows are grouped by, each combination of which is there once, even with NULLs."""
    while isinstance(draft, (Filtered, Projected, Windowed)):
        draft = draft.child
    return [frozenset(draft.by)] if isinstance(draft, Grouped) else []


def _keys_of_join(draft: Joined) -> list[Columns]:
    if draft.kind is tree.JoinKind.FULL:
        return []
    left, right = keys(draft.left), keys(draft.right)
    one_right = any(key <= {pair.right for pair in draft.pairs} for key in (*right, *_groups(draft.right)))
    if draft.kind is tree.JoinKind.LEFT:
        return left if one_right else []
    one_left = any(key <= {pair.left for pair in draft.pairs} for key in (*left, *_groups(draft.left)))
    found = (left if one_right else []) + (right if one_left else [])
    return found or [a | b for a in left for b in right][:_MOST_KEYS]


# ── conditions, as deep as they mean the same ────────────────────────────────────────────────────────────────────────


def placed(draft: Draft, condition: Value, sure: Sure = frozenset()) -> Draft:
    """The rows for which a condition is true, which is applied as early as it means the same: directly on a relation
    where it speaks of its columns alone."""
    inner = _lower(draft, condition.columns)
    if inner is None:
        return Filtered(draft, condition, sure)
    setattr(draft, inner, placed(getattr(draft, inner), condition, sure))
    return draft


def _lower(draft: Draft, columns: Columns) -> str | None:
    """The side of a draft into which a condition on some columns can go."""
    if not columns:
        return None
    if isinstance(draft, Joined):
        for side in ("left", "right") if draft.kind is tree.JoinKind.INNER else ("left",):
            if draft.kind is not tree.JoinKind.FULL and all(map(offered(getattr(draft, side)), columns)):
                return side
        return None
    if isinstance(draft, Kept):
        return "left"
    if isinstance(draft, (Projected, Exploded)):
        return None if columns & set(draft.made) else "child"
    if isinstance(draft, Filtered):
        return "child" if _lower(draft.child, columns) else None
    if isinstance(draft, (Grouped, Windowed)):
        return "child" if columns <= set(draft.by) else None
    return None


# ── which columns are used ───────────────────────────────────────────────────────────────────────────────────────────


def need(draft: Draft, wanted: Columns, ties: dict[int, set[int]]) -> None:
    """Notes with every draft what is needed of it. `ties` has by place which columns break ties there: it grows."""
    draft.needed = wanted
    if isinstance(draft, Filtered):
        need(draft.child, wanted | draft.condition.columns, ties)
    elif isinstance(draft, Projected):
        used = [value for made, value in draft.made.items() if made in wanted]
        need(draft.child, (wanted - draft.made.keys()) | columns_of(used), ties)
    elif isinstance(draft, Joined):
        both = wanted | columns_of(draft.conditions) | _ends(draft.pairs)
        both |= {c for made, sides in draft.merged.items() if made in wanted for c in sides}
        need(draft.left, both - draft.merged.keys(), ties)
        need(draft.right, both - draft.merged.keys(), ties)
    elif isinstance(draft, Kept):
        need(draft.left, wanted | columns_of(draft.conditions) | _ends(draft.pairs), ties)
        need(draft.right, columns_of(draft.conditions) | _ends(draft.pairs), ties)
    elif isinstance(draft, United):
        _need_branches(draft, wanted, ties)
    elif isinstance(draft, Exploded):
        need(draft.child, (wanted - set(draft.made)) | draft.generator.columns, ties)
    elif isinstance(draft, Grouped):
        if not draft.by and not wanted & draft.outputs.keys():
            draft.needed = frozenset(list(draft.outputs)[:1])
        used = [value for made, value in draft.outputs.items() if made in draft.needed]
        need(draft.child, frozenset(draft.by) | columns_of(used), ties)
    elif isinstance(draft, Windowed):
        _need_window(draft, wanted, ties)


def _ends(pairs: Iterable[Match]) -> Columns:
    return frozenset(c for pair in pairs for c in (pair.left, pair.right))


def _need_branches(draft: United, wanted: Columns, ties: dict[int, set[int]]) -> None:
    if not wanted & draft.outputs.keys():
        draft.needed = frozenset(list(draft.outputs)[:1])
    for i, branch in enumerate(draft.branches):
        need(branch, frozenset(of[i] for made, of in draft.outputs.items() if made in draft.needed), ties)


def _need_window(draft: Windowed, wanted: Columns, ties: dict[int, set[int]]) -> None:
    used = [over for made, over in draft.outputs.items() if made in wanted]
    inner = wanted - draft.outputs.keys()
    if used:
        inner |= frozenset(draft.by).union(*(over.columns for over in used))
    for over in used:
        if over.ties:
            chosen = ties.setdefault(over.ties.place, set())
            chosen |= {i for i, c in enumerate(over.ties.columns) if over.ties.whole or c in inner}
            inner |= {over.ties.columns[i] for i in chosen}
    need(draft.child, inner, ties)


def settled(draft: Draft, wanted: Columns) -> Mapping[int, Sequence[int]]:
    """What is needed of every draft, and the columns that break ties at each place."""
    ties: dict[int, set[int]] = {}
    while True:
        before = {place: set(chosen) for place, chosen in ties.items()}
        need(draft, wanted, ties)
        if ties == before:
            return {place: sorted(chosen) for place, chosen in ties.items()}


def scans(draft: Draft) -> list[Scanned]:
    found: list[Scanned] = []
    waiting = [draft]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Scanned):
            found.append(each)
        waiting += below(each)
    return found


# ── the tree ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class Planter:
    """Makes the tree of drafts whose needs are settled."""

    def __init__(self, occurrences: Sequence[Occurrence], ties: Mapping[int, Sequence[int]], unit: str) -> None:
        self.occurrences = occurrences
        self.ties = ties
        self.unit = unit
        self.names: dict[Made, str] = {}
        self.numbers = 0

    def name(self, made: Made) -> str:
        return self.names.setdefault(made, f"x{len(self.names)}")

    def column(self, column: Column) -> str:
        if isinstance(column, Made):
            return self.name(column)
        return self.occurrences[column.occurrence].attribute(column.column)

    def text(self, value: Value) -> str:
        for column in value.parts:
            if isinstance(column, Made):
                self.name(column)
        return rendered(value, self.occurrences, self.names)

    def condition(self, values: Sequence[Value]) -> str | None:
        return " AND ".join(f"({self.text(value)})" for value in values) or None

    def pairs(self, pairs: Sequence[Match]) -> tuple[tree.Pair, ...]:
        return tuple(tree.Pair(self.column(p.left), self.column(p.right), p.null_safe) for p in pairs)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers - 1

    def grown(self, draft: Draft) -> tree.Operator:
        if isinstance(draft, Scanned):
            return tree.Scan(self.occurrences[draft.occurrence])
        if isinstance(draft, Filtered):
            return tree.Filter(self.grown(draft.child), self.text(draft.condition))
        if isinstance(draft, Projected):
            return self.projected(draft)
        if isinstance(draft, Joined):
            left, right = self.grown(draft.left), self.grown(draft.right)
            merged = tuple(
                tree.Merged(self.name(made), self.column(a), self.column(b))
                for made, (a, b) in draft.merged.items()
                if made in draft.needed
            )
            condition = self.condition(draft.conditions)
            return tree.Join(left, right, self.pairs(draft.pairs), condition, draft.kind, merged)
        if isinstance(draft, Kept):
            left, right = self.grown(draft.left), self.grown(draft.right)
            return tree.Exists(left, right, self.pairs(draft.pairs), self.condition(draft.conditions), draft.negated)
        if isinstance(draft, United):
            branches = tuple(map(self.grown, draft.branches))
            used = [(made, of) for made, of in draft.outputs.items() if made in draft.needed]
            outputs = tuple((self.name(made), tuple(map(self.column, of))) for made, of in used)
            return tree.Union(branches, outputs, frozenset(self.name(made) for made, _ in used if made in draft.cast))
        if isinstance(draft, Exploded):
            child = self.grown(draft.child)
            return tree.Explode(child, self.text(draft.generator), tuple(map(self.name, draft.made)), draft.outer)
        if isinstance(draft, Grouped):
            child = self.grown(draft.child)
            used_values = [(made, value) for made, value in draft.outputs.items() if made in draft.needed]
            made_here = tuple(Output(self.name(made), self.text(value)) for made, value in used_values)
            return tree.Group(child, self.number(), tuple(map(self.column, draft.by)), made_here)
        if isinstance(draft, Windowed):
            return self.windowed(draft)
        raise TypeError(draft)

    def projected(self, draft: Projected) -> tree.Operator:
        child = self.grown(draft.child)
        made = [Output(self.name(m), self.text(v)) for m, v in draft.made.items() if m in draft.needed]
        if not made:
            return child
        used = {self.column(c) for c in draft.needed if c not in draft.made}
        passed = [Output(c, c) for c in child.columns if c in used]
        return tree.Project(child, (*passed, *made))

    def windowed(self, draft: Windowed) -> tree.Operator:
        child = self.grown(draft.child)
        used = [(made, over) for made, over in draft.outputs.items() if made in draft.needed]
        if not used:
            return child
        by = tuple(map(self.column, draft.by))
        outputs = tuple(Output(self.name(made), self.over(by, over)) for made, over in used)
        return tree.Window(child, self.number(), by, outputs)

    def over(self, by: Sequence[str], over: Over) -> str:
        order = [self.text(value) for value in over.order]
        if over.ties:
            order += [self.column(over.ties.columns[i]) for i in self.ties[over.ties.place]]
        ordered = f" ORDER BY {', '.join(order)}" if order else ""
        frame = f" {self.text(Value(over.frame))}" if over.frame else ""
        window = f" OVER (PARTITION BY {', '.join((self.unit, *by))}{ordered}{frame})"
        return window.join(self.text(Value(piece)) for piece in over.pieces)
