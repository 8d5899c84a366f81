"""All sequences of warehouse states over one history of the sources, as one automaton that is made as it is walked.

After some states, all that matters for the level is which vectors a schedule can be at, in two senses: with the states
so far placed anywhere along it in order, and with every state of it shown. Both are sets of vectors (`Lattice`), and a
further state narrows both. A state that repeats changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from strobe.auditor.lattice import Lattice


@dataclass(eq=False)
class Node:
    """All that matters about the states so far."""

    value: int
    possible: int
    """Whole vectors at which the last state can be placed, with the earlier ones before it in order."""
    tracked: int
    """Whole vectors that a schedule reaches from the start while showing exactly the states so far, in their turn."""
    weak: bool
    """Whether every state so far is the views at some vector."""
    level: str
    """If this was the last state."""
    after: dict[int, Node] = field(default_factory=dict)


class Automaton:
    """`values` are the contents of the views at each vector, as numbers; `alone` leads from the numbers in a key to
    such values, and is empty where they are the same."""

    def __init__(self, lattice: Lattice, transactions: int, values: Sequence[int], alone: Mapping[int, int]) -> None:
        self.lattice = lattice
        self.where: dict[int, int] = {}
        """By value: the vectors that have it."""
        for bit, value in enumerate(values):
            self.where[value] = self.where.get(value, 0) | 1 << bit
        self._transactions = transactions
        self._alone = alone
        self._last = values[-1]
        self._nodes: dict[tuple[int, int, int, bool], Node] = {}
        self._starts: dict[int, Node] = {}
        self._found_n: dict[tuple[int, ...], int | None] = {}

    def level(self, key: Iterable[int]) -> str:
        level = "inconsistent"
        for node in self.walk(key):
            level = node.level
        return level

    def walk(self, key: Iterable[int]) -> Iterator[Node]:
        """What is known after each state."""
        alone = self._alone
        node, after = None, self._starts
        for number in key:
            value = alone[number] if alone else number
            found = after.get(value)
            if found is None:
                found = after[value] = self._next(node, value)
            yield found
            node, after = found, found.after

    def _next(self, node: Node | None, value: int) -> Node:
        if node and node.value == value:
            return node
        lattice, here = self.lattice, self.where.get(value, 0)
        whole = here & lattice.whole
        if node:
            possible = lattice.up(node.possible) & whole
            entered = lattice.step(node.tracked) & whole
        else:
            possible = whole
            entered = lattice.start & whole
        weak = bool(here) and (node is None or node.weak)
        return self._node(value, possible, lattice.walk(entered, whole), weak)

    def _node(self, value: int, possible: int, tracked: int, weak: bool) -> Node:
        known = self._nodes.get((value, possible, tracked, weak))
        if known is None:
            level = self._level(value, possible, tracked, weak)
            known = self._nodes[value, possible, tracked, weak] = Node(value, possible, tracked, weak, level)
        return known

    def _level(self, value: int, possible: int, tracked: int, weak: bool) -> str:
        if value != self._last:
            return "consistent" if possible else "inconsistent"
        if tracked & self.lattice.end:
            return "complete"
        if possible:
            return "strong"
        return "weak" if weak else "convergent"

    def complete_n(self, key: Sequence[int]) -> int | None:
        """The smallest N > 1 with which the states are complete-N, if there is one."""
        values = self._distinct(key)
        if values not in self._found_n:
            found = (n for n in range(2, self._transactions + 1) if self._blocks(values, n) is None)
            self._found_n[values] = next(found, None)
        return self._found_n[values]

    def uneven(self, key: Sequence[int], n: int) -> int | None:
        """The first state that keeps the states from being complete-N, one past the last if it is the end that is not
        reached; None if they are complete-N."""
        failed = self._blocks(self._distinct(key), n)
        changes = [i for i in range(len(key)) if len(self._distinct(key[: i + 1])) > len(self._distinct(key[:i]))]
        return None if failed is None else [*changes, len(key)][failed]

    def _distinct(self, key: Sequence[int]) -> tuple[int, ...]:
        """The values of a key, each once where it stays the same."""
        values = [self._alone[number] if self._alone else number for number in key]
        return tuple(value for i, value in enumerate(values) if i == 0 or value != values[i - 1])

    def _blocks(self, values: Sequence[int], n: int) -> int | None:
        """The first value that does not follow in blocks of n transactions."""
        reached = self.lattice.start
        for i, value in enumerate(values):
            here = self.where.get(value, 0)
            new = reached = (self._block(reached, n) if i else reached) & here
            while new:
                new = self._block(new, n) & here & ~reached
                reached |= new
            if not reached:
                return i
        return None if reached & self.lattice.end else len(values)

    def _block(self, some: int, n: int) -> int:
        """The whole vectors n transactions further, and the end where fewer are left."""
        passed = 0
        for _ in range(n):
            some = self.lattice.step(some)
            passed |= some & self.lattice.end
        return some | passed
