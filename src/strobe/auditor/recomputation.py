"""A view over the contents of its relations, from scratch and without Spark: joined, selected, projected."""

from __future__ import annotations

import re
from collections.abc import Mapping

from strobe.algebra.bag import Bag
from strobe.algebra.tree import Filter, Join, Operator, Pair, Project, Scan
from strobe.algebra.view import Occurrence, View
from strobe.auditor.operators import Tree
from strobe.auditor.timeline import Contents
from strobe.auditor.verdict import CannotEvaluate
from strobe.errors import BrokenInvariant

_ATTRIBUTE = re.compile(r"\br(\d+)c(\d+)\b")


class Recomputation:
    """How to compute a view. `CannotEvaluate`, with the user's own words, if it has something that Spark must say."""

    def __init__(self, view: View) -> None:
        self.view = view
        try:
            self._tree = Tree(Project(view.tree or _flat(view), view.outputs))
        except CannotEvaluate as error:
            raise self._in_words(error) from None
        self._last: tuple[tuple[Bag, ...], Bag] | None = None

    @property
    def types(self) -> dict[str, str]:
        """The Spark types of the view's columns."""
        return self._tree.types

    def over(self, contents: Mapping[str, Contents]) -> Bag:
        """The view. What did not change since the last time is not computed again."""
        relations = tuple(contents[o.source][o.relation.name] for o in self.view.occurrences)
        if self._last is None or any(a is not b for a, b in zip(relations, self._last[0], strict=True)):
            rows = {o.index: _under_attributes(o, relations[o.index]) for o in self.view.occurrences}
            try:
                self._last = relations, self._tree.over(rows)
            except CannotEvaluate as error:
                raise self._in_words(error) from None
        return self._last[1]

    def _in_words(self, error: CannotEvaluate) -> CannotEvaluate:
        """The error with the user's names in place of attributes."""

        def name(match: re.Match[str]) -> str:
            occurrence = self.view.occurrences[int(match[1])]
            return f"{occurrence.alias}.{occurrence.columns[int(match[2])]}"

        text = _ATTRIBUTE.sub(name, error.message)
        return CannotEvaluate(f"view {self.view.name} has an expression that only Spark can evaluate: {text}")


def _flat(view: View) -> Operator:
    """A view without a tree as one: each occurrence joined with those before it, where it can be."""
    left = [occurrence.index for occurrence in view.occurrences]
    known: list[int] = []
    tree: Operator | None = None
    while left:
        pairs = {index: _pairs(view, known, index) for index in left}
        chosen = max(left, key=lambda index: (bool(pairs[index]), -index))
        scan = Scan(view.occurrences[chosen])
        tree = scan if tree is None else Join(tree, scan, tuple(pairs[chosen]), None)
        known.append(chosen)
        left.remove(chosen)
    if tree is None:
        raise BrokenInvariant("it joins nothing", where=f"view {view.name}")
    return Filter(tree, view.condition) if view.condition else tree


def _pairs(view: View, known: list[int], index: int) -> list[Pair]:
    """What joins an occurrence with known ones."""
    own = view.occurrences[index]
    found = []
    for equality in view.equalities:
        if equality.touches(index):
            column, other, other_column = equality.seen_from(index)
            if other in known:
                found.append(Pair(view.occurrences[other].attribute(other_column), own.attribute(column)))
    return found


def _under_attributes(occurrence: Occurrence, rows: Bag) -> Bag:
    return rows.project(occurrence.columns).rename(dict(zip(occurrence.columns, occurrence.attributes, strict=True)))
