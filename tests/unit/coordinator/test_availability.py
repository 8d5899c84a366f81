"""Views that cannot be kept: which stand still, which are waited for, and when none is left. Real SQLite databases."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_live import HEAD, opened
from patience import eventually

from strobe.algebra.bag import Bag
from strobe.apply import plan
from strobe.apply.cutover import Cutover
from strobe.apply.plan import ApplyPlan
from strobe.apply.states import ViewState
from strobe.coordinator.availability import Availability
from strobe.coordinator.rebuilding import rebuild_lost
from strobe.coordinator.refusals import Refusals
from strobe.coordinator.states import Log
from strobe.coordinator.timing import USUAL, Timing
from strobe.errors import (
    UNREADABLE,
    AccessRefused,
    LostGuarantee,
    NotNow,
    RelationLost,
    RowFailed,
    RowOf,
    RowUnfit,
    SourceLost,
    SourceUnavailable,
    StrobeError,
    UserError,
    ViewWrong,
)
from strobe.events import Event
from strobe.messages import CommitHeader, Lookup, Query
from strobe.pipeline.health import Refused
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import Topology
from strobe.retry import PROBE, VERIFY, Policy
from strobe.warehouse import contradictions
from strobe.warehouse.layout import Layout
from strobe.warehouse.records import Definition

PROJECT = (
    HEAD
    + """\
  orders: {sql: "SELECT id, state FROM sales.orders"}
  people: {sql: "SELECT id, name FROM sales.customers"}
  paid: {sql: "SELECT id, cents FROM billing.payments"}
  both: {sql: "SELECT o.id, p.id AS p, p.cents FROM sales.orders o JOIN billing.payments p ON p.order_id = o.id"}
