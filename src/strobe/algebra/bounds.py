"""Which rows are in a partition: conditions on columns, decided in memory and by Spark alike.

A range has columns that are compared one after another, as a row is: from an end to another one. A list has the values
of one column. NULL is in no range, and in a list only if that says so. All of a bound's conditions hold; where there is
none, every row is in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from typing import Any

Row = tuple[Any, ...]
Test = Callable[[Row], bool]


@dataclass(frozen=True)
class End:
    """An end of a range: the values of its first columns. `included` says whether rows that begin with just these are
    in the range."""

    values: Row = ()
    included: bool = True


@dataclass(frozen=True)
class Range:
    columns: tuple[str, ...]
    lower: End
    """Without values if there is no lower end; likewise below."""
    upper: End

    def test(self, places: Sequence[int]) -> Test:
        low, high = self.lower, self.upper

        def holds(row: Row) -> bool:
            found = tuple(row[i] for i in places)
            if None in found:
                return False
            first, last = found[: len(low.values)], found[: len(high.values)]
            return bool(
                (first > low.values or (low.included and first == low.values))
                and (last < high.values or (high.included and last == high.values))
            )

        return holds

    def sql(self, names: Mapping[str, str], types: Mapping[str, str]) -> str:
        parts = [f"{names[c]} IS NOT NULL" for c in self.columns]
        for end, sign in ((self.lower, ">"), (self.upper, "<")):
            if end.values:
                parts.append(_beyond(self.columns, end, sign, names, types))
            elif not end.included:  # beyond all values
                parts.append("false")
        return " AND ".join(parts)


def _beyond(columns: Sequence[str], end: End, sign: str, names: Mapping[str, str], types: Mapping[str, str]) -> str:
    """The comparison of a row with an end, column by column."""
    column, *rest = columns
    value, *others = end.values
    name, found = names[column], literal(value, types[column])
    if not others:
        return f"{name} {sign}{'=' if end.included else ''} {found}"
    further = _beyond(rest, End(tuple(others), end.included), sign, names, types)
    return f"({name} {sign} {found} OR ({name} = {found} AND {further}))"


@dataclass(frozen=True)
class Listed:
    column: str
    values: Row
    null: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def test(self, places: Sequence[int]) -> Test:
        (place,), values, null = places, frozenset(self.values), self.null
        return lambda row: null if row[place] is None else row[place] in values

    def sql(self, names: Mapping[str, str], types: Mapping[str, str]) -> str:
        name = names[self.column]
        parts = [f"{name} IS NULL"] if self.null else []
        if self.values:
            parts.append(f"{name} IN ({', '.join(literal(v, types[self.column]) for v in self.values)})")
        return f"({' OR '.join(parts) or 'false'})"


@dataclass(frozen=True)
class Bound:
    conditions: tuple[Range | Listed, ...] = ()

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(c for condition in self.conditions for c in condition.columns)

    def renamed(self, names: Mapping[str, str]) -> Bound:
        """The same of columns with other names."""
        found: list[Range | Listed] = []
        for condition in self.conditions:
            if isinstance(condition, Range):
                found.append(replace(condition, columns=tuple(names[c] for c in condition.columns)))
            else:
                found.append(replace(condition, column=names[condition.column]))
        return Bound(tuple(found))

    def test(self, attributes: Sequence[str]) -> Test:
        """Whether a row over these attributes is in it."""
        tests = [c.test([attributes.index(name) for name in c.columns]) for c in self.conditions]
        return lambda row: all(test(row) for test in tests)

    def sql(self, names: Mapping[str, str], types: Mapping[str, str]) -> str:
        """The same as Spark SQL, true or false of every row: `names` has the columns as Spark is to call them, `types`
        their Spark types."""
        found = [f"({condition.sql(names, types)})" for condition in self.conditions]
        return f"coalesce({' AND '.join(found)}, false)" if found else "true"


def literal(value: Any, type_: str) -> str:
    """A value of this Spark type, as Spark SQL."""
    if not isinstance(value, (bool, int, Decimal, str, date, datetime)):
        raise TypeError(f"{type(value).__name__} is not compared with bounds")
    text = f"{value:f}" if isinstance(value, Decimal) else str(value)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("$", "\\u0024")
    return f"CAST('{escaped}' AS {type_})"
