"""The judge against the definitions taken literally: every serial schedule listed, every place tried."""

from __future__ import annotations

import random

import pytest
from histories import Literal, State, evaluate, random_world

from strobe.algebra.bag import Bag
from strobe.auditor.levels import LEVELS, Judge, satisfies


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
        at = {source: rng.choice(literal.positions_of(source)) for source in literal.queues}
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
    places = [{source: rng.choice(literal.positions_of(source)) for source in literal.queues} for _ in states]
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