"""
)
CACHED = PROJECT.replace('ON p.order_id = o.id"}', 'ON p.order_id = o.id", cache: [sales.orders]}')


class World:
    """The views of a project, as they were loaded."""

    def __init__(self, folder: Path, project: str = PROJECT) -> None:
        self.folder, self.said = folder, list[str]()
        self.topology = opened(folder, project)
        now = {name: source.now().text for name, source in self.topology.sources.items()}
        self.identity = {name: source.identity() for name, source in self.topology.sources.items()}
        views = {name: planned.view for name, planned in self.topology.views.items()}
        self.positions = {name: {s: now[s] for s in view.sources} for name, view in views.items()}
        self.definitions = {n: Definition(n, 1, view.sql, "", view.key, 1, None, 0) for n, view in views.items()}

    @property
    def last(self) -> CommitHeader:
        return CommitHeader(1, datetime.now(timezone.utc), self.positions, {}, self.identity)

    @property
    def unasked(self) -> Topology:
        """As at a start with nothing known of the sources."""
        return Topology(self.topology.project, self.topology.sources, {}, {})

    def hear(self, event: Event) -> None:
        self.said.append(str(event))

    def availability(
        self, *, set_aside: bool = False, timing: Timing = USUAL, clock: Callable[[], float] = time.monotonic
    ) -> Availability:
        layout = Layout(self.folder / "warehouse")
        return Availability(layout, self.hear, set_aside=set_aside, timing=timing, clock=clock)

    def present(self, availability: Availability, topology: Topology | None = None) -> Topology:
        return availability.present(availability.as_applied(topology or self.topology, self.definitions), self.last)

    def begin(self, availability: Availability, topology: Topology | None = None) -> set[str]:
        """The views that are kept."""
        return set(self.present(availability, topology).views)

    def loaded_anew(self, *views: str) -> None:
        anew = {n: replace(self.definitions[n], generation=2) for n in views}
        self.definitions = {**self.definitions, **anew}

    def unprepare(self, name: str) -> None:
        """Another database in its place, which Strobe does not know."""
        (self.folder / f"{name}.db").unlink()
        with sqlite3.connect(self.folder / f"{name}.db") as connection:
            connection.execute("CREATE TABLE payments (id INTEGER PRIMARY KEY, order_id INTEGER, cents INTEGER)")
        connection.close()

    def mind(self, availability: Availability, pipeline: Any = None) -> set[str] | None:
        """What a running loop would be told, when it has been looked once."""
        pipeline = pipeline or SimpleNamespace(
            monitors={},
            topology=replace(self.topology, views={}),
            committer=SimpleNamespace(last=self.last),
            refusals={},
        )
        changed = availability.mind(pipeline)
        if changed is None:
            eventually(lambda: not availability.looking)
            changed = availability.mind(pipeline)
        return None if changed is None else set(changed)

    def rebuilt(
        self, availability: Availability, monkeypatch: pytest.MonkeyPatch, error: StrobeError | None
    ) -> list[ApplyPlan]:
        """What is loaded anew unasked, three times; loading `people` ends with this error."""
        plan, renewed, let_go = list[ApplyPlan](), list[str](), availability.to_renew

        def change(
            _self: object, _warehouse: object, _pipeline: object, _request: object, _assembled: object, wanted: Any
        ) -> Any:
            plan.append(wanted())
            if error is not None and "people" in plan[-1].rebuild:
                raise error
            yield

        monkeypatch.setattr(Cutover, "carry_out", change)
        for name, source in self.topology.sources.items():
            monkeypatch.setattr(source, "renew", partial(renewed.append, name))
        cutover = Cutover(self.topology.project, None, self.hear, 60.0)  # type: ignore[arg-type]
        pipeline: Any = SimpleNamespace(
            topology=self.topology,
            committer=SimpleNamespace(last=self.last),
            vector={"billing": None},
            barrier=SimpleNamespace(resume=lambda: None),
        )
        warehouse: Any = SimpleNamespace(definitions=self.definitions)
        for _ in range(3):
            for _ in rebuild_lost(warehouse, pipeline, cutover, availability):
                pass
        assert set(renewed) == let_go & {"sales"}, "what is read for others is left alone"
        return plan


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def lost(source: str, *, rebuild: bool = False) -> SourceLost:
    return SourceLost("its log is gone", source=source, rebuild=rebuild)


def test_views_of_a_lost_source_stand_still(world: World) -> None:
    """And no others, until none is left: then the reason is raised. Once loaded anew they are kept again."""
    availability = world.availability()
    assert world.begin(availability) == set(world.definitions)
    availability.stand_still(lost("billing"))
    assert world.begin(availability) == {"orders", "people"}
    assert {availability.stopped[n].log for n in ("paid", "both")} == {Log.KEPT_UNLESS_READ}, (
        "whose log it is nobody knows"
    )
    availability.stand_still(RelationLost("gone", source="sales", relations=["orders"]))
    assert world.begin(availability) == {"people"} and availability.stopped["orders"].log is Log.RELEASED
    assert {n for n in world.definitions if availability.state(n) is ViewState.STOPPED} == {"orders", "paid", "both"}
    with pytest.raises(LostGuarantee, match="both, orders, paid stand still"):
        availability.complain()
    with pytest.raises(LostGuarantee, match="its log is gone"):
        availability.stand_still(lost("sales"))
    world.loaded_anew("both", "paid")
    assert world.begin(availability) == {"both", "paid"}


def test_a_view_that_was_found_wrong_stands_still_alone(world: World) -> None:
    """At once and at every later start, until it was loaded again; if it is the only one, that is the reason to end."""
    wrong = replace(world.definitions["orders"], wrong="commit 7 took away a row", right_to=6)
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(contradictions.error(wrong))
    assert world.begin(availability) == {"people", "paid", "both"}
    assert (availability.stopped["orders"].log, availability.stopped["orders"].rebuilt) == (Log.RELEASED, False)
    world.definitions["orders"] = wrong
    later = world.availability()
    assert world.begin(later) == {"people", "paid", "both"}
    assert "commit 7 took away a row" in world.said[-1] and "`strobe rebuild orders`" in world.said[-1]
    world.definitions = {"orders": wrong}
    with pytest.raises(ViewWrong, match="commit 7"):
        world.begin(world.availability())
    world.definitions = {"orders": replace(wrong, generation=2, wrong="")}
    assert world.begin(later) == {"orders"}


def failed(*rows: RowOf, complete: bool = True) -> RowFailed:
    return RowFailed("a row cannot be computed", view="both", rows=rows, complete=complete)


def test_a_view_that_stopped_for_a_row_is_loaded_again_when_the_row_has_changed(world: World) -> None:
    """Not before, and not without being asked where somebody else rebuilds it. The source is asked for the row by its
    key. If no other view is left, that is no reason to end."""
    now = [0.0]
    availability = world.availability(clock=lambda: now[0])
    world.begin(availability)
    order = RowOf("sales", "orders", ("id",), ("id", "state"), (10, "open"))
    payment = RowOf("billing", "payments", ("id",), ("id", "order_id", "cents"), (1, 10, 500))
    availability.stand_still(failed(order, payment))
    assert world.begin(availability) == {"orders", "people", "paid"}
    assert availability.stopped["both"].log is Log.KEPT
    for _ in range(2):
        now[0] += 3600
        assert world.mind(availability) is None and availability.to_rebuild == []
    with closing(sqlite3.connect(world.folder / "billing.db")) as connection, connection:
        connection.execute("UPDATE payments SET cents = 501 WHERE id = 1")
    now[0] += 3600
    assert world.mind(availability) is None and availability.ready == ["both"] and not availability.to_renew
    assert availability.unfit(world.topology.sources, world.last, availability.ready) == {}
    world.loaded_anew("both")
    assert world.begin(availability) == set(world.definitions) and not availability.to_rebuild
    world.definitions = {"both": world.definitions["both"]}
    world.begin(availability)
    availability.stand_still(failed(order))
    assert world.begin(availability) == set()


def test_views_of_a_row_that_cannot_be_read_are_loaded_again_when_it_can(world: World) -> None:
    """All that use its table stop; the row is asked for by its key until an answer can be read."""
    now = [0.0]
    availability = world.availability(clock=lambda: now[0])
    world.begin(availability)
    with closing(sqlite3.connect(world.folder / "billing.db")) as connection, connection:
        connection.execute("UPDATE payments SET cents = 'many' WHERE id = 1")
    row = RowOf("billing", "payments", ("id",), ("id", "cents"), (1, UNREADABLE))
    availability.stand_still(RowUnfit("it is no number", row=row, source="billing", relations=["payments"]))
    assert world.begin(availability) == {"orders", "people"}
    now[0] += 3600
    assert world.mind(availability) is None and availability.to_rebuild == []
    with closing(sqlite3.connect(world.folder / "billing.db")) as connection, connection:
        connection.execute("UPDATE payments SET cents = 7 WHERE id = 1")
    now[0] += 3600
    assert world.mind(availability) is None and availability.ready == ["both", "paid"]


def test_a_row_that_nobody_knows_by_its_key_is_tried_less_and_less_often(world: World) -> None:
    """So too where loading the view again has met another row."""
    now = [0.0]
    availability = world.availability(clock=lambda: now[0])
    world.begin(availability)
    availability.stand_still(failed(complete=False))
    assert world.mind(availability) is None and availability.to_rebuild == []
    for times in range(3):
        now[0] += VERIFY.wait(1) * 2**times
        assert world.mind(availability) is None and availability.to_rebuild == ["both"]
        availability.put_off(failed(complete=False))
        now[0] += VERIFY.wait(1)
        assert world.mind(availability) is None and availability.to_rebuild == []
        now[0] -= VERIFY.wait(1)


def test_another_database_is_noticed_at_the_start(world: World) -> None:
    """By its identity; views of other sources are kept."""
    world.identity["billing"] = "another"
    availability = world.availability()
    assert world.begin(availability) == {"orders", "people"}
    assert "another database" in str(availability.problems["paid"])
    world.identity["sales"] = "another"
    with pytest.raises(LostGuarantee, match="another database"):
        world.begin(world.availability())
    assert world.begin(world.availability(set_aside=True)) == set()


def test_a_source_that_is_not_prepared_any_more_stops_its_views_only(world: World) -> None:
    """At a start, and when one comes back so that was down."""
    availability = world.availability()
    world.unprepare("billing")
    assert world.begin(availability) == {"orders", "people"}
    assert "strobe prepare billing" in availability.problems["paid"].fix
    other = world.availability()
    (world.folder / "billing.db").rename(world.folder / "away.db")
    assert world.begin(other) == {"orders", "people"} and other.detached == {"billing"}
    (world.folder / "away.db").rename(world.folder / "billing.db")
    assert world.mind(other) == set()
    other.regroup([])
    assert world.begin(other) == {"orders", "people"} and not other.detached
    assert "strobe prepare billing" in other.problems["paid"].fix


def test_what_cannot_be_read_of_a_position_stops_its_views_only(world: World) -> None:
    """Another kind of database under the old name."""
    for view in ("paid", "both"):
        world.positions[view]["billing"] = "16/B374D848"
    assert world.begin(world.availability()) == {"orders", "people"}


def test_a_source_that_was_lost_by_mistake_is_found_again(world: World) -> None:
    """The old one is back: its views are kept again, without a new start."""
    now = [0.0]
    known, world.identity["billing"] = world.identity["billing"], "another"
    availability = world.availability(clock=lambda: now[0])
    assert world.begin(availability) == {"orders", "people"}
    assert world.mind(availability) is None
    world.identity["billing"] = known
    now[0] += availability.verify_every
    assert availability.state("paid") is ViewState.STOPPED
    assert world.mind(availability) == set() and not availability.still
    assert availability.state("paid") is ViewState.MAINTAINED
    assert availability.verify_every == 2 * VERIFY.wait(1), "it will be believed less soon"
    assert world.begin(availability) == set(world.definitions)


def test_views_to_be_rebuilt_are_remembered(world: World) -> None:
    """Also by the next run, which does not ask whether the log reaches back to them, and until their generation is
    another one. Whoever rebuilds views by hand is left alone."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("sales", rebuild=True))
    assert set(availability.to_rebuild) == set(availability.ready) == {"orders", "people", "both"}
    availability.stand_still(lost("billing", rebuild=True))
    again = world.availability()
    assert world.begin(again) == set(), "nothing is left, and yet no reason to end"
    assert set(again.to_rebuild) == set(again.still) == set(world.definitions)
    assert again.to_renew == {"sales", "billing"}
    by_hand = world.availability(set_aside=True)
    assert world.begin(by_hand) == set() and by_hand.to_rebuild == []
    world.loaded_anew("orders")
    assert world.begin(world.availability()) == {"orders"}
    world.loaded_anew(*world.definitions)
    assert world.begin(again) == set(world.definitions), "also if nobody told it that they joined"
    assert again.to_rebuild == [] and not list((world.folder / "warehouse" / "_strobe").glob("rebuild*"))


