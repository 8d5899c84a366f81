"""What the staged table of dropped files is at a moment, and what may have happened to it between two.

Nothing but accepted drops changes the staged table, and each is a version with its place in the log. What can change
beside that is the table as a whole, if it is staged anew, and what strobe.yml says of the drops.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping

from strobe.sources.files.drops import Expected


def fingerprint(identity: str, columns: Mapping[str, str], expected: Expected) -> str:
    """`columns` are those of the staged table."""
    content = {"table": identity, "columns": dict(columns), "declared": dict(expected.declared), "key": expected.key}
    return json.dumps(content)


def changed(columns: Collection[str], before: str, after: str) -> str:
    """What happened to the relation between two fingerprints, if views may be wrong for it that use these columns."""
    if before == after:
        return ""
    if not before or not after:
        return "nothing is staged of it any more" if before else "nothing was staged of it"
    old, new = json.loads(before), json.loads(after)
    if old["table"] != new["table"]:
        return "it was staged anew"
    if old["key"] != new["key"]:
        return "strobe.yml declares another key, which the rows that are there were not checked for"
    for column in sorted(columns):
        if any(old[where].get(column) != new[where].get(column) for where in ("columns", "declared")):
            return f"its column {column} has another type, there or in strobe.yml"
    return ""
