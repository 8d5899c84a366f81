"""What a unit of changes asks of the relations of a tree, and the fragment that it makes of the answers.

Two functions go down the tree. Both yield rows as far as raw columns show them, from before or after the unit:

    touched(N)      the rows of N that may differ between before and after
    rows(N, C, K)   the rows of N whose raw columns C have a value in K; NULL equals NULL

They may yield too many rows, since filters and what is left of ON are Spark's to evaluate, and never too few. What
`rows` asks of an occurrence, with the changed rows, is the unit's fragment. Of it two things hold, by induction:

    (A) after `rows(N, C, K)`, N over the fragment is N on K, before and after;
    (B) after `touched(N)`, N over the fragment changes by exactly ΔN.

Whatever more is in a fragment does no harm: it is the same before and after, and cancels.

Nothing is suspended where an answer is missing. What is missing is noted, that branch yields nothing for the moment,
the others go on, and with the answers everything is run again from the start: both functions only ever yield more when
more is known, so what a run asks for is asked for by the last one too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import singledispatch

from strobe.algebra.bag import Bag, Row, picker
from strobe.algebra.tree import (
    Exists,
    Explode,
    Filter,
    Group,
    Join,
    JoinKind,
    Operator,
    Pair,
    Project,
    Scan,
    Union,
    Window,
)
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.messages import Covered, Fragment, Immutable

Columns = tuple[str, ...]
Rows = set[Row]
Spot = tuple[int, Columns]
"""An occurrence, and the attributes by which it is looked up."""
Wanted = dict[Spot, Rows]
"""Keys that have to be asked for."""


class Known:
    """What is known of the relations before a batch, and what each of its units changes."""

    def __init__(self, view: View, units: Sequence[Mapping[int, Bag]]) -> None:
        """`units` has the changes of each, by occurrence, over its attributes."""
        self._occurrences = view.occurrences
        self._keys = {o.index: frozenset(map(o.attribute, o.relation.key)) for o in view.occurrences if _keyed(o)}
        self.units = units
        self._answers: dict[Spot, dict[Row, dict[Row, int]]] = defaultdict(dict)
        self._indexes: dict[Spot, dict[Row, dict[Row, int]]] = {}
        """All rows of an occurrence, where they are known, by some columns."""
        self._changes: dict[Spot, dict[Row, list[tuple[int, Row, int]]]] = {}

    def learn(self, spot: Spot, keys: Iterable[Row], rows: Bag) -> None:
        """What a look-up found, brought to the state before the batch; it may have found other keys, too."""
        found: dict[Row, dict[Row, int]] = {key: {} for key in keys}
        key_of = self._key_of(spot)
        for row, n in rows.project(self._occurrences[spot[0]].attributes).items():
            if (there := found.get(key_of(row))) is not None:
                there[row] = n
        self._answers[spot].update(found)

    def around(self, spot: Spot, key: Row, unit: int) -> Iterator[tuple[Row, int, int]] | None:
        """The rows with a key, and how often each is there before and after a unit; None if that has to be asked."""
        first = self._first(spot, key)
        return None if first is None else self._moved(first, spot, key, unit)

    def _moved(self, first: Mapping[Row, int], spot: Spot, key: Row, unit: int) -> Iterator[tuple[Row, int, int]]:
        before, after = dict(first), dict(first)
        for number, row, n in self._changed(spot).get(key, ()):
            if number < unit:
                before[row] = before.get(row, 0) + n
            if number <= unit:
                after[row] = after.get(row, 0) + n
        for row, n in after.items():
            yield row, before.get(row, 0), n

    def _first(self, spot: Spot, key: Row) -> Mapping[Row, int] | None:
        """The rows before the batch.

        Of a key of the relation that the batch changes they are known: the first unit that changes it, net, takes out
        what was there, or nothing if there was nothing.
        """
        occurrence, columns = spot
        if key in (known := self._answers[spot]):
            return known[key]
        if () in (everything := self._answers[occurrence, ()]):
            return self._index(spot, everything[()]).get(key, {})
        own = self._keys.get(occurrence)
        if own and own <= set(columns) and (changed := self._changed(spot).get(key)):
            return {row: -n for number, row, n in changed if number == changed[0][0] and n < 0}
        return None

    def _index(self, spot: Spot, rows: Mapping[Row, int]) -> Mapping[Row, Mapping[Row, int]]:
        if spot not in self._indexes:
            found: dict[Row, dict[Row, int]] = {}
            self._indexes[spot] = found
            key_of = self._key_of(spot)
            for row, n in rows.items():
                found.setdefault(key_of(row), {})[row] = n
        return self._indexes[spot]

    def _changed(self, spot: Spot) -> Mapping[Row, list[tuple[int, Row, int]]]:
        if spot not in self._changes:
            found: dict[Row, list[tuple[int, Row, int]]] = defaultdict(list)
            key_of = self._key_of(spot)
            for number, changes in enumerate(self.units):
                for row, n in changes[spot[0]].items() if spot[0] in changes else ():
                    found[key_of(row)].append((number, row, n))
            self._changes[spot] = dict(found)
        return self._changes[spot]

    def _key_of(self, spot: Spot) -> Callable[[Row], Row]:
        attributes = self._occurrences[spot[0]].attributes
        return picker([attributes.index(column) for column in spot[1]])


def _keyed(occurrence: Occurrence) -> bool:
    """Whether a key is among what is used of a relation."""
    return bool(occurrence.relation.key) and set(occurrence.relation.key) <= set(occurrence.columns)


class Collector(Immutable):
    """Makes the fragments of a view."""

    def __init__(self, view: View) -> None:
        if view.tree is None:
            raise BrokenInvariant("there is no tree to make fragments of", where=f"view {view.name}")
        self._view = view
        self._top = _prepared(view.tree, ())
        self._searched = {o.index: _searched(o) for o in view.occurrences}
        self._together = tuple(_together(self._top))

    def fragment(self, known: Known, unit: int, wanted: Wanted) -> Fragment | None:
        """The fragment of a unit; None if something has to be asked for first, which is added to `wanted`."""
        collecting = _Collecting(known, unit, self._searched)
        _touched(self._top, collecting)
        if collecting.wanted:
            for spot, keys in collecting.wanted.items():
                wanted.setdefault(spot, set()).update(keys)
            return None
        return collecting.fragment(self._view, self._together)


def _searched(occurrence: Occurrence) -> Columns:
    """The attributes by which its source finds rows."""
    columns = zip(occurrence.columns, occurrence.attributes, strict=True)
    return tuple(attribute for column, attribute in columns if occurrence.relation.column(column).searchable)


class _Collecting:
    """One run for one unit."""

    def __init__(self, known: Known, unit: int, searched: Mapping[int, Columns]) -> None:
        self._known, self._unit, self._searched = known, unit, searched
        self.wanted: Wanted = defaultdict(set)
        self._before: dict[int, dict[Row, int]] = defaultdict(dict)
        self._after: dict[int, dict[Row, int]] = defaultdict(dict)
        self._covered: dict[int, dict[Columns, Rows]] = defaultdict(lambda: defaultdict(set))

    def changed(self, occurrence: int) -> Iterable[Row]:
        change = self._known.units[self._unit].get(occurrence)
        return [row for row, _ in change.items()] if change is not None else ()

    def look_up(self, occurrence: Occurrence, columns: Columns, keys: Rows) -> Iterator[Row]:
        """The rows with these keys."""
        index = occurrence.index
        ordered = tuple(column for column in occurrence.attributes if column in columns)
        searched = tuple(column for column in self._searched[index] if column in columns)
        asked = picker([ordered.index(column) for column in searched])
        before, after = self._before[index], self._after[index]
        for key in _part(columns, ordered, keys):
            found = self._known.around((index, ordered), key, self._unit)
            if found is None and searched != ordered:
                found = self._among((index, searched), asked(key), occurrence, ordered, key)
            if found is None:
                self.wanted[index, searched].add(asked(key))
                continue
            for row, was, is_ in found:
                before[row], after[row] = was, is_
                yield row

    def _among(
        self, spot: Spot, part: Row, occurrence: Occurrence, columns: Columns, key: Row
    ) -> Iterator[tuple[Row, int, int]] | None:
        """The rows with a key among those that were asked for by the columns of it in which the source searches."""
        found = self._known.around(spot, part, self._unit)
        pick = picker([occurrence.attributes.index(column) for column in columns])
        return None if found is None else (each for each in found if pick(each[0]) == key)

    def cover(self, number: int, columns: Columns, keys: Collection[Row]) -> None:
        if keys:
            self._covered[number][columns].update(keys)

    def fragment(self, view: View, together: Iterable[int]) -> Fragment:
        for occurrence, change in self._known.units[self._unit].items():
            before, after = self._before[occurrence], self._after[occurrence]
            for row, n in change.items():
                if row not in before:
                    before[row], after[row] = max(0, -n), max(0, n)
        bags = [
            {i: bag for i, rows in side.items() if not (bag := Bag(view.occurrences[i].attributes, rows)).known_empty}
            for side in (self._before, self._after)
        ]
        covered = {
            number: tuple(Covered(Bag(c, dict.fromkeys(keys, 1))) for c, keys in self._covered[number].items())
            for number in together
        }
        return Fragment(bags[0], bags[1], covered)


# ── Operators, with the columns of their rows that something above looks at ──────────────────────────────────────────


@dataclass(frozen=True)
class _Node:
    operator: Operator
    columns: Columns
    """The raw columns that its rows are yielded with."""
    children: tuple[_Node, ...]
    _pickers: dict[Columns, Callable[[Row], Row]] = field(default_factory=dict, compare=False)

    def picks(self, columns: Iterable[str]) -> Callable[[Row], Row]:
        chosen = tuple(columns)
        if chosen not in self._pickers:
            self._pickers[chosen] = picker([self.columns.index(column) for column in chosen])
        return self._pickers[chosen]

    def keys(self, rows: Iterable[Row], columns: Columns) -> Rows:
        pick = self.picks(columns)
        return {pick(row) for row in rows}


def _prepared(operator: Operator, columns: Iterable[str]) -> _Node:
    """An operator whose rows are looked at by these columns."""
    wanted = tuple(dict.fromkeys(columns))
    below = _below(operator, wanted)
    return _Node(operator, wanted, tuple(map(_prepared, operator.children, below)))


@singledispatch
def _below(operator: Operator, _columns: Columns) -> list[list[str]]:
    """What is looked at of each child."""
    raise NotImplementedError(type(operator).__name__)


@_below.register
def _(_operator: Scan, _columns: Columns) -> list[list[str]]:
    return []


@_below.register(Filter)
@_below.register(Explode)
def _(_operator: Filter | Explode, columns: Columns) -> list[list[str]]:
    return [list(columns)]


@_below.register
def _(operator: Project, columns: Columns) -> list[list[str]]:
    return [[operator.passed[column] for column in columns]]


@_below.register(Group)
@_below.register(Window)
def _(operator: Group | Window, columns: Columns) -> list[list[str]]:
    return [[*columns, *operator.cover]]


@_below.register
def _(operator: Union, columns: Columns) -> list[list[str]]:
    made = dict(operator.outputs)
    return [[made[column][i] for column in columns] for i in range(len(operator.branches))]


@_below.register
def _(operator: Join, columns: Columns) -> list[list[str]]:
    merged = [m for m in operator.merged if m.name in columns]
    left = [c for c in columns if c in operator.left.raw] + [m.left for m in merged]
    right = [c for c in columns if c in operator.right.raw] + [m.right for m in merged]
    return [left + [p.left for p in operator.pairs], right + [p.right for p in operator.pairs]]


@_below.register
def _(operator: Exists, columns: Columns) -> list[list[str]]:
    return [[*columns, *(p.left for p in operator.pairs)], [p.right for p in operator.pairs]]


def _together(node: _Node) -> Iterator[int]:
    """The numbers of operators whose rows need others."""
    if isinstance(node.operator, (Group, Window)):
        yield node.operator.number
    for child in node.children:
        yield from _together(child)


# ── touched ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _touched(node: _Node, to: _Collecting) -> Rows:
    return _touched_of(node.operator, node, to)


@singledispatch
def _touched_of(operator: Operator, _node: _Node, _to: _Collecting) -> Rows:
    raise NotImplementedError(type(operator).__name__)


@_touched_of.register
def _(operator: Scan, node: _Node, to: _Collecting) -> Rows:
    pick = _of_scan(operator, node)
    return {pick(row) for row in to.changed(operator.occurrence.index)}


@_touched_of.register(Filter)
@_touched_of.register(Explode)
def _(_operator: Filter | Explode, node: _Node, to: _Collecting) -> Rows:
    return _touched(node.children[0], to)


@_touched_of.register
def _(operator: Project, node: _Node, to: _Collecting) -> Rows:
    return node.children[0].keys(_touched(node.children[0], to), _mapped(operator, node.columns))


@_touched_of.register
def _(operator: Union, node: _Node, to: _Collecting) -> Rows:
    return set().union(
        *(
            branch.keys(_touched(branch, to), _mapped_into(operator, i, node.columns))
            for i, branch in enumerate(node.children)
        )
    )


@_touched_of.register
def _(operator: Join, node: _Node, to: _Collecting) -> Rows:
    left, right = node.children
    of_left, of_right = _touched(left, to), _touched(right, to)
    if operator.kind is JoinKind.INNER:
        beside_left = _partners(operator, node, of_left, to)
        beside_right = _partners(operator, node, of_right, to, back=True)
        return _joined(operator, node, of_left, beside_left) | _joined(operator, node, beside_right, of_right)
    if operator.kind is JoinKind.LEFT:
        of_left = of_left | _partners(operator, node, of_right, to, back=True)
        return _joined(operator, node, of_left, _partners(operator, node, of_left, to))
    links = _links(operator)
    keys = _keys(left, of_left, links) | _keys(right, of_right, links, back=True)
    all_left = of_left | _rows(left, tuple(p.left for p in links), keys, to)
    return _joined(operator, node, all_left, of_right | _rows(right, tuple(p.right for p in links), keys, to))


@_touched_of.register
def _(operator: Exists, node: _Node, to: _Collecting) -> Rows:
    left, right = node.children
    found = _touched(left, to) | _partners(operator, node, _touched(right, to), to, back=True)
    _partners(operator, node, found, to)
    return left.keys(found, node.columns)


@_touched_of.register
def _(operator: Group, node: _Node, to: _Collecting) -> Rows:
    (child,) = node.children
    found = _touched(child, to)
    _whole(operator, child, found, to)
    return child.keys(found, node.columns)


@_touched_of.register
def _(operator: Window, node: _Node, to: _Collecting) -> Rows:
    (child,) = node.children
    found = _touched(child, to)
    return child.keys(found | _whole(operator, child, found, to), node.columns)


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _rows(node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    """`columns` are among the node's own; where they are padded there, no key has NULL."""
    if not keys:
        return set()
    once = tuple(dict.fromkeys(columns))
    if once != columns:
        pick = picker([columns.index(column) for column in once])
        keys = {pick(key) for key in keys}
    found = _rows_of(node.operator, node, once, keys, to)
    pick = node.picks(once)
    return {row for row in found if pick(row) in keys} if once else found


