"""Folding: brings the view tables up to the last commit and says in `published` which versions belong together.

A fold may be interrupted anywhere. What was merged is known to each table itself; `published` is derived from that, and
a row of it is a true statement whoever wrote it: version and folded commit of a table are read from one snapshot of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from strobe.errors import Fenced
from strobe.spark.failures import FAILURES
from strobe.warehouse import contradictions, inspect, storage, tables, view_table
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition, Published

Hook = Callable[[str], None]

FoundWrong = Callable[[str, str, int], None]
"""Remembers of a view how its changes contradict its rows, and the last commit at which it was right."""


@dataclass(frozen=True)
class Standing:
    """Where a view's table stands: its version, and the commit that this version holds at least."""

    definition: Definition
    version: int
    folded: int


def fold(
    spark: SparkSession,
    layout: Layout,
    definitions: Iterable[Definition],
    left: Iterable[Definition],
    retention: timedelta,
    at: Hook,
    unguaranteed: Collection[str],
    found_wrong: FoundWrong,
) -> Published | None:
    """Fold all views to the last commit, and those that have left to where they did. Without effect while a view is
    being loaded anew.

    A commit with which views came in is published on the way, if it was not yet. A view that was found wrong is folded
    as far as it was right, and published like that: that is what readers see of it from then on.
    """
    definitions = list(definitions)
    right_to = {d.view: d.right_to for d in definitions if d.wrong}
    log = inspect.open_log(layout)
    last = inspect.last_header_of(log)
    standings = _standings(layout, definitions)
    if last is None or standings is None:
        return None
    newest = newest_published(layout)
    if newest is not None and newest.commit == last.number and newest.views.keys() == standings.keys():
        return newest
    at("fold.before")
    settle(spark, layout, left, at)
    if newest is not None:
        renew(spark, layout, newest, retention)
        standings = _standings(layout, definitions) or {}
    came = {d.from_commit for d in definitions if newest is None or d.from_commit > newest.commit}
    for commit in sorted({*came, last.number}):
        for definition, after in _pending(log, commit, newest, standings):
            view, through = definition.view, min(commit, right_to.get(definition.view, commit))
            if after >= through:
                continue
            try:
                view_table.fold(spark, layout, log, definition, after, through, view in unguaranteed)
            except FAILURES:
                found = contradictions.in_fold(spark, layout, log, definition, after, through)
                if found is None:
                    raise
                found_wrong(view, found, after)
                right_to[view] = after
            at("fold.view")
        at("fold.before_publish")
        newest = publish(layout, definitions, commit)
        at("fold.after_publish")
        standings = _standings(layout, definitions) or {}
    return newest


def left_since(definitions: Iterable[Definition], newest: Published | None) -> list[Definition]:
    """The definitions that ended after the newest published commit: no fold has seen their end."""
    ended = [(d, d.to_commit) for d in definitions if d.to_commit is not None]
    return [definition for definition, last in ended if newest is None or last >= newest.commit]


def settle(spark: SparkSession, layout: Layout, left: Iterable[Definition], at: Hook) -> None:
    """Fold each view that has left to its last commit. Nothing is published, for it is gone; a table that is gone, or
    holds another generation by now, is left alone. Nobody asks any more what a view without guarantees has lost."""
    log, newest = inspect.open_log(layout), newest_published(layout)
    for each in left:
        standings = _standings(layout, [each]) if storage.exists(layout.view(each.view)) else None
        end = each.to_commit or 0
        for definition, after in _pending(log, end, newest, standings or {}):
            view_table.fold(spark, layout, log, definition, after, end, unguaranteed=True)
            at("fold.view")


def publish(layout: Layout, definitions: Iterable[Definition], commit: int) -> Published | None:
    """Say that the view tables, as they are now, hold a commit. None if a view is being loaded anew."""
    standings = _standings(layout, definitions)
    if standings is None:
        return None
    for standing in standings.values():
        if standing.folded > commit:
            raise Fenced(
                f"another coordinator folded the view {standing.definition.view} to commit {standing.folded}",
                where=str(layout.root),
                fix="Nothing is lost: the other one goes on from the last commit.",
            )
    row = Published(commit, datetime.now(timezone.utc), {name: s.version for name, s in standings.items()})
    tables.append_published(layout, row)
    return row


def newest_published(layout: Layout) -> Published | None:
    return max(inspect.published(layout), key=lambda row: (row.commit, row.published_at), default=None)


def renew(spark: SparkSession, layout: Layout, newest: Published, retention: timedelta) -> None:
    """Give view tables whose version has become old a new one with the same rows, and publish it for the same commit.

    Delta refuses versions by their age, also if they were superseded a minute ago; so a version must be young at the
    moment when it is superseded.
    """
    versions = dict(newest.views)
    limit = datetime.now(timezone.utc) - retention / 2
    for name, version in newest.views.items():
        location = layout.view(name)
        if inspect.version(location) == version and storage.written_at(location, version) < limit:
            view_table.set_properties(spark, location, {"strobe.renewed": datetime.now(timezone.utc).isoformat()})
            versions[name] = inspect.version(location)
    if versions != newest.views:
        tables.append_published(layout, Published(newest.commit, datetime.now(timezone.utc), versions))


def _standings(layout: Layout, definitions: Iterable[Definition]) -> dict[str, Standing] | None:
    found = {}
    for definition in definitions:
        table = inspect.open_table(layout.view(definition.view))
        if inspect.loaded_generation(table, definition.view) != definition.generation:
            return None
        folded = inspect.folded_to(table, definition.view, definition.generation)
        found[definition.view] = Standing(definition, table.version(), folded or definition.base)
    return found


def _pending(
    log: DeltaTable, through: int, newest: Published | None, standings: Mapping[str, Standing]
) -> list[tuple[Definition, int]]:
    """The views with rows in the log up to a commit that their tables do not hold, and the commits from which on.

    A table that is still at its published version has nothing pending up to the published commit: this only spares
    reading the log from where the table changed last.
    """
    starts = {}
    for name, standing in standings.items():
        unchanged = newest is not None and newest.views.get(name) == standing.version
        starts[name] = max(standing.folded, newest.commit) if newest is not None and unchanged else standing.folded
    changes = inspect.changes(log, min(starts.values(), default=0), through)
    return [(standings[n].definition, after) for n, after in starts.items() if changes.get(n, (0, 0))[0] > after]
