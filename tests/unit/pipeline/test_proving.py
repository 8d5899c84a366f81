"""What is proven of definitions before a commit, and what becomes of views where it is not."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping
from typing import Any

import pytest
from patience import PATIENCE, eventually

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.errors import DefinitionChanged, SourceUnavailable
from strobe.pipeline.health import Health
from strobe.pipeline.proving import Prover


class FakeSource:
    """Tables with fingerprints of which only those that end in `harmless` are as good as any other."""

    def __init__(self, **tables: str) -> None:
        self.tables = tables
        self.error: Exception | None = None
        self.answers = threading.Event()
        self.answers.set()
        self.asked = 0

    def fingerprints(self, relations: Collection[str]) -> Mapping[str, str]:
        self.asked += 1
        found = {name: self.tables[name] for name in relations if name in self.tables}
        assert self.answers.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return found

    def changed(self, relation: str, columns: Collection[str], before: str, after: str) -> str:
        return "" if after.endswith("harmless") else f"its column {min(columns)} was rewritten"

    def proven(self, before: str, after: str) -> str:
        return after


def view(name: str, *relations: str) -> View:
    """A view over relations `source.table`."""
    occurrences = []
    for number, relation in enumerate(relations):
        source, table = relation.split(".")
        schema = RelationSchema(source, table, (Column("id", "bigint"), Column("price", "bigint")), ("id",))
        occurrences.append(Occurrence(number, table, schema, ("id", "price")))
    return View(name, "", tuple(occurrences), (), None, (Output("id", "r0c0"),), ("id",))


class Proofs:
    def __init__(self, views: Collection[View], known: Mapping[str, Mapping[str, str]], **sources: FakeSource) -> None:
        self.health = Health()
        given: Any = sources
        self.prover = Prover(given, {v.name: v for v in views}, known, self.health)
        self.held = self.prover.prove(sources)


def test_the_same_fingerprints_prove_everything() -> None:
    shop = FakeSource(orders="1", items="2")
    proofs = Proofs([view("v", "shop.orders", "shop.items")], {"v": {"shop.orders": "1", "shop.items": "2"}}, shop=shop)
    assert not proofs.held and shop.asked == 1


def test_what_is_harmless_is_what_the_next_look_is_compared_with() -> None:
    shop = FakeSource(orders="2 harmless")
    proofs = Proofs([view("v", "shop.orders")], {"v": {"shop.orders": "1"}}, shop=shop)
    assert not proofs.held and proofs.prover.known == {"v": {"shop.orders": "2 harmless"}}


def test_a_view_without_fingerprints_is_trusted_as_it_is_found() -> None:
    """It was loaded before there were any."""
    proofs = Proofs([view("v", "shop.orders")], {}, shop=FakeSource(orders="7"))
    assert not proofs.held and proofs.prover.known == {"v": {"shop.orders": "7"}}


def test_only_views_that_rest_on_what_was_are_lost() -> None:
    """A view that was loaded since, and one of another table, can be kept."""
    shop, views = FakeSource(orders="2", items="1"), [view("old", "shop.orders"), view("new", "shop.orders")]
    known = {"old": {"shop.orders": "1"}, "new": {"shop.orders": "2"}, "other": {"shop.items": "1"}}
    with pytest.raises(DefinitionChanged, match="its column id was rewritten") as lost:
        Proofs([*views, view("other", "shop.items")], known, shop=shop)
    assert lost.value.views == {"old"} and "table orders" in lost.value.where and "strobe rebuild old" in lost.value.fix


def test_a_table_that_is_being_changed_holds_up_the_views_that_share_its_source() -> None:
    """Each says for what it waits, and since when, until it is over."""
    shop, bank = FakeSource(items="1"), FakeSource(accounts="1")
    views = [view("v", "shop.orders", "shop.items"), view("u", "shop.items"), view("w", "bank.accounts")]
    proofs = Proofs(views, {}, shop=shop, bank=bank)
    assert proofs.held == {"shop"} and proofs.health.problem("shop") is None
    waits = {name: proofs.health.wait(name, ["shop"]) for name in "vuw"}
    assert waits["v"] and "the definition of shop.orders cannot be read now" in waits["v"].why
    assert waits["u"] and "its commits wait with those of views whose tables in shop" in waits["u"].why
    assert waits["w"] is None
    proofs.prover.prove(["bank"])
    assert proofs.prover.prove(["shop"]) and {n: proofs.health.wait(n, ["shop"]) for n in "vuw"} == waits
    shop.tables["orders"] = "3"
    assert not proofs.prover.prove(["shop", "bank"]) and proofs.health.wait("v", ["shop"]) is None


def test_a_source_that_cannot_be_asked_holds_up_those_that_share_views_with_it() -> None:
    shop, bank, depot = FakeSource(orders="1"), FakeSource(accounts="1"), FakeSource(stock="1")
    shop.error = SourceUnavailable("it is down")
    views = [view("v", "shop.orders", "bank.accounts"), view("w", "depot.stock")]
    proofs = Proofs(views, {}, shop=shop, bank=bank, depot=depot)
    assert proofs.held == {"shop", "bank"} and proofs.health.problem("shop") is shop.error
    shop.error = None
    assert not proofs.prover.prove(["shop"]) and proofs.health.problem("shop") is None


def test_a_source_that_does_not_answer_is_not_waited_for() -> None:
    """And what it says at last of an earlier question proves nothing of what has come since."""
    shop = FakeSource(orders="1")
    shop.answers.clear()
    proofs = Proofs([view("v", "shop.orders")], {"v": {"shop.orders": "1"}}, shop=shop)
    assert proofs.held == {"shop"} and proofs.prover.prove(["shop"]) == {"shop"} and shop.asked == 1
    shop.tables["orders"] = "2"
    shop.answers.set()

    def told() -> bool:
        try:
            return not proofs.prover.prove(["shop"])
        except DefinitionChanged:
            return True

    eventually(told)
    assert shop.asked == 2
    with pytest.raises(DefinitionChanged):
        proofs.prover.prove(["shop"])
