"""What can be said of a query and its result without Spark."""

from __future__ import annotations

from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from strobe.errors import UserError


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    """As Spark writes it."""


def tables_of(text: str) -> set[str]:
    """The tables that a query names; `UserError` if it is anything but one query."""
    try:
        statements = [statement for statement in sqlglot.parse(text, read="spark") if statement is not None]
    except (SqlglotError, RecursionError) as error:
        lines = str(error).splitlines()
        what = "it is nested too deeply" if isinstance(error, RecursionError) else lines[0] if lines else str(error)
        raise UserError(f"cannot parse this SQL: {what}", fix="Correct the query.") from None
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise UserError(
            "only one SELECT can be asked at a time", fix="Write a statement that begins with SELECT or WITH."
        )
    return {table.name.lower() for table in statements[0].find_all(exp.Table)}
