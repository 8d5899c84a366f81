"""SWEEP: complete or strongly consistent maintenance without keys, quiescence or compensating queries.

Beyond the papers; the telescoping form. A batch of updates moves some occurrences R1 … Rn of relations from their state
before to their state after, and the view changes by

    Σ over touched i of   R1@after ⋈ … ⋈ R(i-1)@after ⋈ ΔRi ⋈ R(i+1)@before ⋈ … ⋈ Rn@before.

Each summand is one sweep around the other occurrences. A source answers at whatever state its snapshot saw; the
wanted state differs from it by updates that have all arrived here already (order is rebuilt in the inbox), so the
difference is joined locally:  T ⋈ Rj@target = T ⋈ Rj@seen + T ⋈ (Rj@target - Rj@seen).  Nobody is asked twice because
others write.

    Rj@target - Rj@seen  =  + ΔRj of updates in the target that the snapshot had not seen
                            - ΔRj of updates not in the target that it had seen

where only updates not yet part of the view can matter: all others are in every snapshot (the inbox asks again where one
is not). `held` keeps their sum. One rule covers self-joins (an R for each occurrence), several relations at one source,
transactions over several relations, snapshots that saw a later update without an earlier one, and batches.

A batch consists of *groups*, and every group becomes an action list: at strong the updates of one block, between two
cuts, are one group; at complete every update (or global transaction) is a group of its own. The sweeps of all groups
go around together, because they ask for the same relations; each is compensated to its own target, the state before or
after its group. So complete asks hardly more than strong.

Cost: 2(n-1) messages for a batch that changes one occurrence; fewer where neighbouring occurrences live at one source.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound
from strobe.managers.changes import change, touches
from strobe.managers.evaluation import Evaluation, nothing
from strobe.managers.held import Correction, Held
from strobe.managers.units import Received
from strobe.messages import ActionList, Answer, Query, Seen, Update

MOST = 200
"""Groups that go around together, at the most."""


class Sweep:
    """One view, one batch at a time, one occurrence of the batch at a time."""

    compensations = 0
    """How often an answer had seen too much or too little, and was put right here."""
    compensates = True

    def __init__(self, view: View, *, complete: bool) -> None:
        self.view = view
        self._complete = complete
        self._waiting = Received(view.sources)
        """Updates not yet taken up."""
        self._held = Held(view)
        """These and the batch."""
        self._groups: list[list[Update]] = []
        self._changes: dict[int, list[Relation]] = {}
        """By occurrence, ΔR of each group."""
        self._corrections: dict[int, tuple[Correction, int]] = {}
        """By occurrence of the answer that is there: to the state before which group."""
        self._deltas: list[Relation] = []
        self._to_sweep: deque[Occurrence] = deque()
        self._swept = 0
        self._sweep: Evaluation | None = None
        self._query: Query | None = None
        self._asked = 0

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Answer):
                self._absorb(message)
            elif isinstance(message, Update):
                self._waiting.add(message)
                self._held.add(message)
            elif not self._complete:
                self._waiting.add(message)
        return self._advance()

    def describe(self) -> dict[str, Any]:
        query, sweep = self._query, self._sweep
        open_ = {query.id: sweep.asked(query.lookups)} if query and sweep else {}
        groups = zip(self._groups, self._deltas, strict=True)
        made = tuple(ActionList(self.view.name, tuple(u.number for u in group), delta) for group, delta in groups)
        return {"UQS": open_, "Δ": made, "queue": tuple(self._waiting)}

    def _absorb(self, answer: Answer) -> None:
        if self._query is None or self._sweep is None or answer.id != self._query.id:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        self._corrections = {}
        self.compensations += self._sweep.absorb(self._query.lookups, answer.relations, answer.seen, self._compensate)
        self._query = None

    def _advance(self) -> list[Outbound]:
        """Go on until a question is open or nothing is left to do."""
        out: list[Outbound] = []
        while self._query is None:
            if self._sweep is not None and self._sweep.done:
                for number, result in self._sweep.results.items():
                    self._deltas[number] = self._deltas[number].plus(result)
                self._sweep = None
            elif self._sweep is not None:
                self._query = self._sweep.ask(self._asked)
                self._asked += 1
                out.append(self._query)
            elif self._to_sweep:
                self._start_sweep(self._to_sweep.popleft())
            elif self._groups:
                for group, delta in zip(self._groups, self._deltas, strict=True):
                    out.append(ActionList(self.view.name, tuple(u.number for u in group), delta))
                    self._held.drop(group)
                self._groups, self._changes = [], {}
            elif not self._start_batch():
                return out
        return out

    def _start_batch(self) -> bool:
        self._groups = self._waiting.units(MOST) if self._complete else self._waiting.block()
        self._deltas = [nothing(self.view) for _ in self._groups]
        batch = [update for group in self._groups for update in group]
        self._to_sweep.extend(o for o in self.view.occurrences if any(touches(u, o) for u in batch))
        return bool(self._groups)

    def _start_sweep(self, swept: Occurrence) -> None:
        changes = enumerate(self._changes_of(swept))
        self._swept = swept.index
        self._sweep = Evaluation(self.view, [swept.index], {n: c for n, c in changes if not c.known_empty})

    def _changes_of(self, occurrence: Occurrence) -> list[Relation]:
        if occurrence.index not in self._changes:
            self._changes[occurrence.index] = [change(occurrence, group) for group in self._groups]
        return self._changes[occurrence.index]

    def _compensate(self, group: int, index: int, seen: Seen) -> Correction:
        """From the state that was seen to the one before this group, or after it for occurrences before the swept
        one. From group to group that state moves on."""
        occurrence = self.view.occurrences[index]
        target = group + 1 if index < self._swept else group
        if index not in self._corrections:
            pairs = join_pairs(self.view, self._sweep.known if self._sweep else (), index)
            self._corrections[index] = self._held.correction(occurrence, seen, pairs), 0
        correction, reached = self._corrections[index]
        for rows in self._changes_of(occurrence)[reached:target]:
            correction.want(rows)
        self._corrections[index] = correction, target
        return correction