def test_a_view_that_lost_more_is_not_rebuilt_unasked(world: World) -> None:
    """Somebody has to decide about one of its sources, whichever was lost first, and whoever finds it out when."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("billing"))
    availability.stand_still(lost("sales", rebuild=True))
    assert set(availability.ready) == {"orders", "people"} and not availability.still["both"].rebuild


def test_a_view_is_rebuilt_unasked_only_from_what_it_was_loaded_from(world: World) -> None:
    """Its other sources are verified, and the one that let its log go must be the same."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("sales", rebuild=True))
    other = world.availability()
    world.begin(other)
    assert set(other.ready) == {"orders", "people", "both"}
    sources, last = world.topology.sources, world.last
    assert other.unfit(sources, last, other.ready) == {}
    world.positions["both"] |= {"sales": "999:1"}
    assert other.unfit(sources, world.last, other.ready) == {}, "that much was let go"
    world.positions["both"] |= {"billing": "999:1"}
    assert other.unfit(sources, world.last, other.ready).keys() == {"both"}
    world.identity["billing"] = "another"
    unfit = other.unfit(sources, world.last, other.ready)
    assert unfit.keys() == {"both"}
    other.put_still(unfit)
    assert set(other.ready) == {"orders", "people"}
    world.identity["sales"] = "another"
    assert other.unfit(sources, world.last, other.ready).keys() == {"orders", "people"}


