"""What a scenario expects of a step, compared with what happened.

    sends Q1 to x = V<U1> = Π_W(r1 ⋈ [2,3])      sends nothing
    A1 = ([1], [4])                              what a source answered
    UQS = {Q1, Q2}                               the queries that are not answered yet
    pending(Q1) = {U2}                           the deletions to be taken out of an answer
    COLLECT = ([4])   AL = <key_delete(MV, U2), insert(MV, A1)>   Δ = ([1,2,3,4])
    queue = <U2>                                 what was received and is not taken up
    view = ([1], [4])                            (or MV)

A step that installs shows in COLLECT, AL or Δ what it installed. Where it installs several times, there is one line for
each time, in order; a single line is about the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from strobe.algebra.bag import Bag, Row
from strobe.messages import ActionList
from strobe.simulator.notation import EMPTY, Queries, Scanner, comparable, read_rows, rows_text
from strobe.simulator.scenario import Line
from strobe.simulator.telling import LISTS, Deleted, Moment, Teller

_KNOWN = "Expect `sends …`, `A1 = …`, `UQS = …`, `pending(Q1) = …`, `COLLECT/AL/Δ = …`, `queue = …` or `view = …`."
_NAMES = "Names are listed in braces, {Q1, Q2}."
_ACTIONS = "An action list is written AL = <key_delete(MV, U2), insert(MV, ([1,2]))>."


@dataclass(frozen=True)
class Check:
    """An expectation, whether it held, and what was there instead."""

    where: str
    text: str
    holds: bool
    found: str = ""

    def document(self) -> dict[str, object]:
        return {"where": self.where, "expected": self.text, "holds": self.holds, "found": self.found or None}


def sent_names(lines: Sequence[Line]) -> list[str]:
    """What a step's expectations call the queries that it sends."""
    words = [line.text.split() for line in lines if line.text.startswith("sends ")]
    return [w[1].rstrip(":=") for w in words if w[1:] and w[1] != "nothing"]


def checks(teller: Teller, moment: Moment, lines: Sequence[Line]) -> list[Check]:
    return _Checker(teller, moment, lines).checks()


def check_rows(line: Line, rows: Bag, what: str = "the view") -> Check:
    """Whether a line that is nothing but a relation says what was there."""
    scanner = line.scan()
    wanted = read_rows(scanner)
    scanner.end("A relation is written ([1,2], [4,2]), or ∅.")
    found = f"{what} is {rows_text(rows)}"
    return Check(line.where, f"{what} = {rows_text(wanted)}", dict(rows.items()) == wanted, found)


