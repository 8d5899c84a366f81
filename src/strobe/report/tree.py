"""A view's tree of operators as lines, each operator above those it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from strobe.algebra.tree import (
    Exists,
    Explode,
    Filter,
    Group,
    Join,
    JoinKind,
    Operator,
    Project,
    Scan,
    Union,
    Window,
)
from strobe.algebra.view import Output
from strobe.report.document import Document

Named = Callable[[str], str]
"""Puts the names that the user gave into an expression."""

_JOINS = {JoinKind.INNER: "JOIN", JoinKind.LEFT: "LEFT JOIN", JoinKind.FULL: "FULL JOIN"}


def lines(tree: Operator, named: Named, depth: int = 0) -> Iterator[Document]:
    """An operator and those below it, from left to right: its depth, what it is, and what it does."""
    kind, detail = _told(tree, named)
    yield {"depth": depth, "operator": kind, "detail": detail}
    for child in tree.children:
        yield from lines(child, named, depth + 1)


def _told(operator: Operator, named: Named) -> tuple[str, str]:
    if isinstance(operator, Scan):
        relation, alias = operator.occurrence.relation, operator.occurrence.alias
        return "scan", relation.id if alias == relation.name else f"{relation.id} as {alias}"
    if isinstance(operator, Filter):
        return "filter", named(operator.condition)
    if isinstance(operator, Project):
        computed = [o for o in operator.outputs if o.name not in operator.passed]
        return "project", _outputs(computed, named) or "columns only"
    if isinstance(operator, Join):
        return _JOINS[operator.kind], _condition(operator, named)
    if isinstance(operator, Exists):
        return "NOT EXISTS" if operator.negated else "EXISTS", _condition(operator, named)
    if isinstance(operator, Union):
        return "UNION ALL", ""
    if isinstance(operator, Explode):
        return "LATERAL VIEW OUTER" if operator.outer else "LATERAL VIEW", named(operator.generator)
    if isinstance(operator, (Group, Window)):
        return _together(operator, named)
    return type(operator).__name__.lower(), ""


def _together(operator: Group | Window, named: Named) -> tuple[str, str]:
    """With the columns by which whatever belongs together is read whole."""
    by, cover = ", ".join(map(named, operator.by)), ", ".join(map(named, operator.cover))
    read = f"read whole by {cover}" if cover else "all rows are read"
    if isinstance(operator, Window):
        kind = f"window PARTITION BY {by}" if by else "window"
    elif operator.outputs:
        kind = f"GROUP BY {by}" if by else "aggregate"
    else:
        kind = f"DISTINCT {by}"
    return kind, "; ".join(filter(None, (_outputs(operator.outputs, named), read)))


def _condition(operator: Join | Exists, named: Named) -> str:
    parts = [f"{named(p.left)} {'<=>' if p.null_safe else '='} {named(p.right)}" for p in operator.pairs]
    return " and ".join([*parts, *([named(operator.condition)] if operator.condition else [])]) or "true"


def _outputs(outputs: tuple[Output, ...] | list[Output], named: Named) -> str:
    return ", ".join(f"{named(o.expression)} as {o.name}" for o in outputs)
