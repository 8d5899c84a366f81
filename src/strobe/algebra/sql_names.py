"""What names in a view's SQL stand for, and what a FROM clause offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strobe.algebra.view import Occurrence


@dataclass(frozen=True)
class Ref:
    """A column of an occurrence."""

    occurrence: int
    column: str


@dataclass(frozen=True)
class Made:
    """A column that an operator makes."""

    number: int


Column = Ref | Made
Parts = tuple[str | Column, ...]


@dataclass(frozen=True)
class Value:
    """What a name or an expression stands for: Spark SQL text with columns in it, and its type where it is known: the
    exact one of a relation's column, and at least its kind of other values (see `sql_types`)."""

    parts: Parts
    type: str | None = None

    @property
    def plain(self) -> Column | None:
        """The column, if the value is nothing else."""
        part = self.parts[0] if len(self.parts) == 1 else ""
        return None if isinstance(part, str) else part

    @property
    def embedded(self) -> Parts:
        """As an operand inside a larger expression."""
        return self.parts if self.plain else ("(", *self.parts, ")")

    @property
    def columns(self) -> frozenset[Column]:
        return frozenset(part for part in self.parts if not isinstance(part, str))


def columns_of(values: Iterable[Value]) -> frozenset[Column]:
    return frozenset(column for value in values for column in value.columns)


def rendered(value: Value, occurrences: Sequence[Occurrence], made: Mapping[Made, str]) -> str:
    def text(part: str | Column) -> str:
        if isinstance(part, Ref):
            return occurrences[part.occurrence].attribute(part.column)
        return made[part] if isinstance(part, Made) else part

    return "".join(map(text, value.parts))


@dataclass(frozen=True)
class Named:
    """A column that a FROM clause offers."""

    name: str
    qualifier: tuple[str, ...]
    """What may stand before the name, and every shorter end of it: `("shop", "orders")` or `("o",)`."""
    value: Value


@dataclass(frozen=True)
class Scope:
    """What a FROM clause offers, modelled on Spark's plans: `output` is what `*` gives; `hidden` holds the columns of
    USING that it leaves out, which only their qualified names reach."""

    output: tuple[Named, ...]
    hidden: tuple[Named, ...] = ()
    outer: Scope | None = None
    """Of a subquery in an expression: what the query around it offers, where the subquery offers no such name."""

    @property
    def qualifiers(self) -> dict[tuple[str, ...], None]:
        return dict.fromkeys(c.qualifier for c in (*self.hidden, *self.output) if c.qualifier)

    def found(self, parts: Sequence[str]) -> list[Named]:
        """What a column's name can mean here."""
        *qualifier, name = parts
        if not qualifier:
            return [c for c in self.output if c.name.lower() == name.lower()]
        offered = (*self.output, *self.hidden)
        return [c for c in offered if c.name.lower() == name.lower() and ends(c.qualifier, qualifier)]


def ends(qualifier: Sequence[str], written: Sequence[str]) -> bool:
    """Whether what the user wrote is the end of a qualifier, whatever the case."""
    tail = qualifier[-len(written) :]
    return len(tail) == len(written) and all(a.lower() == b.lower() for a, b in zip(tail, written, strict=True))


def listed(names: Sequence[str], word: str = "and") -> str:
    return ", ".join(names[:-1]) + f" {word} {names[-1]}" if len(names) > 1 else "".join(names)