def test_a_view_to_be_rebuilt_that_cannot_be(world: World) -> None:
    """What it uses is gone, or its source from strobe.yml: it says so, and nobody waits for it."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("billing", rebuild=True))
    world.definitions["paid"] = replace(world.definitions["paid"], sql="SELECT id, nope FROM billing.payments")
    again = world.availability()
    world.begin(again)
    assert again.ready == ["both"] and "nope" in str(again.problems["paid"])
    without = replace(world.unasked, sources=SourceSet({"sales": world.topology.sources["sales"]}))
    last = world.availability()
    assert world.begin(last, without) == {"orders", "people"} and last.ready == []


def test_a_source_that_was_down_and_is_no_longer_in_the_project(world: World) -> None:
    """With its views it left in an apply: nobody waits for it, or asks whether it is back."""
    (world.folder / "billing.db").rename(world.folder / "away.db")
    availability = world.availability()
    assert world.begin(availability) == {"orders", "people"} and availability.down == {"billing"}
    world.definitions = {name: world.definitions[name] for name in ("orders", "people")}
    world.topology = replace(world.topology, sources=SourceSet({"sales": world.topology.sources["sales"]}))
    assert world.begin(availability) == {"orders", "people"} and not availability.down
    assert world.mind(availability) is None


def test_log_is_kept_for_a_view_that_is_not_compiled(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever keeps its source from saying what it offers: nothing is known yet of what the view needs."""

    def schemas() -> None:
        raise RelationLost("its newest version is gone", source="billing", relations=["payments"])

    monkeypatch.setattr(world.topology.sources["billing"], "schemas", schemas)
    availability = world.availability()
    assert world.begin(availability, world.unasked) == {"orders", "people"}
    assert {availability.stopped[n].log for n in ("paid", "both")} == {Log.KEPT}


