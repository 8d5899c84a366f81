"""From what a search or the claims found out to a finding: the level, and the first thing that broke the wanted one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice, product

from strobe.auditor.automaton import Automaton
from strobe.auditor.claims import Course, Failure
from strobe.auditor.timeline import Timeline, Vector
from strobe.auditor.verdict import Finding, satisfies
from strobe.auditor.witness import Views, Witness

_TRIED = 50
"""Vectors of either side of which the closest pair is taken."""

_NEAR = 3
"""How far from a false claim, at each source, its state is looked for."""

_BECAUSE = {
    "unfinished": "the last state is not what the sources came to",
    "false": "state {} is not what it claims to be",
    "nowhere": "state {} is not a state of the sources",
    "torn": "state {} shows a part of a global transaction",
    "back": "state {} goes back in time",
    "skipped": "a state of the sources was not shown",
}


def kept(level: str, states: int, complete_n: int | None = None) -> str:
    """Why a level held."""
    every = f"; exactly every {complete_n} transactions one is shown (complete-{complete_n})" if complete_n else ""
    return {
        "complete": "every state of the sources is shown, in one order",
        "strong": f"all {states} states are states of the sources in one order, up to the last{every}",
        "consistent": f"all {states} states are states of the sources in one order, but the last is not their end",
        "weak": f"each of the {states} states is the sources at some positions, up to the last",
        "convergent": "the last state is what the sources came to",
    }.get(level, "nothing was promised")


def _invalid(level: str, kind: str, number: int, witness: Iterable[str], complete_n: int | None = None) -> Finding:
    return Finding("invalid", level, _BECAUSE[kind].format(number), tuple(witness), complete_n)


class BySearch:
    """A key's finding, by the search over all vectors."""

    def __init__(self, automaton: Automaton, timeline: Timeline, witness: Witness, key: Sequence[int]) -> None:
        self._automaton = automaton
        self._lattice = automaton.lattice
        self._timeline = timeline
        self._witness = witness
        self._nodes = list(automaton.walk(key))

    def finding(self, states: Sequence[Views], wanted: str, complete_n: int | None) -> Finding:
        level = self._nodes[-1].level
        if satisfies(level, wanted, complete_n):
            return Finding("valid", level, kept(level, len(states), complete_n), (), complete_n)
        kind, number = self._failure(wanted)
        lines = getattr(self, f"_{kind}")(number, states)
        return _invalid(level, kind, number, lines, complete_n)

    def _failure(self, wanted: str) -> tuple[str, int]:
        """What broke the level first, and at which state."""
        nodes, where = self._nodes, self._automaton.where
        last = len(nodes) - 1
        if wanted != "convergent":
            nowhere = next((i for i, node in enumerate(nodes) if node.value not in where), None)
            unplaced = next((i for i, node in enumerate(nodes) if not node.possible), None)
            if unplaced is not None and unplaced != nowhere and wanted != "weak":
                torn = not where[nodes[unplaced].value] & self._lattice.whole
                return ("torn" if torn else "back"), unplaced
            if nowhere is not None:
                return "nowhere", nowhere
        if nodes[last].level in ("consistent", "inconsistent"):
            return "unfinished", last
        return "skipped", next((i for i, node in enumerate(nodes) if not node.tracked), last + 1)

    def _nowhere(self, number: int, states: Sequence[Views]) -> list[str]:
        before = self._nodes[number - 1].possible if number else self._lattice.start
        later = self._lattice.up(before) & self._lattice.whole
        candidates = [
            self._lattice.vectors[(some & later or some & self._lattice.whole or some).bit_length() - 1]
            for some in self._automaton.where.values()
        ]
        return self._witness.nowhere(number, states[number], candidates)

    def _torn(self, number: int, states: Sequence[Views]) -> list[str]:
        return self._witness.torn(number, self._lattice.members(self._here(number)))

    def _back(self, number: int, states: Sequence[Views]) -> list[str]:
        places = self._here(number) & self._lattice.whole
        earlier, passed = "the states before it", self._nodes[number - 1].possible
        for i in reversed(range(number)):
            shown = self._here(i) & self._lattice.whole
            if not self._lattice.up(shown) & places:
                earlier, passed = f"state {i}", shown
                break
        members = self._lattice.members
        return self._witness.back(number, earlier, members(passed), members(places))

    def _unfinished(self, number: int, states: Sequence[Views]) -> list[str]:
        places = self._lattice.members(self._nodes[-1].possible)
        reached = max(places, key=self._timeline.height, default=None)
        return self._witness.unfinished(number, states[-1], reached)

    def _skipped(self, number: int, states: Sequence[Views]) -> list[str]:
        lattice, nodes = self._lattice, self._nodes
        ended = number == len(nodes)
        goals = lattice.end if ended else nodes[number].possible
        tracked = nodes[number - 1].tracked if number else lattice.start
        if not lattice.up(tracked) & goals:
            tracked = nodes[number - 1].possible
        pairs = product(islice(lattice.members(tracked), _TRIED), islice(lattice.members(goals), _TRIED))
        above = [(low, high) for low, high in pairs if all(a <= b for a, b in zip(low, high, strict=True))]
        low, high = min(above, key=lambda pair: sum(pair[1]) - sum(pair[0]))
        return self._witness.skipped(number, ended, low, high, states[max(number - 1, 0) : number + 1])

    def _here(self, number: int) -> int:
        return self._automaton.where.get(self._nodes[number].value, 0)


