"""SWEEP for views that are trees of operators: a fragment of every unit, at strong and complete consistency.

The change of such a view is what its tree yields over a fragment of its relations after a unit of updates, minus what
it yields over the fragment before (see `fragments`). This asks for the rows of the fragments and leaves the rest to
the warehouse.

A batch is what SWEEP's is: at strong the updates of one block, between two cuts, are one unit; at complete every update
(or global transaction) is a unit, and many go together. Every answer is brought to the state before the batch, by what
its snapshot had seen and by what is held here; from there each unit moves on. So a key is asked once a batch, whoever
needs it, and questions that do not depend on each other are asked at the same time.

All rows are in memory: of a change or an answer in Spark as many as `MOST_ROWS`; a view with a larger one stops. A
large group is in the fragment of every unit that touches it, so at complete a batch has the fewer units the larger
their fragments are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.schema import RelationSchema
from strobe.algebra.substitution import substitute
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant, DefinitionChanged
from strobe.managers.base import Inbound, Outbound, QueryTerm
from strobe.managers.changes import change
from strobe.managers.evaluation import nothing
from strobe.managers.fragments import Collector, Known, Spot, Wanted
from strobe.managers.held import Held
from strobe.managers.sweep import MOST
from strobe.managers.units import Received
from strobe.messages import ActionList, Answer, Cut, Fragment, Lookup, Query, Update

MOST_ROWS = 500_000
"""Rows of a change, or of an answer to a look-up."""

MANY_ROWS = 100_000
"""Of all fragments of a batch: with more, the next one has half as many units, with less up to twice as many."""


FIRST = 25
"""Units of the first batch."""


class TreeSweep:
    """One view, one batch at a time."""

    compensates = True

    def __init__(self, view: View, *, complete: bool) -> None:
        self.view = view
        self.compensations = 0
        """How often an answer had seen too much or too little, and was put right here."""
        self._complete = complete
        self._collector = Collector(view)
        self._waiting = Received(view.sources)
        """Updates not yet taken up."""
        self._held = Held(view, null_safe=True)
        """These and the batch."""
        self._units: list[list[Update]] = []
        self._known = Known(view, ())
        self._fragments: dict[int, Fragment] = {}
        """Of the units of which everything is known."""
        self._open: dict[int, Query] = {}
        self._asked = 0
        self._most = FIRST
        """Units of a batch."""

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Answer):
                self._absorb(message)
            elif isinstance(message, Update):
                update = self._in_memory(message)
                self._waiting.add(update)
                self._held.add(update)
            elif isinstance(message, Cut) and not self._complete:
                self._waiting.add(message)
        return list(self._advance())

    def describe(self) -> dict[str, Any]:
        open_ = {number: (QueryTerm((), Bag(()), query.lookups),) for number, query in self._open.items()}
        return {"UQS": open_, "Δ": tuple(self._made()), "queue": tuple(self._waiting)}

    def _advance(self) -> Iterator[Outbound]:
        """Go on until questions are open that something waits for, or nothing is left to do."""
        while self._units or self._start_batch():
            wanted: Wanted = {}
            for number in range(len(self._units)):
                if number not in self._fragments:
                    fragment = self._collector.fragment(self._known, number, wanted)
                    if fragment is not None:
                        self._fragments[number] = fragment
            if len(self._fragments) < len(self._units):
                yield from self._ask(wanted)
                return
            yield from self._made()
            self._pace()
            self._held.drop(update for unit in self._units for update in unit)
            self._units, self._fragments = [], {}

    def _made(self) -> Iterator[ActionList]:
        """The action lists of the units of which everything is known."""
        for number, fragment in sorted(self._fragments.items()):
            covers = tuple(update.number for update in self._units[number])
            fragments = () if fragment.before == fragment.after else (fragment,)
            yield ActionList(self.view.name, covers, nothing(self.view), fragments=fragments)

    def _pace(self) -> None:
        fragments = self._fragments.values()
        rows = sum(len(rows.collect()) for f in fragments for side in (f.before, f.after) for rows in side.values())
        self._most = max(1, self._most // 2) if rows > MANY_ROWS else min(MOST, 2 * self._most)

    def _start_batch(self) -> bool:
        self._units = self._waiting.units(self._most) if self._complete else self._waiting.block()
        changes = [{o.index: change(o, unit) for o in self.view.occurrences} for unit in self._units]
        self._known = Known(self.view, [_changed(unit) for unit in changes])
        return bool(self._units)

    # Questions.

    def _ask(self, wanted: Wanted) -> Iterator[Query]:
        """Everything that is wanted and not asked for yet: one question to each source, and one for each look-up in a
        copy at the warehouse, where commits may come between two."""
        for query in self._open.values():
            for lookup in query.lookups:
                _without(wanted, _spot(self.view, lookup), lookup)
        lookups: dict[tuple[str, bool, int], list[Lookup]] = defaultdict(list)
        for (index, columns), keys in sorted(wanted.items()):
            occurrence = self.view.occurrences[index]
            everything = bool(columns) and () in wanted.get((index, ()), ())
            if keys and not everything:
                place = len(lookups) if occurrence.copied else 0
                lookups[occurrence.source, occurrence.copied, place].append(self._lookup(index, columns, keys))
        for (source, copied, _), asked in sorted(lookups.items()):
            query = Query(self.view.name, self._asked, source, tuple(asked), copy=copied)
            self._asked += 1
            self._open[query.id] = query
            yield query

    def _lookup(self, index: int, columns: tuple[str, ...], keys: set[tuple[Any, ...]]) -> Lookup:
        occurrence = self.view.occurrences[index]
        on = tuple(occurrence.columns[occurrence.attributes.index(column)] for column in columns)
        found = Lookup(index, occurrence.relation.name, occurrence.columns, on)
        if not columns:
            return found
        null_safe = any(None in key for key in keys)
        return replace(found, keys=Bag(columns, dict.fromkeys(keys, 1)), null_safe=null_safe)

    def _absorb(self, answer: Answer) -> None:
        query = self._open.pop(answer.id, None)
        if query is None:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        for lookup, found in zip(query.lookups, answer.relations, strict=False):
            occurrence = self.view.occurrences[lookup.occurrence]
            spot = _spot(self.view, lookup)
            keys = [key for key, _ in lookup.keys.collect().items()] if lookup.keys is not None else [()]
            names = [f"k{i}" for i in range(len(spot[1]))]
            correction = self._held.correction(occurrence, answer.seen, list(zip(names, spot[1], strict=True)))
            missing = correction.join(Bag(names, dict.fromkeys(keys, 1))).project(occurrence.attributes)
            self.compensations += not missing.known_empty
            rows = substitute(occurrence, self._collected(found, occurrence.relation, self._ask_for_less))
            self._known.learn(spot, keys, rows.plus(missing).collect())

    # Rows in memory.

    def _in_memory(self, update: Update) -> Update:
        transaction = update.transaction
        used = {o.relation.name: o.relation for o in self.view.occurrences if o.source == update.source}
        load = f"To load the view as it is now: `strobe rebuild {self.view.name}`."
        changes = {n: self._collected(rows, used[n], load) for n, rows in transaction.changes.items() if n in used}
        return replace(update, transaction=replace(transaction, changes=changes))

    @property
    def _ask_for_less(self) -> str:
        return (
            "Join and group by columns of the tables as they are, so that fewer rows are asked for "
            f"(`strobe explain {self.view.name}` shows which are), then `strobe apply`."
        )

    def _collected(self, rows: Relation, relation: RelationSchema, fix: str) -> Bag:
        if not isinstance(rows, Bag) and (number := _size(rows)) > MOST_ROWS:
            raise DefinitionChanged(
                f"{number:,} rows of it have to be held at a time, and a view with more than inner joins holds at most "
                f"{MOST_ROWS:,}",
                source=relation.source,
                relations=[relation.name],
                views=[self.view.name],
                where=f"view {self.view.name}, source {relation.source}, table {relation.name}",
                fix=f"The last commit is right. {fix}",
            )
        return rows.collect().within(None)


def _size(rows: Relation) -> int:
    return sum(n for sign in (1, -1) for _, n in rows.part(sign).project(()).collect().items())


def _spot(view: View, lookup: Lookup) -> Spot:
    return lookup.occurrence, tuple(view.occurrences[lookup.occurrence].attribute(column) for column in lookup.on)


def _without(wanted: Wanted, spot: Spot, asked: Lookup) -> None:
    """Leave out what is being asked for."""
    if asked.keys is None:
        for other in [other for other in wanted if other[0] == spot[0]]:
            del wanted[other]
    elif spot in wanted:
        wanted[spot] = wanted[spot] - {key for key, _ in asked.keys.collect().items()}


def _changed(changes: dict[int, Relation]) -> dict[int, Bag]:
    return {index: rows.collect() for index, rows in changes.items() if not rows.known_empty}
