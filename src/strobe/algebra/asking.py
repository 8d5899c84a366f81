"""What a change of an occurrence asks for in a view that is a tree of operators: which occurrences are looked up, by
which columns. Only the tree is looked at, no rows; `managers` ask for just these.

Two functions call each other, as the rows themselves are collected. `_touched` passes up what may change; on the way
every operator asks for what its rows need besides: a join for partners, an outer join for all partners of a left row, a
group or a partition for the rest of it. `_rows` passes such a demand down, by raw columns, until it comes to relations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strobe.algebra.substitution import Step, cost_of
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
    attribute_of,
)
from strobe.algebra.view import Occurrence, View

Keys = Mapping[str, str]
"""By raw columns of an operator: each with the attribute that has the values looked for. Without any, all rows."""


def asked(view: View, changed: Occurrence) -> tuple[Step, ...]:
    """The look-ups that a change of an occurrence leads to, in order, each once."""
    if view.tree is None:
        return ()
    walk = _Walk(view, changed.index)
    walk.touched(view.tree)
    return tuple(walk.steps)


@dataclass
class _Walk:
    view: View
    changed: int
    steps: list[Step] = field(default_factory=list)

    def touched(self, operator: Operator) -> bool:
        """Ask for what a change needs besides, at an operator and below; returns whether it comes from there."""
        if isinstance(operator, Scan):
            return operator.occurrence.index == self.changed
        from_there = [self.touched(child) for child in operator.children]
        if not any(from_there):
            return False
        if isinstance(operator, (Group, Window)):
            self._whole(operator)
        elif isinstance(operator, Join) and operator.kind is JoinKind.FULL:
            side = operator.left if from_there[0] else operator.right
            pairs = [p for p in operator.pairs if not p.null_safe or not _padded(operator, p)]
            keys = [attribute_of(side, p.left if from_there[0] else p.right) for p in pairs]
            self.rows(operator.left, dict(zip((p.left for p in pairs), keys, strict=True)))
            self.rows(operator.right, dict(zip((p.right for p in pairs), keys, strict=True)))
        elif isinstance(operator, (Join, Exists)):
            left, right = from_there
            inner = isinstance(operator, Join) and operator.kind is JoinKind.INNER
            if right:
                self._partners(operator, back=True)
            if left or not inner:
                self._partners(operator)
        return True

    def rows(self, operator: Operator, keys: Keys) -> None:
        """Ask for the rows of an operator that have these values."""
        if isinstance(operator, Scan):
            self._look_up(operator.occurrence, keys)
        elif isinstance(operator, Project):
            self.rows(operator.child, {operator.passed[column]: of for column, of in keys.items()})
        elif isinstance(operator, Union):
            names = dict(operator.outputs)
            for place, branch in enumerate(operator.branches):
                self.rows(branch, {names[column][place]: of for column, of in keys.items()})
        elif isinstance(operator, (Filter, Explode, Group)):
            self.rows(operator.child, keys)
        elif isinstance(operator, Window):
            self.rows(operator.child, keys)
            if not keys.keys() <= set(operator.cover):
                self._whole(operator)
        elif isinstance(operator, Exists):
            self.rows(operator.left, keys)
            self._partners(operator)
        elif isinstance(operator, Join):
            self._joined(operator, keys)

    def _joined(self, operator: Join, keys: Keys) -> None:
        """From the side that has the columns, then the other by the keys of the join."""
        by = [m for m in operator.merged if m.name in keys]
        if by or (operator.kind is JoinKind.FULL and not keys):
            self.rows(operator.left, {m.left: keys[m.name] for m in by})
            self.rows(operator.right, {m.right: keys[m.name] for m in by})
            return
        left = {c: of for c, of in keys.items() if c in operator.left.raw}
        right = {c: of for c, of in keys.items() if c in operator.right.raw}
        inner = operator.kind is JoinKind.INNER
        if len(left) >= len(right) if inner else left or not right:
            self.rows(operator.left, left)
            self._partners(operator)
        else:
            self.rows(operator.right, right)
            self._partners(operator, back=True)

    def _whole(self, operator: Group | Window) -> None:
        """The rest of what belongs together."""
        self.rows(operator.child, {column: attribute_of(operator.child, column) for column in operator.cover})

    def _partners(self, operator: Join | Exists, *, back: bool = False) -> None:
        """The right rows that join with left ones; or the other way, `back`."""
        side, padded = (operator.left, operator.left.padded) if back else (operator.right, operator.right.padded)
        keys = {}
        for pair in operator.pairs:
            asked, of = (pair.left, pair.right) if back else (pair.right, pair.left)
            if not (pair.null_safe and asked in padded):
                keys[asked] = attribute_of(operator.right if back else operator.left, of)
        self.rows(side, keys)

    def _look_up(self, occurrence: Occurrence, keys: Keys) -> None:
        on = {}
        for attribute, of in keys.items():
            column = occurrence.columns[occurrence.attributes.index(attribute)]
            if occurrence.relation.column(column).searchable:
                on[column] = (column, *self._named(of))
        own = {own for own, other, column in on.values() if self._origin(other, column) == (self.changed, own)}
        if occurrence.index == self.changed and occurrence.relation.key and set(occurrence.relation.key) <= own:
            return  # the row that changes, which is known
        step = Step(occurrence.index, tuple(on.values()), cost_of(occurrence, on))
        if not any(_same(step, known) for known in self.steps):
            self.steps.append(step)

    def _origin(self, occurrence: int, column: str) -> tuple[int, str]:
        """Where the values of a column come from, if rows of its occurrence were looked up in one way only: by it."""
        steps = [step for step in self.steps if step.occurrence == occurrence]
        by = {own: (other, theirs) for own, other, theirs in steps[0].on} if len(steps) == 1 else {}
        return by.get(column, (occurrence, column)) if occurrence != self.changed else (occurrence, column)

    def _named(self, attribute: str) -> tuple[int, str]:
        for occurrence in self.view.occurrences:
            if attribute in occurrence.attributes:
                return occurrence.index, occurrence.columns[occurrence.attributes.index(attribute)]
        raise KeyError(attribute)


def _padded(operator: Join, pair: Pair) -> bool:
    return pair.left in operator.left.padded or pair.right in operator.right.padded


def _same(step: Step, other: Step) -> bool:
    """Whether both ask the same occurrence by the same columns."""
    return step.occurrence == other.occurrence and {c for c, _, _ in step.on} == {c for c, _, _ in other.on}
