"""The relevant set: by relation, by position, by column and by condition; what is dropped can never matter."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from worlds import R, S, random_world, run, view

from strobe.algebra.bag import Bag
from strobe.algebra.selection import Selection
from strobe.algebra.view import View
from strobe.integrator.integrator import Integrator
from strobe.managers.sweep import Sweep
from strobe.messages import GlobalTransaction, Position, Transaction

PLAIN = view("plain", [R, S], ["0.b=1.b"])


def demanding(condition: str) -> View:
    return replace(PLAIN, name="demanding", condition=condition)


def transaction(number: int, relation: str = "r", come: tuple = (), go: tuple = (), **more: object) -> Transaction:
    columns = ("a", "b") if relation == "r" else ("b", "c")
    change = Bag.of(columns, come).add(Bag.of(columns, go, -1))
    source = "x" if relation == "r" else "y"
    return Transaction(source, Position(str(number), (number,)), changes={relation: change}, **more)  # type: ignore[arg-type]


def integrator(of: View, reflected: int = 0) -> Integrator:
    return Integrator({of.name: of}, {of.name: {s: Position("p", (reflected,)) for s in of.sources}})


def relevant(of: View, *transactions: Transaction, reflected: int = 0) -> list[bool]:
    box = integrator(of, reflected)
    return [bool(box.receive(t).rel.views) for t in transactions]


def test_numbers_count_what_is_irrelevant_too() -> None:
    box = integrator(PLAIN)
    numbers = [box.receive(transaction(n, come=((1, 1),))).update.number for n in (1, 2, 3)]
    assert numbers == [1, 2, 3]


def test_what_a_view_reflects_already_is_irrelevant() -> None:
    assert relevant(PLAIN, transaction(4, come=((1, 1),)), transaction(5, come=((1, 1),)), reflected=4) == [False, True]


def test_a_modification_of_unused_columns_is_irrelevant() -> None:
    narrow = replace(PLAIN, occurrences=(replace(PLAIN.occurrences[0], columns=("b",)), PLAIN.occurrences[1]))
    box = integrator(narrow)
    assert not box.receive(transaction(1, come=((9, 2),), go=((1, 2),))).rel.views
    assert box.receive(transaction(2, come=((9, 3),), go=((9, 2),))).rel.views
    assert box.dropped == {"plain": 1}


@pytest.mark.parametrize(
    ("condition", "row", "admitted"),
    [
        ("r0c0 = 1", (1, 5), True),
        ("r0c0 = 1", (2, 5), False),
        ("r0c0 = 1", (None, 5), False),
        ("1 < r0c0 AND r0c1 IN (5, 6)", (2, 5), True),
        ("1 < r0c0 AND r0c1 IN (5, 6)", (2, 7), False),
        ("(r0c0 >= -3) AND r0c1 <> 7", (-3, 8), True),
        ("(r0c0 >= -3) AND r0c1 <> 7", (-4, 8), False),
        ("r0c0 IS NULL", (1, 1), False),
        ("r0c0 IS NOT NULL", (None, 1), False),
        ("r0c0 = 1 OR r0c1 = 1", (5, 5), True),
        ("NOT r0c0 = 1", (1, 1), True),
        ("r0c0 = r1c1", (1, 1), True),
        ("r0c0 + 1 = 3", (1, 1), True),
        ("r0c0 = 1.5", (1, 1), True),
        ("r0c0 = '1'", (2, 1), True),
    ],
)
def test_what_a_condition_admits(condition: str, row: tuple, admitted: bool) -> None:
    """Only what is certain is left out: anything that is not a plain comparison may be true."""
    of = demanding(condition)
    assert Selection.of(of).admits(of.occurrences[0], Bag.of(of.occurrences[0].attributes, [row])) is admitted
    assert relevant(of, transaction(1, come=(row,))) == [admitted]


def test_both_images_of_a_modification_count() -> None:
    of = demanding("r0c0 = 1")
    into, out, beside = (((1, 5),), ((2, 5),)), (((2, 5),), ((1, 5),)), (((2, 5),), ((3, 5),))
    changes = [transaction(n, come=come, go=go) for n, (come, go) in enumerate((into, out, beside), 1)]
    assert relevant(of, *changes) == [True, True, False]


def test_other_relations_are_not_judged_by_a_condition_on_this_one() -> None:
    assert relevant(demanding("r0c0 = 1"), transaction(1, "s", come=((1, 1),))) == [True]


def test_parts_of_global_transactions_are_always_sent_on() -> None:
    part = GlobalTransaction("T", frozenset({"x", "y"}))
    assert relevant(demanding("r0c0 = 1"), transaction(1, come=((2, 2),), part_of=(part,))) == [True]


def test_nobody_waits_for_a_part_that_views_have_shown_from_the_start() -> None:
    """A load that read one source after the other may hold one part of a global transaction and not the others."""
    part = GlobalTransaction("T", frozenset({"x", "y", "z"}))
    places = {PLAIN.name: {s: Position("p", (0,)) for s in PLAIN.sources}}
    routed = Integrator({PLAIN.name: PLAIN}, places, lambda source: {"T"} if source == "y" else ()).receive(
        transaction(1, part_of=(part,))
    )
    assert routed.rel.info.part_of == routed.update.transaction.part_of == (GlobalTransaction("T", frozenset("xz")),)
    alone = Integrator({PLAIN.name: PLAIN}, places, lambda source: {"T"} if source in "yz" else ()).receive(
        transaction(1, part_of=(part,))
    )
    assert alone.rel.info.part_of == ()


def test_a_relation_without_old_images_is_always_relevant() -> None:
    blind = replace(PLAIN.occurrences[0], relation=replace(R, images=False))
    of = replace(demanding("r0c0 = 1"), occurrences=(blind, PLAIN.occurrences[1]))
    assert relevant(of, transaction(1, go=((2, 2),))) == [True]


def test_dropping_changes_nothing_that_a_reader_could_see(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random worlds with a condition: the rows that it admits are right at every state, though much was dropped."""
    import worlds

    chain = replace(worlds.VIEWS["chain"], name="chain", condition="r0c0 = 1 AND r2c1 <> 2")
    monkeypatch.setitem(worlds.VIEWS, "chain", chain)
    dropped = 0
    for seed in range(80):
        complete = random.Random(seed).random() < 0.5
        world = random_world(seed, ["chain"], lambda v, c=complete: Sweep(v, complete=c))
        run(world, seed)
        dropped += world.engine.dropped["chain"]
        for state in world.history:
            assert seen(state.views["chain"]) == seen(world.expected("chain", state.places["chain"])), f"seed {seed}"
    assert dropped > 50


def seen(rows: Bag) -> Bag:
    """What the condition lets through, decided here by hand."""
    a, d = rows.attributes.index("r0c0"), rows.attributes.index("r2c1")
    return Bag(rows.attributes, {r: n for r, n in rows.items() if r[a] == 1 and r[d] is not None and r[d] != 2})
