"""Views that cannot be kept: which stand still, which are waited for, and when none is left. Real SQLite databases."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from memory_live import opened

from strobe.errors import LostGuarantee, RelationLost, SourceLost, UserError
from strobe.runtime.absences import Absences
from strobe.runtime.assembly import Assembly
from strobe.warehouse.header import Commit, Definition
from strobe.warehouse.layout import Layout

PROJECT = """
version: 1
project: shop
sources:
  sales: {type: sqlite, path: sales.db}
  billing: {type: sqlite, path: billing.db}
views:
  orders: {sql: "SELECT id, state FROM sales.orders"}
  people: {sql: "SELECT id, name FROM sales.customers"}
  paid: {sql: "SELECT id, cents FROM billing.payments"}
  both: {sql: "SELECT o.id, p.id AS p, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id"}
"""


class World:
    """The views of a project, as they were loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.assembly = opened(folder, PROJECT)
        now = {name: source.now().text for name, source in self.assembly.sources.items()}
        identity = {name: source.identity() for name, source in self.assembly.sources.items()}
        views = {name: planned.view for name, planned in self.assembly.views.items()}
        positions = {name: {s: now[s] for s in view.sources} for name, view in views.items()}
        self.last = Commit(1, datetime.now(timezone.utc), positions, {}, identity)
        self.definitions = {n: Definition(n, 1, view.sql, "", view.key, 1, None, 0) for n, view in views.items()}

    def absences(self, *, set_aside: bool = False) -> Absences:
        return Absences(Layout(self.folder / "warehouse"), self.said.append, set_aside=set_aside)

    def begin(self, absences: Absences, assembly: Assembly | None = None) -> set[str]:
        """The views that are kept."""
        found = absences.as_applied(assembly or self.assembly, self.definitions, self.last)
        return set(absences.present(found, self.last).views)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def lost(source: str, *, rebuild: bool = False) -> SourceLost:
    return SourceLost("its log is gone", source=source, rebuild=rebuild)


def test_views_of_a_lost_source_stand_still(world: World) -> None:
    """And no others, until none is left: then the reason is raised."""
    absences = world.absences()
    assert world.begin(absences) == set(world.definitions)
    absences.stand_still(world.assembly, world.last, lost("billing"))
    assert world.begin(absences) == {"orders", "people"}
    assert absences.given_up == set(), "whose log it is nobody knows"
    absences.stand_still(world.assembly, world.last, RelationLost("gone", source="sales", relations=["orders"]))
    assert world.begin(absences) == {"people"} and "orders" in absences.given_up
    with pytest.raises(LostGuarantee, match="its log is gone"):
        absences.stand_still(world.assembly, world.last, lost("sales"))
    absences.returned(["both", "paid"])
    assert world.begin(absences) == {"both", "paid"}


def test_another_database_is_noticed_at_the_start(world: World) -> None:
    """By its identity; views of other sources are kept."""
    world.last.identity["billing"] = "another"  # type: ignore[index]
    absences = world.absences()
    assert world.begin(absences) == {"orders", "people"}
    assert "another database" in str(absences.problems["paid"])
    world.last.identity["sales"] = "another"  # type: ignore[index]
    with pytest.raises(LostGuarantee, match="another database"):
        world.begin(world.absences())
    assert world.begin(world.absences(set_aside=True)) == set()


def test_views_to_be_rebuilt_are_remembered(world: World) -> None:
    """Also by the next run, which does not ask whether the log reaches back to them, and until their generation is
    another one. Whoever rebuilds views by hand is left alone."""
    absences = world.absences()
    world.begin(absences)
    absences.stand_still(world.assembly, world.last, lost("sales", rebuild=True))
    assert set(absences.to_rebuild) == {"orders", "people", "both"}
    absences.stand_still(world.assembly, world.last, lost("billing", rebuild=True))
    again = world.absences()
    assert world.begin(again) == set(), "nothing is left, and yet no reason to end"
    assert set(again.to_rebuild) == set(again.still) == set(world.definitions)
    by_hand = world.absences(set_aside=True)
    assert world.begin(by_hand) == set() and by_hand.to_rebuild == []
    world.definitions["orders"] = replace(world.definitions["orders"], generation=2)
    assert world.begin(world.absences()) == {"orders"}
    world.definitions |= {n: replace(definition, generation=2) for n, definition in world.definitions.items()}
    again.returned(world.definitions)
    assert world.begin(again) == set(world.definitions) and again.to_rebuild == []


def test_a_source_that_is_down_at_the_start_is_waited_for(world: World) -> None:
    """Its views are taken in when it is back; until then they cannot be rebuilt either. Without any source there is
    nothing to begin with."""
    nothing_known = Assembly(world.assembly.project, world.assembly.sources, {}, {})
    (world.folder / "billing.db").rename(world.folder / "away.db")
    absences = world.absences()
    assert world.begin(absences, nothing_known) == {"orders", "people"}
    assert (absences.down, absences.problems) == ({"billing"}, {})
    assert absences.ready(["orders", "both"]) == ["orders"]
    (world.folder / "sales.db").rename(world.folder / "gone.db")
    with pytest.raises(UserError, match="there is no file"):
        world.begin(world.absences(), nothing_known)
    (world.folder / "gone.db").rename(world.folder / "sales.db")
    (world.folder / "away.db").rename(world.folder / "billing.db")
    assert world.begin(absences, nothing_known) == set(world.definitions) and not absences.down
