"""What is not supported is refused with the construct, its place in the text and what to write instead."""

from __future__ import annotations

import re

import pytest
from paths import ROOT

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view, referenced_relations
from strobe.algebra.sql_functions import ALLOWED, VOLATILE
from strobe.errors import UserError


def relation(id_: str, columns: str, key: tuple[str, ...] = ()) -> RelationSchema:
    source, _, name = id_.partition(".")
    parsed = (column.partition(":") for column in columns.split())
    return RelationSchema(source, name, tuple(Column(name, type_) for name, _, type_ in parsed), key)


RELATIONS = {
    r.id: r
    for r in (
        relation("shop.orders", "id:bigint customer:bigint placed:date state:string total:decimal(10,2)", ("id",)),
        relation("shop.customers", "id:bigint name:string city:string", ("id",)),
        relation("billing.invoices", "id:int order_id:bigint amount:decimal(12,4)", ("id",)),
    )
}
ONE, TWO = "FROM shop.orders o", "FROM shop.orders o, shop.customers c"


def refused(sql: str) -> UserError:
    with pytest.raises(UserError) as caught:
        compile_view("v", sql.replace("¶", ""), RELATIONS)
    return caught.value


# The sign ¶ stands before the token that the error must point at.
REFUSED = [
    ("SELECT ¶+o.id AS x FROM shop.orders o", "a plus sign before an expression"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c ON ¶+c.id = o.customer", "a plus sign before"),
    ("SELECT o.id FROM shop.orders o WHERE abs(¶+o.id) > 1", "a plus sign before an expression"),
    # aggregates and what goes with them
    (f"SELECT o.id {ONE} WHERE ¶count(*) > 1", "aggregate count"),
    (f"SELECT ¶first(o.total) AS n {ONE}", "first(), which takes a value by chance"),
    (f"SELECT o.customer, ¶any_value(o.total) AS n {ONE} GROUP BY o.customer", "by chance"),
    (f"SELECT ¶mode(o.total) AS n {ONE}", "by chance"),
    (f"SELECT ¶approx_count_distinct(o.total) AS n {ONE}", "approx_count_distinct"),
    (f"SELECT sum(¶sum(o.total)) AS n {ONE}", "inside sum()"),
    (f"SELECT ¶sum(split(o.state, 'a')[0]) AS n {ONE}", "type of the argument"),
    (f"SELECT ¶o.id, count(*) AS n {ONE}", "neither grouped by nor aggregated"),
    (f"SELECT o.id + ¶o.customer AS x {ONE} GROUP BY o.id", "neither grouped by nor aggregated"),
    (f"SELECT o.id {ONE} GROUP BY ¶2", "no column 2"),
    (f"SELECT o.id {ONE} GROUP BY ¶count(*)", "cannot stand in GROUP BY"),
    (f"SELECT o.id {ONE} GROUP BY ¶ROLLUP (o.id)", "ROLLUP"),
    (f"SELECT o.id {ONE} GROUP BY o.id ¶WITH CUBE", "CUBE"),
    (f"SELECT o.id {ONE} GROUP BY ¶ALL", "GROUP BY ALL"),
    (f"SELECT o.id {ONE} ¶GROUPING SETS ((o.id))", "GROUPING SETS"),
    # joins
    ("SELECT o.id FROM shop.orders o ¶NATURAL JOIN shop.customers c", "natural join"),
    ("SELECT o.id FROM shop.orders o LEFT JOIN shop.customers c", "needs a condition"),
    ("SELECT o.id FROM shop.orders o ¶OUTER JOIN shop.customers c ON true", "without a side"),
    ("SELECT ¶c.id FROM shop.orders o LEFT SEMI JOIN shop.customers c ON c.id = o.customer", "unknown column c.id"),
    ("SELECT o.id FROM shop.orders o JOIN ¶LATERAL (SELECT 1 AS x FROM shop.orders) t", "lateral"),
    ("SELECT o.id FROM shop.orders o, ¶LATERAL (SELECT 1 AS x FROM shop.orders) t", "lateral"),
    (f"SELECT o.id {ONE} LATERAL VIEW ¶json_tuple(o.state, 'a') t AS x", "generator json_tuple"),
    # rows
    (f"SELECT o.id {ONE} ¶UNION ALL SELECT c.id, c.name FROM shop.customers c", "1 and 2 columns"),
    (f"SELECT o.id {ONE} WHERE id = 1 ¶EXCEPT SELECT c.id FROM shop.customers c", "set operation"),
    ("SELECT id FROM shop.orders ¶INTERSECT SELECT id FROM shop.customers", "set operation"),
    ("SELECT id FROM shop.orders ¶MINUS SELECT id FROM shop.customers", "set operation"),
    (f"SELECT o.id {ONE} ¶ORDER BY o.id", "order"),
    (f"SELECT o.id {ONE} ¶SORT BY o.id", "order"),
    (f"SELECT o.id {ONE} ¶LIMIT 3", "LIMIT"),
    (f"SELECT o.id {ONE} WHERE o.id > 1 ¶OFFSET 3", "OFFSET"),
    (f"SELECT o.id {ONE} ¶TABLESAMPLE (10 PERCENT)", "sample"),
    ("SELECT id FROM shop.orders ¶TABLESAMPLE (10 PERCENT)", "sample"),
    (f"SELECT o.id {ONE} ¶PIVOT (sum(total) FOR state IN ('a'))", "PIVOT"),
    (f"SELECT ¶/*+ BROADCAST(o) */ o.id {ONE}", "hint"),
    ("SELECT id FROM shop.orders ¶VERSION AS OF 3", "time travel"),
    ("SELECT id FROM shop.orders ¶TIMESTAMP AS OF '2024-01-01'", "time travel"),
    ("SELECT id FROM shop.orders ¶FOR VERSION AS OF 3", "time travel"),
    # subqueries in expressions
    (f"SELECT o.id {ONE} WHERE o.id = 1 OR o.id IN (¶SELECT id FROM shop.customers)", "subquery"),
    (f"SELECT o.id {ONE} WHERE id = 1 OR ¶EXISTS (SELECT 1 FROM shop.customers c WHERE c.id > o.id)", "more than"),
    (f"SELECT o.id {ONE} WHERE id = 1 OR EXISTS (SELECT ¶x FROM shop.customers)", "unknown column x"),
    (f"SELECT ¶(SELECT 1 FROM shop.customers) AS x {ONE}", "without an aggregate"),
    (f"SELECT ¶(SELECT max(id) FROM shop.customers GROUP BY city) AS x {ONE}", "groups or combines"),
    (f"SELECT ¶(SELECT max(id), 1 FROM shop.customers) AS x {ONE}", "one column, not 2"),
    (f"SELECT ¶(SELECT max(id) FROM shop.customers c WHERE c.id < o.id) AS x {ONE}", "more than equalities"),
    (f"SELECT (SELECT max(¶o.id) FROM shop.customers c) AS x {ONE}", "unknown column o.id"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = (¶SELECT max(id) FROM shop.orders)", "subquery"),
    (f"SELECT o.id {ONE} WHERE ¶o.customer NOT IN (SELECT id FROM shop.customers)", "NOT IN"),
    (f"SELECT o.id {ONE} WHERE ¶o.id IN (SELECT id, name FROM shop.customers)", "has 2"),
    # functions
    (f"SELECT ¶row_number() OVER (PARTITION BY id) AS n {ONE}", "needs an order"),
    (f"SELECT ¶row_number() AS n {ONE}", "needs OVER"),
    (f"SELECT ¶abs(o.id) OVER (PARTITION BY id) AS n {ONE}", "window"),
    (f"SELECT o.id {ONE} WHERE ¶row_number() OVER (ORDER BY id) = 1", "in WHERE"),
    (f"SELECT ¶last_value(o.id) OVER (ORDER BY state) AS n {ONE}", "RANGE frame"),
    (f"SELECT sum(o.id) OVER ¶w AS n {ONE}", "unknown window w"),
    (f"SELECT ¶count(DISTINCT o.id) OVER (PARTITION BY state) AS n {ONE}", "DISTINCT in a window"),
    (f"SELECT ¶rand() AS r {ONE}", "volatile"),
    (f"SELECT o.id {ONE} WHERE o.placed < ¶current_date", "volatile"),
    (f"SELECT o.id {ONE} WHERE o.placed < ¶current_date()", "volatile"),
    (f"SELECT ¶current_timestamp AS t {ONE}", "volatile"),
    (f"SELECT ¶unix_timestamp() AS t {ONE}", "volatile"),
    (f"SELECT o.id {ONE} WHERE o.placed < date ¶'today'", "present moment"),
    (f"SELECT o.id {ONE} WHERE o.placed < ¶'now'", "present moment"),
    (f"SELECT cast(¶' Tomorrow UTC' AS timestamp) AS t {ONE}", "present moment"),
    (f"SELECT ¶my_udf(o.id) AS x {ONE}", "unknown function my_udf"),
    (f"SELECT ¶my.udf(o.id) AS x {ONE}", "my.udf() is unknown"),
    (f"SELECT ¶`my udf`(o.id) AS x {ONE}", "unknown function"),
    (f"SELECT 1 + ¶explode(array(o.id)) AS x {ONE}", "generator"),
    (f"SELECT ¶transform(array(o.id), x -> x + 1) AS x {ONE}", "higher-order"),
    (f"SELECT ¶map('a', 1) AS x {ONE}", "unknown function map"),
    (f"SELECT o.id {ONE} WHERE o.id = ¶:p", "parameter"),
    (f"SELECT o.id {ONE} WHERE o.id = ¶?", "parameter"),
    (f"SELECT o.id {ONE} WHERE o.id = ¶${{x}}", "substituted"),
    (f"SELECT o.id {ONE} WHERE o.id = ¶@x", "parameter"),
    (f"SELECT ¶o.name.first.of.all AS x {ONE}", "not supported"),
    (f"SELECT ¶o.state COLLATE utf8_lcase AS x {ONE}", "collation"),
    # sources of rows
    ("SELECT id FROM ¶range(10)", "table-valued function"),
    ("SELECT id FROM ¶explode(array(1))", "table-valued function"),
    ("SELECT a FROM ¶VALUES (1) AS t(a)", "inline table"),
    ("¶SELECT 1 AS x", "without FROM"),
    ("SELECT x.y FROM (¶SELECT 1 AS y) x", "without FROM"),
    ("SELECT id FROM ¶orders", "no source before it"),
    ("SELECT id FROM ¶views.v", "views on views"),
    ("SELECT id FROM ¶shop.order", "source shop has no table order"),
    ("SELECT id FROM ¶store.orders", "there is no source store, or it has no table"),
    # statements
    ("¶INSERT INTO shop.orders SELECT 1", "one SELECT"),
    ("¶FROM shop.orders SELECT id", "one SELECT"),
    ("SELECT id FROM shop.orders; ¶SELECT 1", "second statement"),
    ("WITH ¶RECURSIVE t AS (SELECT 1) SELECT * FROM t", "RECURSIVE"),
    ("WITH t AS (SELECT id FROM shop.orders), ¶T AS (SELECT id FROM shop.orders) SELECT * FROM t", "twice"),
    ("WITH t AS (¶INSERT INTO x SELECT 1) SELECT * FROM t", "not a SELECT"),
    ("SELECT id FROM shop.orders o JOIN shop.customers c JOIN billing.invoices i ON true ¶ON true", "not expected"),
    # names
    (f"SELECT ¶o.idd {ONE}", "unknown column o.idd"),
    (f"SELECT ¶x.id {ONE}", "unknown column x.id"),
    (f"SELECT ¶id {TWO}", "ambiguous"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c ON ¶id = 1", "ambiguous"),
    ("SELECT o.id FROM shop.orders o JOIN shop.customers c USING (¶name)", "unknown column name"),
    ("SELECT ¶orders.id FROM shop.orders o", "unknown column orders.id"),
    (f"SELECT ¶x.* {ONE}", "unknown alias x"),
    ("SELECT o.id FROM shop.orders o, ¶shop.customers O", "used twice in one FROM"),
    ("SELECT ¶x FROM (SELECT id FROM shop.orders) t(y)", "unknown column x"),
    ("SELECT * FROM ¶(SELECT id FROM shop.orders) t(y, z)", "2 names for 1 columns"),
    (f"SELECT o.id, ¶o.customer AS ID {ONE}", "output column ID is there twice"),
    (f"SELECT ¶* {TWO}", "twice"),
    (f"SELECT ¶o.id + 1 {ONE}", "has no name"),
    ("SELECT * FROM (SELECT ¶id + 1 FROM shop.orders) t", "has no name"),
    (f"SELECT o.id, ¶o.state AS `a b` {ONE}", "'a b'"),
    (f"SELECT ¶o.state AS `a=b` {ONE}", "'a=b'"),
    (f"SELECT ¶o.state AS _copy_1 {ONE}", "_copy_1"),
    (f"SELECT * ¶EXCEPT (id) {ONE}", "star"),
    (f"SELECT o.id AS ¶größe {ONE}", "backticks"),
    ("SELECT ¶2nd.id FROM shop.orders `2nd`", "backticks"),
    (f"SELECT o.id {ONE} WHERE", "missing"),
    ("SELECT id FROM shop.orders CROSS", "ends too early"),
    (f"SELECT ¶if(o.id) AS x {ONE}", "cannot be read"),
    (f"SELECT '¶${{env:HOME}}' AS x {ONE}", "substituted"),
    (f"SELECT ¶0x1F AS x {ONE}", "number"),
    (f"SELECT ¶9e AS x {ONE}", "number"),
    (f"SELECT ¶1_000 AS x {ONE}", ""),
    (f"SELECT o.id {ONE} WHERE o.state = ¶'open", "quote"),
    (f"SELECT struct(o.id AS x) AS s {ONE}", "Alias"),
    (f"SELECT datediff(¶o.state, o.placed, o.placed) AS x {ONE}", "understood"),
    ("SELECT id FROM shop.orders WHERE 1 = any(¶1)", "Any"),
]


@pytest.mark.parametrize(("sql", "said"), REFUSED, ids=[sql[:70] for sql, _ in REFUSED])
def test_refused_with_place_and_fix(sql: str, said: str) -> None:
    """Each construct is named, pointed at by line and column, and comes with something to do."""
    error = refused(sql)
    assert said.lower() in error.message.lower()
    assert error.fix
    assert error.where.startswith("view v: line 1, column ")
    if "¶" in sql:
        assert error.where == f"view v: line 1, column {sql.index('¶') + 1}", error


def test_place_in_a_text_of_several_lines() -> None:
    """Lines and columns count from one, in the file's own name where it is given."""
    with pytest.raises(UserError) as caught:
        compile_view("v", "SELECT o.id\nFROM shop.orders o\nWHERE  o.idd > 1", RELATIONS, where="views/v.sql")
    assert caught.value.where == "views/v.sql: line 3, column 8"
    assert "o.id" in caught.value.fix


def test_everything_that_is_refused_is_named_at_once() -> None:
    """One error has all obstacles of a view, and none that only follows from another."""
    error = refused(
        "WITH t AS (SELECT now() AS moment, id FROM shop.orders LIMIT 3) SELECT t.moment, t.id, rand() AS r, "
        "my_udf(c.name) AS f FROM t JOIN shop.customers c ON c.id = t.id AND c.city = uuid() WHERE c.idd = 1 AND t.id "
        "IN (SELECT 1, 2 FROM shop.orders) EXCEPT SELECT 1, 2, 3, 4 FROM shop.orders ORDER BY 1"
    )
    said = [each.message for each in error.each]
    for word in ("LIMIT", "ordering", "set operation", "now()", "uuid()", "rand()", "my_udf()", "IN needs one column"):
        assert sum(word in message for message in said) == 1, (word, said)
    assert len(said) == 8
    assert all(each.where.startswith("view v: line 1, column ") and each.fix for each in error.each)
    assert str(error).count("view v: line 1") == 8


def test_candidates_are_named() -> None:
    """An ambiguous column names its candidates, an unknown relation its neighbours."""
    assert "o.id or c.id" in refused(f"SELECT id {TWO}").fix
    assert "Did you mean shop.orders?" in refused("SELECT id FROM shop.order").fix
    assert "billing" in refused("SELECT id FROM biling.invoices").fix.partition("?")[0]
    assert "shop.orders" in refused("SELECT id FROM orders").fix
    assert "o.customer" in refused(f"SELECT custmer {ONE}").fix


@pytest.mark.parametrize("name", sorted(VOLATILE))
def test_volatile_functions_are_off_the_list(name: str) -> None:
    """No function whose value depends on anything but its arguments is allowed."""
    assert name not in ALLOWED
    assert "volatile" in refused(f"SELECT {name}() AS x FROM shop.orders").message


def test_the_reference_lists_every_function() -> None:
    """docs/sql.md names exactly the functions that are allowed."""
    reference = (ROOT / "docs" / "sql.md").read_text(encoding="utf-8")
    assert set(re.findall(r"`(\w+)`", reference.split("## Functions")[1])) == ALLOWED


@pytest.mark.parametrize(
    "sql", ["", " -- nothing\n", ";", "SELECT", "SELECT id FROM", "WITH", "WITH a AS (SELECT", "SELECT id FROM shop."]
)
def test_unfinished_texts(sql: str) -> None:
    """A text that stops anywhere is an error of the user's, never a crash."""
    assert refused(sql).fix


FLAT = (
    "WITH t(a, b) AS (SELECT id, CASE WHEN total > 1 THEN 'x' END FROM shop.orders WHERE id IN (1, 2)) SELECT t.*, "
    "upper(c.name) AS n FROM t JOIN (shop.customers AS c) ON t.a = c.id AND c.name BETWEEN 'a' AND 'b' "
    "WHERE t.b[0] = 1"
)
TREE = (
    "SELECT o.customer, upper(x) AS u, sum(o.total) FILTER (WHERE o.id > 1) AS s, rank() OVER (PARTITION BY "
    "customer ORDER BY "
    "count(*) DESC) AS r FROM shop.orders o LEFT JOIN shop.customers c ON c.id = o.customer LATERAL VIEW explode(split("
    "c.name, 'a')) t AS x WHERE NOT EXISTS (SELECT 1 FROM billing.invoices i WHERE i.order_id = o.id) AND "
    "o.total > (SELECT "
    "avg(total) FROM shop.orders) GROUP BY 1, upper(x) HAVING count(*) > 1 UNION SELECT id, city, 1, 2 FROM "
    "shop.customers"
)


@pytest.mark.parametrize("sql", [FLAT, TREE], ids=["flat", "tree"])
def test_every_prefix_and_deletion_is_compiled_or_refused(sql: str) -> None:
    """Whatever is cut out of a view's text, the result is a view or a `UserError`."""
    compile_view("v", sql, RELATIONS)
    for start in range(len(sql)):
        for text in (sql[:start], sql[:start] + sql[start + 3 :]):
            try:
                compile_view("v", text, RELATIONS)
                referenced_relations(text)
            except UserError:
                pass