def test_a_copy_that_stands_still_is_not_used(tmp_path: Path) -> None:
    """Only a view was loaded anew of a source that was lost: it asks the source. Loading it anew loads the copy too."""
    world = World(tmp_path, CACHED)
    availability, copy = world.availability(), "copy__sales__orders"
    copied = {o.relation.id: o.copied for o in world.present(availability).views["both"].view.occurrences}
    assert copied == {"sales.orders": True, "billing.payments": False}
    availability.stand_still(lost("sales"))
    kept = world.begin(availability)
    edit = plan.rebuilt(world.topology, world.definitions, ["both"], kept)
    assert (edit.add, edit.rebuild) == ((), (copy, "both"))
    world.loaded_anew("both")
    view = world.present(availability).views["both"].view
    assert not any(o.copied for o in view.occurrences)
    assert plan.rebuilt(world.topology, world.definitions, ["both"], [copy, "both"]).rebuild == ("both",)


def test_a_source_that_is_down_at_the_start_is_waited_for(world: World) -> None:
    """Its views are taken in when it is back; until then they cannot be rebuilt either. So too if all are down."""
    now = [0.0]
    (world.folder / "billing.db").rename(world.folder / "away.db")
    availability = world.availability(clock=lambda: now[0])
    assert world.begin(availability, world.unasked) == {"orders", "people"}
    assert (availability.down, availability.problems, world.mind(availability)) == ({"billing"}, {}, None)
    assert "billing.db" in str(availability.outages["billing"])
    (world.folder / "sales.db").rename(world.folder / "gone.db")
    without = world.availability()
    assert world.begin(without, world.unasked) == set() and without.down == {"sales", "billing"}
    (world.folder / "gone.db").rename(world.folder / "sales.db")
    assert world.mind(without) == set() and world.begin(without, world.unasked) == {"orders", "people"}
    availability.stand_still(lost("sales", rebuild=True))
    assert set(availability.to_rebuild) == {"orders", "people", "both"}
    assert set(availability.ready) == {"orders", "people"}
    (world.folder / "away.db").rename(world.folder / "billing.db")
    now[0] += PROBE.wait(1)
    assert world.mind(availability) == set()
    world.loaded_anew("orders", "people", "both")
    assert world.begin(availability, world.unasked) == set(world.definitions) and not availability.down


