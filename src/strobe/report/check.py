"""What `strobe check` finds: everything at once, not only the first mistake. No JVM, nothing written."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial

from strobe.algebra.schema import RelationSchema
from strobe.config.model import Project
from strobe.data.scratch import user_folder
from strobe.errors import StrobeError
from strobe.managers.departures import cannot
from strobe.pipeline.part_reader import COVERED, anchor
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import ViewPlan, plan_view, raise_levels, source_names
from strobe.report.document import Document
from strobe.report.explain import LookupStep, asked
from strobe.sources.base import Finding, Source
from strobe.spark import isolation
from strobe.warehouse import inspect, storage, tables
from strobe.warehouse.layout import Layout

_LEAVES = "`strobe apply` drops it."


def check(project: Project) -> Document:
    """The public document: `ok` unless some finding is an error."""
    with SourceSet.open(project) as sources:
        findings, planned = _preflight(project, sources)
        used = {source for plan in planned.values() for source in plan.view.sources}
        unlogged = {name: source.unlogged for name, source in sources.items() if name in used and source.unlogged}
    return {
        "ok": not any(finding.severity == "error" for finding in findings),
        "findings": [asdict(finding) for finding in findings],
        "views": {name: _view(plan) for name, plan in planned.items()},
        "unlogged": unlogged,
        "audit_seconds": project.audit.total_seconds() if project.audit else None,
    }


def _preflight(project: Project, sources: Mapping[str, Source]) -> tuple[list[Finding], dict[str, ViewPlan]]:
    findings: list[Finding] = []
    relations = _relations(sources, findings)
    planned: dict[str, ViewPlan] = {}
    for name, config in project.views.items():
        where = f"{config.origin}: view {name}"
        try:
            broken = source_names(config.sql, where) & (set(sources) - set(relations))
            known = {schema.id: schema for source in relations.values() for schema in source}
            if broken:
                raise StrobeError(f"source {', '.join(sorted(broken))} cannot be read", where=where, fix="See above.")
            planned[name] = plan_view(name, config.sql, config, known, where)
        except StrobeError as error:
            findings += [_error(each, where) for each in error.each]
    try:
        planned = raise_levels(planned)
    except StrobeError as error:
        findings.append(_error(error, error.where))
    named = {name for name in sources for view in project.views.values() if _names(view.sql, name)}
    findings += _of_sources(sources, set(relations), planned, named)
    findings += [f for plan in planned.values() for f in _costs(project, plan)]
    findings += [f for plan in planned.values() for f in _under_load(project, plan)]
    findings += _of_other_users(project)
    findings += _of_warehouse(project)
    return findings, planned


def _relations(sources: Mapping[str, Source], findings: list[Finding]) -> dict[str, tuple[RelationSchema, ...]]:
    """What each source offers; those that cannot say it are left out, with a finding."""
    found = {}
    for name, source in sources.items():
        try:
            found[name] = source.schemas()
        except StrobeError as error:
            findings.append(_error(error, f"source {name}"))
    return found


def _names(sql: str, source: str) -> bool:
    """Whether a view's SQL names a source, whether the view can be kept or not."""
    try:
        return source in source_names(sql)
    except StrobeError:
        return re.search(rf"\b{source}`?\s*\.", sql) is not None


def _of_sources(
    sources: Mapping[str, Source], readable: set[str], planned: dict[str, ViewPlan], named: Collection[str]
) -> Iterator[Finding]:
    """`named` are the sources that some view names, refused ones among them."""
    for name, source in sources.items():
        used = {r.name for plan in planned.values() for r in plan.view.relations if r.source == name}
        if name not in named:
            yield Finding("warning", f"source {name}", "no view uses it")
        if name not in readable or not used:
            continue
        try:
            yield from source.check(sorted(used))
            yield from _of_partitions(name, source.partition_keys(sorted(used)), planned.values())
        except StrobeError as error:
            yield _error(error, f"source {name}")


def _of_partitions(
    source: str, keys: Mapping[str, Sequence[str] | None], planned: Iterable[ViewPlan]
) -> Iterator[Finding]:
    """Views that stop when a partition leaves, though the source says where that happens."""
    rebuild = "`strobe rebuild` the view whenever a partition is dropped or detached."
    for plan in planned:
        fix = f"Show the column in the view, or {rebuild}" if plan.view.tree is None else rebuild
        for occurrence in (o for o in plan.view.occurrences if o.source == source and o.relation.name in keys):
            key = keys[occurrence.relation.name]
            why = cannot(occurrence, plan.view, key or ()) or ("its commits have a fixed number" if plan.pace else "")
            if key is None:
                why = "the values of no column tell its partitions apart"
            if why:
                what = f"it cannot follow partitions of {occurrence.relation.id} that leave: {why}"
                yield Finding("warning", f"view {plan.view.name}", what, fix)


