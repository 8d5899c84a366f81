"""Reports for people: the public documents as rich tables and lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.columns import Columns
from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from strobe.report.document import Document

_STYLES = {"error": "bold red", "warning": "yellow"}


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]], *, right: Sequence[str] = ()) -> Table:
    """A table whose cells are shown as they are, whatever brackets are in them."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(Text(column), justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        made.add_row(*(cell if isinstance(cell, Text) else Text(shown(cell)) for cell in row))
    return made


def shown(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "–"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def findings(document: Document) -> Iterable[RenderableType]:
    for finding in document["findings"]:
        style = _STYLES.get(finding["severity"], "")
        yield Text.assemble((f"{finding['severity']}: ", style), f"{finding['where']}: {finding['message']}")
        if finding["fix"]:
            yield Text(f"  {finding['fix']}")


def check(document: Document) -> Iterable[RenderableType]:
    yield from findings(document)
    if document["views"]:
        yield table(
            ["view", "algorithm", "level", "rows", "because"],
            [
                [name, view["algorithm"], view["level"], _identified(view), _reasons(view)]
                for name, view in document["views"].items()
            ],
        )
    for name, how in document["unlogged"].items():
        yield Text(f"source {name}: {how}; then only an audit finds what changed")
    if document["unlogged"] and document["audit_seconds"] is None:
        yield Text("`audit: 1d` in strobe.yml compares all rows with the sources once a day, in the background.")
    if document["audit_seconds"] is not None:
        for name, view in document["views"].items():
            if view["audited_by"] is None:
                yield Text(f"view {name}: {_AUDITED_WHOLE}")
    yield Text("Everything is ready." if document["ok"] else "Not ready: see the errors above.")


_AUDITED_WHOLE = (
    "the audit compares it whole, and only while it is small: it is more than inner joins, or shows the key of no table"
)


def _reasons(view: Document) -> str:
    return "; ".join(filter(None, [view["because"], view["higher"]]))


def _identified(view: Document) -> str:
    return "can repeat" if view["rows_can_repeat"] else f"one per {', '.join(view['key'])}"


def status(document: Document) -> Iterable[RenderableType]:
    coordinator = document["coordinator"]
    commit = document["commit"]
    where = f"commit {commit} of {moment(document['committed_at'])}" if commit else "nothing committed yet"
    yield Text(f"{document['project']}: {where}; {_coordinator(coordinator)}")
    yield sources(document)
    for name, source in document["sources"].items():
        if source.get("warning"):
            yield Text(f"source {name}: {source['warning']}", style=_STYLES["warning"])
    yield from backlogs({name: source.get("backlog") for name, source in document["sources"].items()})
    yield views(document)
    if document.get("waiting"):
        yield Text(_waiting(document["waiting"]))
    if document.get("appends"):
        appends = document["appends"]
        yield Text(f"appends: {appends['number']:,} in {appends['milliseconds'] / 1000:,.1f} s")
    if published := document.get("published"):
        within = published["publish_seconds"]
        setting = "" if within is None else f" (publish: {seconds(within)})"
        behind = "is the last" if not published["lag_seconds"] else f"is {seconds(published['lag_seconds'])} behind"
        yield Text(f"other engines read commit {published['commit']}, which {behind}{setting}")
    for name, view in document["views"].items():
        if view.get("problem"):
            yield Text(f"view {name} stands still: {view['problem']}", style="bold red")
        if (verified := view["verified"]) and verified["problem"]:
            yield Text(f"view {name} is not audited now: {verified['problem']}", style=_STYLES["warning"])
        if waits := view.get("waits"):
            yield Text(f"view {name} waits since {moment(waits['since'])}: {waits['why']}", style=_STYLES["warning"])
        if view["failed"]:
            yield Text(f"view {name}: `strobe apply` failed: {view['failed']}", style="bold red")
        elif view["pending"]:
            yield Text(f"view {name}: `strobe apply` will {view['pending']} it")


def _waiting(waiting: Document) -> str:
    """The view-update table: how long it is, and what its first row waits for."""
    text = f"view-update table: {waiting['rows']:,} rows"
    if oldest := waiting["oldest"]:
        for_what = ", ".join(oldest["waits_for"]) or "rows that it is tied to"
        text += f"; the oldest, update {oldest['update']}, waits for {for_what}"
    if parts := waiting.get("parts"):
        first = min(parts)
        more = f" ({len(parts) - 1:,} more like it)" if len(parts) > 1 else ""
        text += f"; global transaction {first} waits for its part at {', '.join(parts[first])}{more}"
    return f"{text}; {waiting['commits']:,} warehouse transactions wait for an append"


_BECOMES = {"add": "loaded", "rebuild": "loaded anew", "drop": "dropped", "keep": "kept as it is"}
_BECAME = {**_BECOMES, "keep": "kept as it was"}


def plan(document: Document) -> Iterable[RenderableType]:
    yield table(["view", "will be"], [[name, what] for key, what in _BECOMES.items() for name in document[key]])
    if document["reads"]:
        read = [
            [f"{source}.{relation}", "unknown" if rows is None else rows]
            for source, relations in document["reads"].items()
            for relation, rows in relations.items()
        ]
        yield table(["reads", "rows"], read, right=["rows"])
    if document["code"]:
        yield Text(f"Spark settings that can load code: {', '.join(document['code'])}", style=_STYLES["warning"])
    if document["stale"]:
        yield table(["stale view", "because"], document["stale"].items())
        yield Text("`strobe rebuild --stale` loads them again.", style=_STYLES["warning"])
    if any(document[key] for key in ("add", "rebuild", "drop")):
        yield Text("`strobe apply` does it.")
    else:
        yield Text("Nothing to apply: the views are as strobe.yml has them.")


def applied(document: Document) -> Iterable[RenderableType]:
    if not any(document[key] for key in ("add", "rebuild", "drop")):
        yield Text("Nothing to do: the views are as strobe.yml has them.")
        return
    yield table(["view", "was"], [[name, what] for key, what in _BECAME.items() for name in document[key]])
    yield Text(f"applied at commit {document['commit']}")


def _coordinator(coordinator: Document) -> str:
    from strobe.client.wait import shown_age

    if coordinator["last_heard_seconds"] is None:
        return "never run"
    who = f"process {coordinator['pid']} on {coordinator['host']}"
    if coordinator["alive"]:
        return f"kept by {who}"
    return f"no coordinator, last heard {shown_age(coordinator['last_heard_seconds'])} ago ({who})"


def sources(document: Document) -> Table:
    return table(
        ["source", "position", "lag", "state", "log kept", "asked", "problem"],
        [
            [
                name,
                place(s.get("position")),
                seconds(s.get("lag_seconds")),
                s.get("state"),
                _megabytes(s.get("retained_bytes")),
                counts(s.get("asked")),
                s.get("problem"),
            ]
            for name, s in document["sources"].items()
        ],
        right=["lag"],
    )


def backlogs(found: Mapping[str, Document | None]) -> Iterable[RenderableType]:
    """By source, how far it has been committed: a bar, what is left and when that is done."""
    for name, backlog in found.items():
        if backlog is None:
            continue
        bar = ProgressBar(total=100, completed=backlog["percent"], width=30)
        yield Columns([Text(f"{name} catches up"), bar, Text(backlog_text(backlog))])


def backlog_text(backlog: Document) -> str:
    """`43 %, 12.3 MB of log left, about 2 min at the present rate`."""
    done = backlog["seconds"]
    when = "falling behind" if done is None else f"about {about(done)} at the present rate"
    in_bytes = backlog["unit"] == "bytes of log"
    left = f"{_megabytes(backlog['left'])} of log" if in_bytes else f"{backlog['left']:,} {backlog['unit']}"
    return f"{backlog['percent']:.0f} %, {left} left, {when}"


def about(seconds: float) -> str:
    """How long something may take: `45 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def place(position: str | None) -> str:
    """A position for people: without what tells its log from others."""
    return (position or "–").partition("@")[0]


def _megabytes(size: int | None) -> str | None:
    return None if size is None else f"{size / 2**20:,.1f} MB"


def views(document: Document) -> Table:
    return table(
        ["view", "rows", "level", "freshness", "lag", "queue", "waits for", "dropped", "compensated", "verified"],
        [
            [
                name,
                v["rows"] if v["loaded"] else "not loaded",
                "stale" if v["stale"] else v["level"],
                seconds(v["freshness"]),
                seconds(v["lag_seconds"]),
                v["queue"],
                v["waits_for"],
                v["dropped"],
                v["compensations"],
                _verified(v["verified"]),
            ]
            for name, v in document["views"].items()
        ],
        right=["rows", "freshness", "lag", "queue", "dropped", "compensated"],
    )


def _verified(verified: Document | None) -> str | None:
    """`commit 12, 3 of 10 parts since`."""
    if verified is None:
        return None
    more = f", {verified['parts']} parts since" if verified["parts"] else ""
    return f"commit {verified['commit']}{more}"


def history(document: Document) -> Iterable[RenderableType]:
    if not document["commits"]:
        yield Text("Nothing has been committed yet.")
        return
    yield table(
        ["commit", "committed at", "changed", "positions", "verified"],
        [
            [c["commit"], moment(c["committed_at"]), c["views"], _vector(c["positions"]), c["verified"]]
            for c in document["commits"]
        ],
        right=["commit"],
    )


def _vector(positions: Document) -> str:
    """One position for each source where all views agree, else all of them."""
    merged: dict[str, set[str]] = {}
    for vector in positions.values():
        for source, position in vector.items():
            merged.setdefault(source, set()).add(place(position))
    return ", ".join(f"{source} {'/'.join(sorted(found))}" for source, found in sorted(merged.items()))


def explain(document: Document) -> Iterable[RenderableType]:
    kept = f"{document['view']}: {document['algorithm']} at {document['level']}, because {_reasons(document)}"
    yield Text(kept)
    yield Text(f"rows: {_identified(document)}")
    yield Text(f"commits together with: {shown([v for v in document['group'] if v != document['view']])}")
    yield table(
        ["occurrence", "relation", "columns used"],
        [[o["alias"], o["relation"], o["columns"]] for o in document["occurrences"]],
    )
    if document["tree"]:
        yield Text("evaluated by Spark over the rows that matter, before and after:")
        for line in document["tree"]:
            yield Text(f"{'  ' * (line['depth'] + 1)}{line['operator']} {line['detail']}".rstrip())
    else:
        yield Text(f"joined by: {shown(document['equalities'])}")
    if document["condition"]:
        yield Text(f"kept where: {document['condition']}  (evaluated by Spark)")
    for change in document["changes"]:
        alias = f" as {change['alias']}" if change["alias"] != change["relation"].split(".")[-1] else ""
        yield Text(f"\na change of {change['relation']}{alias}: {change['messages']} messages, {change['cost']}")
        for number, fragment in enumerate(change["fragments"], 1):
            for lookup in fragment["lookups"]:
                by = f" where {' and '.join(lookup['by'])}" if lookup["by"] else ""
                columns = ", ".join(lookup["columns"])
                yield Text(f"  {number}. {fragment['source']}: {columns} of {lookup['relation']}{by} ({_way(lookup)})")
        if change["deletions"]:
            yield Text(f"  {change['deletions']}")


def _way(lookup: Document) -> str:
    found = lookup["found_by"]
    return found if found == "all rows" else f"by {'a ' if found == 'scan' else ''}{found}"


def algorithms(document: Document) -> Iterable[RenderableType]:
    for algorithm in document["algorithms"]:
        yield Text(algorithm["name"], style="bold")
        for what in ("reaches", "needs", "costs", "origin"):
            yield Text(f"  {what + ':':<9}{algorithm[what]}")
        by_level: dict[str, list[str]] = {}
        for scenario, level in algorithm["scenarios"].items():
            by_level.setdefault(level, []).append(scenario)
        yield Text("  found:   " + "; ".join(f"{level} for {', '.join(names)}" for level, names in by_level.items()))


def audit(document: Document) -> Iterable[RenderableType]:
    yield table(
        ["view", "verdict", "level", "because"],
        [[name, v["verdict"], v["level"], v["because"]] for name, v in document["views"].items()],
    )
    for name, verdict in document["views"].items():
        for row in verdict["witness"] or ():
            yield Text(f"  {name}: {row}")
    yield Text(f"verdict: {document['verdict']}", style="green" if document["verdict"] == "valid" else "bold red")


def counts(asked: Document | None) -> str:
    """What a source was asked."""
    return ", ".join(f"{name.replace('_', ' ')} {value:,}" for name, value in asked.items()) if asked else "–"


def seconds(value: float | None) -> str:
    """`1.5 s`."""
    return "–" if value is None else f"{value:g} s"


def moment(value: Any) -> str:
    """`2026-01-05 10:11:12 UTC`, from a datetime or its ISO text."""
    text = value if isinstance(value, str) else value.isoformat()
    return f"{text[:10]} {text[11:19]} UTC"