@pytest.mark.parametrize("error", [SourceUnavailable("it is down"), AccessRefused("not this one")])
def test_how_long_a_source_may_be_down(world: World, error: SourceUnavailable) -> None:
    """Ten seconds on end, whatever is wrong with it; then the views that can go on without it do. One that all views
    need is waited for, and so is one that answers in between."""
    now, problems = [100.0], {"billing": error}
    availability = world.availability(clock=lambda: now[0])
    pipeline: Any = SimpleNamespace(
        monitors={"sales": None, "billing": None},
        topology=world.present(availability),
        committer=SimpleNamespace(last=world.last),
        problem=problems.get,
        refusals={},
    )

    def after(seconds: float) -> set[str] | None:
        now[0] += seconds
        return world.mind(availability, pipeline)

    assert after(0.0) is None and after(10.0) is None
    problems.clear()
    assert after(0.5) is None
    problems["billing"] = error
    assert after(0.5) is None and after(9.9) is None
    assert after(0.2) == {"billing"}
    problems["sales"] = error
    assert after(0.0) == {"billing"}
    assert after(10.1) is None, "nothing would be left"
    assert availability.overdue == {"sales", "billing"}, "but their views are stale"
    problems.update(sales=UserError("bad data"))  # type: ignore[dict-item]  # which nobody waits for
    assert after(20.0) == {"billing"}
    availability.regroup({"billing"})
    assert availability.state("paid") is ViewState.MAINTAINED, "until the run has ended"
    assert availability.down == {"billing"} and world.begin(availability) == {"orders", "people"}
    assert availability.outages == {"billing": error}
    assert {n for n in world.definitions if availability.state(n) is ViewState.DETACHED} == {"paid", "both"}
    availability.stand_still(RelationLost("gone", source="billing", relations=["payments"]))
    assert availability.state("paid") is ViewState.STOPPED and world.begin(availability) == {"orders", "people"}
    availability.regroup([])
    assert not availability.down and world.begin(availability) == {"orders", "people"}
    world.loaded_anew("paid", "both")
    assert world.begin(availability) == set(world.definitions)


def test_a_table_that_does_not_answer_detaches_the_views_that_ask_it(world: World) -> None:
    """After ten seconds they wait, and say for what; the others go on, and who asks this table then need not be waited
    for. They come back when it answers."""
    now, refused = [100.0], dict[str, Refused]()
    availability = world.availability(clock=lambda: now[0])
    pipeline: Any = SimpleNamespace(
        monitors={},
        topology=world.present(availability),
        committer=SimpleNamespace(last=world.last),
        problem=lambda _: None,
        refusals=refused,
    )

    def refuse(view: str) -> None:
        query = Query(view, 1, "billing", (Lookup(0, "locked", ("id",), ("id",), Bag(("id",), {(1,): 1})),))
        error = UserError("permission denied", fix="Grant it.")
        refused[view] = Refused(query, "locked", error, datetime.now(timezone.utc))

    def after(seconds: float) -> set[str] | None:
        now[0] += seconds
        return world.mind(availability, pipeline)

    refuse("both")
    assert after(0.0) is None and after(10.0) is None
    refused.clear()
    assert after(0.5) is None
    refuse("both")
    assert after(1.0) is None and after(10.1) == set()
    assert "both stands still until it answers again: table billing.locked cannot be asked" in world.said[-1]
    refused.clear()
    pipeline.topology = world.present(availability)
    assert (
        set(pipeline.topology.views) == {"orders", "people", "paid"}
        and availability.state("both") is ViewState.DETACHED
    )
    assert after(5.0) is None
    refuse("paid")
    assert after(0.1) == set() and world.begin(availability) == {"orders", "people"}
    assert {name: each.wait.why for name, each in availability.refused.items()} == dict.fromkeys(
        ("both", "paid"), "table billing.locked cannot be asked: permission denied\n  Grant it."
    )
    refused.clear()
    with closing(sqlite3.connect(world.folder / "billing.db")) as connection:
        connection.execute("CREATE TABLE locked (id INTEGER PRIMARY KEY)")
    world.topology.sources["billing"].prepare(["payments", "locked"])
    eventually(lambda: after(5.0) == set())
    assert world.begin(availability) == set(world.definitions)


def test_views_that_all_ask_a_table_that_does_not_answer_are_kept() -> None:
    """There is nothing that could go on without them."""
    query = Query("v", 1, "billing", (Lookup(0, "locked", ("id",)),))
    refused = Refused(query, "locked", UserError("permission denied"), datetime.now(timezone.utc))
    refusals = Refusals()
    assert refusals.late(0.0, {"v": refused}, ["v"], 10.0) == refusals.late(99.0, {"v": refused}, ["v"], 10.0) == []
    assert refusals.late(99.0, {"v": refused}, ["v", "w"], 10.0) == ["v"]


