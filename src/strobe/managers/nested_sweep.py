"""Nested SWEEP: strong, with fewer messages under load, because what happened meanwhile is taken into the batch.

Beyond the papers. D is the change of the join over a *span* S of occurrences, after the batch less before it. It starts
with one occurrence that the batch changed, and grows by one occurrence j at a time:

    D over S and j  =  D ⋈ Rj@before  +  join of S@after ⋈ ΔRj

The first summand is a question to j's source. Where the answer had seen updates beyond the batch, SWEEP takes their
effect out again, and asks anew for them later; here the updates themselves join the batch (whole transactions only, and
not beyond a cut), so that the next occurrences are asked for all of them together. The second summand, and the change
of S where an absorbed update touches it, are sweeps over S only, compensated locally as in SWEEP.

A batch absorbs `depth` times at the most; then it is compensated only, and so it ends however fast updates come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.managers.base import Inbound, Outbound, QueryTerm
from strobe.managers.changes import change, touches
from strobe.managers.evaluation import Evaluation
from strobe.managers.held import Correction, Held
from strobe.managers.units import Received
from strobe.messages import ActionList, Answer, Query, Seen, Update

DEPTH = 8
"""How often a batch absorbs, at the most."""


class NestedSweep:
    compensations = 0
    """How often an answer had seen too much or too little, and was put right here."""
    compensates = True

    def __init__(self, view: View, *, depth: int = DEPTH) -> None:
        self.view = view
        self._depth = depth
        self._waiting = Received(view.sources)
        self._held = Held(view)
        """What waits, and the batch."""
        self._batch: list[Update] = []
        self._absorbed = 0
        self._span: list[int] = []
        self._delta: Relation = Bag(())
        self._inner: deque[tuple[int, list[Update], list[Update]]] = deque()
        """Sweeps over the span that are to be done: (from which occurrence, of which updates, the batch before them).
        """
        self._grown: tuple[int, Relation] | None = None
        """An occurrence that is being added, and D with it as far as it is known."""
        self._sweep: Evaluation | None = None
        self._query: Query | None = None
        self._asked = 0

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Answer):
                self._answer(message)
            else:
                self._waiting.add(message)
                if isinstance(message, Update):
                    self._held.add(message)
        out: list[Outbound] = []
        while self._query is None and self._go_on(out):
            pass
        return out

    def describe(self) -> dict[str, Any]:
        query, sweep = self._query, self._sweep
        open_: dict[int, tuple[QueryTerm, ...]] = {}
        if query is not None:
            grown = (QueryTerm(tuple(self._span), self._delta, query.lookups),)
            open_[query.id] = grown if sweep is None else sweep.asked(query.lookups)
        return {
            "UQS": open_,
            "batch": tuple(self._batch),
            "queue": tuple(self._waiting),
        }

    def _go_on(self, out: list[Outbound]) -> bool:
        """Do the next thing; false if there is nothing to do."""
        if self._sweep is not None and not self._sweep.done:
            self._ask(self._sweep.ask(self._asked), out)
        elif self._sweep is not None:
            self._end_inner(self._sweep)
        elif self._inner:
            self._start_inner()
        elif self._grown is not None:
            self._span, self._delta, self._grown = [*self._span, self._grown[0]], self._grown[1], None
        elif self._batch and len(self._span) < len(self.view.occurrences):
            self._grow(out)
        elif self._batch:
            covers = tuple(sorted(update.number for update in self._batch))
            out.append(ActionList(self.view.name, covers, self._delta.project(self.view.attributes)))
            self._held.drop(self._batch)
            self._batch = []
        else:
            return self._start()
        return True

    def _ask(self, query: Query, out: list[Outbound]) -> None:
        self._query = query
        self._asked += 1
        out.append(query)

    def _start(self) -> bool:
        """A batch: what has come up to the next cut that has anything."""
        self._waiting.next_block()
        while self._waiting.cut is not None and (unit := self._waiting.unit(self._waiting.cut)):
            self._waiting.take(unit)
            self._batch += unit
        touched = [o for o in self.view.occurrences if any(touches(u, o) for u in self._batch)]
        self._absorbed = 0
        self._span = [o.index for o in touched[:1]]
        self._delta = change(touched[0], self._batch) if touched else Bag(())
        return bool(self._batch)

    # Growing the span.

    def _grow(self, out: list[Outbound]) -> None:
        if not self._span:  # nothing that the view uses has changed
            self._batch_changed_nothing()
        elif self._delta.known_empty:
            rest = [o.index for o in self.view.occurrences if o.index not in self._span]
            touched = [i for i in rest if any(touches(u, self.view.occurrences[i]) for u in self._batch)]
            index = (touched or rest)[0]
            self._add(index, Bag((*self._delta.attributes, *self.view.occurrences[index].attributes)))
        else:
            query = Evaluation(self.view, self._span, {0: self._delta}).ask(self._asked)
            self._ask(Query(query.view, query.id, query.source, query.lookups[:1], copy=query.copy), out)

    def _batch_changed_nothing(self) -> None:
        self._span = [o.index for o in self.view.occurrences]
        self._delta = Bag(self.view.attributes)

    def _answer(self, answer: Answer) -> None:
        if self._query is None or answer.id != self._query.id:
            raise BrokenInvariant(f"answer {answer.id} was not asked for", where=f"view {self.view.name}")
        query, self._query = self._query, None
        if self._sweep is not None:
            self.compensations += self._sweep.absorb(query.lookups, answer.relations, answer.seen, self._compensate)
            return
        if self._absorb(answer):
            return  # what was asked with is not what D is any more: it will be asked again
        occurrence = self.view.occurrences[query.lookups[0].occurrence]
        pairs = join_pairs(self.view, self._span, occurrence.index)
        correction = self._held.correction(occurrence, answer.seen, pairs)
        found = self._delta.join(substitute(occurrence, answer.relations[0]), pairs)
        self._add(occurrence.index, found.plus(correction.join(self._delta)))

    def _absorb(self, answer: Answer) -> bool:
        """Take what the answer had seen into the batch; whether D over the span changes by it."""
        new = self._waiting.seen(answer.source, answer.seen) if self._absorbed < self._depth else []
        if not new:
            return False
        self._absorbed += 1
        self._waiting.take(new)
        before = list(self._batch)
        self._batch += new
        touched = [i for i in self._span if any(touches(u, self.view.occurrences[i]) for u in new)]
        self._inner.extend((i, new, before) for i in touched)
        return bool(touched)

    def _add(self, index: int, grown: Relation) -> None:
        """D ⋈ Rj@before; what ΔRj adds is swept over the span."""
        self._grown = (index, grown)
        if not change(self.view.occurrences[index], self._batch).known_empty:
            self._inner.append((index, self._batch, []))

    # Sweeps over the span.

    def _start_inner(self) -> None:
        index, updates, _ = self._inner[0]
        rows = change(self.view.occurrences[index], updates)
        self._sweep = Evaluation(self.view, [index], {0: rows}, self._span)

    def _compensate(self, _term: int, index: int, seen: Seen) -> Correction:
        """To the state after the batch; for a change of the span itself, to the state before it on the right."""
        swept, _, before = self._inner[0]
        target = before if self._grown is None and index > swept else self._batch
        occurrence = self.view.occurrences[index]
        pairs = join_pairs(self.view, self._sweep.known if self._sweep else (), index)
        correction = self._held.correction(occurrence, seen, pairs)
        correction.want(change(occurrence, target))
        return correction

    def _end_inner(self, sweep: Evaluation) -> None:
        self._inner.popleft()
        self._sweep = None
        for result in sweep.results.values():
            if self._grown is not None:
                self._grown = (self._grown[0], self._grown[1].plus(result))
            else:
                self._delta = self._delta.plus(result)
