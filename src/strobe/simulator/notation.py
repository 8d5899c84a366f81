"""The papers' notation: tuples, relations, updates and queries, as they are read and written.

    [1,'a']                                       a tuple
    ([1], [4], -[4])   ∅                          a relation: tuples with signs, each as often as it is there
    insert(r1, [1,2])   modify(r1, [1,2], [1,3])  an update
    Π_W(r1 ⋈ [2,3]) - Q1<U2>                      a query: a sum of terms, each a join of relations and tuples

A query is kept as a polynomial: by term, how often it counts. `Q<U>` is `Q - Q[r := r - U]` in it, for all relations
that U changes at once (ECA paper, 4.2; one formula for self-joins and transactions too).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from strobe.algebra.bag import Bag, Row
from strobe.algebra.view import View
from strobe.errors import UserError

Factor = int | Row
"""An occurrence of the view, by its index, or a tuple."""
Polynomial = Mapping[tuple[Factor, ...], int]
Substitution = Mapping[int, Bag]
"""What an update puts in the place of occurrences."""

_TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>\d+)|(?P<name>[^\W\d]\w*(?:\.\w+)*)|(?P<sign><=>|\S))", re.UNICODE
)
_OPENING, _CLOSING = "<⟨", ">⟩"
EMPTY = "∅"


class Scanner:
    """The tokens of one line, taken from the left."""

    def __init__(self, text: str, where: str) -> None:
        self.text = text
        self.where = where
        self._tokens = [(m.group().strip(), str(m.lastgroup)) for m in _TOKEN.finditer(text) if m.group().strip()]
        self._at = 0

    def fail(self, message: str, fix: str) -> UserError:
        return UserError(message, where=self.where, fix=fix)

    @property
    def next(self) -> str:
        """The next token; empty at the end."""
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    @property
    def kind(self) -> str:
        return self._tokens[self._at][1] if self._at < len(self._tokens) else ""

    def token(self) -> str:
        found = self.next
        self._at += 1
        return found

    def take(self, *symbols: str) -> str:
        """The next token if it is one of these, whatever the case; otherwise nothing."""
        return self.token() if self.next and self.next.lower() in symbols else ""

    def expect(self, symbol: str, fix: str) -> None:
        if not self.take(*symbol):
            found = f"before {self.next!r}" if self.next else "at the end"
            raise self.fail(f"there is no {symbol[0]!r} {found}", fix)

    def name(self, what: str, fix: str) -> str:
        if self.kind != "name":
            raise self.fail(f"{self.next or 'the end'!r} is no name of {what}", fix)
        return self.token()

    def end(self, fix: str) -> None:
        if self.next:
            raise self.fail(f"{self.next!r} cannot stand here", fix)


# Tuples and relations.

_TUPLE = "A tuple is written [1,2] or ['a',2]: integers and text in single quotes."


def read_tuple(scanner: Scanner) -> Row:
    scanner.expect("[", _TUPLE)
    values: list[int | str] = []
    while True:
        sign = -1 if scanner.take("-") else 1
        if scanner.kind == "number":
            values.append(sign * int(scanner.token()))
        elif scanner.kind == "text" and sign > 0:
            values.append(scanner.token()[1:-1].replace("''", "'"))
        else:
            raise scanner.fail(f"{scanner.next or 'the end'!r} is no value", _TUPLE)
        if not scanner.take(","):
            break
    scanner.expect("]", _TUPLE)
    return tuple(values)


def read_rows(scanner: Scanner) -> dict[Row, int]:
    """`([1], [4])`, `[1] - [4]`, `∅`, or nothing at all."""
    counts: Counter[Row] = Counter()
    if scanner.take(EMPTY, "empty", "nothing"):
        return {}
    depth, sign = 0, 1
    while scanner.next in ("(", "[", ",", "+", "-") or (depth and scanner.next == ")"):
        if scanner.next == "[":
            counts[read_tuple(scanner)] += sign
            sign = 1
            continue
        token = scanner.token()
        depth += (token == "(") - (token == ")")
        sign = -sign if token == "-" else sign
    if depth:
        raise scanner.fail("there is no ')' for a '('", "A relation is written ([1,2], [4,2]).")
    return {row: n for row, n in counts.items() if n}


def tuple_text(row: Row) -> str:
    return f"[{','.join(_value_text(v) for v in row)}]"


def _value_text(value: object) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else str(value)


def rows_text(rows: Bag | Mapping[Row, int]) -> str:
    found = [
        f"{'-' if n < 0 else ''}{tuple_text(row)}"
        for row, n in sorted(rows.items(), key=lambda item: [(isinstance(v, str), v) for v in item[0]])
        for _ in range(abs(n))
    ]
    return f"({', '.join(found)})" if found else EMPTY


# Updates.


def update_text(changes: Mapping[str, Bag]) -> str:
    """An update as it is written in a scenario. It changes one relation."""
    ((relation, rows),) = changes.items()
    counts = sorted(rows.items(), key=lambda item: item[1])
    if [n for _, n in counts] == [1]:
        return f"insert({relation}, {tuple_text(counts[0][0])})"
    if [n for _, n in counts] == [-1]:
        return f"delete({relation}, {tuple_text(counts[0][0])})"
    if [n for _, n in counts] == [-1, 1]:
        return f"modify({relation}, {tuple_text(counts[0][0])}, {tuple_text(counts[1][0])})"
    return f"change({relation}, {rows_text(rows)})"


# Queries.


class Queries:
    """What a name stands for in a query: the view, its relations, queries sent before, and updates."""

    def __init__(
        self, view: View, sent: Mapping[str, Polynomial], updates: Mapping[str, Substitution], columns: Sequence[str]
    ) -> None:
        self.view = view
        self._sent = sent
        self._updates = updates
        self._columns = tuple(columns)
        self._whole: Polynomial = {tuple(o.index for o in view.occurrences): 1}

    def read(self, scanner: Scanner) -> Polynomial:
        """A sum of terms."""
        total: Counter[tuple[Factor, ...]] = Counter()
        sign = -1 if scanner.take("-") else 1
        while True:
            for term, n in self._join(scanner).items():
                total[term] += sign * n
            if not scanner.take("+", ","):
                if not scanner.take("-"):
                    return {term: n for term, n in total.items() if n}
                sign = -1
            else:
                sign = -1 if scanner.take("-") else 1

    def _join(self, scanner: Scanner) -> Polynomial:
        found = self._factor(scanner)
        while scanner.take("⋈", "join"):
            right = self._factor(scanner)
            found = {a + b: n * m for a, n in found.items() for b, m in right.items()}
        return found

    def _factor(self, scanner: Scanner) -> Polynomial:
        found = self._atom(scanner)
        while scanner.next in _OPENING and scanner.next:
            scanner.token()
            found = substituted(found, self._update(scanner))
            while scanner.take(","):
                found = substituted(found, self._update(scanner))
            scanner.expect(_CLOSING, "A substitution is written V<U1>.")
        return found

    def _update(self, scanner: Scanner) -> Substitution:
        name = scanner.name("an update", "A substitution is written V<U1>.")
        if name not in self._updates:
            raise scanner.fail(f"there is no update {name}", f"There are {', '.join(self._updates)}.")
        return self._updates[name]

    def _atom(self, scanner: Scanner) -> Polynomial:
        if scanner.next == "[":
            return {(read_tuple(scanner),): 1}
        if scanner.next[:1] in ("Π", "π"):
            self._projection(scanner)
        if scanner.take("("):
            found = self.read(scanner)
            scanner.expect(")", "A parenthesis is open in the query.")
            return found
        name = scanner.name("a relation", "A query is written like Π_W(r1 ⋈ [2,3]) or V<U1> - Q1<U1>.")
        if name == "V":
            return self._whole
        for occurrence in self.view.occurrences:
            if name in (occurrence.alias, occurrence.relation.id):
                return {(occurrence.index,): 1}
        if name in self._sent:
            return self._sent[name]
        known = ", ".join(["V", *(o.alias for o in self.view.occurrences), *self._sent])
        raise scanner.fail(f"there is no relation or query {name}", f"There are {known}.")

    def _projection(self, scanner: Scanner) -> None:
        columns = [scanner.token()[1:].lstrip("_")]
        while scanner.next and scanner.next != "(":
            columns.append(scanner.token())
        named = [c for c in columns if c not in ("", ",")]
        if tuple(named) != self._columns:
            raise scanner.fail(
                f"the view shows {', '.join(self._columns)}, not {', '.join(named)}", "Every term is projected alike."
            )


def substituted(query: Polynomial, update: Substitution) -> Polynomial:
    """`Q<U>`."""
    less: Counter[tuple[Factor, ...]] = Counter(query)
    for term, count in query.items():
        products: dict[tuple[Factor, ...], int] = {(): count}
        for factor in term:
            choices: dict[Factor, int] = {factor: 1}
            if isinstance(factor, int) and factor in update:
                choices |= {row: -n for row, n in update[factor].items()}
            products = {(*done, f): n * m for done, n in products.items() for f, m in choices.items()}
        for product, n in products.items():
            less[product] -= n
    return {term: n for term, n in less.items() if n}


def query_text(view: View, query: Polynomial, columns: Sequence[str]) -> str:
    """`Π_W(r1 ⋈ [2,3]) - Π_W([4,2] ⋈ [2,3])`, the simplest first; a part of the view is not projected."""
    parts: list[str] = []
    for term, count in sorted(query.items(), key=lambda item: sum(isinstance(f, tuple) for f in item[0])):
        joined = " ⋈ ".join(view.occurrences[f].alias if isinstance(f, int) else tuple_text(f) for f in term)
        if len(term) == len(view.occurrences) and columns:
            joined = f"Π_{','.join(columns)}({joined})"
        sign = ("- " if count < 0 else "+ ") if parts else "-" if count < 0 else ""
        parts.append(f"{sign}{f'{abs(count)} ' if abs(count) > 1 else ''}{joined}")
    return " ".join(parts) or EMPTY


def comparable(view: View, query: Polynomial) -> Counter[tuple[str, ...]]:
    """A query for comparison: without terms that no source is needed for or whose tuples do not join, in any order."""
    found: Counter[tuple[str, ...]] = Counter()
    for term, n in query.items():
        if any(isinstance(factor, int) for factor in term) and _joins(view, term):
            found[tuple(sorted(map(str, term)))] += n
    return Counter({term: n for term, n in found.items() if n})


def _joins(view: View, term: tuple[Factor, ...]) -> bool:
    if len(term) != len(view.occurrences):
        return True
    for e in view.equalities:
        left, right = term[e.left], term[e.right]
        if isinstance(left, tuple) and isinstance(right, tuple):
            columns = view.occurrences[e.left].columns, view.occurrences[e.right].columns
            if len(left) == len(columns[0]) and len(right) == len(columns[1]):
                a, b = left[columns[0].index(e.left_column)], right[columns[1].index(e.right_column)]
                if a != b:
                    return False
    return True


def natural(view: View, occurrences: Iterable[int]) -> list[str]:
    """The attributes of these occurrences as a natural join shows them: of equal ones only the first."""
    found: list[str] = []
    same: dict[str, str] = {}
    inside = sorted(occurrences)

    def root(a: str) -> str:
        while a in same:
            a = same[a]
        return a

    for e in view.equalities:
        if e.left in inside and e.right in inside:
            left, right = view.occurrences[e.left], view.occurrences[e.right]
            ends = root(left.attribute(e.left_column)), root(right.attribute(e.right_column))
            a, b = sorted(ends, key=view.attributes.index)
            if a != b:
                same[b] = a
    for index in inside:
        found += [a for a in view.occurrences[index].attributes if root(a) == a]
    return found
