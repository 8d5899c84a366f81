"""The inbox of one view manager, where order is rebuilt.

The papers assume that a source's updates and answers arrive in the order in which they happened there. Here they come
on different connections, so that an answer may overtake updates that it had seen, or be overtaken by updates that it
had not. Managers fed in that order end up wrong, and stay wrong. The inbox restores the assumption, from what the
snapshot behind an answer says that it had seen:

* While a question to a source is open, that source's updates are held back.
* An answer waits until the stream has been read up to everything that it had seen. Then the manager gets first the
  updates it had seen, then the answer, then the rest.
* An answer that has *not* seen an update which its asker has been given is thrown away, and asked for again. (A log may
  deliver a commit before snapshots show it; and of two questions the one evaluated first may be answered last.)
* An answer that has seen a later update without an earlier one equals no state of the source. A manager that
  `compensates` update by update, by what the answer says it saw, gets it; for all others it is asked again.

One view's slow answer holds up no other view: every manager has an inbox of its own.

A copy of a relation at the warehouse is as old as the last commit. Its answer is brought to where the manager is, by
adding the updates that the manager has been given since: so it is as good as one of the source, and holds nothing up.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from dataclasses import replace
from itertools import takewhile

from strobe.algebra.bag import total
from strobe.managers.base import Inbound, Outbound, ViewManager
from strobe.messages import Answer, Cut, Position, Query, Seen, Transaction, TransactionInfo, Update

REMEMBERED = 10_000
"""How many transactions an inbox remembers to hold answers against. Where log order is visibility order the last one
would do."""


class _Given:
    """The transactions of a source that a manager has been given, as far as answers have to be held against them, by
    their place in that order."""

    def __init__(self) -> None:
        self._given: list[TransactionInfo] = []
        self._start = 0
        """The place of the first one that is remembered."""
        self._checked: tuple[Seen, int, int] | None = None
        """What was checked last: a snapshot has seen those between two places. Several answers share a snapshot."""
        self.shown = 0
        """Some answer has shown all before this place: a snapshot that is taken from then on shows them too."""

    @property
    def end(self) -> int:
        return self._start + len(self._given)

    def __len__(self) -> int:
        return len(self._given)

    def add(self, transaction: TransactionInfo) -> None:
        self._given.append(transaction)

    def seen_since(self, place: int, seen: Seen) -> bool:
        """Whether a snapshot has seen all from this place on."""
        if self._checked is not None and self._checked[0] == seen and self._checked[1] <= place:
            place = max(place, self._checked[2])
        first = max(0, place - self._start)
        if not all(seen.saw(self._given[i]) for i in range(first, len(self._given))):
            return False
        self._checked = (seen, place, self.end)
        return True

    def show(self, seen: Seen) -> None:
        """What an answer has seen is shown, up to the first that it has not."""
        while self.shown < self.end and seen.saw(self._given[max(0, self.shown - self._start)]):
            self.shown += 1

    def forget(self, needed: int) -> None:
        """What was shown before this place needs to be remembered no longer; of others, only so many."""
        gone = max(min(needed, self.shown), self.end - REMEMBERED) - self._start
        if 2 * gone > len(self._given):
            del self._given[:gone]
            self._start += gone
            self.shown = max(self.shown, self._start)


class Inbox:
    def __init__(self, manager: ViewManager, reached: Mapping[str, Position]) -> None:
        """`reached` is how far each source's stream had been read when this manager's view was last right."""
        self.manager = manager
        self._reached = dict(reached)
        self._held: dict[str, list[Update]] = defaultdict(list)
        self._given: dict[str, _Given] = defaultdict(_Given)
        self._must_see: dict[int, int] = {}
        """From which place on the answer to an open question must have seen what the manager was given: what no answer
        had shown when it was asked, and what has been given since."""
        self._uncopied: dict[str, deque[Transaction]] = defaultdict(deque)
        """Transactions given to the manager, with their rows, until a copy has shown them."""
        self._copied = {o.source for o in manager.view.occurrences if o.copied or o.shown}
        self._open: dict[int, Query] = {}
        self._asked: dict[str, int] = {}
        """How many questions to each source are open, where any is."""
        self._early: list[Answer] = []

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The sources with an open question."""
        return tuple(self._asked)

    @property
    def asking(self) -> bool:
        """Whether any question is open."""
        return bool(self._open)

    def update(self, update: Update) -> list[Outbound]:
        """A relevant update, in the integrator's order. `progress` follows."""
        if update.source in self._asked:
            self._held[update.source].append(update)
            return []
        return self._hand_over([update])

    def progress(self, source: str, position: Position) -> list[Outbound]:
        """The source's stream has been read up to here, relevant or not."""
        self._reached[source] = position
        ready = [a for a in self._early if a.source == source and a.seen.through <= position]
        out: list[Outbound] = []
        for answer in ready:
            self._early.remove(answer)
            out += self._deliver(answer)
        return out

    def cut(self, cut: Cut) -> list[Outbound]:
        return self._hand_over([cut])

    def answer(self, answer: Answer) -> list[Outbound]:
        if self._open[answer.id].at_home:
            return self._hand_over([self._brought_up(self._close(answer.id), answer)])
        if not answer.seen.through <= self._reached[answer.source]:
            self._early.append(answer)
            return []
        return self._deliver(answer)

    def _close(self, number: int) -> Query:
        query = self._open.pop(number)
        del self._must_see[number]
        if not query.at_home:
            self._asked[query.source] -= 1
            if not self._asked[query.source]:
                del self._asked[query.source]
        return query

    def _deliver(self, answer: Answer) -> list[Outbound]:
        query = self._open[answer.id]
        source = answer.source
        if not self._given[source].seen_since(self._must_see[answer.id], answer.seen):
            return [query]
        held = self._held[source]
        seen = list(takewhile(lambda u: u.transaction.position <= answer.seen.through, held))
        if not self.manager.compensates and not all(answer.seen.saw(u.transaction) for u in seen):
            return [query]
        self._close(answer.id)
        rest = held[len(seen) :] if seen else held
        messages: list[Inbound] = [*seen, answer]
        if source not in self._asked:
            messages += rest
            rest = []
        self._held[source] = rest
        self._given[source].show(answer.seen)
        needed = (self._must_see[number] for number, query in self._open.items() if query.source == source)
        self._given[source].forget(next(needed, self._given[source].end))
        return self._hand_over(messages)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Copies that are asked from now on are at least as new as this."""
        if any(query.at_home for query in self._open.values()):
            return  # one that is being asked may be older
        for source, since in self._uncopied.items():
            while source in positions and since and since[0].position <= positions[source]:
                since.popleft()

    def _brought_up(self, query: Query, answer: Answer) -> Answer:
        source = answer.source
        self._uncopied[source] = since = deque(t for t in self._uncopied[source] if not answer.seen.saw(t))
        relations = [
            total(
                lookup.columns,
                [
                    found,
                    *(
                        t.changes[lookup.relation].project(lookup.columns)
                        for t in since
                        if lookup.relation in t.changes
                    ),
                ],
            )
            for lookup, found in zip(query.lookups, answer.relations, strict=True)
        ]
        through = max([answer.seen.through, *(t.position for t in since)], key=lambda p: p.order)
        return replace(answer, relations=tuple(relations), seen=Seen(through))

    def _hand_over(self, messages: list[Inbound]) -> list[Outbound]:
        for message in messages:
            if isinstance(message, Update):
                self._remember(message)
        out = self.manager.receive(messages)
        for sent in out:
            if isinstance(sent, Query):
                self._open[sent.id] = sent
                self._must_see[sent.id] = self._given[sent.source].shown
                if not sent.at_home:
                    self._asked[sent.source] = self._asked.get(sent.source, 0) + 1
        return out

    def _remember(self, update: Update) -> None:
        if update.source in self._copied:
            self._uncopied[update.source].append(update.transaction)
        given = self._given[update.source]
        given.add(update.transaction.info)
        if len(given) > 2 * REMEMBERED:
            given.forget(0)
