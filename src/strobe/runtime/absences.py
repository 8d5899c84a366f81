"""Views that cannot be kept at the moment, so that the others go on without them.

A view is *aside* if it cannot be compiled any more when the run starts (a column is gone), stands *still* when one of
its relations or sources cannot be followed any more, until it is rebuilt, and waits while one of its sources is down:
*detached* if that was noticed when its views had been compiled, *unreached* if before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from strobe.errors import LostGuarantee, RelationLost, SourceLost, SourceUnavailable, StrobeError, UserError
from strobe.runtime.assembly import Assembly, as_applied, source_names
from strobe.runtime.coordinator import Coordinator
from strobe.sources.base import Source
from strobe.warehouse import notes
from strobe.warehouse.header import Commit, Definition
from strobe.warehouse.layout import Layout

DETACH = 10.0
"""Seconds for which a source may be down before the views that do not need it go on without the others."""

RETRY = 2.0
"""Seconds between looks whether it is back."""


class Absences:
    def __init__(self, layout: Layout, say: Callable[[str], None], *, set_aside: bool) -> None:
        """With `set_aside`, it is no reason to end that no view is left, and none is rebuilt without being asked."""
        self._layout = layout
        self._say = say
        self._set_aside = set_aside
        self._applied: Mapping[str, Definition] = {}
        self.aside: dict[str, UserError] = {}
        self.still: dict[str, LostGuarantee] = {}
        """Until they are rebuilt."""
        self.detached: set[str] = set()
        self._unreached: dict[str, set[str]] = {}
        """Views, and which of their sources."""
        self.to_rebuild: list[str] = []
        """Those that are rebuilt without being asked."""
        self.regroup: set[str] | None = None
        """What will be detached when the loop begins anew, because sources came or went or were tied together."""
        self.together: set[frozenset[str]] = set()
        """Sources that have taken part in one global transaction."""
        self._down_since: dict[str, float] = {}
        self._next_try = 0.0

    @property
    def problems(self) -> dict[str, UserError]:
        """By view, why it stands still."""
        return {**self.aside, **self.still}

    def complain(self) -> None:
        """Raise if views stand still until somebody does something."""
        for first in self.problems.values():
            names = ", ".join(sorted(self.problems))
            raise LostGuarantee(f"{names} stand still: {first.message}", where=first.where, fix=first.fix)

    @property
    def down(self) -> set[str]:
        """Sources that are down, whose views stand still."""
        return self.detached.union(*self._unreached.values())

    @property
    def given_up(self) -> set[str]:
        """Views for which no log need be kept. Where a source was lost as a whole it may not be theirs."""
        return {name for name, error in self.still.items() if isinstance(error, RelationLost)}

    def ready(self, views: Sequence[str]) -> list[str]:
        """Those of the views that can be loaded at the moment."""
        return [n for n in views if n not in self.aside and not source_names(self._applied[n].sql) & self.down]

    def _note(self, views: Mapping[str, int]) -> list[str]:
        """Views that are to be rebuilt, with those of an earlier run."""
        if views:
            notes.add(self._layout, notes.REBUILD, views)
        noted = notes.read(self._layout, notes.REBUILD)
        found = [name for name, definition in self._applied.items() if noted.get(name) == definition.generation]
        self.to_rebuild = [] if self._set_aside else found
        return found

    def as_applied(self, assembly: Assembly, definitions: Mapping[str, Definition], last: Commit) -> Assembly:
        """The views as they were last loaded, without those that cannot be kept."""
        self._applied = definitions
        for name in self._note({}):
            self.still.setdefault(name, LostGuarantee("log that it needed was let go", fix="It is rebuilt by itself."))
        applied = {name: definition.sql for name, definition in definitions.items()}
        self.aside, self._unreached = {}, {}
        if not self._set_aside:
            with suppress(UserError, SourceUnavailable):  # a column is gone, a table, a server: of some views
                return as_applied(assembly, applied, self._say)
        found = {n: error for n, q in applied.items() if (error := self._cannot_be_kept(assembly, n, q, last))}
        if found.keys() == applied.keys() and not self._set_aside:
            error = next(iter(found.values()))
            raise UserError(error.message, where=error.where, fix=error.fix) from error
        for name, error in found.items():
            self._say(f"view {name} stands still: {error}")
            if isinstance(error, SourceUnavailable):
                used = source_names(applied[name])
                self._unreached[name] = {s for s in used if not _reachable(assembly.sources[s])} or used
            else:
                self.aside[name] = error
        return as_applied(assembly, {n: q for n, q in applied.items() if n not in found}, self._say)

    def _cannot_be_kept(
        self, assembly: Assembly, name: str, sql: str, last: Commit
    ) -> UserError | SourceUnavailable | None:
        try:
            alone = as_applied(assembly, {name: sql}, lambda _: None)
            for source in alone.views[name].view.sources if self._set_aside else ():
                with suppress(SourceUnavailable):
                    verify_source(alone.sources[source], last, [name])
        except (UserError, SourceUnavailable) as error:
            return error
        return None

    def returned(self, views: Collection[str]) -> None:
        """These were loaded anew, or are gone."""
        self.still = {name: error for name, error in self.still.items() if name not in views}
        if not self.still:
            notes.clear(self._layout, notes.REBUILD)

    def present(self, assembly: Assembly, last: Commit) -> Assembly:
        """The views that can be kept from the last commit on."""
        while True:
            present = self._present(assembly)
            try:
                unreachable = self._verify(present, last)
            except SourceLost as error:
                self.stand_still(present, last, error)
                continue
            if not unreachable and not present.views.keys() & self.still.keys():
                return present
            self.detached |= unreachable

    def _present(self, assembly: Assembly) -> Assembly:
        """The views all of whose sources can be reached; the others stay at their last right state until they can."""
        known = {n: p for n, p in assembly.views.items() if n not in self.still}
        views = {n: p for n, p in known.items() if not self.detached & set(p.view.sources)}
        waiting = sorted(set(known) - set(views))
        if waiting:
            self._say(f"waiting for {', '.join(sorted(self.detached))}: {', '.join(waiting)} stand still")
        return replace(assembly, views=views)

    def stand_still(self, assembly: Assembly, last: Commit, error: SourceLost) -> None:
        """Let views go on without those that use a relation or source which cannot be followed any more."""
        if isinstance(error, RelationLost):
            lost = {(error.source, name) for name in error.relations}
            using = {n for n, p in assembly.views.items() if lost & {(r.source, r.name) for r in p.view.relations}}
        else:
            using = {name for name, vector in last.positions.items() if error.source in vector}
        if not using:
            raise error
        self._put_still(dict.fromkeys(using, error))

    def _put_still(self, lost: Mapping[str, SourceLost]) -> None:
        """Raises the reason if no view is left that can be kept, now or when its source is back."""
        noted = self._note({name: self._applied[name].generation for name, error in lost.items() if error.rebuild})
        self.still |= lost
        left = self._applied.keys() - self.still.keys() - self.aside.keys()
        if lost and not left and not noted and not self._set_aside:
            raise next(iter(lost.values()))
        for error in {*lost.values()}:
            self._say(f"{', '.join(sorted(n for n in lost if lost[n] is error))} stand still: {error}")

    def mind(self, coordinator: Coordinator) -> None:
        """Let views go on without those whose source is down, and take these in again when it is back."""
        now = time.monotonic()
        down = {name for name in coordinator.monitors if isinstance(coordinator.problem(name), SourceUnavailable)}
        self._down_since = {name: self._down_since.get(name, now) for name in down}
        lost = {name for name, since in self._down_since.items() if now - since > DETACH}
        if any(not lost & set(planned.view.sources) for planned in coordinator.assembly.views.values()) and lost:
            self.regroup = self.detached | lost
        elif self.down and now >= self._next_try:
            self._next_try = now + RETRY
            back = {name for name in self.down if _reachable(coordinator.assembly.sources[name])}
            self.regroup = self.detached - back if back else None

    def tie(self, sources: frozenset[str]) -> None:
        """A global transaction ties sources together whose views were in different groups: begin anew, in one."""
        self.together.add(sources)
        self.regroup = set(self.detached)
        self._say(f"a transaction spans {', '.join(sorted(sources))}: their views share commits from now on")

    def _verify(self, assembly: Assembly, last: Commit) -> set[str]:
        """Rule 8: the sources are the same, and their logs still reach back to where the views stand.

        Returns those that cannot be reached; they are verified when they are back. A view that stood still until a log
        did not reach back to it any more does not keep the others from going on.
        """
        unreachable: set[str] = set()
        for name in {s for planned in assembly.views.values() for s in planned.view.sources}:
            users = [view for view, planned in assembly.views.items() if name in planned.view.sources]
            try:
                self._put_still(verify_source(assembly.sources[name], last, users))
            except SourceUnavailable as error:
                self._say(str(error))
                unreachable.add(name)
        return unreachable


def verify_source(source: Source, last: Commit, users: list[str]) -> dict[str, SourceLost]:
    """Returns the views that the source's log does not reach back to any more, and why; raises what all have lost."""
    identity, known = source.identity(), last.identity.get(source.name)
    if known is not None and identity != known:
        raise SourceLost(
            f"this is another database than before (it was {known}, it is {identity})",
            source=source.name,
            where=f"source {source.name}",
            fix=f"Put the old one back, or rebuild the views that use it: {', '.join(users)}.",
        )
    stand: dict[str, list[str]] = {}
    for view in users:
        stand.setdefault(last.positions[view][source.name], []).append(view)
    lost: dict[str, SourceLost] = {}
    for text, views in stand.items():
        try:
            source.verify(source.position(text))
        except RelationLost:
            raise
        except SourceLost as error:
            lost |= dict.fromkeys(views, error)
    if lost.keys() == set(users):
        raise lost[users[0]]
    return lost


def _reachable(source: Source) -> bool:
    try:
        source.now()
    except StrobeError:
        return False
    return True
