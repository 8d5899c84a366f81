"""Rows of a Delta table's Parquet files, found by the files' own statistics.

Delta's log has statistics too, but as text that each writer rounds in its way (Spark cuts timestamps to milliseconds).
Only the values of partition columns are taken from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from pyarrow.fs import LocalFileSystem

from strobe.algebra.bag import Row
from strobe.data.arrow import arrow_schema, arrow_type, from_arrow
from strobe.sources.delta.log import DataFile

CHANGE = "_change_type"
SIGNS = {"insert": 1, "update_postimage": 1, "delete": -1, "update_preimage": -1}
_FORMAT = ds.ParquetFileFormat(read_options=ds.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
_HERE = LocalFileSystem()


def dataset_of(table: DeltaTable, place: Callable[[str], str], schema: pa.Schema) -> ds.Dataset:
    """The rows of a table as of the version at which it was opened; `place` says where a file of its log is."""
    files = pa.table(table.get_add_actions())
    partitions = files["partition"].to_pylist() if "partition" in files.column_names else [{}] * len(files)
    fragments = [
        _fragment(place(path), tuple((n, pa.scalar(v, schema.field(n).type)) for n, v in _known(values, schema)))
        for path, values in zip(files["path"].to_pylist(), partitions, strict=True)
    ]
    return dataset_over(fragments, schema)


def _known(values: Mapping[str, Any] | None, schema: pa.Schema) -> Iterator[tuple[str, Any]]:
    return ((name, value) for name, value in (values or {}).items() if name in schema.names)


@lru_cache(maxsize=4096)
def _fragment(path: str, partition: tuple[tuple[str, pa.Scalar], ...]) -> ds.Fragment:
    """A file, which never changes: what was once read of its footer is kept."""
    known = [ds.field(name) == value if value.is_valid else ds.field(name).is_null() for name, value in partition]
    expression = reduce(lambda a, b: a & b, known) if known else None
    return _FORMAT.make_fragment(path, filesystem=_HERE, partition_expression=expression)


def fragment_of(file: DataFile, columns: Mapping[str, str]) -> ds.Fragment:
    """A file that a commit names, with its whole partition, for a dataset that has these columns."""
    known = [(name, text) for name, text in (file.partition or {}).items() if name in columns]
    return _fragment(file.path, tuple((name, _value(text, arrow_type(columns[name]))) for name, text in known))


def dataset_over(fragments: Iterable[ds.Fragment], schema: pa.Schema) -> ds.Dataset:
    return ds.FileSystemDataset(list(fragments), schema, _FORMAT, _HERE)


def dataset_of_files(files: Iterable[DataFile], columns: Mapping[str, str]) -> ds.Dataset:
    """The rows of some files, over the columns given with their types, and what each row is about."""
    fragments = (fragment_of(file, columns) for file in files)
    return dataset_over(fragments, schema_of(columns).append(pa.field(CHANGE, pa.string())))


def _value(text: str | None, type_: pa.DataType) -> pa.Scalar:
    """A partition's value, as the log writes it: nothing and NULL are the same, and no zone means UTC."""
    if not text:
        return pa.scalar(None, type_)
    if pa.types.is_timestamp(type_):
        naive = pa.scalar(text.removesuffix("Z")).cast(pa.timestamp("us"))
        return naive.cast(pa.int64()).cast(type_)
    return pa.scalar(text).cast(type_)


def changes_in(files: Sequence[DataFile], columns: Mapping[str, str]) -> Iterator[tuple[Row, int]]:
    """The rows that files say come (+1) or go (-1)."""
    names = list(columns)
    for sign in (-1, 0, 1):
        dataset = dataset_of_files((f for f in files if f.sign == sign), columns)
        for batch in dataset.to_batches(columns=[*names, CHANGE], batch_readahead=2, fragment_readahead=1):
            signs = [SIGNS[kind] for kind in batch[CHANGE].to_pylist()] if sign == 0 else [sign] * len(batch)
            yield from zip(from_arrow(batch.select(names)), signs, strict=True)


def searchable(ddl: str) -> bool:
    """Whether rows can be looked up by a column of this type."""
    return ddl not in ("float", "double") and not ddl.startswith("array<")


def schema_of(columns: Mapping[str, str]) -> pa.Schema:
    return arrow_schema(list(columns), list(columns.values()))
