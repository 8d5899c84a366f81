"""What a watched table is at a moment, and what may have happened to it between two.

The log of a table is complete as long as Strobe's triggers are in place and older than the seal, and no watch of it
ended in a gap (see `triggers` and `preparation`). A trigger that was dropped and put back is younger than the seal.
What comes and goes between two fingerprints and makes the triggers miss rows is logged as a gap by the triggers.
While another table has the name, or the columns' names are exchanged, nothing is read (see `reader`), and changes are
logged as those of the table that carries the triggers.

All other changes of the schema are harmless. SQLite counts them: the count is in the fingerprint, so that every change
shows. It goes back only if the database is replaced or somebody sets it. A file that takes the place of the database
has its log and its triggers in it: positions show whether it is the same log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping

from strobe.sources.sqlite.inspection import Inspection
from strobe.sources.sqlite.preparation import prepared


def fingerprints(
    connection: sqlite3.Connection, inspection: Inspection, relations: Collection[str]
) -> Mapping[str, str]:
    """The fingerprints of tables in one snapshot; empty for those that are not watched."""
    state = prepared(connection)
    watched = {w.relation: w for w in state.current} if state else {}
    faults = inspection.faults(connection, state) if state else {}
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    return {
        relation: json.dumps(
            {
                "log": state.identity,
                "unbroken since": state.unbroken_since(watched[relation]),
                "columns": watched[relation].types,
                "fault": faults[relation],
                "schema": version,
            }
        )
        if state and relation in watched
        else ""
        for relation in relations
    }


def changed(columns: Collection[str], before: str, after: str) -> str:
    """What happened to a table between two fingerprints, if views may be wrong for it that use these columns."""
    if before == after:
        return ""
    if not before or not after:
        return "it is not watched any more" if before else "it was not watched before"
    old, new = json.loads(before), json.loads(after)
    if old["log"] != new["log"]:
        return "its database was replaced, or prepared anew"
    if new["fault"] or old["fault"]:
        return str(new["fault"] or old["fault"])
    if old["unbroken since"] != new["unbroken since"]:
        return "it was not watched for some time"
    for column in sorted(columns):
        if old["columns"].get(column) != new["columns"].get(column):
            return f"its column {column} has another type"
    if old["schema"] > new["schema"]:
        return "its database was replaced by another, or its schema_version was set"
    return ""
