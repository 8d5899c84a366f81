"""A view as the papers see it: a projection of a selection of a join of occurrences of relations.

`V = π_output(σ_condition(R0 ⋈ R1 ⋈ … ⋈ Rn-1))`, with one R for every *occurrence* of a relation: a self-join has two.
Equalities between raw columns are kept apart from the rest of the condition, because only they are joined by Strobe
itself; everything else is Spark SQL text that Spark evaluates in the plan of the commit.

Inside a term the column `j` of occurrence `i` is the attribute `r{i}c{j}`, so that names never collide.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from strobe.algebra.schema import RelationSchema

if TYPE_CHECKING:
    from strobe.algebra.tree import Operator


def attribute(occurrence: int, column: int) -> str:
    return f"r{occurrence}c{column}"


@dataclass(frozen=True)
class Occurrence:
    """One mention of a relation in a view, with the columns of it that the view uses."""

    index: int
    alias: str
    """The name the user gave it, for messages to people."""
    relation: RelationSchema
    columns: tuple[str, ...]
    copied: bool = False
    """Whether the warehouse keeps a copy of the relation, which is asked instead of the source."""
    shown: bool = False
    """Whether the view itself is to be asked first for rows of the relation by their key: it shows all that it uses of
    it."""

    @property
    def source(self) -> str:
        return self.relation.source

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        return tuple(attribute(self.index, j) for j in range(len(self.columns)))

    def attribute(self, column: str) -> str:
        return attribute(self.index, self.columns.index(column))


@dataclass(frozen=True)
class Equality:
    """`left = right` between raw columns of two occurrences, of one comparison class. NULL equals nothing."""

    left: int
    left_column: str
    right: int
    right_column: str

    def seen_from(self, occurrence: int) -> tuple[str, int, str]:
        """(own column, other occurrence, other column)."""
        if occurrence == self.left:
            return self.left_column, self.right, self.right_column
        return self.right_column, self.left, self.left_column

    def touches(self, occurrence: int) -> bool:
        return occurrence in (self.left, self.right)


@dataclass(frozen=True)
class Output:
    """A column of the view: its name and the Spark SQL expression over attributes that yields it."""

    name: str
    expression: str


@dataclass(frozen=True)
class View:
    """A view definition, compiled from SQL."""

    name: str
    sql: str
    occurrences: tuple[Occurrence, ...]
    equalities: tuple[Equality, ...]
    condition: str | None
    """What is left of ON and WHERE besides the equalities, as Spark SQL over attributes; None when nothing is."""
    outputs: tuple[Output, ...]
    key: tuple[str, ...] = ()
    """Output columns that together hold the key of every occurrence, plainly projected. Where there is such a key the
    view's rows cannot repeat; empty otherwise."""
    recompute_sql: str = ""
    """The user's SQL with every relation `source.table` replaced by the name that `snapshot_name` gives it."""
    tree: Operator | None = None
    """Of a view that is more than a flat join: then there are no `equalities` and no `condition`, and each output's
    expression is a column of the tree."""

    def __deepcopy__(self, _memo: object) -> View:
        return self  # immutable

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(o.source for o in self.occurrences))

    @property
    def relations(self) -> tuple[RelationSchema, ...]:
        """The distinct relations, in order of first mention."""
        return tuple({o.relation.id: o.relation for o in self.occurrences}.values())

    @cached_property
    def attributes(self) -> tuple[str, ...]:
        """All attributes, in the order in which a complete term lists them."""
        return tuple(a for o in self.occurrences for a in o.attributes)

    def key_of(self, occurrence: Occurrence) -> dict[str, str]:
        """For each attribute of an occurrence's key the output column that shows it (or its equal).

        Empty unless all of the key is shown: only then can a row of the relation be found in the view.
        """
        found: dict[str, str] = {}
        for column in occurrence.relation.key:
            names = self.shown_as(occurrence.attribute(column)) if column in occurrence.columns else []
            if not names:
                return {}
            found[occurrence.attribute(column)] = names[0]
        return found

    def shown_as(self, attribute: str) -> list[str]:
        """The output columns that show an attribute, or its equal, plainly: so that a row of the view is made of the
        rows of the relation with this value. Nobody looks for that in a tree of operators."""
        if self.tree is not None:
            return []
        same, todo = {attribute}, [attribute]
        while todo:
            current = todo.pop()
            for e in self.equalities:
                ends = [
                    self.occurrences[i].attribute(c) for i, c in ((e.left, e.left_column), (e.right, e.right_column))
                ]
                todo += [end for end in ends if current in ends and end not in same]
                same.update(ends if current in ends else ())
        return [output.name for output in self.outputs if output.expression in same]

    def shows(self, occurrence: Occurrence) -> dict[str, str]:
        """For each used column of an occurrence the output that shows it; empty unless all are shown, and a key."""
        names = {output.expression: output.name for output in self.outputs}
        found = {c: names.get(occurrence.attribute(c)) for c in occurrence.columns}
        whole = self.key_of(occurrence) and all(found.values())
        return {c: name for c, name in found.items() if name} if whole else {}

    def attribute_types(self) -> dict[str, str]:
        return {o.attribute(c): o.relation.column(c).type for o in self.occurrences for c in o.columns}

    def columns_of(self, relation: RelationSchema) -> tuple[str, ...]:
        """The columns of a relation that any of its occurrences uses, in the relation's order."""
        used = {c for o in self.occurrences if o.relation.id == relation.id for c in o.columns}
        return tuple(c.name for c in relation.columns if c.name in used)


def snapshot_name(relation: RelationSchema) -> str:
    """The name under which a snapshot of a relation is registered in Spark for a recomputation."""
    return "strobe_snapshot_" + "_".join(p.encode().hex() for p in (relation.source, relation.name))