class ByClaims:
    """The finding of a course that is over."""

    def __init__(self, course: Course, timeline: Timeline, witness: Witness) -> None:
        self._course = course
        self._timeline = timeline
        self._witness = witness

    @property
    def converged(self) -> bool:
        return self._course.same(self._course.last, self._course.views_at(self._timeline.end))

    @property
    def open(self) -> bool:
        """Whether something that was not claimed could not be found out."""
        course = self._course
        return None in (course.weak, course.consistent) or (bool(course.consistent) and course.complete is None)

    @property
    def level(self) -> str:
        """The highest level that is known to hold."""
        course = self._course
        if not self.converged:
            return "consistent" if course.consistent else "inconsistent"
        if course.consistent:
            return "complete" if course.complete else "strong"
        return "weak" if course.weak else "convergent"

    def finding(self, states: int, wanted: str, complete_n: int | None) -> Finding:
        level = self.level
        every = complete_n if level == "strong" else None
        if satisfies(level, wanted, every):
            return Finding("valid", level, kept(level, states, every), (), every)
        failure = self._failure(wanted)
        if failure is not None:
            return _invalid(level, failure.kind, failure.number, self._lines(failure), every)
        if not self.converged and wanted != "consistent":
            reached = self._course.at if self._course.consistent else None
            lines = self._witness.unfinished(states - 1, self._course.last, reached)
            return _invalid(level, "unfinished", states - 1, lines)
        because = "too many transactions lie between one claim and the next to say whether every state was shown"
        if self._course.too_many:
            because = (
                f"states that claim no positions would have to be looked for at {self._course.too_many} vectors of "
                "source positions, which are too many; states that claim some are checked without a search"
            )
        return Finding("unknown", level, because, (), every)

    def _failure(self, wanted: str) -> Failure | None:
        failure = self._course.failure
        if wanted == "convergent":
            return None
        if failure and (wanted != "weak" or failure.kind == "false"):
            return failure
        return self._course.skipped if wanted.startswith("complete") and self.converged else None

    def _lines(self, failure: Failure) -> list[str]:
        witness, number, high = self._witness, failure.number, failure.high
        if failure.kind == "torn":
            return witness.torn(number, [high])
        if failure.kind == "back":
            return witness.back(number, f"state {number - 1}", [failure.low], [high])
        if failure.kind == "skipped":
            ended = high == self._timeline.end and failure.state is failure.before
            return witness.skipped(number + ended, ended, failure.low, high, [failure.before, failure.state])
        if failure.kind == "false":
            return witness.false(number, failure.state, high, self._around(high))
        return witness.nowhere(number, failure.state, self._around(high))

    def _around(self, vector: Vector) -> list[Vector]:
        ends = zip(vector, self._timeline.end, strict=True)
        ranges = [range(max(0, n - _NEAR), min(end, n + _NEAR) + 1) for n, end in ends]
        return sorted(product(*ranges), key=lambda v: sum(abs(a - b) for a, b in zip(v, vector, strict=True)))[:500]
