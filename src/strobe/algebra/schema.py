"""What a source says about its relations: columns with Spark types, keys and indexes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of a relation, with the type its values have in Spark."""

    name: str
    type: str
    """A Spark DDL type in lower case: `bigint`, `decimal(10,2)`, `string`, `date`, `timestamp`, `boolean`, …"""
    searchable: bool = True
    """Whether the source can find rows by equality with a value of this column without missing any that Spark calls
    equal. Where it cannot (one instant has many spellings as SQLite text), look-ups by this column fetch everything."""


@dataclass(frozen=True)
class RelationSchema:
    """A relation that a source offers."""

    source: str
    name: str
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    """Columns that identify a row and are never NULL; empty where the source promises no such thing."""
    indexes: tuple[tuple[str, ...], ...] = ()
    """Column lists by whose first column (and so on) the source finds rows without a scan; the key included."""

    images: bool = True
    """Whether the change stream has the whole row of what is deleted or modified, and not only its key."""

    @property
    def id(self) -> str:
        """How the relation is written in a view: `source.table`."""
        return f"{self.source}.{self.name}"

    def column(self, name: str) -> Column:
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    def indexed(self, column: str) -> bool:
        """Whether a look-up by this column alone is served by an index."""
        return any(index[0] == column for index in self.indexes)


def comparison_class(type_: str) -> str:
    """Types whose raw values are equal on the driver exactly when Spark calls them equal share a class.

    Integers and decimals compare exactly and hash alike in Python; doubles are a class of their own, because Spark
    turns a 64-bit integer into a double before comparing the two, and Python does not.
    """
    base = type_.split("(", 1)[0].strip()
    if base in {"tinyint", "smallint", "int", "bigint", "decimal"}:
        return "exact number"
    return base


_JOINED = {"exact number", "string", "date", "timestamp", "timestamp_ntz", "boolean", "binary", "double", "float"}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 20}


def joinable(left: str, right: str) -> bool:
    """Whether raw values of the two types are equal on the driver exactly when Spark calls them equal.

    Spark compares decimals of different types as a common type, which loses digits where it would need more than 38.
    """
    if comparison_class(left) != comparison_class(right) or comparison_class(left) not in _JOINED:
        return False
    if left == right or comparison_class(left) != "exact number":
        return True
    (p1, s1), (p2, s2) = _digits(left), _digits(right)
    return max(p1 - s1, p2 - s2) + max(s1, s2) <= 38


def _digits(type_: str) -> tuple[int, int]:
    """Precision and scale of an exact number."""
    base, _, arguments = type_.rstrip(")").partition("(")
    if base in _DIGITS:
        return _DIGITS[base], 0
    numbers = [int(a) for a in arguments.split(",") if a.strip()] or [10]
    return numbers[0], numbers[1] if len(numbers) > 1 else 0


def quoted(name: str) -> str:
    """A name as Spark's SQL has it."""
    return "`" + name.replace("`", "``") + "`"
