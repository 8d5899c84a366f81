"""Answering a query on the driver: its look-ups, one after another, in one snapshot, as bags in memory.

An answer that would hold too many rows is left to Spark (`TooLarge`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.messages import Lookup, Query, Seen
from strobe.sources.base import Reader, TooLarge


def answer_on_driver(reader: Reader, query: Query, limit: int) -> tuple[tuple[Bag, ...], Seen]:
    """Answer a query in one snapshot with bags in memory; `TooLarge` if it would hold more than `limit` rows."""
    seen = reader.open()
    try:
        return answer_within(query, limit, lambda lookup, keys, left: read_bag(reader, lookup, keys, left)), seen
    finally:
        reader.close()


ReadBag = Callable[[Lookup, "list[Row] | None", int], Bag]


def answer_within(query: Query, limit: int, read: ReadBag) -> tuple[Bag, ...]:
    """The same in a snapshot that is open, of which `read` gives what a look-up finds."""
    found: list[Bag] = []
    for lookup in query.lookups:
        found.append(read(lookup, _keys(lookup, found), limit - sum(map(len, found))))
    return tuple(found)


def read_bag(reader: Reader, lookup: Lookup, keys: list[Row] | None, limit: int) -> Bag:
    """What a look-up finds; `TooLarge` if these are more rows than `limit`."""
    rows: list[tuple[Any, ...]] = []
    for row in reader.lookup(lookup, keys):
        rows.append(row)
        if len(rows) > limit:
            raise TooLarge
    return Bag.of(lookup.columns, rows)


def _keys(lookup: Lookup, found: Sequence[Bag]) -> list[Row] | None:
    if lookup.keys_from is not None:
        index, columns = lookup.keys_from
        keys: Relation = found[index].keys(columns, nulls=True)
    elif lookup.keys is not None:
        keys = lookup.keys
    else:
        return None
    if not isinstance(keys, Bag):
        raise TooLarge
    return [key for key, _ in keys.items() if lookup.null_safe or None not in key]
