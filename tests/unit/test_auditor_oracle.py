"""The judge against the definitions taken literally: every serial schedule listed, every place tried."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import pytest

from strobe.algebra.bag import Bag
from strobe.auditor.levels import LEVELS, HistoryTransaction, Judge, satisfies

World = tuple[dict[str, dict[str, Bag]], list[HistoryTransaction]]
State = Mapping[str, Bag]

RELATIONS = {"x": {"r": "a b", "u": "d e"}, "y": {"s": "b c"}, "z": {"t": "c d"}}


def evaluate(contents: Mapping[str, Mapping[str, Bag]]) -> dict[str, Bag]:
    """Three views over three sources: a join across all, a join of two relations of one source, and a copy."""
    r, u = contents["x"]["r"].rename({"b": "rb"}), contents["x"]["u"]
    s = contents["y"]["s"].rename({"c": "sc"})
    t = contents["z"]["t"].rename({"c": "tc", "d": "td"})
    chain = r.join(s, [("rb", "b")]).join(t, [("sc", "tc")])
    inner = contents["x"]["r"].join(u, [("b", "d")])
    return {"chain": chain.project(["a", "td"]), "inner": inner.project(["a", "e"]), "copy": contents["y"]["s"]}


def random_world(rng: random.Random) -> World:
    def rows(columns: str, count: int = 1) -> Bag:
        return Bag.of(columns.split(), [(rng.randint(1, 2), rng.randint(1, 2))], count)

    initial = {
        source: {name: rows(columns) if rng.random() < 0.6 else Bag(columns.split()) for name, columns in own.items()}
        for source, own in RELATIONS.items()
    }
    transactions = []
    for number in range(rng.randint(0, 5)):
        parts = {}
        for source in rng.sample(sorted(RELATIONS), rng.choice([1, 1, 1, 2, 3])):
            name = rng.choice(sorted(RELATIONS[source]))
            parts[source] = {name: rows(RELATIONS[source][name], rng.choice([1, 1, -1]))}
        transactions.append(HistoryTransaction(f"T{number}", parts))
    return initial, transactions


class Literal:
    """The definitions, word for word, over one world."""

    def __init__(self, world: World) -> None:
        self.initial, self.transactions = world
        self.queues = {s: [t for t in self.transactions if s in t.parts] for s in self.initial}
        self.schedules = list(self._schedules(dict.fromkeys(self.initial, 0)))

    def _schedules(self, at: dict[str, int]) -> Iterator[list[dict[str, int]]]:
        """Every serial schedule from a vector on, as the vectors it passes through."""
        ready = [t for t in self.transactions if all(self.queues[s][at[s] : at[s] + 1] == [t] for s in t.parts)]
        if not ready:
            yield [at]
        for transaction in ready:
            for rest in self._schedules({s: n + (s in transaction.parts) for s, n in at.items()}):
                yield [at, *rest]

    def views(self, at: Mapping[str, int]) -> dict[str, Bag]:
        contents = {source: dict(relations) for source, relations in self.initial.items()}
        for source, n in at.items():
            for transaction in self.queues[source][:n]:
                for relation, change in transaction.parts[source].items():
                    contents[source][relation] = contents[source][relation].add(change)
        return evaluate(contents)

    def level(self, states: Sequence[State], views: Sequence[str]) -> tuple[str, int | None]:
        def seen(state: State) -> list[Bag]:
            return [state[view] for view in views]

        shown = [seen(state) for state in states]
        passed = [[seen(self.views(at)) for at in schedule] for schedule in self.schedules]
        consistent = any(in_order(shown, values) for values in passed)
        if shown[-1] != passed[0][-1]:
            return ("consistent" if consistent else "inconsistent"), None
        if any(distinct(shown) == distinct(values) for values in passed):
            return "complete", None
        if consistent:
            return "strong", next(
                (n for n in range(2, len(self.transactions) + 1) if self.every(n, shown, passed)), None
            )
        everywhere = [dict(zip(self.queues, at, strict=True)) for at in product(*map(self._positions, self.queues))]
        anywhere = [seen(self.views(at)) for at in everywhere]
        return ("weak" if all(state in anywhere for state in shown) else "convergent"), None

    def _positions(self, source: str) -> range:
        return range(len(self.queues[source]) + 1)

    @staticmethod
    def every(n: int, shown: list[list[Bag]], passed: list[list[list[Bag]]]) -> bool:
        """Whether exactly every n-th state of some schedule, and its last, is shown."""
        blocks = [[*values[:-1:n], values[-1]] for values in passed]
        return any(distinct(shown) == distinct(values) for values in blocks)


def distinct(values: list[list[Bag]]) -> list[list[Bag]]:
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


def in_order(shown: list[list[Bag]], values: list[list[Bag]]) -> bool:
    """Whether every state shown is one that a schedule passed through, never going back."""
    place = 0
    for state in shown:
        while place < len(values) and values[place] != state:
            place += 1
        if place == len(values):
            return False
    return True


def random_states(rng: random.Random, literal: Literal) -> list[State]:
    """States that look like a history: from one schedule, with some left out, repeated, exchanged or made up."""
    schedule = rng.choice(literal.schedules)
    if rng.random() < 0.3:
        n = rng.randint(1, 3)
        schedule = [*schedule[:-1:n], schedule[-1]]
    kept = [at for at in schedule if rng.random() < 0.9] or schedule[:1]
    if rng.random() < 0.5 and kept[-1] != schedule[-1]:
        kept.append(schedule[-1])
    if rng.random() < 0.3:
        i, k = rng.randrange(len(kept)), rng.randrange(len(kept))
        kept[i], kept[k] = kept[k], kept[i]
    if rng.random() < 0.4:
        at = {source: rng.choice(literal._positions(source)) for source in literal.queues}
        kept.insert(rng.randrange(len(kept) + 1), at)
    states: list[State] = [literal.views(at) for at in kept]
    if rng.random() < 0.15:
        i = rng.randrange(len(states))
        states[i] = {**states[i], "inner": states[i]["inner"].add(Bag.of(["a", "e"], [(1, 2)]))}
    if rng.random() < 0.15:
        i = rng.randrange(len(states))
        states[i] = {**states[i], "copy": rng.choice(states)["copy"]}
    return states


@pytest.mark.parametrize("seed", range(60))
def test_the_judge_agrees_with_the_definitions_taken_literally(seed: int) -> None:
    """The search over sets of vectors finds the level that listing every schedule finds, for each view and for all."""
    rng = random.Random(seed)
    literal = Literal(random_world(rng))
    judge = Judge(literal.initial, literal.transactions, evaluate)
    for _ in range(8):
        states = random_states(rng, literal)
        key = judge.key(states)
        for views in (*([view] for view in judge.views), list(judge.views)):
            alone = views[0] if len(views) == 1 else None
            level, n = literal.level(states, views)
            assert (judge.level(key, alone), judge.complete_n(key, alone) if level == "strong" else None) == (level, n)


@pytest.mark.parametrize("seed", range(15))
def test_a_verdict_is_valid_exactly_where_the_level_is_kept_and_else_has_a_witness(seed: int) -> None:
    """For every wanted level, with claims that are true, with false ones and without; a witness names a state."""
    rng = random.Random(seed)
    literal = Literal(random_world(rng))
    judge = Judge(literal.initial, literal.transactions, evaluate)
    states = random_states(rng, literal)
    places = [{source: rng.choice(literal._positions(source)) for source in literal.queues} for _ in states]
    claims = [dict.fromkeys(judge.views, place) for place in places]
    for wanted in (*LEVELS[1:], "complete-2"):
        for claimed in (None, claims, [claim if rng.random() < 0.5 else None for claim in claims]):
            verdict = judge.verdict(states, wanted, claimed)
            for finding in (verdict.together, *verdict.views.values()):
                kept = satisfies(finding.level, wanted, [finding.complete_n] if finding.complete_n else [])
                assert finding.verdict == "unknown" or (finding.verdict == "valid") == kept
                assert bool(finding.witness) == (finding.verdict == "invalid")
        alone = {view: literal.level(states, [view])[0] for view in judge.views}
        assert {view: finding.level for view, finding in judge.verdict(states, wanted).views.items()} == alone
