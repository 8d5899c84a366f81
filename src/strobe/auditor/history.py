"""A history: which relations the sources had in the beginning, how the views are defined, which transactions the
sources committed, and which states readers were shown. All that it takes to judge what any system did."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.view import View
from strobe.auditor.levels import Claims, Judge
from strobe.auditor.recomputation import Recomputation
from strobe.auditor.timeline import Contents, HistoryTransaction
from strobe.auditor.verdict import CannotEvaluate, Finding, Verdict, check_level
from strobe.errors import UserError


@dataclass(frozen=True)
class HistoryView:
    """A view by its SQL, as in strobe.yml, and the types of its columns where they cannot be told from the SQL."""

    name: str
    sql: str
    columns: tuple[Column, ...] = ()


@dataclass(frozen=True)
class HistoryState:
    """What readers were shown: for each view that changed, its rows, or what changed since the state before."""

    rows: Mapping[str, Bag] = field(default_factory=dict)
    changes: Mapping[str, Bag] = field(default_factory=dict)
    positions: Claims | None = None
    """The positions that it says it reflects, if it does."""


@dataclass(frozen=True)
class History:
    """What happened at the sources, and what was shown."""

    relations: tuple[tuple[RelationSchema, Bag], ...]
    """With their rows in the beginning."""
    views: tuple[HistoryView, ...]
    transactions: tuple[HistoryTransaction, ...]
    """In an order that agrees with each source's own."""
    states: tuple[HistoryState, ...]
    start: Mapping[str, str] = field(default_factory=dict)
    """How sources name the position before their first transaction."""

    def initial(self) -> dict[str, dict[str, Bag]]:
        contents: dict[str, dict[str, Bag]] = {}
        for schema, rows in self.relations:
            contents.setdefault(schema.source, {})[schema.name] = rows
        return contents

    def compiled(self) -> dict[str, View]:
        schemas = {schema.id: schema for schema, _ in self.relations}
        return {view.name: compile_view(view.name, view.sql, schemas) for view in self.views}

    def shown(self) -> Iterator[dict[str, Bag]]:
        """Every state in full, one after the other."""
        current = {name: Bag([output.name for output in view.outputs]) for name, view in self.compiled().items()}
        for state in self.states:
            for name, change in state.changes.items():
                current[name] = current[name].add(change)
            current |= state.rows
            yield dict(current)

    def only(self, names: Sequence[str]) -> History:
        """The history of some of its views."""
        known = [view.name for view in self.views]
        for name in names:
            if name not in known:
                raise UserError(f"there is no view {name!r} in the history", fix=f"There are {', '.join(known)}.")
        chosen = tuple(view for view in self.views if view.name in names)
        states = [
            HistoryState(
                {name: rows for name, rows in state.rows.items() if name in names},
                {name: rows for name, rows in state.changes.items() if name in names},
                {view: own for view, own in state.positions.items() if view in names} if state.positions else None,
            )
            for state in self.states
        ]
        return replace(self, views=chosen, states=tuple(states))

    def verdict(self, wanted: str = "strong") -> Verdict:
        """Whether the states kept the wanted level; unknown where it takes Spark to say what a view is."""
        check_level(wanted)
        recomputed: dict[str, Recomputation] = {}
        unknown: dict[str, Finding] = {}
        for name, view in self.compiled().items():
            try:
                recomputed[name] = Recomputation(view)
            except CannotEvaluate as reason:
                unknown[name] = Finding("unknown", "unknown", reason.message)
        if not unknown:
            return self._judged(recomputed, wanted)
        first = next(iter(unknown.values()))
        if not recomputed:
            return Verdict(wanted, first, unknown)
        judged = self.only(list(recomputed))._judged(recomputed, wanted)
        findings = {**judged.views, **unknown}
        together = judged.together if judged.verdict == "invalid" else first
        return Verdict(wanted, together, {view.name: findings[view.name] for view in self.views})

    def _judged(self, views: Mapping[str, Recomputation], wanted: str) -> Verdict:
        def evaluate(contents: Mapping[str, Contents]) -> dict[str, Bag]:
            return {name: view.over(contents) for name, view in views.items()}

        try:
            judge = Judge(self.initial(), self.transactions, evaluate, start=self.start)
        except CannotEvaluate as reason:
            unknown = Finding("unknown", "unknown", reason.message)
            return Verdict(wanted, unknown, dict.fromkeys(views, unknown))
        claims = [state.positions for state in self.states]
        return judge.verdict(self.shown(), wanted, claims if any(claims) else None)
