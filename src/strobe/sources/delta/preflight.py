"""Preflight of a Delta table: what a reader of its change data cannot do without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.sources.base import Finding
from strobe.sources.delta.data_files import searchable
from strobe.sources.delta.key_check import repeated, repeated_key
from strobe.sources.delta.log import FEED, MAPPING, DeltaLog, Protocol, Shape
from strobe.sources.delta.reader import opened, reading


def enable(log: DeltaLog) -> str:
    """The statement with which the table's owner turns the change data feed on."""
    return _set(log, FEED, "true")


def _set(log: DeltaLog, name: str, value: str) -> str:
    return f"{_alter(log)} SET TBLPROPERTIES ('{name}' = '{value}')"


def _alter(log: DeltaLog) -> str:
    return f"ALTER TABLE delta.`{log.root}`"


def check(log: DeltaLog, key: Sequence[str]) -> Iterator[Finding]:
    position = log.position(log.versions()[-1])
    shape, protocol = log.shape(log.table(position.order[0]))
    found = [*_format(log, shape, protocol), *_key(log, shape, key)]
    yield from found
    if key and not found:
        data, _ = opened(log, position)
        with reading(log):
            for row in repeated(data, key):
                fix = "Mend the rows, or take `key` out of strobe.yml."
                yield Finding("error", log.where, repeated_key(key, row), fix)
                return


def _format(log: DeltaLog, shape: Shape, protocol: Protocol) -> Iterator[Finding]:
    if "%" in str(log.root):
        yield Finding("error", log.where, "paths with a % in them are not supported", "Move the table.")
    if not shape.has_feed:
        message = "the change data feed is off: each update would cost the reading of whole files"
        yield Finding("error", log.where, message, f"Run {enable(log)}")
    if shape.mapped:
        fix = f"Run {_set(log, MAPPING, 'none')}, or write the table anew without it."
        yield Finding("error", log.where, "its columns have other names in the files (column mapping)", fix)
    for feature in protocol.unknown:
        if feature == "columnMapping" and shape.mapped:
            continue
        fix = f"Run {_alter(log)} DROP FEATURE {feature}"
        if feature == "deletionVectors":
            off = _set(log, "delta.enableDeletionVectors", "false")
            purge = f"REORG TABLE delta.`{log.root}` APPLY (PURGE)"
            fix = f"Run {off}; then {purge}; then {_alter(log)} DROP FEATURE {feature}"
        yield Finding("error", log.where, f"it uses {feature}, which this source cannot read", fix)
    if not shape.types:
        yield Finding("error", log.where, "none of its columns has a type that Strobe supports")


def _key(log: DeltaLog, shape: Shape, key: Sequence[str]) -> Iterator[Finding]:
    for column in key:
        type_ = shape.types.get(column)
        if type_ is None:
            fix = f"Its columns are {', '.join(shape.types)}."
            yield Finding("error", log.where, f"the key names {column}, which is no column of it", fix)
        elif not searchable(type_):
            yield Finding("error", log.where, f"a {type_} such as {column} cannot be a key", "Take another, or none.")
