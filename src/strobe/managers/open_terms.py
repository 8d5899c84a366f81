"""The terms of queries that are unanswered, found by what an update would add to them.

Every update has to be taken out of the answers that will have seen it (ECA paper, 4.2). Under a backlog many queries
are open, and hardly any of them joins with the update at hand: to try them all would cost their number for each of as
many updates.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from strobe.algebra.bag import Bag, Row, picker
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import join_pairs
from strobe.algebra.view import View
from strobe.managers.changes import change, touches
from strobe.managers.evaluation import Evaluation
from strobe.managers.terms import Term
from strobe.messages import Lookup, Update


@dataclass
class OpenTerm:
    """A term of which the rest has been asked for; `tag` names its COLLECT."""

    term: Term
    tag: int
    evaluation: Evaluation
    lookups: tuple[Lookup, ...] = ()
    number: int = 0
    """Given by `OpenTerms`."""


Place = tuple[tuple[int, ...], int]
"""The occurrences that a term knows, and one that it does not."""


class OpenTerms:
    def __init__(self, view: View) -> None:
        self._view = view
        self._numbers = 0
        self._terms: dict[int, OpenTerm] = {}
        self._found: dict[Place, dict[Row, dict[int, None]]] = defaultdict(lambda: defaultdict(dict))
        """By place and the values by which they are joined there, the numbers of terms."""
        self._large: dict[Place, dict[int, None]] = defaultdict(dict)
        """By place, those whose rows are not in memory."""
        self._where: dict[int, list[tuple[Place, Row | None]]] = {}
        """Of each term, where it can be found."""
        self._of_tag: dict[int, int] = defaultdict(int)

    def tagged(self, tag: int) -> bool:
        """Whether any has this tag."""
        return tag in self._of_tag

    def add(self, term: OpenTerm) -> None:
        self._numbers += 1
        term.number = self._numbers
        self._terms[self._numbers] = term
        self._of_tag[term.tag] += 1
        where = [
            entry for o in self._view.occurrences if o.index not in term.term.known for entry in self._at(term, o.index)
        ]
        for place, key in where:
            (self._large[place] if key is None else self._found[place][key])[self._numbers] = None
        self._where[self._numbers] = where

    def remove(self, term: OpenTerm) -> None:
        number = term.number
        where = self._where.pop(number)
        del self._terms[number]
        self._of_tag[term.tag] -= 1
        if not self._of_tag[term.tag]:
            del self._of_tag[term.tag]
        for place, key in where:
            if key is None:
                del self._large[place][number]
                continue
            del self._found[place][key][number]
            if not self._found[place][key]:
                del self._found[place][key]

    def _at(self, term: OpenTerm, index: int) -> list[tuple[Place, Row | None]]:
        known, rows = term.term.known, term.term.rows
        if not isinstance(rows, Bag):
            return [((known, index), None)]
        on = [own for own, _ in join_pairs(self._view, known, index)]
        key = picker([rows.attributes.index(a) for a in on])
        return [((known, index), found) for found in {key(row) for row, _ in rows.items()}]

    def met_by(self, update: Update) -> list[OpenTerm]:
        """Those to which an update may add something, in the order in which they were asked for."""
        changes = {o.index: change(o, [update]) for o in self._view.occurrences if touches(update, o)}
        found: set[int] = set()
        for known, index in {*self._found, *self._large}:
            if index in changes:
                found |= self._matching((known, index), changes[index])
        return [self._terms[number] for number in sorted(found)]

    def _matching(self, place: Place, rows: Relation) -> set[int]:
        here = self._found[place]
        found = set(self._large[place])
        if not isinstance(rows, Bag):
            return found.union(*here.values())
        key = picker([rows.attributes.index(b) for _, b in join_pairs(self._view, *place)])
        return found.union(*(here[k] for k in {key(row) for row, _ in rows.items()} if k in here))
