"""Whether the relations that views use are still what they were when the views were loaded.

A log reports rows, and not everything that changes them (see `docs/definitions.md`). So the sources are asked for the
fingerprints of these relations, after everything that a commit rests on has arrived and before it is appended: once
for each append, however many commits are in it.

A source that does not answer soon is not waited for: its views' commits wait, and those of others do not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial

from strobe.algebra.connected import connected
from strobe.algebra.view import View
from strobe.errors import DefinitionChanged, LostGuarantee, SourceUnavailable, StrobeError
from strobe.managers.departures import obstacle
from strobe.messages import Transaction
from strobe.pipeline.background import begin
from strobe.pipeline.health import Failing, Health
from strobe.sources.base import Source, contained

PATIENCE = 1.0
"""Seconds to wait for the answers."""

Fingerprints = Mapping[str, str]
"""By relation, as `source.table`."""


class Prover:
    def __init__(
        self,
        sources: Mapping[str, Source],
        views: Mapping[str, View],
        known: Mapping[str, Fingerprints],
        health: Health,
        together: Iterable[Collection[str]] = (),
    ) -> None:
        """`known` are the fingerprints that each view rests on; a view that has none is trusted as it is found."""
        self._sources, self._views, self._health = sources, views, health
        self._known = {name: dict(known.get(name, {})) for name in views}
        groups = connected({name: view.sources for name, view in views.items()}, together)
        self._groups = [frozenset(s for name in group for s in views[name].sources) for group in groups]
        self._loaded_with = {name: frozenset(found) for name, found in self._known.items()}
        """By view, the relations whose fingerprints it was loaded with."""
        self._found: dict[tuple[str, str], str] = {}
        """By view and relation, the fingerprint with which it was proven last."""
        self._unproven: dict[str, frozenset[str]] = {}
        """By source that cannot tell of all its relations now, those of which it cannot."""
        self._asked: dict[str, Future[Mapping[str, str]]] = {}
        self._alone = threading.Lock()

    @property
    def known(self) -> Mapping[str, Fingerprints]:
        """What each view rests on now."""
        with self._alone:
            return {name: dict(found) for name, found in self._known.items()}

    def prove(self, sources: Collection[str]) -> frozenset[str]:
        """Ask these sources whether what the views use of them is what it was; returns those of which nothing may be
        committed now, because one of them, or of those that share views with them, cannot tell.

        `DefinitionChanged` if something has happened to a relation that views cannot follow.
        """
        with self._alone:
            for source, found in self._answers(sources):
                self._unproven.pop(source, None)
                if (unproven := self._unproven_of(source, found)) is not None:
                    self._unproven[source] = unproven
            self._health.unproven({name: why for name in self._views if (why := self._why_held(name))})
            held = self._unproven.keys() & set(sources)
        return frozenset(s for group in self._groups if group & held for s in group)

    def followed(self, view: str, transaction: Transaction, pace: int) -> Transaction:
        """A transaction with which rows left at once, as a view can follow it: without what left a partition that never
        was, or that came after the last look and got no rows. `DefinitionChanged` if it cannot."""
        source = self._sources[transaction.source]
        departed = {}
        with self._alone:
            for relation, departures in transaction.departed.items():
                name = f"{transaction.source}.{relation}"
                known = self._known[view][name] if name in self._loaded_with[view] else ""
                departed[relation] = tuple(
                    left
                    for left in departures
                    if left.partition is None or left.seen or not known or source.was_known(left.partition, known)
                )
        found = replace(transaction, departed={relation: left for relation, left in departed.items() if left})
        relation, why = obstacle(self._views[view], found, pace)
        if why:
            raise _lost(transaction.source, relation, why, [view])
        return found

    def _why_held(self, view: str) -> str:
        """Why the commits of a view wait, if they do."""
        used = {r.id for r in self._views[view].relations}
        unknown = {f"{source}.{name}" for source, names in self._unproven.items() for name in names}
        if mine := sorted(used & unknown):
            return f"the definition of {', '.join(mine)} cannot be read now (it may be about to change)"
        sources = set(self._views[view].sources)
        group = next(group for group in self._groups if sources <= group)
        if others := sorted(group & self._unproven.keys()):
            return f"its commits wait with those of views whose tables in {', '.join(others)} cannot be proven now"
        return ""

    def _answers(self, sources: Collection[str]) -> Iterable[tuple[str, Mapping[str, str] | None]]:
        """What each source says of its relations; None if it does not answer now."""
        late = {source for source, asked in self._asked.items() if not asked.done()}
        for source in set(sources) - late:
            self._asked[source] = begin(partial(self._ask, source, self._relations(source)), "prove")
        until = time.monotonic() + PATIENCE
        for source in sources:
            yield source, None if source in late else self._answer(source, until)

    def _ask(self, source: str, relations: Collection[str]) -> Mapping[str, str]:
        with contained(source):
            return self._sources[source].fingerprints(relations)

    def _answer(self, source: str, until: float) -> Mapping[str, str] | None:
        asked = self._asked[source]
        try:
            if wait([asked], max(0.0, until - time.monotonic())).done:
                found = asked.result()
                self._health.succeeded(source, Failing.PROOFS)
                return found
            slow = SourceUnavailable("it does not say in time what its tables are", where=f"source {source}")
            self._health.failed(source, Failing.PROOFS, slow)
        except LostGuarantee:
            raise
        except StrobeError as error:
            self._health.failed(source, Failing.PROOFS, error)
        return None

    def _relations(self, source: str) -> list[str]:
        used = {r.name for view in self._views.values() for r in view.relations if r.source == source}
        return sorted(used)

    def _unproven_of(self, source: str, found: Mapping[str, str] | None) -> frozenset[str] | None:
        """The relations of which a source does not say what they are; None if it has told of all."""
        if found is None:
            return frozenset()
        lost: dict[tuple[str, str], list[str]] = {}
        missing = set[str]()
        for name, view in self._views.items():
            for relation in (r for r in view.relations if r.source == source):
                if relation.name not in found:
                    missing.add(relation.name)
                    continue
                now, before = found[relation.name], self._known[name].get(relation.id)
                if before is not None and now != before and now != self._found.get((name, relation.id)):
                    columns = {*view.columns_of(relation), *relation.key}
                    try:
                        with contained(source):
                            happened = self._sources[source].changed(relation.name, columns, before, now)
                    except SourceUnavailable:
                        missing.add(relation.name)
                        continue
                    if happened:
                        lost.setdefault((relation.name, happened), []).append(name)
                        continue
                    self._known[name][relation.id] = self._sources[source].proven(before, now)
                elif before is None:
                    self._known[name][relation.id] = now
                self._found[name, relation.id] = now
        for (name, happened), views in lost.items():
            raise _changed(source, name, happened, views)
        return frozenset(missing) or None


def _changed(source: str, relation: str, happened: str, views: Collection[str]) -> DefinitionChanged:
    """What happened to a relation, for whoever uses the views."""
    return _lost(source, relation, f"{happened}, and the log does not say what became of the rows", views)


def _lost(source: str, relation: str, what: str, views: Collection[str]) -> DefinitionChanged:
    rebuild = ", ".join(f"`strobe rebuild {name}`" for name in sorted(views))
    return DefinitionChanged(
        what,
        source=source,
        relations=[relation],
        views=views,
        where=f"source {source}, table {relation}",
        fix=f"The last commit is right. To follow the table as it is now: {rebuild}.",
    )
