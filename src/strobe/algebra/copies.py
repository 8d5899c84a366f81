"""Views that are copies of relations, kept at the warehouse so that it can be asked instead of the source: their
names."""

from __future__ import annotations

import re

from strobe.algebra.schema import RelationSchema, quoted

COPIES = "copy__"
"""How the names of views begin that are copies of relations; users' views may not."""


def copy_of(source: str, relation: str) -> str:
    """The view that holds a copy of a relation."""
    plain = relation if re.fullmatch(r"[a-z0-9_]+", relation) else "x" + relation.encode().hex()
    return f"{COPIES}{source}__{plain}"


def copy_sql(relation: RelationSchema) -> str:
    """The SQL of that view."""
    columns = ", ".join(quoted(column.name) for column in relation.columns)
    return f"SELECT {columns} FROM {quoted(relation.source)}.{quoted(relation.name)}"
