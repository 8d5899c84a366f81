"""Views that cannot be kept at the moment, so that the others go on without them.

A view is *aside* if it cannot be compiled any more when the run starts (a column is gone), stands *still* when one of
its relations cannot be followed any more, until it is rebuilt, and waits while one of its sources is down (*detached*).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from strobe.errors import LostGuarantee, RelationLost, SourceUnavailable, StrobeError, UserError
from strobe.runtime.assembly import Assembly, as_applied
from strobe.runtime.coordinator import Coordinator
from strobe.sources.base import Source
from strobe.warehouse.header import Commit, Definition

DETACH = 10.0
"""Seconds for which a source may be down before the views that do not need it go on without the others."""

RETRY = 2.0
"""Seconds between looks whether it is back."""


class Absences:
    def __init__(self, say: Callable[[str], None], *, set_aside: bool) -> None:
        """With `set_aside`, it is no reason to end that no view is left."""
        self._say = say
        self._set_aside = set_aside
        self.aside: dict[str, UserError] = {}
        self.still: dict[str, LostGuarantee] = {}
        """Until they are rebuilt."""
        self.detached: set[str] = set()
        """Sources that are down, whose views stand still."""
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

    def as_applied(self, assembly: Assembly, definitions: Mapping[str, Definition], last: Commit) -> Assembly:
        """The views as they were last loaded, without those that cannot be kept."""
        applied = {name: definition.sql for name, definition in definitions.items()}
        self.aside = {}
        try:
            if not self._set_aside:
                return as_applied(assembly, applied, self._say)
        except UserError:  # a column is gone, a table: of some views
            if all(self._cannot_be_kept(assembly, name, sql, last) for name, sql in applied.items()):
                raise
        self.aside = {n: e for n, q in applied.items() if (e := self._cannot_be_kept(assembly, n, q, last))}
        for name, error in self.aside.items():
            self._say(f"view {name} stands still: {error}")
        return as_applied(assembly, {n: q for n, q in applied.items() if n not in self.aside}, self._say)

    def _cannot_be_kept(self, assembly: Assembly, name: str, sql: str, last: Commit) -> UserError | None:
        try:
            alone = as_applied(assembly, {name: sql}, lambda _: None)
            for source in alone.views[name].view.sources if self._set_aside else ():
                with suppress(SourceUnavailable):
                    verify_source(alone.sources[source], last, [name])
        except UserError as error:
            return error
        return None

    def returned(self, views: Collection[str]) -> None:
        """These were loaded anew, or are gone."""
        self.still = {name: error for name, error in self.still.items() if name not in views}

    def present(self, assembly: Assembly, last: Commit) -> Assembly:
        """The views that can be kept from the last commit on."""
        while True:
            present = self._present(assembly)
            try:
                unreachable = self._verify(present, last)
            except RelationLost as error:
                self.stand_still(present, error)
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

    def stand_still(self, assembly: Assembly, error: RelationLost) -> None:
        """Let views go on without those that use a relation which cannot be followed any more."""
        lost = {(error.source, name) for name in error.relations}
        using = {n for n, p in assembly.views.items() if lost & {(r.source, r.name) for r in p.view.relations}}
        if not using or (using == set(assembly.views) and not self._set_aside):
            raise error
        self.still |= dict.fromkeys(using, error)
        self._say(f"{', '.join(sorted(using))} stand still: {error}")

    def mind(self, coordinator: Coordinator) -> None:
        """Let views go on without those whose source is down, and take these in again when it is back."""
        now = time.monotonic()
        down = {name for name in coordinator.monitors if isinstance(coordinator.problem(name), SourceUnavailable)}
        self._down_since = {name: self._down_since.get(name, now) for name in down}
        lost = {name for name, since in self._down_since.items() if now - since > DETACH}
        if any(not lost & set(planned.view.sources) for planned in coordinator.assembly.views.values()) and lost:
            self.regroup = self.detached | lost
        elif self.detached and now >= self._next_try:
            self._next_try = now + RETRY
            back = {name for name in self.detached if _reachable(coordinator.assembly.sources[name])}
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
                left_behind = verify_source(assembly.sources[name], last, users)
                for view, error in left_behind.items():
                    self._say(f"view {view} stands still: {error}")
                self.still |= left_behind
            except SourceUnavailable as error:
                self._say(str(error))
                unreachable.add(name)
        return unreachable


def verify_source(source: Source, last: Commit, users: list[str]) -> dict[str, LostGuarantee]:
    """Returns the views that the source's log does not reach back to any more, and why; raises it if these are all."""
    identity, known = source.identity(), last.identity.get(source.name)
    if known is not None and identity != known:
        raise LostGuarantee(
            f"this is another database than before (it was {known}, it is {identity})",
            where=f"source {source.name}",
            fix=f"Put the old one back, or rebuild the views that use it: {', '.join(users)}.",
        )
    stand: dict[str, list[str]] = {}
    for view in users:
        stand.setdefault(last.positions[view][source.name], []).append(view)
    lost: dict[str, LostGuarantee] = {}
    for text, views in stand.items():
        try:
            source.verify(source.position(text))
        except RelationLost:
            raise
        except LostGuarantee as error:
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
