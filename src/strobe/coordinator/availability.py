"""Views that cannot be kept at the moment, so that the others go on without them.

Sources and views have states (see `coordinator.states` and `apply.states`). A view that is stopped is *aside* if it
cannot be compiled any more when the run starts (a column is gone), and stands *still* when one of its relations or
sources cannot be followed any more, until it is rebuilt. It is detached while one of its sources is down, or a table
that it asks does not answer.

Where the log of a source is let go on purpose, its views are rebuilt without anybody's asking. Which these are is
noted in the warehouse before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from strobe.algebra.view import View
from strobe.apply.states import VIEW, ViewEvent, ViewState
from strobe.coordinator.refusals import Refusals
from strobe.coordinator.states import SOURCE, Reason, SourceEvent, SourceState, reason_of
from strobe.coordinator.timing import USUAL, Timing
from strobe.coordinator.verify import same_source, verify_source
from strobe.errors import (
    DefinitionChanged,
    LostGuarantee,
    NotNow,
    RelationLost,
    RowFailed,
    RowOf,
    RowUnfit,
    SourceLost,
    SourceUnavailable,
    StrobeError,
    UserError,
    ViewWrong,
)
from strobe.events import (
    Detached,
    Listener,
    RebuildPutOff,
    SourcesTied,
    SourceUnreachable,
    SourceWarned,
    TableRefused,
    ViewsStopped,
    ViewUnusable,
    ignore,
    standing,
)
from strobe.messages import CommitHeader
from strobe.pipeline.answerer import can_be_asked, has_changed
from strobe.pipeline.background import begin
from strobe.pipeline.health import Refused
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, as_applied, as_loaded, schemas_of, source_names
from strobe.sources.base import Source, contained
from strobe.warehouse import contradictions
from strobe.warehouse.control import todo
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition

Found = tuple[dict[str, SourceUnavailable | None], set[str], set[str], set[str]]
"""Sources, with why they are still down if they are; views whose source was lost by mistake; views whose question
would be answered; and views that may be loaded again, since the row for which they stopped is another one."""

NEW = VIEW.next(ViewState.CUTTING_OVER, ViewEvent.DURABLE)
"""What a generation is when a header names it first."""


class Availability:
    def __init__(
        self,
        layout: Layout,
        tell: Listener,
        *,
        set_aside: bool,
        timing: Timing = USUAL,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """With `set_aside`, it is no reason to end that no view is left, and none is rebuilt without being asked."""
        self._layout = layout
        self._tell = tell
        self._set_aside = set_aside
        self._timing, self._clock = timing, clock
        self._applied: Mapping[str, Definition] = {}
        self._compiled: Mapping[str, View] = {}
        self.aside: dict[str, UserError] = {}
        self.still: dict[str, SourceLost] = {}
        """Until they are rebuilt."""
        self._noted: dict[str, set[str]] = {}
        """Views that are to be rebuilt, and because of which sources."""
        self._healing: set[str] = set()
        """Views that stopped for a row, to be loaded again."""
        self._refusals = Refusals()
        self._sources: dict[str, SourceState] = {}
        self._states: dict[str, ViewState] = {}
        """Of the views that the last header names."""
        self.together: set[frozenset[str]] = set()
        """Sources that have taken part in one global transaction."""
        self._warned: set[str] = set()
        """Sources whose warning was reported."""
        self._failing_since: dict[str, float] = {}
        self._failures: dict[str, SourceUnavailable] = {}
        """Of each source the last one."""
        self._looking: Future[Found] | None = None
        self._next_look = self._next_verify = 0.0
        self._mended = 0
        """How often a source that was lost seemed to be the old one again."""

    @property
    def verify_every(self) -> float:
        """Seconds between looks whether a source that was lost is the old one again."""
        return self._timing.verify.wait(self._mended + 1)

    @property
    def problems(self) -> dict[str, UserError]:
        """By view, why it stands still."""
        return {**self.still, **self.aside}

    def complain(self) -> None:
        """Raise if views stand still until somebody does something."""
        if self.problems:
            first = next(iter(self.problems.values()))
            raise LostGuarantee(f"{standing(self.problems)}: {first.message}", where=first.where, fix=first.fix)

    @property
    def down(self) -> set[str]:
        """Sources that are down, whose views stand still."""
        return self.detached | self._unreached

    @property
    def outages(self) -> dict[str, SourceUnavailable]:
        """By source that is down, what was wrong when it was last tried."""
        return {name: self._failures[name] for name in sorted(self.down)}

    @property
    def overdue(self) -> set[str]:
        """Sources that have failed for so long that the views which do not use them go on, if there are any."""
        late = self._clock() - self._timing.detach
        return {name for name in self._which(SourceState.RETRYING) if self._failing_since[name] < late}

    @property
    def detached(self) -> set[str]:
        return self._which(SourceState.UNAVAILABLE)

    @property
    def refused(self) -> Mapping[str, Refused]:
        """Views that are detached because of a table, with the question that it did not answer."""
        return self._refusals.detached

    @property
    def _unreached(self) -> set[str]:
        return self._which(SourceState.UNREACHED)

    def _which(self, state: SourceState) -> set[str]:
        return {name for name, found in self._sources.items() if found is state}

    def _told(self, source: str, event: SourceEvent) -> None:
        """The one place where the state of a source changes."""
        self._sources[source] = SOURCE.next(self._sources.get(source, SOURCE.begins), event)

    @property
    def stopped(self) -> dict[str, Reason]:
        """The views that are stopped, by what matters most."""
        aside = dict.fromkeys(self.aside, Reason.NOT_COMPILED)
        return {**aside, **{name: reason_of(error) for name, error in self.still.items()}}

    def state(self, view: str) -> ViewState:
        return self._states[view]

    def _update(self, view: str) -> None:
        """The one place where the state of a view changes."""
        state, events = self._states[view], list[ViewEvent]()
        stopped = view in self.problems
        down = view in self.refused or bool(source_names(self._applied[view].sql) & self.down)
        if stopped:
            events += [ViewEvent.STOP] if state is not ViewState.STOPPED else []
        else:
            events += [ViewEvent.VERIFIED] if state is ViewState.STOPPED else []
            events += [ViewEvent.SOURCE_DOWN] if down and state is not ViewState.DETACHED else []
            events += [ViewEvent.SOURCE_BACK] if not down and state is ViewState.DETACHED else []
        for event in events:
            self._states[view] = VIEW.next(self._states[view], event)

    # At the start of the loop.

    def as_applied(self, topology: Topology, definitions: Mapping[str, Definition]) -> Topology:
        """The views as they were last loaded, without those that cannot be kept."""
        self._sources = {name: state for name, state in self._sources.items() if name in topology.sources}
        self._begin_with(definitions)
        wrong = {n: contradictions.error(d) for n, d in definitions.items() if d.wrong and n not in self.still}
        self.put_still(wrong)
        applied = {name: definition.sql for name, definition in definitions.items()}
        topology, failed = _asked(topology, {s for sql in applied.values() for s in source_names(sql)})
        for name, error in failed.items():
            if isinstance(error, SourceUnavailable):
                self._failures[name] = error
                self._told(name, SourceEvent.NOT_DESCRIBED)
        absent = {n: failed[s] for n, sql in applied.items() for s in sorted(source_names(sql)) if s in failed}
        rest = {name: sql for name, sql in applied.items() if name not in absent}
        found, lacking = _compiled(topology, rest, self._tell)
        absent |= lacking
        if absent and absent.keys() == applied.keys() and not (self._unreached or self._set_aside):
            error = next(iter(absent.values()))
            raise UserError(error.message, where=error.where, fix=error.fix) from error
        for name, error in absent.items():
            self._tell(ViewUnusable(name, str(error)))
        self.aside = {name: error for name, error in absent.items() if isinstance(error, UserError)}
        self._compiled = {name: planned.view for name, planned in found.views.items()}
        return found

    def _begin_with(self, definitions: Mapping[str, Definition]) -> None:
        """What was said of views that are gone, or were loaded anew since, counts no more."""
        before, self._applied, self._looking = self._applied, definitions, None
        for source in self._sources:
            self._told(source, SourceEvent.BEGIN)
        same = {n for n, d in definitions.items() if n not in before or before[n].generation == d.generation}
        self.still = {name: error for name, error in self.still.items() if name in same}
        self._healing &= self.still.keys()
        self._refusals.begin(same)
        for name in self._states.keys() - same:
            self._states[name] = VIEW.next(self._states[name], ViewEvent.REPLACED)
        self._states = {name: self._states[name] if name in same & self._states.keys() else NEW for name in definitions}
        self._noted = {}
        for source in {s for d in definitions.values() for s in source_names(d.sql)}:
            noted = todo.read(self._layout.control, f"{todo.REBUILD}.{source}")
            views = [n for n, d in definitions.items() if noted.get(n) == d.generation]
            for name in views:
                self._noted.setdefault(name, set()).add(source)
                fix = "It is rebuilt by itself."
                let_go = SourceLost("log that it needed was let go", source=source, rebuild=True, fix=fix)
                self.still.setdefault(name, let_go)
            if noted and not views:
                todo.clear(self._layout.control, f"{todo.REBUILD}.{source}")

    def present(self, topology: Topology, last: CommitHeader) -> Topology:
        """The views that can be kept from the last commit on."""
        while True:
            present = self._present(topology)
            try:
                unreachable = self._verify(present, last)
            except SourceLost as error:
                self.stand_still(error)
                continue
            if not unreachable and not present.views.keys() & self.still.keys():
                for name in {s for planned in present.views.values() for s in planned.view.sources}:
                    self._told(name, SourceEvent.VERIFIED)
                return present
            for name in unreachable:
                self._told(name, SourceEvent.UNREACHABLE)

    def _present(self, topology: Topology) -> Topology:
        """The views all of whose sources can be reached; the others stay at their last right state until they can. A
        copy that stands still is of no use: the source is asked instead."""
        for name in self._applied:
            self._update(name)
        views = {n: p for n, p in topology.views.items() if self._states[n] is ViewState.MAINTAINED}
        waiting = sorted(n for n in topology.views if source_names(self._applied[n].sql) & self.detached)
        waiting = [n for n in waiting if self._states[n] is ViewState.DETACHED]
        if waiting:
            self._tell(Detached(sorted(self.detached), waiting))
        views = {name: replace(planned, view=as_loaded(planned.view, views)) for name, planned in views.items()}
        return replace(topology, views=views)

    def _verify(self, topology: Topology, last: CommitHeader) -> set[str]:
        """Rule 8: the sources are the same, and their logs still reach back to where the views stand.

        Returns those that cannot be reached; they are verified when they are back. A view that stood still until a log
        did not reach back to it any more does not keep the others from going on.
        """
        unreachable: set[str] = set()
        for name in {s for planned in topology.views.values() for s in planned.view.sources}:
            users = [view for view, planned in topology.views.items() if name in planned.view.sources]
            try:
                self.put_still(verify_source(topology.sources[name], last, users))
            except SourceUnavailable as error:
                self._tell(SourceUnreachable(str(error)))
                self._failures[name] = error
                unreachable.add(name)
        return unreachable

    # Views that stand still.

    def stand_still(self, error: SourceLost, among: Collection[str] | None = None) -> None:
        """Let views go on without those, of all or of some, that use what cannot be followed any more."""
        if isinstance(error, DefinitionChanged):
            using = set(error.views)
        elif isinstance(error, (ViewWrong, RowFailed)):
            using = {error.view} & self._applied.keys()
        elif isinstance(error, RelationLost):
            lost = {(error.source, name) for name in error.relations}
            using = {n for n, view in self._compiled.items() if lost & {(r.source, r.name) for r in view.relations}}
        else:
            using = {name for name, d in self._applied.items() if error.source in source_names(d.sql)}
        if among is not None:
            using &= set(among)
        if not using:
            raise error
        self.put_still(dict.fromkeys(using, error))

    def put_still(self, lost: Mapping[str, SourceLost]) -> None:
        """Raises the reason if no view is left that can be kept, now or when its source is back.

        A view that somebody has to decide about is not rebuilt unasked, whatever else it loses."""
        news = {n: e for n, e in lost.items() if not (e.rebuild and n in self.still and not self.still[n].rebuild)}
        for name, error in news.items():
            if error.rebuild:
                todo.add(self._layout.control, f"{todo.REBUILD}.{error.source}", {name: self._applied[name].generation})
                self._noted.setdefault(name, set()).add(error.source)
        if news:
            self._next_verify = self._clock() + self.verify_every
        self.still |= news
        self._healing -= news.keys()
        for name in news:
            self._update(name)
        left = self._applied.keys() - self.still.keys() - self.aside.keys()
        heals = any(reason_of(error).heals for error in self.still.values())
        if lost and not (left or heals or self._noted or self._set_aside):
            raise next(iter(lost.values()))
        for error in {*news.values()}:
            self._tell(ViewsStopped(sorted(n for n in news if news[n] is error), str(error)))

    # Views that are rebuilt without being asked.

    @property
    def to_rebuild(self) -> list[str]:
        if self._set_aside:
            return []
        let_go = [name for name in self._noted if name in self.still and reason_of(self.still[name]).rebuilt]
        return [*let_go, *sorted(self._healing - set(let_go))]

    @property
    def to_renew(self) -> set[str]:
        """The sources whose log is let go for that."""
        return {source for name in self.to_rebuild for source in self._noted.get(name, ())} - self.down

    @property
    def ready(self) -> list[str]:
        """Those of the views that can be loaded at the moment."""
        absent = {*self.aside, *(n for n, d in self._applied.items() if source_names(d.sql) & self.down)}
        return [name for name in self.to_rebuild if name not in absent]

    def put_off(self, error: StrobeError) -> None:
        """They could not be loaded; it is tried again. A view that cannot hold a row waits for it, and holds up no
        other. Where nobody knows the row by its key, it is tried less and less often: loading costs a source more than
        asking for a row."""
        self._tell(RebuildPutOff(tuple(self.to_rebuild), str(error)))
        if isinstance(error, RowFailed):
            self._wait_for_rows({error.view: error})
        elif not isinstance(error, (SourceLost, SourceUnavailable, NotNow)):
            self._wait_for_rows(
                {n: RowFailed(error.message, view=n, where=error.where, fix=error.fix) for n in self._healing}
            )

    def _wait_for_rows(self, found: Mapping[str, RowFailed]) -> None:
        self.still |= {name: error for name, error in found.items() if name in self.still}
        self._healing -= found.keys()
        if any(not error.complete for error in found.values()):
            self._mended += 1
            self._next_verify = self._clock() + self.verify_every

    def unfit(self, sources: Mapping[str, Source], last: CommitHeader, views: list[str]) -> dict[str, SourceLost]:
        """Those of the views that have lost more than log which was let go, so that somebody has to decide."""
        found: dict[str, SourceLost] = {}
        for name in views:
            for source in sorted(source_names(self._applied[name].sql)):
                try:
                    if source in self._noted.get(name, ()):
                        same_source(sources[source], last, [name])
                    else:
                        verify_source(sources[source], last, [name])
                except SourceLost as error:
                    found[name] = error
        return found

    # While the loop runs.

    def mind(self, pipeline: Pipeline) -> frozenset[str] | None:
        """Let views go on without those whose source is down, and take these in again when it is back: the sources
        that are to be detached, if something is to change about it."""
        now = self._clock()
        self._warn(pipeline)
        self._see_who_fails(pipeline, now)
        lost = self.overdue
        if any(not lost & set(planned.view.sources) for planned in pipeline.topology.views.values()) and lost:
            return frozenset(self.detached | lost)
        if self._detach_refused(pipeline, now):
            return frozenset(self.detached)
        if self._looking is not None and self._looking.done():
            asked, mended, answered, healing = self._looking.result()
            self._healing |= healing & self.still.keys()
            self._failures |= {name: failure for name, failure in asked.items() if failure}
            back = {name for name, failure in asked.items() if failure is None}
            self._looking, self._next_look = None, now + self._timing.probe.wait(1)
            self._mended += bool(mended)
            if back or mended or answered:
                self._refusals.answered(answered)
                self.still = {name: error for name, error in self.still.items() if name not in mended}
                for name in mended:
                    self._update(name)
                return frozenset(self.detached - back)
        elif self._looking is None and now >= self._next_look:
            doubted: dict[str, list[str]] = {}
            verifies = now >= self._next_verify
            if verifies:
                doubted, self._next_verify = self._doubted(), now + self.verify_every
            failed = self._failed(verifies)
            if self.down or doubted or self.refused or failed:
                sources, last = pipeline.topology.sources, pipeline.committer.last
                refusals = {n: r for n, r in self.refused.items() if r.query.source not in self.down}
                self._looking = begin(
                    partial(_look, sources, last, self.detached, self._unreached, doubted, refusals, failed), "look"
                )
        return None

    def _warn(self, pipeline: Pipeline) -> None:
        """Report what the sources warn of, once for each."""
        for name, source in pipeline.topology.sources.items():
            if source.warning and name not in self._warned:
                self._warned.add(name)
                self._tell(SourceWarned(name, source.warning))

    @property
    def looking(self) -> bool:
        """Whether somebody is finding out, aside, what is back."""
        return self._looking is not None and not self._looking.done()

    def _detach_refused(self, pipeline: Pipeline, now: float) -> bool:
        """Go on without the views that a table does not answer, if there are any."""
        seen, kept = pipeline.refusals, pipeline.topology.views
        late = {name: seen[name] for name in self._refusals.late(now, seen, kept, self._timing.detach)}
        self._refusals.detach(late)
        for why in dict.fromkeys(refused.wait.why for refused in late.values()):
            self._tell(TableRefused(sorted(name for name, each in late.items() if each.wait.why == why), why))
        return bool(late)

    def _see_who_fails(self, pipeline: Pipeline, now: float) -> None:
        for name in pipeline.monitors:
            problem = pipeline.problem(name)
            failing = isinstance(problem, SourceUnavailable)
            if isinstance(problem, SourceUnavailable):
                self._failures[name] = problem
            if failing and self._sources[name] is SourceState.STREAMING:
                self._told(name, SourceEvent.FAIL)
                self._failing_since[name] = now
            elif not failing and self._sources[name] is SourceState.RETRYING:
                self._told(name, SourceEvent.SUCCEED)

    def regroup(self, detached: Collection[str]) -> None:
        """Go on without these sources, and with those again that were detached and are not among them."""
        for name in self.detached - set(detached):
            self._told(name, SourceEvent.ANSWER)
        for name in set(detached) - self.detached:
            self._told(name, SourceEvent.DOWN_TOO_LONG)

    def _doubted(self) -> dict[str, list[str]]:
        """Sources that were lost as a whole, and the views that would be kept again if that was a mistake."""
        found: dict[str, list[str]] = {}
        for name, error in self.still.items():
            if reason_of(error).may_pass and name in self._compiled:
                found.setdefault(error.source, []).append(name)
        return found

    def _failed(self, all_of_them: bool) -> dict[str, tuple[RowOf, ...] | None]:
        """Views that stopped for a row, with the rows of relations that it was joined from; None where these are not
        known whole, so that only loading the view tells whether it can be loaded."""
        found: dict[str, tuple[RowOf, ...] | None] = {}
        for name, error in self.still.items():
            if isinstance(error, (RowFailed, RowUnfit)) and name not in self._healing:
                found[name] = error.rows if error.complete or not all_of_them else None
        return {name: rows for name, rows in found.items() if rows != ()}

    def tie(self, sources: frozenset[str]) -> frozenset[str]:
        """A global transaction ties sources together whose views were in different groups: begin anew, in one. As many
        sources are detached as before."""
        self.together.add(sources)
        self._tell(SourcesTied(sorted(sources)))
        return frozenset(self.detached)


def _asked(topology: Topology, used: set[str]) -> tuple[Topology, dict[str, UserError | SourceUnavailable]]:
    """The topology with what the sources offer that were not asked yet, each once; and which could not be asked."""
    known = {relation.source for relation in topology.schemas.values()}
    found, failed = dict(topology.schemas), dict[str, UserError | SourceUnavailable]()
    for name in sorted((used - known) & topology.sources.keys()):
        try:
            found |= schemas_of(topology.sources[name])
        except (UserError, SourceUnavailable) as error:
            failed[name] = error
    return replace(topology, schemas=found), failed


def _compiled(topology: Topology, applied: Mapping[str, str], tell: Listener) -> tuple[Topology, dict[str, UserError]]:
    """The views, without those that a source has no more of what they use, and these."""
    try:
        return as_applied(topology, applied, tell), {}
    except UserError:
        lacking: dict[str, UserError] = {}
        for name, sql in applied.items():
            try:
                as_applied(topology, {name: sql}, ignore)
            except UserError as error:
                lacking[name] = error
        return as_applied(topology, {n: sql for n, sql in applied.items() if n not in lacking}, tell), lacking


def _look(
    sources: Mapping[str, Source],
    last: CommitHeader,
    detached: set[str],
    unreached: set[str],
    doubted: Mapping[str, list[str]],
    refusals: Mapping[str, Refused],
    failed: Mapping[str, tuple[RowOf, ...] | None],
) -> Found:
    """Why sources are still down, or None for those that are back; which views can be kept again; which would be
    answered again; and which may be loaded again."""
    asked = {name: _failure(name, sources[name].now) for name in detached}
    asked |= {name: _failure(name, sources[name].schemas) for name in unreached}
    mended: set[str] = set()
    for name, views in doubted.items():
        try:
            mended |= set(views) - verify_source(sources[name], last, views).keys()
        except StrobeError:
            continue
    answered = {name for name, each in refusals.items() if can_be_asked(sources[each.query.source], each)}
    healing = {n for n, rows in failed.items() if rows is None or any(has_changed(sources[r.source], r) for r in rows)}
    return asked, mended, answered, healing


def _failure(source: str, ask: Callable[[], object]) -> SourceUnavailable | None:
    """Why a source does not answer. Whatever is wrong otherwise is found out when it is verified."""
    try:
        with contained(source):
            ask()
    except SourceUnavailable as error:
        return error
    except StrobeError:
        pass
    return None
