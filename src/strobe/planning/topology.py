"""The views of a project, compiled against what its sources offer, with an algorithm and a level chosen for each. No
Spark, nothing written."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from strobe.algebra.copies import COPIES, copy_of, copy_sql
from strobe.algebra.schema import RelationSchema
from strobe.algebra.sql import compile_view, referenced_relations
from strobe.algebra.view import View
from strobe.config.model import Project, ViewConfig
from strobe.errors import SourceUnavailable, UserError, suggestion
from strobe.events import Listener, ViewAdded, ViewEdited, ViewRemoved
from strobe.managers.base import ViewManager
from strobe.managers.choice import choose
from strobe.managers.registry import ALGORITHMS, LEVELS, Algorithm, Setting, asking_itself, copied, keys
from strobe.planning.source_set import SourceSet
from strobe.sources.base import Source, SparkStarter, contained


@dataclass(frozen=True)
class ViewPlan:
    """A view with the algorithm that keeps it, at which level, and why."""

    view: View
    algorithm: Algorithm
    level: str
    because: str
    freshness: float
    higher: str = ""
    """What would have to change for a higher level."""
    every: int | None = None

    @property
    def pace(self) -> int:
        """After exactly how many transactions it has a state (complete-N); 0 where freshness decides."""
        return self.every or 0 if self.algorithm.name == "sweep" and self.level == "strong" else 0

    @property
    def eager(self) -> bool:
        """Whether it may take up updates before their block has ended, and gives one action list for them."""
        return self.level == "strong" and not self.algorithm.waits

    def manager(self, others: Iterable[ViewPlan]) -> ViewManager:
        """`others` are the views that share the warehouse with it."""
        shared = {s for other in others if other.view.name != self.view.name for s in other.view.sources}
        alone = not shared & set(self.view.sources)
        return self.algorithm.make(self.view, Setting(self.level, self.every, alone))


@dataclass(frozen=True)
class Topology:
    project: Project
    sources: SourceSet
    views: dict[str, ViewPlan]
    schemas: dict[str, RelationSchema]
    """What the sources offered when they were last asked, by `source.table`."""

    def relations(self, source: str) -> tuple[RelationSchema, ...]:
        """The relations of a source that any view uses."""
        used = (r for planned in self.views.values() for r in planned.view.relations if r.source == source)
        return tuple({r.id: r for r in used}.values())

    def columns(self, source: str) -> dict[str, set[str]]:
        """The columns of a source's relations that any view uses."""
        used: dict[str, set[str]] = {relation.name: set() for relation in self.relations(source)}
        for planned in self.views.values():
            for occurrence in planned.view.occurrences:
                if occurrence.source == source:
                    used[occurrence.relation.name].update(occurrence.columns)
        return used


def schemas(sources: Mapping[str, Source], names: set[str]) -> dict[str, RelationSchema]:
    """What the named sources offer; a source that cannot be reached is the user's to mend before anything starts."""
    found: dict[str, RelationSchema] = {}
    for name in sorted(names & set(sources)):
        try:
            found |= schemas_of(sources[name])
        except SourceUnavailable as error:
            raise UserError(error.message, where=error.where or f"source {name}", fix=error.fix) from error
    return found


def schemas_of(source: Source) -> dict[str, RelationSchema]:
    with contained(source.name):
        return {schema.id: schema for schema in source.schemas()}


def source_names(sql: str, where: str = "") -> set[str]:
    return {relation.split(".", 1)[0] for relation in referenced_relations(sql, where=where)}


def known_sources(sql: str, declared: Collection[str], where: str) -> set[str]:
    """The sources that a view's SQL names, all of which strobe.yml has."""
    found = source_names(sql, where)
    for name in sorted(found - set(declared)):
        raise UserError(f"there is no source {name}", where=where, fix=suggestion(name, declared))
    return found


def plan_view(name: str, sql: str, config: ViewConfig, relations: Mapping[str, RelationSchema], where: str) -> ViewPlan:
    view = compile_view(name, sql, relations, where=where)
    choice = choose(view, config.algorithm, config.consistency, config.every)
    level: str = max(config.consistency, "strong", key=LEVELS.index)
    if choice.algorithm.level == "none":  # its rows may repeat whatever their keys
        view, level = replace(view, key=()), "none"
    view = with_copies(view, choice.algorithm, config.cache)
    view = with_itself(view, choice.algorithm) if config.ask_view else view
    freshness = config.freshness.total_seconds()
    return ViewPlan(view, choice.algorithm, level, choice.because, freshness, choice.higher, config.every)


def unguaranteed(project: Project) -> list[str]:
    """The views that ask for an algorithm without guarantees."""
    without = {name for name, algorithm in ALGORITHMS.items() if algorithm.level == "none"}
    return [name for name, view in project.views.items() if view.algorithm in without]


def with_copies(view: View, algorithm: Algorithm, cache: Sequence[str]) -> View:
    """The view with the relations marked that are answered from copies at the warehouse."""
    where = f"view {view.name}"
    known = [relation.id for relation in view.relations]
    for relation in cache:
        if relation not in known:
            fix = f"It uses {', '.join(known)}."
            raise UserError(f"`cache` names {relation}, which the view does not use", where=where, fix=fix)
    for used in view.relations:
        if used.id in cache and not used.images:
            raise _not_at_home(view, f"`cache` of {used.id}")
    return copied(view) if algorithm.copies else copied(view, tuple(cache))


