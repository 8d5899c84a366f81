"""A view over the contents of its relations, from scratch and without Spark: joined, selected, projected."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from strobe.algebra.bag import Bag, Row, canonical
from strobe.algebra.relation import Relation
from strobe.algebra.view import Occurrence, View
from strobe.auditor.expressions import Compiled, compile_expression
from strobe.auditor.timeline import Contents
from strobe.auditor.verdict import CannotEvaluate
from strobe.errors import BrokenInvariant

_ATTRIBUTE = re.compile(r"\br(\d+)c(\d+)\b")


class Recomputation:
    """How to compute a view. `CannotEvaluate`, with the user's own words, if it has something that Spark must say."""

    def __init__(self, view: View) -> None:
        self.view = view
        self._order = _joinable(view)
        attributes = [attribute for index, _ in self._order for attribute in view.occurrences[index].attributes]
        types = view.attribute_types()
        self._types = {attribute: types[attribute] for attribute in attributes}
        self._condition = self._compile(view.condition) if view.condition else None
        self._outputs = {output.name: self._compile(output.expression) for output in view.outputs}
        self._last: tuple[tuple[Bag, ...], Bag] | None = None

    @property
    def types(self) -> dict[str, str]:
        """The Spark types of the view's columns."""
        return {name: compiled.type for name, compiled in self._outputs.items()}

    def over(self, contents: Mapping[str, Contents]) -> Bag:
        """The view. What did not change since the last time is not computed again."""
        relations = tuple(contents[o.source][o.relation.name] for o in self.view.occurrences)
        if self._last is None or any(a is not b for a, b in zip(relations, self._last[0], strict=True)):
            self._last = relations, self._compute(relations)
        return self._last[1]

    def _compute(self, relations: tuple[Bag, ...]) -> Bag:
        joined: Relation | None = None
        for index, pairs in self._order:
            rows = _under_attributes(self.view.occurrences[index], relations[index])
            joined = rows if joined is None else joined.join(rows, pairs)
        if not isinstance(joined, Bag):
            raise BrokenInvariant("a join of bags is a bag", where=f"view {self.view.name}")
        counts: dict[Row, int] = defaultdict(int)
        runs = [output.run for output in self._outputs.values()]
        try:
            for row, count in joined.items():
                if self._condition is None or self._condition.run(row):
                    counts[tuple(canonical(run(row)) for run in runs)] += count
        except CannotEvaluate as error:
            raise self._in_words(error) from None
        return Bag(tuple(self._outputs), counts)

    def _compile(self, expression: str) -> Compiled:
        try:
            return compile_expression(expression, self._types)
        except CannotEvaluate as error:
            raise self._in_words(error) from None

    def _in_words(self, error: CannotEvaluate) -> CannotEvaluate:
        """The error with the user's names in place of attributes."""

        def name(match: re.Match[str]) -> str:
            occurrence = self.view.occurrences[int(match[1])]
            return f"{occurrence.alias}.{occurrence.columns[int(match[2])]}"

        text = _ATTRIBUTE.sub(name, error.message)
        return CannotEvaluate(f"view {self.view.name} has an expression that only Spark can evaluate: {text}")


def _joinable(view: View) -> list[tuple[int, list[tuple[str, str]]]]:
    """The occurrences in an order in which each is joined with those before it, where it can be, and on what."""
    order: list[tuple[int, list[tuple[str, str]]]] = []
    left = [occurrence.index for occurrence in view.occurrences]
    while left:
        known = [index for index, _ in order]
        pairs = {index: _pairs(view, known, index) for index in left}
        chosen = max(left, key=lambda index: (bool(pairs[index]), -index))
        order.append((chosen, pairs[chosen]))
        left.remove(chosen)
    return order


def _pairs(view: View, known: list[int], index: int) -> list[tuple[str, str]]:
    """What joins an occurrence with known ones: (attribute of a known one, its own)."""
    own = view.occurrences[index]
    found = []
    for equality in view.equalities:
        if equality.touches(index):
            column, other, other_column = equality.seen_from(index)
            if other in known:
                found.append((view.occurrences[other].attribute(other_column), own.attribute(column)))
    return found


def _under_attributes(occurrence: Occurrence, rows: Bag) -> Bag:
    return rows.project(occurrence.columns).rename(dict(zip(occurrence.columns, occurrence.attributes, strict=True)))