@singledispatch
def _rows_of(operator: Operator, _node: _Node, _columns: Columns, _keys: Rows, _to: _Collecting) -> Rows:
    raise NotImplementedError(type(operator).__name__)


@_rows_of.register
def _(operator: Scan, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    pick = _of_scan(operator, node)
    return {pick(row) for row in to.look_up(operator.occurrence, columns, keys)}


@_rows_of.register(Filter)
@_rows_of.register(Explode)
def _(_operator: Filter | Explode, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    return _rows(node.children[0], columns, keys, to)


@_rows_of.register
def _(operator: Project, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    (child,) = node.children
    return child.keys(_rows(child, _mapped(operator, columns), keys, to), _mapped(operator, node.columns))


@_rows_of.register
def _(operator: Union, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    found: Rows = set()
    for i, branch in enumerate(node.children):
        rows = _rows(branch, _mapped_into(operator, i, columns), keys, to)
        found |= branch.keys(rows, _mapped_into(operator, i, node.columns))
    return found


@_rows_of.register
def _(operator: Join, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    left, right = node.children
    merged = {m.name: m for m in operator.merged}
    by = tuple(c for c in columns if c in merged)
    if by or (operator.kind is JoinKind.FULL and not columns):
        some = _part(columns, by, keys)
        of_left = _rows(left, tuple(merged[c].left for c in by), some, to)
        return _joined(operator, node, of_left, _rows(right, tuple(merged[c].right for c in by), some, to))
    by_left = tuple(c for c in columns if c in operator.left.raw)
    by_right = tuple(c for c in columns if c in operator.right.raw)
    if _from_the_left(operator, by_left, by_right):
        of_left = _rows(left, by_left, _part(columns, by_left, keys), to)
        return _joined(operator, node, of_left, _partners(operator, node, of_left, to))
    of_right = _rows(right, by_right, _part(columns, by_right, keys), to)
    return _joined(operator, node, _partners(operator, node, of_right, to, back=True), of_right)


def _from_the_left(operator: Join, by_left: Columns, by_right: Columns) -> bool:
    """Where a side may be missing, all rows together can be had from the other one only."""
    if operator.kind is JoinKind.INNER:
        return len(by_left) >= len(by_right)
    return bool(by_left) or not by_right


@_rows_of.register
def _(operator: Exists, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    (left, _) = node.children
    found = _rows(left, columns, keys, to)
    _partners(operator, node, found, to)
    return left.keys(found, node.columns)


@_rows_of.register
def _(operator: Group, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    (child,) = node.children
    to.cover(operator.number, columns, keys)
    found = child.keys(_rows(child, columns, keys, to), node.columns)
    return found if operator.by else found | {()}  # the one group is there without rows too


@_rows_of.register
def _(operator: Window, node: _Node, columns: Columns, keys: Rows, to: _Collecting) -> Rows:
    (child,) = node.children
    found = _rows(child, columns, keys, to)
    if set(columns) <= set(operator.cover):
        to.cover(operator.number, columns, keys)  # a partition has the same in all its rows
    else:
        found = _whole(operator, child, found, to)
    return child.keys(found, node.columns)


# ── What both need ───────────────────────────────────────────────────────────────────────────────────────────────────


def _whole(operator: Group | Window, child: _Node, rows: Rows, to: _Collecting) -> Rows:
    """All rows of the groups, or partitions, that some rows are in."""
    keys = child.keys(rows, operator.cover)
    to.cover(operator.number, operator.cover, keys)
    return _rows(child, operator.cover, keys, to)


def _links(operator: Join | Exists, *, left: bool = True, right: bool = True) -> list[Pair]:
    """The pairs by which one side, or both, can be looked up: not for NULL where it may come from padding."""
    return [
        pair
        for pair in operator.pairs
        if not pair.null_safe
        or not ((left and pair.left in operator.left.padded) or (right and pair.right in operator.right.padded))
    ]


def _keys(node: _Node, rows: Iterable[Row], links: Sequence[Pair], *, back: bool = False) -> Rows:
    """The values that these rows have in pairs, where they can have partners."""
    keys = node.keys(rows, tuple(pair.right if back else pair.left for pair in links))
    strict = [i for i, pair in enumerate(links) if not pair.null_safe]
    return {key for key in keys if all(key[i] is not None for i in strict)}


def _partners(operator: Join | Exists, node: _Node, rows: Rows, to: _Collecting, *, back: bool = False) -> Rows:
    """Of rows of the left side, all of the right side that join with them by pairs; or the other way, `back`."""
    left, right = node.children
    if back:
        links = _links(operator, right=False)
        return _rows(left, tuple(p.left for p in links), _keys(right, rows, links, back=True), to)
    links = _links(operator, left=False)
    return _rows(right, tuple(p.right for p in links), _keys(left, rows, links), to)


def _joined(operator: Join, node: _Node, of_left: Rows, of_right: Rows) -> Rows:
    """All rows that the join may make of these: matched, and with NULL where a side may be missing."""
    if not node.columns:
        return {()} if of_left or of_right else set()
    left, right = node.children
    merged = [m for m in operator.merged if m.name in node.columns]
    mine = [c for c in node.columns if c in operator.left.raw]
    theirs = [c for c in node.columns if c in operator.right.raw]
    order = picker([[*mine, *theirs, *(m.name for m in merged)].index(c) for c in node.columns])
    left_shown = left.picks([*mine, *(m.left for m in merged)])
    right_shown = right.picks([*theirs, *(m.right for m in merged)])

    def row(a: Row, b: Row) -> Row:
        both = tuple(y if x is None else x for x, y in zip(a[len(mine) :], b[len(theirs) :], strict=True))
        return order((*a[: len(mine)], *b[: len(theirs)], *both))

    shown = {(key, left_shown(a)) for a, key in _matching(left, of_left, [p.left for p in operator.pairs])}
    partners: dict[Row, Rows] = defaultdict(set)
    for b, key in _matching(right, of_right, [p.right for p in operator.pairs]):
        partners[key].add(right_shown(b))
    strict = [i for i, pair in enumerate(operator.pairs) if not pair.null_safe]
    found: Rows = set()
    for key, a in shown:
        if all(key[i] is not None for i in strict):
            found |= {row(a, b) for b in partners.get(key, ())}
    if operator.kind is not JoinKind.INNER:
        missing = (None,) * (len(theirs) + len(merged))
        found |= {row(a, missing) for _, a in shown}
    if operator.kind is JoinKind.FULL:
        missing = (None,) * (len(mine) + len(merged))
        found |= {row(missing, b) for some in partners.values() for b in some}
    return found


def _matching(node: _Node, rows: Iterable[Row], columns: Sequence[str]) -> Iterator[tuple[Row, Row]]:
    pick = node.picks(columns)
    return ((row, pick(row)) for row in rows)


def _of_scan(operator: Scan, node: _Node) -> Callable[[Row], Row]:
    attributes = operator.occurrence.attributes
    return picker([attributes.index(column) for column in node.columns])


def _mapped(operator: Project, columns: Iterable[str]) -> Columns:
    return tuple(operator.passed[column] for column in columns)


def _mapped_into(operator: Union, branch: int, columns: Iterable[str]) -> Columns:
    made = dict(operator.outputs)
    return tuple(made[column][branch] for column in columns)


def _part(columns: Columns, some: Columns, keys: Rows) -> Rows:
    """Keys by some of their columns."""
    if some == columns:
        return keys
    pick = picker([columns.index(column) for column in some])
    return {pick(key) for key in keys}
