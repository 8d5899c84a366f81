"""SWEEP: complete or strongly consistent maintenance without keys, quiescence or compensating queries.

Beyond the papers; the telescoping form. A batch of updates moves some occurrences R1 … Rn of relations from their state
before to their state after, and the view changes by

    Σ over touched i of   R1@after ⋈ … ⋈ R(i-1)@after ⋈ ΔRi ⋈ R(i+1)@before ⋈ … ⋈ Rn@before.

Each summand is one sweep around the other occurrences. A source answers at whatever state its snapshot saw; the
wanted state differs from it by updates that have all arrived here already (order is rebuilt in the inbox), so the
difference is joined locally:  T ⋈ Rj@target = T ⋈ Rj@seen + T ⋈ (Rj@target - Rj@seen).  Nobody is asked twice because
others write.

    batch:  one update (complete), or the updates of one block between two cuts (strong)
    Rj@target - Rj@seen  =  + ΔRj of updates in the target that the snapshot had not seen
                            - ΔRj of updates not in the target that it had seen

where only updates not yet part of the view can matter: all others are in every snapshot (the inbox asks again where one
is not). One rule covers self-joins (an R for each occurrence), several relations at one source, transactions over
several relations, snapshots that saw a later update without an earlier one, and batches.

Cost: 2(n-1) messages for a change of one occurrence; fewer where neighbouring occurrences live at one source.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from collections.abc import Iterable, Sequence

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import substitute
from strobe.algebra.view import Occurrence, View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound
from strobe.managers.evaluation import Evaluation
from strobe.messages import ActionList, Answer, Cut, Query, Seen, Update


class Sweep:
    """One view, one batch at a time, one sweep of the batch at a time."""

    def __init__(self, view: View, *, complete: bool) -> None:
        self.view = view
        self._complete = complete
        self._cuts: deque[int] = deque()
        self._waiting: list[Update] = []
        """Updates not yet taken up, by number: the inbox may have held some back while later ones came."""
        self._batch: list[Update] = []
        self._to_sweep: deque[Occurrence] = deque()
        self._sweep: Evaluation | None = None
        self._query: Query | None = None
        self._asked = 0
        self._delta: Relation = Bag(view.attributes)

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Update):
                insort(self._waiting, message, key=lambda update: update.number)
            elif isinstance(message, Cut):
                self._cuts.append(message.number)
            else:
                self._absorb(message)
        return self._advance()

    def _absorb(self, answer: Answer) -> None:
        if self._query is None or self._sweep is None or answer.id != self._query.id:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        self._sweep.absorb(self._query, answer)
        self._query = None

    def _advance(self) -> list[Outbound]:
        """Go on until a question is open or nothing is left to do."""
        out: list[Outbound] = []
        while self._query is None:
            if self._sweep is not None and self._sweep.done:
                self._delta = self._delta.plus(self._sweep.result)
                self._sweep = None
            elif self._sweep is not None:
                self._query = self._sweep.ask(self._asked)
                self._asked += 1
                out.append(self._query)
            elif self._to_sweep:
                self._start_sweep(self._to_sweep.popleft())
            elif self._batch:
                out.append(ActionList(self.view.name, tuple(u.number for u in self._batch), self._delta))
                self._batch = []
            elif not self._start_batch():
                return out
        return out

    def _start_batch(self) -> bool:
        if self._complete:
            self._batch = [self._waiting.pop(0)] if self._waiting else []
        else:
            while self._cuts and not (self._waiting and self._waiting[0].number <= self._cuts[0]):
                self._cuts.popleft()
            while self._cuts and self._waiting and self._waiting[0].number <= self._cuts[0]:
                self._batch.append(self._waiting.pop(0))
        self._delta = Bag(self.view.attributes)
        self._to_sweep.extend(o for o in self.view.occurrences if not self._change(o, self._batch).known_empty)
        return bool(self._batch)

    def _start_sweep(self, swept: Occurrence) -> None:
        def compensate(index: int, seen: Seen) -> Relation | None:
            occurrence = self.view.occurrences[index]
            wanted = self._batch if index < swept.index else []
            missing = [u for u in wanted if u.source == occurrence.source and not seen.saw(u.transaction)]
            unwanted = [*self._waiting, *(self._batch if index >= swept.index else [])]
            early = [u for u in unwanted if u.source == occurrence.source and seen.saw(u.transaction)]
            difference = self._change(occurrence, missing).plus(self._change(occurrence, early).negate())
            return None if difference.known_empty else difference

        self._sweep = Evaluation(self.view, swept.index, self._change(swept, self._batch), compensate)

    def _change(self, occurrence: Occurrence, updates: Iterable[Update]) -> Relation:
        """ΔR over these updates, under the occurrence's attributes."""
        total: Relation = Bag(occurrence.attributes)
        for update in updates:
            change = update.transaction.changes.get(occurrence.relation.name)
            if change is not None and update.source == occurrence.source:
                total = total.plus(substitute(occurrence, change))
        return total
