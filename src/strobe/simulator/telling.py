"""What happens in a laboratory, told in the words of the papers: who did what, queries, answers, and what was in mind.

Updates are called as the scenario calls them, queries Q1, Q2, … as they are sent (or as the scenario calls them), and
the answer to Q1 is A1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs, substitute
from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.managers.base import QueryTerm
from strobe.messages import ActionList, Answer, Delete, KeyDelete, Query, Update
from strobe.simulator.judging import Shown
from strobe.simulator.lab import Event, Lab
from strobe.simulator.notation import (
    EMPTY,
    Factor,
    Polynomial,
    Substitution,
    natural,
    query_text,
    rows_text,
    tuple_text,
    update_text,
)

Labels = Mapping[str, Sequence[Sequence[str]]]
"""By source and transaction: what its updates are called."""
Rows = Mapping[Row, int]
Deleted = tuple[int, Row]
"""An occurrence, and the key of a row of it."""

LISTS = ("COLLECT", "AL", "Δ")
"""Action lists that are being made, under the names that the papers give them."""


@dataclass(frozen=True)
class Report:
    """A message in which a source reports a transaction, or one update of it."""

    number: int
    """Of the transaction, at its source."""
    name: str
    names: frozenset[str]
    """What it may be called."""


@dataclass(frozen=True)
class Sent:
    name: str
    source: str
    query: Polynomial
    joined: Polynomial
    """The same, with neighbouring tuples joined: `[1,2,3] ⋈ r3`."""
    text: str


@dataclass(frozen=True)
class Moment:
    """One event, and everything that came of it."""

    event: Event
    name: str
    text: str
    sent: tuple[Sent, ...]
    answer: Rows | None
    mind: Mapping[str, Any]
    """What the manager has in mind afterwards."""
    installed: tuple[ActionList, ...]
    views: tuple[Bag, ...]
    """The view after each of them, as readers see it."""


@dataclass
class Teller:
    """Runs a laboratory, and tells."""

    lab: Lab
    labels: Labels
    shown: Shown
    moments: list[Moment] = field(default_factory=list)
    queries: dict[str, Query] = field(default_factory=dict)
    sent: dict[str, Polynomial] = field(default_factory=dict)
    answers: dict[str, Rows] = field(default_factory=dict)
    received: list[tuple[str, Report]] = field(default_factory=list)
    """What the warehouse has received, by number: the source and the report."""

    def __post_init__(self) -> None:
        self.reports = {source: self._reports(source) for source in self.lab.plan.initial}
        self.taken: frozenset[str] = frozenset()
        """Names that no query gets by itself, because the scenario gives them."""
        self._heard = dict.fromkeys(self.lab.plan.initial, 0)

    @property
    def view(self) -> View:
        return self.lab.plan.view

    def _reports(self, source: str) -> list[Report]:
        found: list[Report] = []
        for number, (step, labels) in enumerate(
            zip(self.lab.plan.steps.get(source, ()), self.labels[source], strict=True)
        ):
            if self.lab.single and len(labels) > 1:
                found += [Report(number, label, frozenset({label})) for label in labels]
            else:
                name = labels[0] if len(labels) == 1 and step.part_of else step.id
                names = {step.id, *labels} if len(labels) == 1 else {step.id}
                found.append(Report(number, name, frozenset(names)))
        return found

    def heard(self, source: str) -> int:
        """How many reports of a source the warehouse has received."""
        return self._heard[source]

    # Events.

    def step(self, event: Event, names: Sequence[str] = ()) -> Moment:
        """Let something happen. `names` are for the queries that it sends, in order."""
        kind, source = event
        lab, before = self.lab, len(self.lab.states)
        message = lab.channels[source][0] if kind == "receive" else None
        asked: Mapping[int, Sequence[QueryTerm]] = lab.manager.describe()["UQS"]
        number = lab.executed[source]
        lab.step(event)
        answer: Rows | None = None
        if kind == "execute":
            name, text = self._executed(source, number)
        elif kind == "evaluate":
            found = lab.channels[source][-1]
            if not isinstance(found, Answer):
                raise BrokenInvariant("a query was evaluated, and no answer sent")
            name = self.named(found.id)
            self.answers[answer_name(name)] = answer = self._answer(asked[found.id], found)
            text = f"{source} evaluates {name}: {answer_name(name)} = {rows_text(answer)}"
        elif isinstance(message, Answer):
            name = answer_name(self.named(message.id))
            answer = self.answers[name]
            text = f"warehouse receives {name} = {rows_text(answer)}"
        else:
            report = self.reports[source][self._heard[source]]
            self._heard[source] += 1
            self.received.append((source, report))
            name, text = report.name, f"warehouse receives {report.name} from {source}"
        sent = self._sends(names)
        installed = tuple(m for m in lab.last if isinstance(m, ActionList))
        views = tuple(self.shown(state) for state in lab.states[before:])
        moment = Moment(event, name, text, sent, answer, lab.manager.describe(), installed, views)
        self.moments.append(moment)
        return moment

    def _executed(self, source: str, number: int) -> tuple[str, str]:
        step, labels = self.lab.plan.steps[source][number], self.labels[source][number]
        updates = [update_text(update) for update in step.updates]
        if len(updates) == 1:
            name = labels[0] if step.part_of else step.id
            return name, f"{source} executes {name} = {updates[0]}"
        named = [
            text if label.startswith(f"{step.id}.") else f"{label} = {text}"
            for label, text in zip(labels, updates, strict=True)
        ]
        return step.id, f"{source} executes {step.id} = <{', '.join(named)}>"

    def _sends(self, names: Sequence[str]) -> tuple[Sent, ...]:
        asked: Mapping[int, Sequence[QueryTerm]] = self.lab.manager.describe()["UQS"]
        found: list[Sent] = []
        at_sources = {query.id for waiting in self.lab.queries.values() for query in waiting}
        for query in (m for m in self.lab.last if isinstance(m, Query) and m.id in at_sources):
            name = names[len(found)] if len(found) < len(names) else self._next_name()
            terms = asked[query.id]
            whole, joined = self._polynomial(terms, joined=False), self._polynomial(terms, joined=True)
            several = len(self.view.sources) > 1
            text = query_text(self.view, joined if several else whole, self._projection())
            self.queries[name] = query
            self.sent[name] = whole
            found.append(Sent(name, query.source, whole, joined, text))
        return tuple(found)

    def _next_name(self) -> str:
        number = len(self.queries) + 1
        while f"Q{number}" in self.taken or f"Q{number}" in self.queries:
            number += 1
        return f"Q{number}"

    def named(self, query: int) -> str:
        return next(name for name, known in self.queries.items() if known.id == query)

    def _projection(self) -> Sequence[str]:
        """The columns to write behind Π; none if the view shows what a natural join shows."""
        outputs = [output.expression for output in self.view.outputs]
        return () if outputs in (natural(self.view, self._all), list(self.view.attributes)) else self.shown.columns

    @property
    def _all(self) -> range:
        return range(len(self.view.occurrences))

    # Queries and answers.

    def _polynomial(self, terms: Iterable[QueryTerm], *, joined: bool) -> Polynomial:
        total: dict[tuple[Factor, ...], int] = {}
        for term in terms:
            asked = [lookup.occurrence for lookup in term.lookups]
            for row, n in _bag(term.rows).items():
                factors = self._factors(dict(zip(term.rows.attributes, row, strict=True)), term.known, asked, joined)
                total[factors] = total.get(factors, 0) + n
        return {term: n for term, n in total.items() if n}

    def _factors(
        self, row: Mapping[str, Any], known: Sequence[int], asked: Sequence[int], joined: bool
    ) -> tuple[Factor, ...]:
        """Relations and tuples in the order of the view's occurrences."""
        found: list[Factor] = []
        together: list[int] = []
        for index in [*sorted({*known, *asked}), -1]:
            if index in known and (joined or not together):
                together.append(index)
                continue
            if together:
                found.append(tuple(row[a] for a in natural(self.view, together)))
            together = [index] if index in known else []
            found += [index] if index in asked else []
        return tuple(found)

    def _answer(self, terms: Sequence[QueryTerm], answer: Answer) -> Rows:
        """What a source answered: every term joined with what was found for it, projected where it is complete."""
        total: Counter[Row] = Counter()
        for term in terms:
            rows, known = term.rows, list(term.known)
            for place, lookup in enumerate(term.lookups):
                found = substitute(self.view.occurrences[lookup.occurrence], answer.relations[term.first + place])
                rows = rows.join(found, join_pairs(self.view, known, lookup.occurrence))
                known.append(lookup.occurrence)
            complete = len(known) == len(self.view.occurrences)
            joined = _bag(rows)
            for row, n in (self.shown(joined) if complete else joined.project(natural(self.view, known))).items():
                total[row] += n
        return {row: n for row, n in total.items() if n}

    # What is in mind.

    def open_queries(self, moment: Moment) -> list[str]:
        return [self.named(number) for number in moment.mind["UQS"]]

    def lists(self, moment: Moment) -> tuple[str, tuple[ActionList, ...]]:
        """What the list of actions is called, and the lists: those installed, otherwise those that are being made."""
        name = next((word for word in LISTS if word in moment.mind), "")
        return name, moment.installed or moment.mind.get(name, ())

    def delta(self, actions: ActionList) -> Bag:
        return self.shown(_bag(actions.delta))

    def names(self, numbers: Iterable[int]) -> list[str]:
        return [self.received[number - 1][1].name for number in numbers]

    def deleted(self, actions: Iterable[Delete]) -> set[Deleted]:
        by_key = [action for action in actions if isinstance(action, KeyDelete)]
        return {(action.occurrence, key) for action in by_key for key, _ in _bag(action.keys).items()}

    def deletions(self, name: str) -> set[Deleted] | None:
        """What an update or a transaction deletes, by key, at every occurrence; None if there is no such update."""
        found = self.changes(name)
        if found is None:
            return None
        return {
            (index, key)
            for index, rows in found.items()
            if (own := self.view.occurrences[index]).relation.key
            for key, _ in rows.part(-1).keys([own.attribute(c) for c in own.relation.key]).items()
        }

    def changes(self, name: str) -> Substitution | None:
        """What an update or a transaction puts in the place of each occurrence; None if there is none of this name."""
        total: dict[int, Bag] | None = None
        for source, steps in self.lab.plan.steps.items():
            for step, labels in zip(steps, self.labels[source], strict=True):
                for label, update in zip(labels, step.updates, strict=True):
                    if name not in (label, step.id):
                        continue
                    total = {} if total is None else total
                    for o in self.view.occurrences:
                        if o.source == source and o.relation.name in update:
                            rows = _bag(substitute(o, update[o.relation.name]))
                            total[o.index] = total[o.index].add(rows) if o.index in total else rows
        return total

    def update_names(self) -> list[str]:
        found: dict[str, None] = {}
        for source, steps in self.lab.plan.steps.items():
            for step, labels in zip(steps, self.labels[source], strict=True):
                found |= dict.fromkeys((step.id, *labels))
        return list(found)

    def state(self, moment: Moment) -> dict[str, str]:
        """What is in mind after a moment, in words; what is empty is left out."""
        told = {"UQS": f"{{{', '.join(self.open_queries(moment))}}}"}
        for number, actions in moment.mind.get("pending", {}).items():
            if actions:
                told[f"pending({self.named(number)})"] = f"{{{', '.join(self._deleted_text(actions))}}}"
        name, lists = self.lists(moment)
        for actions in lists if name else ():
            which = f"{name}({', '.join(self.names(actions.covers))})" if len(lists) > 1 else name
            told[which] = self.actions_text(name, actions)
        for word, mark in (("batch", "{}"), ("queue", "<>")):
            updates: Sequence[Update] = moment.mind.get(word, ())
            if updates:
                told[word] = f"{mark[0]}{', '.join(self.names(u.number for u in updates))}{mark[1]}"
        return told

    def actions_text(self, name: str, actions: ActionList) -> str:
        rows = rows_text(self.delta(actions))
        deletes = [f"key_delete(MV, {text})" for text in self._deleted_text(actions.deletes)]
        if name != "AL":
            return ", ".join([*deletes, rows] if rows != EMPTY or not deletes else deletes)
        return f"<{', '.join([*deletes, *([f'insert(MV, {rows})'] if rows != EMPTY else [])])}>"

    def _deleted_text(self, actions: Iterable[Delete]) -> list[str]:
        """Deletions by the names of the last updates that made them."""
        found: dict[str, None] = {}
        for deleted in sorted(self.deleted(actions), key=repr):
            names = [r.name for _, r in reversed(self.received) if deleted in (self.deletions(r.name) or ())]
            index, key = deleted
            found[names[0] if names else f"{self.view.occurrences[index].alias}{tuple_text(key)}"] = None
        return list(found)


def answer_name(query: str) -> str:
    return f"A{query[1:]}"


def _bag(rows: Relation) -> Bag:
    if not isinstance(rows, Bag):
        raise BrokenInvariant("the laboratory works on bags in memory only")
    return rows