def _not_at_home(view: View, what: str) -> UserError:
    reason = "what comes from home is brought up to date with whole old rows, and the source reports only their keys"
    fix = "Leave it out, or let the source report whole rows (PostgreSQL: REPLICA IDENTITY FULL)."
    return UserError(f"{what} is no use here: {reason}", where=f"view {view.name}", fix=fix)


def with_itself(view: View, algorithm: Algorithm) -> View:
    """The view with itself asked first, where it shows all that it uses of a relation."""
    if keys not in algorithm.lacks:
        reason = f"it is for the algorithms that find deletions in the view, and {algorithm.name} does not"
        raise UserError(f"`ask_view` is no use here: {reason}", where=f"view {view.name}", fix="Leave it out.")
    if not all(relation.images for relation in view.relations):
        raise _not_at_home(view, "`ask_view`")
    return asking_itself(view)


def copies(views: Mapping[str, ViewPlan]) -> dict[str, ViewPlan]:
    """The views that hold the copies which these views need, kept as they are: in the same commits."""
    found: dict[str, ViewPlan] = {}
    for planned in views.values():
        for relation in (o.relation for o in planned.view.occurrences if o.copied):
            name = copy_of(relation.source, relation.name)
            sql = copy_sql(relation)
            copy = plan_view(name, sql, ViewConfig(sql=sql), {relation.id: relation}, f"copy of {relation.id}")
            because = f"a copy of {relation.id} for {planned.view.name}"
            found[name] = replace(copy, because=because, freshness=planned.freshness)
    return found


def raise_levels(views: Mapping[str, ViewPlan]) -> dict[str, ViewPlan]:
    """Views that share sources share commits; next to a complete one a strong one is kept at complete too.

    A strong view's batches would tie the rows of the view-update table together, and the complete one would skip
    states.
    """
    raised = dict(views)
    todo = [planned for planned in views.values() if planned.level == "complete"]
    while todo:
        complete = todo.pop()
        for name, planned in raised.items():
            shared = [s for s in planned.view.sources if s in complete.view.sources]
            if planned.level == "strong" and shared and planned.algorithm.level != "complete":
                raise UserError(
                    f"it cannot be kept at complete next to {name}, which shares source {shared[0]} and is kept by "
                    f"{planned.algorithm.name} at strong",
                    where=f"view {complete.view.name}",
                    fix=f"Ask for consistency: strong, or use algorithm: auto for {name}.",
                )
            if planned.level == "strong" and shared:
                because = f"complete, because {complete.view.name} asks for it and shares source {shared[0]}"
                raised[name] = replace(planned, level="complete", because=f"{planned.because}; kept at {because}")
                todo.append(raised[name])
    return raised


def assemble(project: Project, spark: SparkStarter | None = None) -> Topology:
    """Open the sources, which are the caller's to close, and compile the views as strobe.yml has them now."""
    with SourceSet.open(project, spark).closed_on_error() as sources:
        return compiled(project, sources)


def compiled(project: Project, sources: SourceSet) -> Topology:
    """The views as strobe.yml has them now."""
    used: set[str] = set()
    for name, config in project.views.items():
        used |= known_sources(config.sql, sources, f"{config.origin}: view {name}")
    relations = schemas(sources, used)
    views = {
        name: plan_view(name, config.sql, config, relations, f"{config.origin}: view {name}")
        for name, config in project.views.items()
    }
    taken = next((name for name in views if name.startswith(COPIES)), None)
    if taken is not None:
        raise UserError(f"names with {COPIES} are for copies of relations", where=f"view {taken}", fix="Rename it.")
    return Topology(project, sources, raise_levels({**copies(views), **views}), relations)


def as_applied(topology: Topology, definitions: Mapping[str, str], tell: Listener) -> Topology:
    """The views as they were last loaded (`definitions` is their SQL); what strobe.yml says otherwise is only told.

    Sources whose relations are known are not asked again: they may be down.
    """
    project = topology.project
    used = {s for sql in definitions.values() for s in source_names(sql)}
    known = {relation.source for relation in topology.schemas.values()}
    relations = {**topology.schemas, **schemas(topology.sources, used - known)}
    views = {}
    for name, sql in definitions.items():
        config = project.views.get(name)
        if config is None and not name.startswith(COPIES):
            tell(ViewRemoved(name))
        elif config is not None and sql.strip() != config.sql.strip():
            tell(ViewEdited(name))
        views[name] = plan_view(name, sql, config or ViewConfig(sql=sql), relations, f"view {name}")
    for name in topology.views:
        if name not in definitions:
            tell(ViewAdded(name))
    views = {name: replace(planned, view=as_loaded(planned.view, definitions)) for name, planned in views.items()}
    return replace(topology, views=raise_levels(views), schemas=relations)


def as_loaded(view: View, there: Collection[str]) -> View:
    """The view with the source asked for relations of which no copy is there."""
    return replace(
        view,
        occurrences=tuple(
            replace(o, copied=o.copied and copy_of(o.source, o.relation.name) in there) for o in view.occurrences
        ),
    )


def preflight(topology: Topology) -> None:
    """Raise for the first thing that is missing in a source."""
    for name, source in topology.sources.items():
        relations = [relation.name for relation in topology.relations(name)]
        for finding in source.check(relations) if relations else ():
            if finding.severity == "error":
                raise UserError(finding.message, where=finding.where, fix=finding.fix)