class _Checker:
    def __init__(self, teller: Teller, moment: Moment, lines: Sequence[Line]) -> None:
        self._teller, self._moment, self._lines = teller, moment, lines
        self._total = Counter(_head(line) for line in lines)
        self._seen: Counter[str] = Counter()

    def checks(self) -> list[Check]:
        found: list[Check] = []
        for line in self._lines:
            head = _head(line)
            self._seen[head] += 1
            scanner = line.scan()
            holds, instead = self._check(scanner)
            scanner.end(_KNOWN)
            found.append(Check(line.where, line.text, holds, "" if holds else instead))
        return found

    def _check(self, scanner: Scanner) -> tuple[bool, str]:
        head = scanner.name("something to expect", _KNOWN)
        if head == "sends":
            return self._sends(scanner)
        if head == "pending":
            return self._pending(scanner)
        if head in (*LISTS, "Delta"):
            return self._list("Δ" if head == "Delta" else head, scanner)
        scanner.expect("=", _KNOWN)
        if head == "UQS":
            return self._uqs(scanner)
        if head == "queue":
            return self._queue(scanner)
        if head.lower() in ("view", "mv"):
            return self._view(scanner)
        if head.startswith("A"):
            return self._answer(head, scanner)
        raise scanner.fail(f"{head!r} is nothing to expect", _KNOWN)

    # Queries and answers.

    def _sends(self, scanner: Scanner) -> tuple[bool, str]:
        told = "; ".join(f"{s.name} to {s.source} = {s.text}" for s in self._moment.sent)
        instead = f"sends {told or 'nothing'}"
        name = scanner.name("a query", "Write `sends Q1 to x = r1 ⋈ [2,3]`, or `sends nothing`.")
        if name == "nothing":
            return not self._moment.sent, instead
        source = scanner.name("a source", "Write `sends Q1 to x`.") if scanner.take("to") else ""
        sent = next((s for s in self._moment.sent if s.name == name), None)
        holds = sent is not None and source in ("", sent.source)
        while scanner.take("=", ":"):
            wanted = self._queries(name).read(scanner)
            if sent is not None:
                both = [comparable(self._teller.view, query) for query in (sent.query, sent.joined)]
                holds = holds and comparable(self._teller.view, wanted) in both
        return holds, instead

    def _queries(self, but: str) -> Queries:
        teller = self._teller
        updates = {name: found for name in teller.update_names() if (found := teller.changes(name)) is not None}
        sent = {name: query for name, query in teller.sent.items() if name != but}
        return Queries(teller.view, sent, updates, teller.shown.columns)

    def _answer(self, name: str, scanner: Scanner) -> tuple[bool, str]:
        wanted = read_rows(scanner)
        answer = self._teller.answers.get(name)
        if answer is None or name not in (self._moment.name, f"A{self._moment.name[1:]}"):
            return False, f"{name} is not here"
        return answer == wanted, f"{name} = {rows_text(answer)}"

    def _uqs(self, scanner: Scanner) -> tuple[bool, str]:
        wanted, there = _names(scanner), self._teller.open_queries(self._moment)
        holds = len(wanted) == len(there) and all(any(_is_query(w, t) for t in there) for w in wanted)
        return holds, f"UQS = {{{', '.join(there)}}}"

    # What is in mind.

    def _pending(self, scanner: Scanner) -> tuple[bool, str]:
        scanner.expect("(", "Write pending(Q1) = {U2}.")
        query = scanner.name("a query", "Write pending(Q1) = {U2}.")
        scanner.expect(")", "Write pending(Q1) = {U2}.")
        scanner.expect("=", "Write pending(Q1) = {U2}.")
        wanted: set[Deleted] = set()
        for name in _names(scanner):
            wanted |= self._deletions(name, scanner)
        pending = self._moment.mind.get("pending", {})
        there = [self._teller.deleted(pending[n]) for n in pending if _is_query(query, self._teller.named(n))]
        told = [f"{k} = {v}" for k, v in self._teller.state(self._moment).items() if k.startswith("pending")]
        return wanted in there if there else not wanted, "; ".join(told) or "nothing is pending"

    def _deletions(self, name: str, scanner: Scanner) -> set[Deleted]:
        found = self._teller.deletions(name)
        if found is None:
            known = ", ".join(self._teller.update_names())
            raise scanner.fail(f"there is no update {name}", f"There are {known}.")
        return found

    def _list(self, head: str, scanner: Scanner) -> tuple[bool, str]:
        covers = _names(scanner, "()") if scanner.next == "(" else []
        scanner.expect("=", _KNOWN)
        name, lists = self._teller.lists(self._moment)
        if covers:
            lists = tuple(a for a in lists if self._teller.names(a.covers) == covers)
        elif self._moment.installed:
            lists = (self._turn(head, lists),)
        told = ", ".join(self._teller.actions_text(name, a) for a in lists) or EMPTY
        instead = f"{name or 'no list'} = {told}"
        if head == "AL":
            deletes, inserts = self._actions(scanner)
            made = {d for a in lists for d in self._teller.deleted(a.deletes)}
            return name == head and deletes == made and inserts == self._rows(lists), instead
        wanted = read_rows(scanner)
        return name == head and wanted == self._rows(lists), instead

    def _turn(self, head: str, lists: Sequence[ActionList]) -> ActionList:
        """Of several installs in one step the one that a line is about."""
        place = self._seen[head] - 1 if self._total[head] > 1 else len(lists) - 1
        return lists[min(place, len(lists) - 1)]

    def _rows(self, lists: Sequence[ActionList]) -> dict[Row, int]:
        total: Counter[Row] = Counter()
        for actions in lists:
            for row, n in self._teller.delta(actions).items():
                total[row] += n
        return {row: n for row, n in total.items() if n}

    def _actions(self, scanner: Scanner) -> tuple[set[Deleted], dict[Row, int]]:
        """The deletions and the insertions of an action list."""
        deletes: set[Deleted] = set()
        inserts: Counter[Row] = Counter()
        if scanner.take(EMPTY):
            return deletes, {}
        scanner.expect("<⟨", _ACTIONS)
        while not scanner.take(">", "⟩"):
            verb = scanner.name("an action", _ACTIONS)
            scanner.take("*")
            scanner.expect("(", _ACTIONS)
            scanner.name("the view", _ACTIONS)
            scanner.expect(",", _ACTIONS)
            if verb == "key_delete":
                deletes |= self._deletions(scanner.name("an update", _ACTIONS), scanner)
            elif verb == "insert":
                answer = self._teller.answers.get(scanner.next)
                if answer is not None:
                    scanner.token()
                inserts.update(read_rows(scanner) if answer is None else answer)
            else:
                raise scanner.fail(f"{verb!r} is no action", _ACTIONS)
            scanner.expect(")", _ACTIONS)
            scanner.take(",")
        return deletes, {row: n for row, n in inserts.items() if n}

    def _queue(self, scanner: Scanner) -> tuple[bool, str]:
        wanted = _names(scanner)
        there = self._teller.names(u.number for u in self._moment.mind.get("queue", ()))
        return wanted == there, f"queue = <{', '.join(there)}>"

    def _view(self, scanner: Scanner) -> tuple[bool, str]:
        wanted = read_rows(scanner)
        views = self._moment.views or (self._teller.shown(self._teller.lab.view),)
        lines = self._total["view"]
        place = self._seen["view"] - 1 if lines > 1 else len(views) - 1
        if lines > 1 and lines != len(views):
            return False, f"the view was installed {len(self._moment.views)} times"
        return dict(views[place].items()) == wanted, f"view = {rows_text(views[place])}"


def _head(line: Line) -> str:
    head = (line.text.split() or [""])[0].partition("=")[0].partition("(")[0]
    return {"MV": "view", "Delta": "Δ"}.get(head, head)


def _is_query(name: str, label: str) -> bool:
    """Q1 is also what its parts Q1.1, Q1.2 are called together."""
    return label == name or label.startswith(f"{name}.")


def _names(scanner: Scanner, marks: str = "") -> list[str]:
    """`{Q1, Q2}`, `<U1>` or ∅."""
    if scanner.take(EMPTY):
        return []
    opened = scanner.take(*(marks[:1] or "{<⟨"))
    if not opened:
        raise scanner.fail(f"there is no list before {scanner.next!r}", _NAMES)
    closing = {"{": "}", "(": ")", "<": ">", "⟨": "⟩"}[opened]
    found: list[str] = []
    while not scanner.take(closing):
        found.append(scanner.name("a query or an update", _NAMES))
        if not scanner.take(",") and scanner.next != closing:
            raise scanner.fail(f"{scanner.next or 'the end'!r} cannot stand here", _NAMES)
    return found
