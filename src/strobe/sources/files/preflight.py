"""Preflight of drops of files: what has been staged so far, held against what strobe.yml says of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from strobe.sources.base import Finding
from strobe.sources.files.drops import Expected, waiting_drops
from strobe.sources.files.versions import StagedTable


def unknown(source: str, expected: Expected, relations: Sequence[str]) -> Iterator[Finding]:
    """For each relation that the source does not have."""
    message, fix = "there is no such relation", f"Its relation is {expected.relation}."
    for relation in relations:
        if relation != expected.relation:
            yield Finding("error", f"source {source}, relation {relation}", message, fix)


def check(source: str, table: StagedTable, expected: Expected) -> Iterator[Finding]:
    if not table.exists:
        yield Finding("error", source, "no drop has been staged yet", f"run `strobe prepare {source}`")
    if not expected.optional and not _has_ever_come(table, expected):
        lacking = expected.lacking()
        yield Finding("error", f"source {source}", lacking.message, lacking.fix)
    if not table.exists:
        return
    staged = table.columns()
    if differ := [name for name, type_ in expected.declared.items() if staged.get(name) != type_]:
        message = f"the type of {', '.join(differ)} is not the one under which drops have been staged"
        fix = f"run `strobe prepare {source} --undo` and `strobe prepare {source}`, and rebuild its views"
        yield Finding("error", source, message, fix)


def _has_ever_come(table: StagedTable, expected: Expected) -> bool:
    staged = table.exists and table.drop(table.open().version()) is not None
    return staged or bool(waiting_drops(expected.pattern, None))
