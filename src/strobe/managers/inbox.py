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

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace

from strobe.managers.base import Inbound, Outbound, ViewManager
from strobe.messages import Answer, Cut, Position, Query, Seen, Transaction, TransactionInfo, Update

REMEMBERED = 10_000
"""How many transactions an inbox remembers to hold answers against. Where log order is visibility order the last one
would do."""


class Inbox:
    def __init__(self, manager: ViewManager, reached: Mapping[str, Position]) -> None:
        """`reached` is how far each source's stream had been read when this manager's view was last right."""
        self.manager = manager
        self._reached = dict(reached)
        self._held: dict[str, list[Update]] = defaultdict(list)
        self._unshown: dict[str, list[TransactionInfo]] = defaultdict(list)
        """Transactions given to the manager, until some answer has shown them: a snapshot that is taken from then on
        shows them too."""
        self._must_see: dict[int, list[TransactionInfo]] = {}
        """What the answer to an open question must have seen: unshown when it was asked, or given to the manager
        since."""
        self._uncopied: dict[str, list[Transaction]] = defaultdict(list)
        """Transactions given to the manager, with their rows, until a copy has shown them."""
        self._copied = {o.source for o in manager.view.occurrences if o.copied or o.shown}
        self._open: dict[int, Query] = {}
        self._early: list[Answer] = []

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The sources with an open question."""
        return tuple(dict.fromkeys(query.source for query in self._open.values() if not query.at_home))

    @property
    def asking(self) -> bool:
        """Whether any question is open."""
        return bool(self._open)

    @property
    def early(self) -> dict[str, Position]:
        """For each source how far its stream must be read before an answer that is here already can be delivered."""
        wanted: dict[str, Position] = {}
        for answer in self._early:
            through = answer.seen.through
            wanted[answer.source] = max(wanted.get(answer.source, through), through, key=lambda p: p.order)
        return wanted

    def update(self, update: Update) -> list[Outbound]:
        """A relevant update, in the integrator's order. `progress` follows."""
        if update.source in self.waits_for:
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
            del self._must_see[answer.id]
            return self._hand_over([self._brought_up(self._open.pop(answer.id), answer)])
        if not answer.seen.through <= self._reached[answer.source]:
            self._early.append(answer)
            return []
        return self._deliver(answer)

    def _deliver(self, answer: Answer) -> list[Outbound]:
        query = self._open[answer.id]
        source = answer.source
        if not all(answer.seen.saw(transaction) for transaction in self._must_see[answer.id]):
            return [query]
        seen = [u for u in self._held[source] if u.transaction.position <= answer.seen.through]
        if not self.manager.compensates and not all(answer.seen.saw(u.transaction) for u in seen):
            return [query]
        del self._open[answer.id], self._must_see[answer.id]
        rest = self._held[source][len(seen) :]
        messages: list[Inbound] = [*seen, answer]
        if source not in self.waits_for:
            self._held[source] = []
            messages += rest
        else:
            self._held[source] = rest
        self._unshown[source] = [t for t in self._unshown[source] if not answer.seen.saw(t)]
        return self._hand_over(messages)

    def committed(self, positions: Mapping[str, Position]) -> None:
        """Copies that are asked from now on are at least as new as this."""
        if any(query.at_home for query in self._open.values()):
            return  # one that is being asked may be older
        for source, since in self._uncopied.items():
            if source in positions:
                self._uncopied[source] = [t for t in since if not t.position <= positions[source]]

    def _brought_up(self, query: Query, answer: Answer) -> Answer:
        source = answer.source
        self._uncopied[source] = since = [t for t in self._uncopied[source] if not answer.seen.saw(t)]
        relations = list(answer.relations)
        for place, lookup in enumerate(query.lookups):
            for transaction in since:
                if lookup.relation in transaction.changes:
                    change = transaction.changes[lookup.relation].project(lookup.columns)
                    relations[place] = relations[place].plus(change)
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
                self._must_see[sent.id] = list(self._unshown[sent.source])
        return out

    def _remember(self, update: Update) -> None:
        if update.source in self._copied:
            self._uncopied[update.source].append(update.transaction)
        info = update.transaction.info
        unshown = self._unshown[update.source]
        unshown.append(info)
        if len(unshown) > REMEMBERED:
            del unshown[0]
        for number, query in self._open.items():
            if query.source == update.source:
                self._must_see[number].append(info)
