"""What Spark makes of fragments is exactly what the user's own SQL changes by, for random statements over all types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from bags import expanded
from statements import Statements
from tree_truth import State, check

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.errors import DefinitionChanged, UserError
from strobe.managers import tree_sweep
from strobe.managers.base import Outbound
from strobe.managers.tree_sweep import TreeSweep
from strobe.messages import Answer, Query, Seen, Transaction, Update
from strobe.simulator.world import position
from strobe.spark.relation import SparkRelation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

UNITS = 3


def _relation(id_: str, columns: str, key: tuple[str, ...]) -> RelationSchema:
    source, _, name = id_.partition(".")
    return RelationSchema(source, name, tuple(Column(*c.split(":")) for c in columns.split()), key)


RELATIONS = {
    r.id: r
    for r in (
        _relation("shop.orders", "id:bigint customer:bigint placed:date state:string total:decimal(10,2)", ("id",)),
        _relation("shop.customers", "id:bigint name:string city:string", ("id",)),
        _relation("depot.lines", "order_id:bigint sku:string n:int price:double", ()),
    )
}
VALUES: dict[str, Sequence[Any]] = {
    "bigint": [None, 0, 1, 2, 3],
    "int": [None, 1, 2, 7],
    "string": [None, "", "a", "ab", "b"],
    "decimal(10,2)": [None, Decimal("1.00"), Decimal("2.50"), Decimal("-3.25")],
    "double": [None, 0.1, 0.2, 0.3, 1e16, -1e16, float("nan"), -0.0],
    "date": [None, date(2024, 2, 29), date(2024, 3, 1)],
}
"""Few, so that rows meet."""


def _changed(rng: Random, relation: RelationSchema, rows: Bag, most: int) -> Bag:
    gone = rng.sample(there := expanded(rows), min(len(there), rng.randrange(most)))
    rows = rows.add(Bag.of(rows.attributes, gone, -1))
    for _ in range(rng.randrange(most + 1)):
        new = tuple(rng.choice(VALUES[c.type]) for c in relation.columns)
        if relation.key:
            new = (rng.randrange(9), *new[1:])
        if not relation.key or all(row[0] != new[0] for row, _ in rows.items()):
            rows = rows.add(Bag.of(rows.attributes, [new]))
    return rows


def _states(rng: Random) -> list[State]:
    """What the relations hold before the first unit and after each."""
    state = {id_: Bag([c.name for c in relation.columns]) for id_, relation in RELATIONS.items()}
    found: list[State] = []
    for number in range(UNITS + 1):
        chosen = RELATIONS if number == 0 else rng.sample(sorted(RELATIONS), rng.randint(1, 2))
        state = {**state, **{id_: _changed(rng, RELATIONS[id_], state[id_], 3 if number else 8) for id_ in chosen}}
        found.append(state)
    return found


def _check_random(spark: SparkSession, seeds: range) -> int:
    done = 0
    for seed in seeds:
        rng = Random(seed)
        try:
            view = compile_view("v", Statements(rng, RELATIONS).statement(3), RELATIONS)
        except UserError:
            continue
        if view.tree is not None:
            done += 1
            try:
                check(spark, view, _states(rng))
            except Exception as error:
                raise AssertionError((seed, view.sql)) from error
    return done


def test_views_change_by_exactly_what_their_fragments_do(spark: SparkSession) -> None:
    assert _check_random(spark, range(12)) > 6


def test_conditions_in_brackets(spark: SparkSession) -> None:
    """What stands behind a table must not be read as its alias, as `t WHERE (a)` is."""
    big = "(SELECT id, total > 1 AS big, count(*) AS n FROM shop.orders WHERE (true) GROUP BY id, total > 1) o"
    sql = f"SELECT o.id FROM {big} WHERE (big) AND EXISTS (SELECT 1 FROM depot.lines l WHERE (true))"
    check(spark, compile_view("v", sql, RELATIONS), _states(Random(1)))


def test_no_column_is_taken_for_another(spark: SparkSession) -> None:
    """An aggregate without GROUP BY over rows of which some are there twice: Spark mixed up the columns of a query that
    two others select from."""
    sql = (
        "SELECT count(DISTINCT l.n) AS a, avg(l.n) AS b FROM depot.lines l "
        "LEFT SEMI JOIN shop.orders o ON l.sku = o.state AND l.order_id <= 2 OR l.order_id IS NULL"
    )
    lines = Bag(("order_id", "sku", "n", "price"), {(2, "a", 1, 0.1): 2, (1, "a", 7, 0.2): 1, (3, "a", 9, 0.1): 1})
    orders = Bag.of(("id", "customer", "placed", "state", "total"), [(1, 1, None, "a", None)])
    none = {"depot.lines": Bag(lines.attributes), "shop.orders": Bag(orders.attributes)}
    some = {"depot.lines": lines, "shop.orders": orders}
    check(spark, compile_view("v", sql, RELATIONS), [none, some, none])


def test_rows_in_spark_are_fetched_up_to_a_limit(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change and an answer that are too large for the driver elsewhere come to the same as in memory."""
    sql = "SELECT o.id, l.sku FROM shop.orders o LEFT JOIN depot.lines l ON l.order_id = o.customer"
    view = compile_view("v", sql, RELATIONS)
    orders = Bag(
        ("id", "customer", "placed", "state", "total"), {(1, 7, None, "a", None): -1, (1, 8, None, "a", None): 1}
    )
    lines = Bag(("order_id", "sku"), {(7, "a"): 2, (8, None): 1})
    types = {column.name: column.type for relation in RELATIONS.values() for column in relation.columns}

    def sent(lift: Callable[[Bag], Relation]) -> list[Outbound]:
        manager = TreeSweep(view, complete=True)
        change = Transaction("shop", position(1), changes={"orders": lift(orders)})
        (query,) = manager.receive([Update(1, change)])
        assert isinstance(query, Query)
        found = [lift(lines.project(lookup.columns)) for lookup in query.lookups]
        return manager.receive([Answer("v", query.id, query.source, tuple(found), Seen(position(0)))])

    def lifted(bag: Bag) -> Relation:
        return SparkRelation.of_bag(spark, bag, types)

    assert sent(lifted) == sent(lambda bag: bag)
    monkeypatch.setattr(tree_sweep, "MOST_ROWS", 2)
    with pytest.raises(DefinitionChanged, match=r"3 rows of it .* at most 2"):
        sent(lifted)


@pytest.mark.slow
def test_many_views_change_by_exactly_what_their_fragments_do(spark: SparkSession) -> None:
    _check_random(spark, range(12, 600))
