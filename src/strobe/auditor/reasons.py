"""From what a search or the claims found out to a finding: the level, and the first thing that broke the wanted one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import islice, product

from strobe.auditor.automaton import Automaton
from strobe.auditor.claims import Course
from strobe.auditor.coverage import Failure
from strobe.auditor.timeline import Timeline, Vector
from strobe.auditor.verdict import Finding, block, satisfies
from strobe.auditor.witness import Views, Witness

_TRIED = 50
"""Vectors of either side of which the closest pair is taken."""

_COMPARED = 2_000
"""Vectors among which the one with the fewest differing rows is looked for."""

_NEAR = 3
"""How far from a false claim, at each source, its state is looked for."""

_BECAUSE = {
    "unfinished": "the last state is not what the sources came to",
    "false": "state {} is not what it claims to be",
    "nowhere": "state {} is not a state of the sources",
    "torn": "state {} shows a part of a global transaction",
    "back": "state {} goes back in time",
    "skipped": "a state of the sources was not shown",
    "uneven": "the states do not end blocks of {} transactions",
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


def _valid(level: str, states: int, every: Collection[int]) -> Finding:
    smallest = min(every, default=None)
    return Finding("valid", level, kept(level, states, smallest), (), smallest)


def _invalid(level: str, kind: str, number: int | None, witness: Iterable[str], every: Collection[int] = ()) -> Finding:
    return Finding("invalid", level, _BECAUSE[kind].format(number), tuple(witness), min(every, default=None))


class BySearch:
    """A key's finding, by the search over all vectors."""

    def __init__(self, automaton: Automaton, timeline: Timeline, witness: Witness, key: Sequence[int]) -> None:
        self._automaton = automaton
        self._lattice = automaton.lattice
        self._timeline = timeline
        self._witness = witness
        self._key = key
        self._nodes = list(automaton.walk(key))

    def finding(self, states: Sequence[Views], wanted: str) -> Finding:
        level = self._nodes[-1].level
        every = self._every(block(wanted)) if level == "strong" else []
        if satisfies(level, wanted, every):
            return _valid(level, len(states), every)
        kind, number = self._failure(wanted)
        if kind == "skipped" and block(wanted):
            return _invalid(level, "uneven", block(wanted), self._uneven(block(wanted) or 1), every)
        lines = getattr(self, f"_{kind}")(number, states)
        return _invalid(level, kind, number, lines, every)

    def _every(self, wanted: int | None) -> list[int]:
        """The smallest N > 1 with which the states are complete-N, and the wanted one, as far as they are."""
        smallest = self._automaton.complete_n(self._key)
        wanted = wanted if wanted and self._automaton.uneven(self._key, wanted) is None else None
        return [n for n in (smallest, wanted) if n]

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
        last = self._lattice.vectors[before.bit_length() - 1]
        closest = sorted(candidates, key=lambda vector: sum(abs(a - b) for a, b in zip(vector, last, strict=True)))
        return self._witness.nowhere(number, states[number], closest[:_COMPARED])

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

    def _uneven(self, n: int) -> list[str]:
        number = self._automaton.uneven(self._key, n)
        if number is None or number == len(self._nodes):
            return self._witness.uneven(len(self._nodes) - 1, None)
        return self._witness.uneven(number, next(self._lattice.members(self._nodes[number].possible)))

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
        if course.failure and course.failure.kind != "nowhere":
            return False
        return None in (course.weak, course.consistent) or (
            bool(course.consistent) and course.coverage.complete is None
        )

    @property
    def level(self) -> str:
        """The highest level that is known to hold."""
        course = self._course
        if not self.converged:
            return "consistent" if course.consistent else "inconsistent"
        if course.consistent:
            return "complete" if course.coverage.complete else "strong"
        return "weak" if course.weak else "convergent"

    def finding(self, states: int, wanted: str) -> Finding:
        level = self.level
        every = self._course.coverage.every if level == "strong" else []
        if satisfies(level, wanted, every):
            return _valid(level, states, every)
        failure = self._failure(wanted)
        if failure is not None:
            number = block(wanted) if failure.kind == "uneven" else failure.number
            return _invalid(level, failure.kind, number, self._lines(failure), every)
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
        return Finding("unknown", level, because, (), min(every, default=None))

    def _failure(self, wanted: str) -> Failure | None:
        failure = self._course.failure
        if wanted == "convergent":
            return None
        if failure and (wanted != "weak" or failure.kind == "false"):
            return failure
        if not self.converged:
            return None
        n, coverage = block(wanted), self._course.coverage
        return coverage.uneven.get(n) if n else coverage.skipped if wanted == "complete" else None

    def _lines(self, failure: Failure) -> list[str]:
        witness, number, high = self._witness, failure.number, failure.high
        if failure.kind == "torn":
            return witness.torn(number, [high])
        if failure.kind == "back":
            return witness.back(number, f"state {number - 1}", [failure.low], [high])
        if failure.kind == "skipped":
            ended = high == self._timeline.end and failure.state is failure.before
            return witness.skipped(number + ended, ended, failure.low, high, [failure.before, failure.state])
        if failure.kind == "uneven":
            return witness.uneven(number, high if high != self._timeline.end else None)
        if failure.kind == "false":
            return witness.false(number, failure.state, high, self._around(high))
        return witness.nowhere(number, failure.state, self._around(high))

    def _around(self, vector: Vector) -> list[Vector]:
        ends = zip(vector, self._timeline.end, strict=True)
        ranges = [range(max(0, n - _NEAR), min(end, n + _NEAR) + 1) for n, end in ends]
        return sorted(product(*ranges), key=lambda v: sum(abs(a - b) for a, b in zip(v, vector, strict=True)))[:500]
