"""A laboratory that counts what the sources are asked and what they send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.managers.base import ViewManager
from strobe.messages import Answer, Lookup, Query
from strobe.simulator.lab import Event, Lab, Plan
from strobe.simulator.world import Contents

C = TypeVar("C", bound="Counts")

COLUMN = 4
"""Bytes of a column of a raw row."""


@dataclass
class Counts:
    """What a run has cost."""

    messages: float = 0
    """Queries and answers; the reports of updates are the same for every algorithm, and not counted."""
    lookups: float = 0
    rows: float = 0
    """Raw rows of all answers."""
    bytes: float = 0
    """Of those rows."""
    home: float = 0
    """Look-ups in copies at the warehouse, which are no messages."""

    def plus(self, other: Counts) -> None:
        for each in fields(other):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def per(self: C, number: float) -> C:
        return replace(self, **{each.name: getattr(self, each.name) / number for each in fields(self)})


@dataclass
class Evaluated:
    """A query at the moment of its evaluation."""

    query: Query
    answer: Answer
    state: Contents


class Metered(Lab):
    """A laboratory with a meter.

    With `one_block` the updates of the whole run are one block, and its end is their end; otherwise a block ends at
    every quiet moment. With `one_by_one` the sources answer one look-up of a query at a time, as they may.
    """

    def __init__(
        self,
        plan: Plan,
        manager: ViewManager,
        *,
        single: bool = False,
        one_block: bool = False,
        one_by_one: bool = False,
    ) -> None:
        super().__init__(plan, manager, single=single)
        self.one_block, self.one_by_one = one_block, one_by_one
        self.counts = Counts()

    @property
    def quiet(self) -> bool:
        return super().quiet and not (self.one_block and self._more_to_come)

    @property
    def _more_to_come(self) -> bool:
        to_execute = any(n < len(self.plan.steps.get(s, ())) for s, n in self.executed.items())
        return to_execute or any(self.channels.values())

    def step(self, event: Event) -> None:
        kind, source = event
        query = self.queries[source][0] if kind == "evaluate" else None
        super().step(event)
        if query is not None:
            self._answered(query)
        for message in self.last:
            if isinstance(message, Query):
                self.sent(message)

    def _answered(self, query: Query) -> None:
        answer = self.channels[query.source][-1]
        if not isinstance(answer, Answer):
            raise TypeError(f"{answer} is no answer")
        if self.one_by_one and not query.whole:
            answer = replace(answer, relations=answer.relations[:1])
            self.channels[query.source][-1] = answer
        rows = [size(found) for found in answer.relations]
        self.counts.messages += 1
        self.counts.lookups += len(rows)
        self.counts.rows += sum(rows)
        self.counts.bytes += sum(
            n * len(found.attributes) * COLUMN for n, found in zip(rows, answer.relations, strict=True)
        )
        self.evaluated(Evaluated(query, answer, self.plan.states[query.source][self.executed[query.source]]))

    def sent(self, query: Query) -> None:
        """A query was sent, to a source or to a copy."""
        if query.copy:
            self.counts.home += len(query.lookups)
        else:
            self.counts.messages += 1

    def evaluated(self, _evaluated: Evaluated) -> None:
        """A source has evaluated a query."""


def size(relation: Relation) -> int:
    """Rows, each as often as it is there."""
    return sum(abs(n) for _, n in bag(relation).items())


def bag(relation: Relation) -> Bag:
    if not isinstance(relation, Bag):
        raise TypeError("the laboratory works on bags in memory only")
    return relation


@dataclass(frozen=True)
class Disk:
    """How the paper counts I/O: in blocks of K tuples, each term on its own, and nothing is cached (6.3 and D.3)."""

    K: int
    clustered: Mapping[str, str] = field(default_factory=lambda: {"r1": "X", "r2": "X", "r3": "Y"})
    """By relation, the column by which it is clustered; by others there are indexes that are not."""

    def blocks(self, tuples: int, at_once: int = 1) -> int:
        return math.ceil(tuples / (self.K * at_once))

    def indexed(self, evaluated: Evaluated) -> int:
        """Scenario 1: indexes in memory, and room for everything that is read.

        Every tuple that a look-up starts from probes the index: as many I/Os as the tuples found have blocks, where
        they lie together, and one for each where they do not. Where a scan of the relation is cheaper, it is scanned.
        """
        lookups, found = evaluated.query.lookups, evaluated.answer.relations
        return sum(self._lookup(lookup, found, evaluated.state[lookup.relation]) for lookup in lookups)

    def _lookup(self, lookup: Lookup, found: Sequence[Relation], relation: Bag) -> int:
        scan = self.blocks(size(relation))
        if lookup.keys_from is not None:
            starts = bag(found[lookup.keys_from[0]]).project(lookup.keys_from[1])
        elif lookup.keys is not None:
            starts = bag(lookup.keys)
        else:
            return scan
        together = self.clustered[lookup.relation]
        by = together if together in lookup.on else lookup.on[0]
        place, own = lookup.on.index(by), relation.attributes.index(by)
        probes = 0
        for start, times in starts.items():
            tuples = sum(n for row, n in relation.items() if row[own] == start[place])
            probes += times * (self.blocks(tuples) if by == together else tuples)
        return min(probes, scan)

    def nested(self, relations: Sequence[str], state: Contents, *, outer: bool) -> int:
        """Scenario 2: nested loops over these relations with three blocks of memory, and no index.

        The paper counts the reads of the innermost relation. With `outer` those of the relations around it count too.
        """
        sizes = [size(state[relation]) for relation in relations]
        if not sizes:
            return 0
        loops = [self.blocks(n) for n in sizes]
        if len(sizes) == 2:  # one block for the inner relation, and so two for the other
            loops[0] = self.blocks(sizes[0], at_once=2)
        reads = math.prod(loops)
        if outer and len(sizes) > 1:
            reads += self.blocks(sizes[0])
        if outer and len(sizes) > 2:
            reads += loops[0] * loops[1]
        return reads
