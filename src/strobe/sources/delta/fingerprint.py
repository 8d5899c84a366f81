"""What a Delta table is at its newest version, and what may have happened to it between two.

The table's own log has every change of its definition at its exact place, and the stream stops there, even if it was
changed back since. So a fingerprint says only what the newest version adds to that: whether it is still of the table
that the views were loaded from, and one that can be read.
"""

from __future__ import annotations

import json
from collections.abc import Collection

from strobe.sources.delta.log import Protocol, Shape


def fingerprint(shape: Shape, protocol: Protocol) -> str:
    unreadable = [*protocol.unknown, *(["column mapping"] if shape.mapped else [])]
    return json.dumps({"table": shape.id, "columns": dict(shape.types), "unreadable": unreadable})


def changed(columns: Collection[str], before: str, after: str) -> str:
    """What happened to a table between two fingerprints, if views may be wrong for it that use these columns."""
    if before == after:
        return ""
    if not before or not after:
        return "there is no such relation" if before else "there was no such relation"
    old, new = json.loads(before), json.loads(after)
    if old["table"] != new["table"]:
        return "it was replaced by another table"
    if new["unreadable"]:
        return f"it uses {', '.join(new['unreadable'])}, which this source cannot read"
    for column in sorted(columns):
        if old["columns"].get(column) != new["columns"].get(column):
            return f"its column {column} is gone or of another type"
    return ""
