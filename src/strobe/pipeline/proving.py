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
from functools import partial

from strobe.algebra.connected import connected
from strobe.algebra.view import View
from strobe.errors import DefinitionChanged, LostGuarantee, SourceUnavailable, StrobeError
from strobe.pipeline.background import begin
from strobe.pipeline.health import Failing, Health
from strobe.sources.base import Source

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
            held = {source for source, found in self._answers(sources) if not self._proven(source, found)}
        return frozenset(s for group in self._groups if group & held for s in group)

    def _answers(self, sources: Collection[str]) -> Iterable[tuple[str, Mapping[str, str] | None]]:
        """What each source says of its relations; None if it does not answer now."""
        late = {source for source, asked in self._asked.items() if not asked.done()}
        for source in set(sources) - late:
            self._asked[source] = begin(partial(self._sources[source].fingerprints, self._relations(source)), "prove")
        until = time.monotonic() + PATIENCE
        for source in sources:
            yield source, None if source in late else self._answer(source, until)

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

    def _proven(self, source: str, found: Mapping[str, str] | None) -> bool:
        if found is None:
            return False
        lost: dict[tuple[str, str], list[str]] = {}
        complete = True
        for name, view in self._views.items():
            for relation in (r for r in view.relations if r.source == source):
                if relation.name not in found:
                    complete = False
                    continue
                now, before = found[relation.name], self._known[name].get(relation.id)
                if before is not None and now != before:
                    columns = {*view.columns_of(relation), *relation.key}
                    happened = self._sources[source].changed(relation.name, columns, before, now)
                    if happened:
                        lost.setdefault((relation.name, happened), []).append(name)
                        continue
                self._known[name][relation.id] = now
        for (name, happened), views in lost.items():
            raise _changed(source, name, happened, views)
        return complete


def _changed(source: str, relation: str, happened: str, views: Collection[str]) -> DefinitionChanged:
    """What happened to a relation, for whoever uses the views."""
    rebuild = ", ".join(f"`strobe rebuild {name}`" for name in sorted(views))
    return DefinitionChanged(
        f"{happened}, and the log does not say what became of the rows",
        source=source,
        relations=[relation],
        views=views,
        where=f"source {source}, table {relation}",
        fix=f"The last commit is right. To follow the table as it is now: {rebuild}.",
    )