def _costs(project: Project, planned: ViewPlan) -> Iterator[Finding]:
    """Look-ups that make a source read more than it should."""
    told: set[tuple[str, tuple[str, ...]]] = set()
    for each in asked(planned.view):
        relation = each.occurrence.relation
        this = (relation.id, tuple(each.columns))
        if each.step.cost >= 2 and this not in told:
            told.add(this)
            kind = project.sources[relation.source].type
            told_of = _slow_tree if planned.view.tree is not None else _slow
            yield Finding("warning", f"view {planned.view.name}", told_of(each), _remedy(each, kind))


def _under_load(project: Project, planned: ViewPlan) -> Iterator[Finding]:
    """An algorithm that somebody chose, and that does not keep up with many updates."""
    name = planned.view.name
    if planned.algorithm.burdened and project.views[name].algorithm != "auto":
        message = (
            f"{planned.algorithm.name} asks for every update by itself, and compensates it for what comes meanwhile: "
            "the more are on their way, the more each costs; so a backlog is taken in some hundred at a time"
        )
        yield Finding("warning", f"view {name}", message, "`algorithm: sweep` works off any backlog at one rate.")


def _slow(each: LookupStep) -> str:
    relation, changed = each.occurrence.relation, each.changed.relation
    if not each.columns:
        return f"nothing leads from a change of {changed.id} to {relation.id}: every change fetches all its rows"
    columns = ", ".join(each.columns)
    return f"{relation.id} has no index on the joined column {columns}: a change of {changed.id} makes it scan"


def _slow_tree(each: LookupStep) -> str:
    relation, changed = each.occurrence.relation, each.changed.relation
    if not each.columns:
        return f"every change of {changed.id} fetches all rows of {relation.id}: no plain column leads there"
    columns = ", ".join(each.columns)
    return f"{relation.id} has no index on {columns}, by which a change of {changed.id} looks rows up: it scans"


def _remedy(each: LookupStep, kind: str) -> str:
    if not each.columns:
        return "Join, group and partition by plain columns, joined ones of one type; or keep that relation small."
    columns = ", ".join(each.columns)
    if kind == "files":
        return "A drop has no indexes but its key: join by the key, or keep the file small."
    if kind == "delta":
        return f"Partition or sort the table by {columns}, keep it small, or let the view `cache` it."
    return f"Make an index on {each.occurrence.relation.name} ({columns})."


def _of_other_users(project: Project) -> Iterator[Finding]:
    """Whether others on this machine, or in Spark's network, could read or replace what is written."""
    for look in (user_folder, partial(isolation.authenticated, project.spark)):
        try:
            look()
        except StrobeError as error:
            yield _error(error, "strobe.yml")
    for folder, mode, wanted in Layout(project.warehouse).unlike(project.umask):
        wide = f"other users may do more there (mode {mode:o}) than `warehouse_mode: {project.warehouse_mode}` says"
        narrow = f"those who may read the warehouse cannot enter this folder (mode {mode:o})"
        access = f"g={'rX' if wanted & 0o050 else ''},o={'rX' if wanted & 0o005 else ''}"
        fix = f"Run `chmod -R {access} {shlex.quote(str(folder))}`."
        yield Finding("warning", str(folder), wide if mode & ~wanted else narrow, fix)


def _of_warehouse(project: Project) -> Iterator[Finding]:
    """Whether the folder can be used, and how the views in it differ from those in strobe.yml."""
    layout = Layout(project.warehouse)
    try:
        tables.check_before_use(layout, project.name)
        header = inspect.last_header(layout) if storage.exists(layout.log) else None
        stored = inspect.definitions(layout) if header else []
    except StrobeError as error:
        yield _error(error, "warehouse")
        return
    if header is None:
        return
    applied = {d.view: d.sql for d in stored if header.generations.get(d.view) == d.generation}
    for name, config in project.views.items():
        if name not in applied:
            yield Finding("warning", f"view {name}", "it is new and not loaded yet", "Run `strobe apply`.")
        elif applied[name].strip() != config.sql.strip():
            message = "it was edited after it was loaded, and is kept as it was"
            yield Finding("warning", f"view {name}", message, "`strobe apply` loads the new definition.")
    for name in applied.keys() - project.views.keys():
        yield Finding("warning", f"view {name}", "it is in the warehouse, but no longer in strobe.yml", _LEAVES)


def _view(planned: ViewPlan) -> Document:
    view = planned.view
    return {
        "algorithm": planned.algorithm.name,
        "level": planned.level,
        "because": planned.because,
        "higher": planned.higher or None,
        "sources": list(view.sources),
        "relations": [relation.id for relation in view.relations],
        "key": list(view.key),
        "rows_can_repeat": not view.key,
        "audited_by": audited_by(planned),
    }


def audited_by(planned: ViewPlan) -> str | None:
    """By the keys of which relation the audit in the background takes a view apart; None where it does not."""
    first = anchor(planned.view) if planned.level in COVERED else None
    return first.relation.id if first else None


def _error(error: StrobeError, where: str) -> Finding:
    return Finding("error", error.where or where, error.message, error.fix)