def test_a_source_that_does_not_say_what_it_offers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though it answers otherwise: it is asked once, not for every view, and again later."""
    asked = list[str]()

    def schemas() -> None:
        asked.append("billing")
        raise SourceUnavailable("a statement took longer")

    monkeypatch.setattr(world.topology.sources["billing"], "schemas", schemas)
    availability = world.availability(timing=Timing(probe=Policy((0.0,))))
    assert world.begin(availability, world.unasked) == {"orders", "people"} and availability.down == {"billing"}
    assert len(asked) == 1
    assert world.mind(availability) is None


def test_what_is_wrong_with_a_source_may_change_while_it_is_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage that ends with a refused password is reported as that: what the last probe found counts."""
    errors = [SourceUnavailable("it is down"), AccessRefused("wrong password")]

    def schemas() -> None:
        raise errors[0]

    monkeypatch.setattr(world.topology.sources["billing"], "schemas", schemas)
    availability = world.availability(timing=Timing(probe=Policy((0.0,))))
    world.begin(availability, world.unasked)
    assert availability.outages == {"billing": errors[0]}
    before = errors.pop(0)
    assert world.mind(availability) is None
    assert availability.outages == {"billing": errors[0]} != {"billing": before}


def test_rebuilding_unasked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """All views that can be, in one edit, and again if that fails; but not for ever if the limit is the reason."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("sales", rebuild=True))
    (edit, *again) = world.rebuilt(availability, monkeypatch, None)
    assert (set(edit.rebuild), edit.keep, edit.add, edit.drop) == ({"orders", "people", "both"}, ("paid",), (), ())
    assert again == [edit, edit]
    assert len(world.rebuilt(availability, monkeypatch, NotNow("interrupted"))) == 3
    assert "could not be rebuilt yet: interrupted" in world.said[-1]
    with pytest.raises(LostGuarantee, match="its log is gone") as error:
        world.rebuilt(availability, monkeypatch, lost("sales", rebuild=True))
    assert "Raise slot.limit" in error.value.fix


def test_what_is_let_go_and_loaded_is_looked_at_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A source that is read for others keeps its log, and a view that has lost more is left to whoever decides."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("billing", rebuild=True))
    availability.stand_still(lost("sales", rebuild=True))
    assert availability.to_renew == {"sales", "billing"}
    world.identity["billing"] = "another"
    (edit, *_) = world.rebuilt(availability, monkeypatch, None)
    assert set(edit.rebuild) == {"orders", "people"}
    assert set(availability.to_rebuild) == {"orders", "people"}


def test_a_view_that_is_lost_while_it_is_rebuilt(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for somebody, and is not tried again; the others are."""
    availability = world.availability()
    world.begin(availability)
    availability.stand_still(lost("sales", rebuild=True))
    gone = RelationLost("a table is gone", source="sales", relations=["customers"])
    loaded = [set(edit.rebuild) for edit in world.rebuilt(availability, monkeypatch, gone)]
    assert loaded == [{"orders", "people", "both"}, {"orders", "both"}, {"orders", "both"}]
    assert availability.still["people"] is gone


@pytest.mark.parametrize("unfit", [False, True])
def test_a_view_that_fails_on_another_row_holds_up_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch, unfit: bool
) -> None:
    """It waits for that row; the other is loaded at once, not after the next pause."""
    availability = world.availability()
    world.begin(availability)
    for view in ("orders", "people"):
        availability.stand_still(RowFailed("a row cannot be computed", view=view))
    availability._healing = {"orders", "people"}
    customer = RowOf("sales", "customers", ("id",), ("id", "name"), (1, "Ada"))
    again: RowFailed | RowUnfit
    again = RowFailed("another row cannot be computed", view="people", rows=[customer], complete=True)
    if unfit:
        again = RowUnfit("another value cannot be read", row=customer, source="sales", relations=["customers"])
    loaded = [set(edit.rebuild) for edit in world.rebuilt(availability, monkeypatch, again)]
    assert loaded == [{"orders", "people"}, {"orders"}, {"orders"}, {"orders"}]
    assert availability.still["people"] is again and availability.to_rebuild == ["orders"]


def test_what_a_source_warns_of_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However often it is looked at, and also by the next run."""
    world = World(tmp_path)
    availability = world.availability()
    world.begin(availability)
    monkeypatch.setattr(type(world.topology.sources["sales"]), "warning", "a name cannot be used")
    for _ in range(2):
        world.mind(availability)
        world.begin(availability)
    told = [line for line in world.said if "warning" in line]
    assert told == [f"source {name}: warning: a name cannot be used" for name in world.topology.sources]
