"""Canonical Python values to Arrow and back, by Spark's DDL types: the one place where the two forms meet."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from datetime import datetime, timezone
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from strobe.algebra.bag import Row, canonical
from strobe.data.keys import key_form
from strobe.errors import BrokenInvariant, UserError

_PLAIN: dict[str, pa.DataType] = {
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_SYNONYMS = {
    "byte": "tinyint",
    "short": "smallint",
    "integer": "int",
    "long": "bigint",
    "real": "float",
    "timestamp_ltz": "timestamp",
}
_UNSIGNED = {pa.uint8(): "smallint", pa.uint16(): "int", pa.uint32(): "bigint", pa.uint64(): "decimal(20,0)"}


def canonical_ddl(ddl: str) -> str:
    """A Spark type as Strobe writes it: lower case, without synonyms. `UserError` for types Strobe does not carry."""
    text = re.sub(r"\s+", "", ddl.lower())
    if text in _PLAIN or text in _SYNONYMS:
        return _SYNONYMS.get(text, text)
    if re.fullmatch(r"(varchar|char)\(\d+\)", text):
        return "string"
    decimal = re.fullmatch(r"(?:decimal|numeric|dec)(?:\((\d+)(?:,(\d+))?\))?", text)
    if decimal:
        precision, scale = int(decimal[1] or 10), int(decimal[2] or 0)
        if 1 <= precision <= 38 and scale <= precision:
            return f"decimal({precision},{scale})"
    if (array := re.fullmatch(r"array<([^<>]+)>", text)) is not None:
        return f"array<{canonical_ddl(array[1])}>"
    known = f"use one of {', '.join(_PLAIN)}, decimal(p,s), or an array of one of these"
    raise UserError(f"the type {ddl!r} is not supported", fix=known)


def arrow_type(ddl: str) -> pa.DataType:
    """The Arrow type of a Spark type."""
    text = canonical_ddl(ddl)
    if text in _PLAIN:
        return _PLAIN[text]
    if text.startswith("array<"):
        return pa.list_(pa.field("element", arrow_type(text[len("array<") : -1])))
    precision, scale = (int(number) for number in text[len("decimal(") : -1].split(","))
    return pa.decimal128(precision, scale)


def ddl_type(type_: pa.DataType) -> str:
    """The Spark type of an Arrow type, as Spark reads it from Parquet; `UserError` for nested and other types."""
    if pa.types.is_dictionary(type_):
        return ddl_type(type_.value_type)
    if type_ in _UNSIGNED:
        return _UNSIGNED[type_]
    if pa.types.is_decimal(type_) and type_.precision <= 38 and type_.scale >= 0:
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_) and type_.unit != "ns":  # Spark keeps microseconds
        return "timestamp" if type_.tz else "timestamp_ntz"
    if pa.types.is_large_string(type_) or pa.types.is_string_view(type_):
        return "string"
    if pa.types.is_large_binary(type_) or pa.types.is_binary_view(type_) or pa.types.is_fixed_size_binary(type_):
        return "binary"
    for ddl, plain in _PLAIN.items():
        if plain == type_:
            return ddl
    raise UserError(f"the type {type_} is not supported")


def arrow_schema(attributes: Sequence[str], types: Sequence[str]) -> pa.Schema:
    return pa.schema([pa.field(name, arrow_type(ddl)) for name, ddl in zip(attributes, types, strict=True)])


def to_arrow(attributes: Sequence[str], types: Sequence[str], rows: Iterable[Row]) -> pa.Table:
    """Rows of canonical values as a table with these columns and Spark types, in order."""
    schema = arrow_schema(attributes, types)
    columns = list(zip(*rows, strict=True)) or [()] * len(attributes)
    return pa.table([_array(values, field) for values, field in zip(columns, schema, strict=True)], schema=schema)


def _array(values: Sequence[Any], field: pa.Field) -> pa.Array:
    try:
        return pa.array(values, field.type)
    except (pa.ArrowException, TypeError, OverflowError, UnicodeError) as problem:
        raise BrokenInvariant(f"a value does not fit its type {field.type}: {problem}", where=field.name) from problem


def from_arrow(table: pa.Table | pa.RecordBatch) -> Iterator[Row]:
    """The rows of a table, as canonical values."""
    batches = table.to_batches() if isinstance(table, pa.Table) else [table]
    for batch in batches:
        if batch.num_columns:
            yield from zip(*(_values(column) for column in batch.columns), strict=True)
        else:
            yield from (() for _ in range(batch.num_rows))


def _values(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    convert = _converter(column.type)
    return values if convert is None else [None if v is None else convert(v) for v in values]


def _converter(type_: pa.DataType) -> Callable[[Any], Any] | None:
    if pa.types.is_timestamp(type_) and type_.tz:
        return _utc
    if pa.types.is_list(type_):
        return _tuples(_converter(type_.value_type))
    return canonical if pa.types.is_floating(type_) or pa.types.is_decimal(type_) else None


def _tuples(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    def tuples(values: Any) -> tuple[Any, ...]:
        return tuple(v if v is None or convert is None else convert(v) for v in values)

    return tuples


def _utc(value: datetime) -> datetime:
    return value.astimezone(timezone.utc)


def matching(data: ds.Dataset, on: Sequence[str], keys: Iterable[Row]) -> ds.Expression | None:
    """What the rows with one of these keys have in common, as far as Arrow can tell; None if it cannot at all. NULL in
    a key finds NULL."""
    tests = [_is_in(data, name, set(values)) for name, values in zip(on, zip(*keys, strict=True), strict=True)]
    useful = [test for test in tests if test is not None]
    return reduce(lambda a, b: a & b, useful) if useful else None


def _is_in(data: ds.Dataset, name: str, values: Set[Any]) -> ds.Expression | None:
    """Whether a column has one of these values, or is NULL if NULL is among them; None where only Spark can tell (NaN
    and -0.0) and for arrays."""
    type_ = data.schema.field(name).type
    known = values - {None}
    if known and (pa.types.is_floating(type_) or pa.types.is_list(type_)):
        return None
    field = ds.field(name)
    if any(_misleads(fragment, name, type_) for fragment in data.get_fragments()):
        field = pc.coalesce(field, field)  # to a function's value Arrow applies no statistics
    if not known:
        return field.is_null()
    form = key_form(ddl_type(type_))
    test = field.isin(pa.array([found for value in known if (found := form(value)) is not None], type_))
    return test | field.is_null() if None in values else test


def _misleads(fragment: ds.Fragment, name: str, type_: pa.DataType) -> bool:
    """Whether Arrow would leave out a file that has the rows, by what is said of a column.

    Where the log of a Delta table has the number of NULLs and no bounds, as Spark writes it for booleans, delta-rs says
    that all values are below NULL. And where a file says that the values were views when it was written, as delta-rs
    writes it when it merges, updates or deletes, Arrow cannot compare its statistics.
    """
    said = str(fragment.partition_expression)
    if any(f"({ds.field(name)} {bound} null[" in said for bound in ("<=", ">=")):
        return True
    if type_ not in (pa.string(), pa.binary()):
        return False
    schema = fragment.physical_schema
    place = schema.get_field_index(name)
    return place >= 0 and schema.field(place).type in (pa.string_view(), pa.binary_view())
