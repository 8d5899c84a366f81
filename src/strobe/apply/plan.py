"""What an edited `strobe.yml` means for the views that are there: which come, change, go and stay. No Spark, nothing
written."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from strobe.algebra.copies import COPIES, copy_of
from strobe.algebra.view import View
from strobe.config.model import Project
from strobe.errors import StrobeError, UserError, suggestion
from strobe.planning.topology import Topology, assemble
from strobe.sources.base import Source
from strobe.warehouse import inspect, storage, tables
from strobe.warehouse.control import todo
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition

Reads = dict[str, dict[str, int | None]]
"""Source to relation to the rows that will be read; None where nobody knows without reading them."""


@dataclass(frozen=True)
class ApplyPlan:
    """The views, by what becomes of them."""

    add: tuple[str, ...] = ()
    rebuild: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()

    @property
    def load(self) -> tuple[str, ...]:
        """The views that are loaded, new and changed ones."""
        return (*self.add, *self.rebuild)

    @property
    def nothing(self) -> bool:
        return not (self.load or self.drop)

    def document(self) -> dict[str, list[str]]:
        return {name: list(views) for name, views in asdict(self).items()}


def edit(topology: Topology, applied: Mapping[str, Definition]) -> ApplyPlan:
    """What has to be done so that the views in `applied` become those of the topology."""
    changed = [n for n, planned in topology.views.items() if n in applied and _differs(planned.view, applied[n])]
    return ApplyPlan(
        add=tuple(name for name in topology.views if name not in applied),
        rebuild=tuple(changed),
        drop=tuple(name for name in applied if name not in topology.views),
        keep=tuple(name for name in topology.views if name in applied and name not in changed),
    )


def _differs(view: View, definition: Definition) -> bool:
    """Whether the table would hold other rows: another query, or rows that repeat where they did not."""
    return view.sql.strip() != definition.sql.strip() or tuple(view.key) != tuple(definition.key)


def rebuilt(
    topology: Topology, applied: Mapping[str, Definition], views: Sequence[str], kept: Collection[str]
) -> ApplyPlan:
    """Load views again, with the copies that they need and nobody keeps; all others stay as they were last applied."""
    for view in views:
        if view not in topology.views:
            raise UserError(f"there is no view {view!r}", where="strobe.yml", fix=suggestion(view, topology.views))
    occurrences = [occurrence for view in views for occurrence in topology.views[view].view.occurrences]
    needed = [copy_of(o.source, o.relation.name) for o in occurrences if o.copied]
    load = dict.fromkeys((*(name for name in needed if name not in kept), *views))
    return ApplyPlan(
        add=tuple(name for name in load if name not in applied),
        rebuild=tuple(name for name in load if name in applied),
        keep=tuple(name for name in applied if name not in load),
    )


def applied(warehouse: Path) -> dict[str, Definition]:
    """The definitions in force, by view; none where nothing was committed yet."""
    layout = Layout(warehouse)
    if not storage.exists(layout.log):
        return {}
    header = inspect.last_header(layout)
    generations = header.generations if header else {}
    return {d.view: d for d in inspect.definitions(layout) if generations.get(d.view) == d.generation}


def plan(project: Project) -> tuple[ApplyPlan, Reads]:
    """What `strobe apply` would do now, and how many rows it would read; `UserError` for what is wrong with a view."""
    topology = assemble(project)
    with topology.sources:
        tables.check_before_use(Layout(project.warehouse), project.name)
        found = edit(topology, applied(project.warehouse))
        return found, reads(topology, found)


def reads(topology: Topology, wanted: ApplyPlan) -> Reads:
    """How many rows of which relations are read to load the views: each relation once, whoever uses it."""
    relations = {r.id: r for name in wanted.load for r in topology.views[name].view.relations}
    found: Reads = {}
    for source in dict.fromkeys(r.source for r in relations.values()):
        names = sorted(r.name for r in relations.values() if r.source == source)
        found[source] = rows_of(topology.sources[source], names)
    return found


def rows_of(source: Source, relations: Sequence[str]) -> dict[str, int | None]:
    """How many rows each relation has, about; None where only reading it would tell."""
    try:
        reader = source.reader()
        reader.open()
    except StrobeError:
        return dict.fromkeys(relations)
    try:
        return {relation: reader.rows(relation) for relation in relations}
    finally:
        reader.close()


# What `strobe status` tells of edits.


def pending(project: Project, definitions: Mapping[str, Definition]) -> dict[str, str]:
    """The views that are not as strobe.yml has them, and what `strobe apply` would do with each; without asking a
    source."""
    found = {name: "add" for name in project.views if name not in definitions}
    for name, definition in definitions.items():
        config = project.views.get(name)
        if config is None and not name.startswith(COPIES):
            found[name] = "drop"
        elif config is not None and config.sql.strip() != definition.sql.strip():
            found[name] = "rebuild"
    return found


def note(project: Project, error: StrobeError | None) -> None:
    """Remember why the last `strobe apply` failed, or that it did not."""
    told = error.document()["error"] if error is not None else None
    todo.note_failure(Layout(project.warehouse).control, told)


def failed(project: Project, definitions: Mapping[str, Definition]) -> dict[str, str]:
    """The views that the last `strobe apply` could not bring in, and why: the one that its message names, else all."""
    body = todo.failure(Layout(project.warehouse).control)
    waiting = pending(project, definitions) if body else {}
    text = f"{body.get('where', '')}: {body.get('message', '')}"
    named = [name for name in waiting if re.search(rf"\bview {name}\b", text)]
    return {name: body.get("message", "") for name in named or waiting}
