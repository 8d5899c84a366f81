"""A tree that is evaluated for several states at once gives what the user's own SQL gives of each."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from statements import Statements

from strobe.algebra.render import COUNT, Keys, Tables, render
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.tree import UNIT, Group, Window, operators
from strobe.algebra.view import View, snapshot_name
from strobe.data.arrow import to_arrow
from strobe.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SEEDS = 25
SLOW_SEEDS = 1500
STATES = 2


def _relation(id_: str, columns: str, key: tuple[str, ...]) -> RelationSchema:
    source, _, name = id_.partition(".")
    parsed = tuple(Column(column, type_) for column, _, type_ in (c.partition(":") for c in columns.split()))
    return RelationSchema(source, name, parsed, key)


ORDERS = _relation("shop.orders", "id:bigint customer:bigint placed:date state:string total:decimal(10,2)", ("id",))
CUSTOMERS = _relation("shop.customers", "id:bigint name:string city:string", ("id",))
LINES = _relation("depot.lines", "order_id:bigint sku:string n:int price:double", ())
RELATIONS = {r.id: r for r in (ORDERS, CUSTOMERS, LINES)}
Rows = list[tuple[Any, ...]]


def _rows(relation: RelationSchema, random: Random) -> Rows:
    """Few values, so that rows meet; NULLs, and duplicates where there is no key."""
    values: dict[str, Sequence[Any]] = {
        "bigint": [None, 0, 1, 2, 3, 4],
        "int": [None, 1, 2, 7],
        "string": [None, "", "a", "ab", "b"],
        "decimal": [None, Decimal("1.00"), Decimal("2.50"), Decimal("-3.25")],
        "double": [None, 0.1, 0.2, 0.3, 1e16, -1e16, float("nan"), 0.0],
        "date": [None, date(2024, 2, 29), date(2024, 3, 1)],
    }
    rows = [tuple(random.choice(values[c.type.split("(")[0]]) for c in relation.columns) for _ in range(7)]
    if relation.key:
        return [(i, *row[1:]) for i, row in enumerate(rows)]
    return rows + rows[:2]


@pytest.fixture(scope="module")
def states(spark: SparkSession) -> list[dict[str, Rows]]:
    """Contents of all relations in several states, each also as tables."""
    spark.conf.set("spark.sql.adaptive.enabled", "false")
    found = []
    for state in range(STATES):
        contents = {id_: _rows(relation, Random(f"{state} {id_}")) for id_, relation in RELATIONS.items()}
        for id_, rows in contents.items():
            relation = RELATIONS[id_]
            table = to_arrow([c.name for c in relation.columns], [c.type for c in relation.columns], rows)
            spark.createDataFrame(table).coalesce(1).cache().createOrReplaceTempView(_table(relation, state))
        found.append(contents)
    units = " UNION ALL ".join(f"SELECT {state} AS {UNIT}" for state in range(STATES))
    spark.sql(units).createOrReplaceTempView("units")
    return found


def _table(relation: RelationSchema, state: int) -> str:
    return f"{snapshot_name(relation)}_{state}"


def _tables(spark: SparkSession, view: View) -> Tables:
    """The whole contents of all relations in all states, as tables of rows."""
    names = {}
    for o in view.occurrences:
        columns = ", ".join(f"`{c}` AS {o.attribute(c)}" for c in o.columns)
        each = [f"SELECT {s} AS {UNIT}, 1L AS {COUNT}, {columns} FROM {_table(o.relation, s)}" for s in range(STATES)]
        names[o.index] = f"({' UNION ALL '.join(each)})"
    return Tables(names, "units")


def _recomputed(view: View, state: int) -> str:
    sql = view.recompute_sql
    for relation in RELATIONS.values():
        sql = sql.replace(snapshot_name(relation), _table(relation, state))
    return sql


def _fields(frame: Any) -> list[Any]:
    return [(f["name"], f["type"]) for f in json.loads(frame.schema.json())["fields"]]


def check_same(spark: SparkSession, sql: str) -> View:
    view = compile_view("v", sql, RELATIONS)
    assert view.tree is not None
    statement = render(view.tree, view.outputs, _tables(spark, view))
    ours = spark.sql(statement)
    found: dict[int, Counter[str]] = {state: Counter() for state in range(STATES)}
    for row in ours.collect():
        found[row[0]][repr(tuple(row)[1:])] += 1
    for state in range(STATES):
        theirs = spark.sql(_recomputed(view, state))
        assert _fields(theirs) == _fields(ours)[1:], (sql, statement)
        rows = theirs.collect()
        assert Counter(repr(tuple(row)) for row in rows) == found[state], (sql, state, view.recompute_sql, statement)
        if view.key:
            places = [view.key.index(k) for k in view.key]
            names = [f.name for f in theirs.schema.fields]
            keys = Counter(tuple(row[names.index(k)] for k in view.key) for row in rows)
            assert len(places) == 0 or all(n == 1 and None not in key for key, n in keys.items()), (sql, view.key)
    return view


JOINED = "shop.orders o {} JOIN shop.customers c ON c.id = o.customer"

VIEWS = {
    "left join": f"SELECT o.id, o.total, c.name FROM {JOINED.format('LEFT')} WHERE o.total > 1",
    "left join with conditions": f"SELECT o.id, c.name FROM {JOINED.format('LEFT')} AND c.city = 'a' AND o.total > 1",
    "left join to a computed column": (
        "SELECT o.id, c.y FROM shop.orders o LEFT JOIN (SELECT id, coalesce(name, 'none') AS y FROM shop.customers) c "
        "ON c.id = o.customer"
    ),
    "where on the padded side": f"SELECT o.id FROM {JOINED.format('LEFT')} WHERE c.id IS NULL",
    "right join": f"SELECT o.id, c.name FROM {JOINED.format('RIGHT')}",
    "full join": f"SELECT o.id, c.name FROM {JOINED.format('FULL')}",
    "full join with a condition": f"SELECT o.id, c.name FROM {JOINED.format('FULL')} AND o.total > c.id",
    "left join using": "SELECT * FROM (SELECT id, total FROM shop.orders) o LEFT JOIN shop.customers c USING (id)",
    "right join using": "SELECT * FROM (SELECT id, total FROM shop.orders) o RIGHT JOIN shop.customers c USING (id)",
    "full join using": (
        "SELECT * FROM (SELECT customer AS id, total FROM shop.orders) o FULL JOIN shop.customers c USING (id)"
    ),
    "full join using, then by it": (
        "SELECT id, o.id AS a, c.id AS b, l.sku FROM (SELECT customer AS id FROM shop.orders) o "
        "FULL JOIN shop.customers c USING (id) LEFT JOIN depot.lines l ON l.order_id = id"
    ),
    "semi join": f"SELECT o.* FROM {JOINED.format('LEFT SEMI')}",
    "anti join": f"SELECT o.id FROM {JOINED.format('ANTI')}",
    "joins in a row": (
        f"SELECT o.id, c.name, l.sku FROM {JOINED.format('LEFT')} LEFT JOIN depot.lines l ON l.order_id = o.id "
        f"AND l.n = c.id"
    ),
    "null-safe": "SELECT o.id, l.sku FROM shop.orders o LEFT JOIN depot.lines l ON l.order_id <=> o.customer",
    "exists": (
        "SELECT o.id FROM shop.orders o WHERE EXISTS (SELECT 1 FROM depot.lines l WHERE l.order_id = o.id AND l.n > 1)"
    ),
    "not exists": (
        "SELECT o.id FROM shop.orders o WHERE NOT EXISTS (SELECT * FROM depot.lines l WHERE o.id = l.order_id)"
    ),
    "exists by inequality": (
        "SELECT id FROM shop.orders o WHERE EXISTS (SELECT 1 FROM depot.lines WHERE order_id < o.id)"
    ),
    "nested exists": (
        "SELECT id FROM shop.orders o WHERE EXISTS (SELECT 1 FROM shop.customers c WHERE c.id = o.customer AND "
        "NOT EXISTS "
        "(SELECT 1 FROM depot.lines l WHERE l.sku = c.city))"
    ),
    "in": "SELECT id FROM shop.orders WHERE customer IN (SELECT order_id FROM depot.lines WHERE n IS NOT NULL)",
    "not in": "SELECT id FROM shop.orders WHERE id NOT IN (SELECT id FROM shop.customers WHERE city = 'a')",
    "in, grouped": (
        "SELECT id FROM shop.orders WHERE id IN (SELECT order_id FROM depot.lines GROUP BY 1 HAVING count(*) > 1)"
    ),
    "union all": (
        "SELECT id, total FROM shop.orders UNION ALL SELECT order_id, n FROM depot.lines UNION ALL SELECT 1, 2 "
        "FROM shop.customers"
    ),
    "union": "SELECT customer, state AS s FROM shop.orders UNION SELECT order_id, sku FROM depot.lines",
    "union of both kinds": (
        "SELECT id AS x FROM shop.orders UNION ALL SELECT id FROM shop.orders UNION (SELECT order_id FROM "
        "depot.lines UNION ALL "
        "SELECT id FROM shop.customers)"
    ),
    "distinct": "SELECT DISTINCT sku, n FROM depot.lines",
    "group": (
        "SELECT sku, count(*) AS c, count(n) AS cn, sum(n) AS s, avg(n) AS a, min(n) AS mi, max(price) AS ma, "
        "count(DISTINCT n) AS d, sum(price) AS sp, avg(price) AS ap FROM depot.lines GROUP BY sku"
    ),
    "group of decimals": (
        "SELECT customer, sum(total) AS s, avg(total) AS a, avg(total * 1.5) AS b FROM shop.orders GROUP BY 1"
    ),
    "aggregates in order": (
        "SELECT sku, array_agg(n) AS a, collect_set(n) AS s, collect_list(DISTINCT price) AS d, max_by(sku, n) AS x, "
        "min_by(price, n) AS y FROM depot.lines GROUP BY sku"
    ),
    "statistics": (
        "SELECT sku, median(n) AS m, percentile(price, 0.25) AS p, bool_and(n > 1) AS b, every(n > 1) AS e, "
        "count_if(n > 1) AS c, bit_or(n) AS o FROM depot.lines GROUP BY sku"
    ),
    "group by expression": (
        "SELECT trunc(o.placed, 'MM') AS m, upper(state) || '!' AS u, sum(total) + 1 AS t FROM shop.orders o "
        "GROUP BY trunc(placed, 'MM'), upper(o.state)"
    ),
    "group by alias and number": "SELECT n % 2 AS odd, upper(sku) AS u, count(*) AS c FROM depot.lines GROUP BY odd, 2",
    "group without aggregates": "SELECT sku FROM depot.lines GROUP BY sku, n",
    "having": (
        "SELECT sku, sum(n) AS t FROM depot.lines GROUP BY sku HAVING count(*) > 1 AND t IS NOT NULL AND sku <> 'b'"
    ),
    "global": "SELECT count(*) AS c, sum(n) AS s, array_agg(sku) AS a FROM depot.lines WHERE n = 12345",
    "global having": "SELECT sum(n) AS s FROM depot.lines HAVING count(*) > 1000",
    "constant over a global": "SELECT 1 AS one FROM (SELECT count(*) AS n FROM depot.lines WHERE n = 12345) t",
    "filter clause": (
        "SELECT sku, sum(n) FILTER (WHERE price > 0.15) AS s, count(*) FILTER (WHERE n > 1) AS c FROM "
        "depot.lines GROUP BY sku"
    ),
    "group over a left join": (
        f"SELECT c.name, count(o.id) AS n, sum(o.total) AS t FROM {JOINED.format('RIGHT')} GROUP BY c.name"
    ),
    "join to a group": (
        "SELECT o.id, t.s FROM shop.orders o LEFT JOIN (SELECT order_id, sum(n) AS s FROM depot.lines GROUP BY "
        "order_id) t "
        "ON t.order_id = o.id"
    ),
    "join by a global": (
        "SELECT l.sku, t.m FROM depot.lines l LEFT JOIN (SELECT max(n) AS m FROM depot.lines) t ON l.n = t.m"
    ),
    "row_number": (
        "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY customer ORDER BY placed DESC) AS rn FROM "
        "shop.orders) t "
        "WHERE rn = 1"
    ),
    "row_number without a key": (
        "SELECT sku, n, row_number() OVER (PARTITION BY sku ORDER BY price) AS rn FROM depot.lines"
    ),
    "ranks": (
        "SELECT sku, rank() OVER w AS r, dense_rank() OVER w AS d, percent_rank() OVER w AS p, cume_dist() OVER "
        "w AS c, "
        "row_number() OVER w AS n FROM depot.lines WINDOW w AS (PARTITION BY sku ORDER BY n)"
    ),
    "lag and lead": (
        "SELECT id, lag(total) OVER (PARTITION BY customer ORDER BY placed) AS a, lead(total, 2, 0.5) OVER "
        "(ORDER BY state) AS b, "
        "first_value(id) OVER (PARTITION BY state ORDER BY placed) AS f, last_value(id) IGNORE NULLS OVER "
        "(PARTITION BY state "
        "ORDER BY placed ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS l FROM shop.orders"
    ),
    "running sums": (
        "SELECT id, sum(total) OVER (PARTITION BY customer ORDER BY placed) AS a, avg(id) OVER (ORDER BY placed "
        "ROWS 1 PRECEDING) "
        "AS b, count(*) OVER () AS n FROM shop.orders"
    ),
    "sums of doubles over windows": (
        "SELECT sku, sum(price) OVER (PARTITION BY sku) AS s, avg(price) OVER (ORDER BY n, sku) AS a FROM depot.lines"
    ),
    "window over groups": (
        "SELECT sku, sum(n) AS s, rank() OVER (ORDER BY sum(n) DESC) AS r, row_number() OVER (ORDER BY count(*)) AS rn "
        "FROM depot.lines GROUP BY sku"
    ),
    "window by expression": (
        "SELECT id, row_number() OVER (PARTITION BY upper(state) ORDER BY -id) AS rn FROM shop.orders"
    ),
    "qualify": (
        "SELECT DISTINCT customer FROM shop.orders QUALIFY row_number() OVER (PARTITION BY state ORDER BY placed) <= 2"
    ),
    "qualify by an alias": (
        "SELECT id, state AS s, count(*) OVER (PARTITION BY state) AS n FROM shop.orders QUALIFY n > 1 AND "
        "customer IS NOT NULL"
    ),
    "lateral view": (
        "SELECT o.id, x FROM shop.orders o LATERAL VIEW OUTER explode(split(o.state, '')) t AS x WHERE o.id > 1"
    ),
    "lateral views": (
        "SELECT id, p, x, y FROM shop.orders LATERAL VIEW posexplode(split(state, '')) t AS p, x LATERAL VIEW "
        "explode(array(x, 'z')) u "
        "AS y"
    ),
    "explode in select": "SELECT id, explode(split(state, '')) AS x FROM shop.orders",
    "scalar": (
        "SELECT id, total - (SELECT avg(total) FROM shop.orders) AS d FROM shop.orders WHERE id < (SELECT max(n) "
        "FROM depot.lines)"
    ),
    "scalar over nothing": (
        "SELECT sku, (SELECT count(*) FROM shop.orders WHERE id > 99) AS c, (SELECT max(id) FROM shop.orders "
        "WHERE id > 99) AS m FROM depot.lines"
    ),
    "correlated scalar": (
        "SELECT c.id, (SELECT count(*) FROM shop.orders o WHERE o.customer = c.id) AS n, (SELECT sum(total) * 2 "
        "FROM shop.orders o "
        "WHERE c.id = o.customer AND o.state <> 'a') AS t, (SELECT array_agg(state) FROM shop.orders o WHERE "
        "o.customer = c.id) AS a "
        "FROM shop.customers c WHERE (SELECT count(*) + 1 FROM depot.lines l WHERE l.order_id = c.id) < 3"
    ),
    "correlated scalar in a condition": (
        "SELECT * FROM shop.orders o WHERE total > (SELECT avg(i.total) FROM shop.orders i WHERE i.customer = "
        "o.customer) OR total IS NULL"
    ),
    "scalar in having": (
        "SELECT sku, sum(n) AS s, (SELECT max(id) FROM shop.customers) AS m FROM depot.lines GROUP BY sku "
        "HAVING sum(n) > (SELECT avg(n) FROM depot.lines)"
    ),
    "scalar beside a window": (
        "SELECT id, rank() OVER (ORDER BY total) AS r, (SELECT count(*) FROM depot.lines l WHERE l.order_id = "
        "o.id) AS n FROM shop.orders o"
    ),
    "exists under or": (
        "SELECT id FROM shop.orders o WHERE state = 'a' OR NOT EXISTS (SELECT 1 FROM depot.lines l WHERE "
        "l.order_id = o.id) OR "
        "CASE WHEN EXISTS (SELECT 1 FROM shop.customers c WHERE c.id = o.customer AND c.city = 'b') THEN id > 3 END"
    ),
    "exists in select": (
        "SELECT id, EXISTS (SELECT 1 FROM depot.lines l WHERE l.order_id = o.id) AS e, CASE WHEN EXISTS (SELECT "
        "* FROM shop.customers "
        "WHERE city = 'b') THEN 1 END AS f FROM shop.orders o"
    ),
    "scalar in exists": (
        "SELECT id FROM shop.customers c WHERE EXISTS (SELECT 1 FROM shop.orders o WHERE o.customer = c.id AND "
        "o.total < "
        "(SELECT max(i.total) FROM shop.orders i WHERE i.state = o.state))"
    ),
    "cte used twice": (
        "WITH t AS (SELECT sku, n, row_number() OVER (PARTITION BY sku ORDER BY n) AS rn FROM depot.lines) "
        "SELECT a.sku, b.n FROM t a JOIN t b ON a.rn = b.rn + 1 AND a.sku = b.sku"
    ),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_tree_means_what_the_sql_means(spark: SparkSession, states: object, name: str) -> None:
    """Rows, duplicates, names and types, for two states of the relations that are evaluated at once."""
    check_same(spark, VIEWS[name])


def _random(spark: SparkSession, seeds: range) -> Mapping[str, int]:
    done: Counter[str] = Counter()
    for seed in seeds:
        sql = Statements(Random(seed), RELATIONS).statement(3)
        try:
            view = compile_view("v", sql, RELATIONS)
        except UserError as error:
            assert "over rows without a key" in error.message or "NOT IN" in error.message, (seed, sql, error)
            done["refused"] += 1
            continue
        if view.tree is None:
            done["flat"] += 1
            continue
        done["tree"] += 1
        try:
            check_same(spark, sql)
        except Exception as error:
            raise AssertionError((seed, sql)) from error
    return done


def test_random_statements(spark: SparkSession, states: object) -> None:
    """The same for statements that nobody chose."""
    done = _random(spark, range(SEEDS))
    assert done["tree"] > SEEDS // 2


@pytest.mark.slow
def test_many_random_statements(spark: SparkSession, states: object) -> None:
    """The same for many."""
    _random(spark, range(SEEDS, SLOW_SEEDS))


def test_groups_that_are_not_covered_are_left_out(spark: SparkSession, states: list[dict[str, Rows]]) -> None:
    """Only groups and partitions of the covered keys are evaluated, NULL being a key; and of a unit that covers "
    "all, all."""
    inner = "SELECT sku, n, count(*) AS c FROM depot.lines GROUP BY sku, n"
    sql = f"SELECT sku, n, c, row_number() OVER (PARTITION BY sku ORDER BY n) AS rn FROM ({inner}) t"
    view = check_same(spark, sql)
    assert view.tree is not None
    covered = {o.number: o.cover for o in operators(view.tree) if isinstance(o, (Group, Window))}
    assert list(map(len, covered.values())) == [1, 2]
    spark.sql(f"SELECT 0 AS {UNIT}, CAST(NULL AS STRING) AS r0c0").createOrReplaceTempView("keys_of_0")
    spark.sql(f"SELECT 1 AS {UNIT}").createOrReplaceTempView("units_covered")
    keys = (Keys("keys_of_0", ("r0c0",)), Keys("units_covered", ()))
    tables = _tables(spark, view)
    partly = Tables(tables.rows, tables.units, dict.fromkeys(covered, keys))
    rows = {tuple(row) for row in spark.sql(render(view.tree, view.outputs, partly)).collect()}
    whole = {tuple(row) for row in spark.sql(render(view.tree, view.outputs, tables)).collect()}
    assert rows == {row for row in whole if row[0] == 1 or row[1] is None}
    assert any(row[1] is None and row[0] == 0 for row in rows)
