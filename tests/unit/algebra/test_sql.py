"""What SQL compiles to: occurrences, equalities, condition, outputs, key and the text that Spark recomputes."""

from __future__ import annotations

import pytest

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view, referenced_relations
from strobe.algebra.sql_functions import ALLOWED, SYNTAX
from strobe.algebra.view import Equality, Output, View, snapshot_name
from strobe.errors import UserError


def relation(id_: str, columns: str, key: tuple[str, ...] = ()) -> RelationSchema:
    source, _, name = id_.partition(".")
    parsed = (column.partition(":") for column in columns.split())
    return RelationSchema(source, name, tuple(Column(name, type_) for name, _, type_ in parsed), key)


ORDERS = relation("shop.orders", "id:bigint customer:bigint placed:date state:string total:decimal(10,2)", ("id",))
CUSTOMERS = relation("shop.customers", "id:bigint name:string city:string", ("id",))
INVOICES = relation("billing.invoices", "id:int order_id:bigint amount:decimal(12,4) rate:double", ("id",))
LINES = relation("depot.main.lines", "order_id:bigint sku:string n:int wide:decimal(38,30)")
SEVERAL_ARGUMENTS = {"if", "dateadd", "date_add", "datediff", "date_diff", "position", "overlay"}
RELATIONS = {r.id: r for r in (ORDERS, CUSTOMERS, INVOICES, LINES)}


def view(sql: str) -> View:
    return compile_view("v", sql, RELATIONS)


def outputs(sql: str) -> list[tuple[str, str]]:
    return [(o.name, o.expression) for o in view(sql).outputs]


def test_the_example_of_the_contract() -> None:
    """The view of the public contract: equalities apart, used columns only, the rest as a condition."""
    v = view(
        "SELECT o.id, o.placed, c.name, i.amount FROM shop.orders o JOIN shop.customers c ON c.id = o.customer "
        "JOIN billing.invoices i ON i.order_id = o.id WHERE o.state = 'open'"
    )
    assert [(o.alias, o.relation.id, o.columns) for o in v.occurrences] == [
        ("o", "shop.orders", ("id", "customer", "placed", "state")),
        ("c", "shop.customers", ("id", "name")),
        ("i", "billing.invoices", ("order_id", "amount")),
    ]
    assert v.equalities == (Equality(1, "id", 0, "customer"), Equality(2, "order_id", 0, "id"))
    assert v.condition == "(r0c3 = 'open')"
    assert [(o.name, o.expression) for o in v.outputs] == [
        ("id", "r0c0"),
        ("placed", "r0c2"),
        ("name", "r1c1"),
        ("amount", "r2c1"),
    ]
    assert v.key == ()
    assert v.recompute_sql == (
        f"SELECT o.id, o.placed, c.name, i.amount FROM {snapshot_name(ORDERS)} o JOIN {snapshot_name(CUSTOMERS)} c "
        f"ON c.id = o.customer JOIN {snapshot_name(INVOICES)} i ON i.order_id = o.id WHERE o.state = 'open'"
    )


@pytest.mark.parametrize(
    "joined",
    [
        "shop.orders o JOIN shop.customers c ON o.customer = c.id",
        "shop.orders o INNER JOIN shop.customers c ON (o.customer == c.id)",
        "shop.orders o, shop.customers c WHERE o.customer = c.id",
        "shop.orders o CROSS JOIN shop.customers c WHERE ((o.customer) = (c.id))",
        "(SELECT id, customer AS k FROM shop.orders) o JOIN (SELECT id AS k, name FROM shop.customers) c USING (k)",
        "(SELECT id, customer AS k FROM shop.orders) o JOIN (SELECT id AS k, name FROM shop.customers) c ON o.k = c.k",
        "(shop.orders o JOIN shop.customers c ON o.customer = c.id)",
    ],
)
def test_every_spelling_of_a_join_gives_the_equality(joined: str) -> None:
    """Inner joins in every spelling, through subqueries too, are joined by the same equality."""
    v = view(f"SELECT o.id, c.name FROM {joined}")
    assert v.equalities == (Equality(0, "customer", 1, "id"),)
    assert v.condition is None
    assert v.outputs == (Output("id", "r0c0"), Output("name", "r1c1"))


@pytest.mark.parametrize(
    ("on", "condition"),
    [
        ("o.id <=> i.order_id", "(r0c0 <=> r1c0)"),
        ("i.rate = o.id", "(r1c0 = r0c0)"),
        ("o.id = i.order_id + 1", "(r0c0 = r1c0 + 1)"),
        ("o.id = i.order_id OR o.id = i.id", "(r0c0 = r1c1 OR r0c0 = r1c0)"),
        ("NOT o.id = i.order_id", "(NOT r0c0 = r1c0)"),
        ("o.id = o.customer AND i.id > 1", "(r0c0 = r0c1) AND (r1c0 > 1)"),
    ],
)
def test_other_conditions_stay_spark_text(on: str, condition: str) -> None:
    """What the driver does not compare as Spark does is left to Spark: no equality, and the user's own text."""
    v = view(f"SELECT 1 AS one FROM shop.orders o JOIN billing.invoices i ON {on}")
    assert (v.equalities, v.condition) == ((), condition)


def test_decimals_without_a_common_type_are_left_to_spark() -> None:
    """bigint = decimal(38,30) loses digits in Spark, so it is no equality of raw values; decimals that fit are."""
    assert view("SELECT o.id FROM shop.orders o, depot.main.lines l WHERE o.id = l.wide").equalities == ()
    joined = view("SELECT o.id FROM shop.orders o, billing.invoices i WHERE o.total = i.amount AND i.id = o.id")
    assert joined.equalities == (Equality(0, "total", 1, "amount"), Equality(1, "id", 0, "id"))


@pytest.mark.parametrize(
    ("where", "conditions"),
    [
        ("id BETWEEN 1 AND 3 AND total > 0", ["id BETWEEN 1 AND 3", "total > 0"]),
        ("id BETWEEN 1 AND 3 AND id BETWEEN 4 AND 5 AND true", ["id BETWEEN 1 AND 3", "id BETWEEN 4 AND 5", "true"]),
        ("(id > 1 AND (total > 0 AND id < 9))", ["id > 1", "total > 0", "id < 9"]),
        ("CASE WHEN id > 1 AND id < 3 THEN true END AND true", ["CASE WHEN id > 1 AND id < 3 THEN true END", "true"]),
        ("(id > 1) OR (total > 0) AND id < 9", ["(id > 1) OR (total > 0) AND id < 9"]),
        ("(id > 1) AND (total > 0)", ["id > 1", "total > 0"]),
        ("NOT id > 1 AND total > 0", ["NOT id > 1", "total > 0"]),
        ("NOT (id > 1 AND total > 0)", ["NOT (id > 1 AND total > 0)"]),
        ("if(id > 1 AND total > 0, true, false)", ["if(id > 1 AND total > 0, true, false)"]),
    ],
)
def test_conditions_are_split_at_their_top_only(where: str, conditions: list[str]) -> None:
    """AND is split where it joins conjuncts, not inside BETWEEN, CASE, calls, NOT or OR."""
    attributes = {"id": "r0c0", "total": "r0c1"}
    expected = " AND ".join(f"({c})" for c in conditions)
    for name, attribute in attributes.items():
        expected = expected.replace(name, attribute)
    assert view(f"SELECT id, total FROM shop.orders WHERE {where}").condition == expected


def test_inlined_expressions_are_parenthesised() -> None:
    """What a subquery computes is put in parentheses where it is used, a plain column is not."""
    sql = "SELECT t.x * 2 AS y, t.id FROM (SELECT id + 1 AS x, id FROM shop.orders WHERE id > 1) t WHERE t.x < 9"
    v = view(sql)
    assert v.outputs == (Output("y", "(r0c0 + 1) * 2"), Output("id", "r0c0"))
    assert v.condition == "(r0c0 > 1) AND ((r0c0 + 1) < 9)"


def test_text_survives_exactly() -> None:
    """Literals, casts and operators are the user's own characters, comments left out."""
    item = r"""concat('a\'b''c', "d\"", r'\d', X'1F', 1L, 1.50, 1e10, 2BD, .5, cast(id AS int), id::string, -7 div 2)"""
    ((_, text),) = outputs(f"SELECT {item} AS x FROM shop.orders")
    assert text == item.replace("id", "r0c0")
    ((_, text),) = outputs("SELECT id -- one, 'two\n + /* ; */ 1 AS x FROM shop.orders -- end")
    assert text.split() == ["r0c0", "+", "1"]


@pytest.mark.parametrize("name", sorted(ALLOWED - SYNTAX))
def test_every_argument_of_every_function_is_seen(name: str) -> None:
    """No function loses or changes an argument on the way, whatever the parser knows of it."""
    columns = ["o.id", "o.customer", "o.placed", "o.state"]
    for count in range(1, 5):
        try:
            ((_, text),) = outputs(f"SELECT {name}({', '.join(columns[:count])}) AS x FROM shop.orders o")
        except UserError as error:
            assert count != 1 or name in SEVERAL_ARGUMENTS, error
            continue
        assert text == f"{name}({', '.join(f'r0c{i}' for i in range(count))})"


def test_stars_are_expanded_in_sparks_order() -> None:
    """USING columns come once and first; a qualified star shows the columns of its relation."""
    using = "FROM depot.main.lines l JOIN (SELECT id, order_id, amount FROM billing.invoices) i USING (order_id)"
    assert [n for n, _ in outputs(f"SELECT * {using}")] == ["order_id", "sku", "n", "wide", "id", "amount"]
    assert [n for n, _ in outputs(f"SELECT i.* {using}")] == ["order_id", "id", "amount"]
    assert outputs(f"SELECT i.* {using}")[0] == ("order_id", "r1c1")
    assert outputs(f"SELECT order_id {using}")[0] == ("order_id", "r0c0")


def test_names_are_those_the_user_wrote() -> None:
    """Resolution ignores case; the output has the written case, a star the relation's."""
    assert [n for n, _ in outputs("SELECT O.ID, `PLACED`, State AS s FROM SHOP.Orders o")] == ["ID", "PLACED", "s"]
    assert [n for n, _ in outputs("SELECT * FROM shop.CUSTOMERS")] == ["id", "name", "city"]


def test_qualified_names_are_shortened_for_the_recomputation() -> None:
    """`shop.orders.id` resolves although Spark sees the relation under another name, and an alias is supplied."""
    v = view(
        "SELECT shop.orders.id, main.lines.n FROM shop.orders, depot.main.lines "
        "WHERE orders.id = depot.main.lines.order_id"
    )
    assert v.recompute_sql == (
        f"SELECT `orders`.id, `lines`.n FROM {snapshot_name(ORDERS)} AS `orders`, {snapshot_name(LINES)} AS `lines` "
        "WHERE orders.id = `lines`.order_id"
    )


def test_a_cte_used_twice_is_two_occurrences() -> None:
    """Each use of a CTE has occurrences of its own, with its own conditions."""
    cte = "WITH x(k) AS (SELECT id FROM shop.orders WHERE total > 0)"
    v = view(f"{cte} SELECT a.k, b.k AS l FROM x a JOIN x b ON a.k = b.k")
    assert len(v.occurrences) == 2
    assert v.equalities == (Equality(0, "id", 1, "id"),)
    assert v.condition == "(r0c1 > 0) AND (r1c1 > 0)"


def test_an_inner_cte_shadows_an_outer_one() -> None:
    """A name means the innermost WITH that defines it; a CTE does not see itself."""
    sql = (
        "WITH t AS (SELECT id FROM shop.orders) SELECT s.id, t.id AS o FROM "
        "(WITH t AS (SELECT id FROM shop.customers) SELECT id FROM t) s, t"
    )
    assert [o.relation.id for o in view(sql).occurrences] == ["shop.customers", "shop.orders"]
    assert referenced_relations(sql) == ["shop.orders", "shop.customers"]


def test_an_occurrence_without_columns_takes_its_key() -> None:
    """A relation that only multiplies rows is still there, with one column."""
    v = view("SELECT c.name FROM shop.customers c, shop.orders, depot.main.lines")
    assert [o.columns for o in v.occurrences] == [("name",), ("id",), ("order_id",)]


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT o.id, c.id AS c FROM shop.orders o JOIN shop.customers c ON o.customer = c.id", ("id", "c")),
        ("SELECT o.id, o.customer FROM shop.orders o JOIN shop.customers c ON o.customer = c.id", ("id", "customer")),
        ("SELECT o.id FROM shop.orders o JOIN shop.customers c ON o.customer = c.id", ()),
        ("SELECT o.id + 0 AS id, c.id AS c FROM shop.orders o, shop.customers c", ()),
        ("SELECT i.id, i.order_id FROM shop.orders o JOIN billing.invoices i ON i.order_id = o.id", ("id", "order_id")),
        ("SELECT o.id, o.state FROM shop.orders o JOIN billing.invoices i ON i.id = o.id", ()),
        ("SELECT a.id, b.state FROM shop.orders a, shop.orders b", ()),
        ("SELECT a.id, b.id AS b FROM shop.orders a, shop.orders b", ("id", "b")),
        ("SELECT o.id, l.sku FROM shop.orders o, depot.main.lines l", ()),
        ("SELECT t.k FROM (SELECT id AS k FROM shop.orders) t", ("k",)),
    ],
)
def test_key(sql: str, key: tuple[str, ...]) -> None:
    """The key is there when every occurrence's key is plainly projected, or equal to a projected column of its type."""
    assert view(sql).key == key


def test_a_later_item_may_use_an_earlier_alias() -> None:
    """As in Spark, an alias can be used further right unless a column has its name."""
    assert outputs("SELECT id + 1 AS x, x * 2 AS y, total AS id, id AS z FROM shop.orders") == [
        ("x", "r0c0 + 1"),
        ("y", "(r0c0 + 1) * 2"),
        ("id", "r0c1"),
        ("z", "r0c0"),
    ]


def test_names_that_are_keywords() -> None:
    """A word is a clause only where a clause can stand."""
    inner = "SELECT id AS `left`, 1 AS window, 2 AS offset, 3 AS `end` FROM shop.orders"
    sql = f"SELECT t.left, window, offset AS `limit`, t.end FROM ({inner}) t WHERE window = 1 AND t.end > 2"
    assert [n for n, _ in outputs(sql)] == ["left", "window", "limit", "end"]


def test_compiling_is_deterministic_and_views_are_values() -> None:
    """The same text gives an equal view with an equal hash; another text another."""
    sql = "SELECT o.id, c.name FROM shop.orders o JOIN shop.customers c ON o.customer = c.id"
    assert view(sql) == view(sql)
    assert hash(view(sql)) == hash(view(sql))
    assert view(sql) != view(sql + " WHERE o.id > 1")


def test_referenced_relations() -> None:
    """The relations a text names, each once and in order, without CTE names, needing no schema."""
    sql = "WITH a AS (SELECT * FROM x.b JOIN y.s.c USING (k)) SELECT * FROM a, (SELECT 1 AS o FROM x.b), z.a"
    assert referenced_relations(sql) == ["x.b", "y.s.c", "z.a"]


def test_text_outside_the_basic_plane_keeps_places() -> None:
    """Offsets are characters, also behind an emoji."""
    assert outputs("SELECT '🙂🙂' || state AS x, id FROM shop.orders")[1] == ("id", "r0c0")
    assert outputs("SELECT '🙂🙂' || state AS x FROM shop.orders") == [("x", "'🙂🙂' || r0c0")]


def test_a_column_that_is_grouped_by_keeps_its_name() -> None:
    """Without an alias, as any other; what is computed from it needs one."""
    grouped = "SELECT o.id, customer, count(*) AS n FROM shop.orders o GROUP BY o.id, customer"
    assert [name for name, _ in outputs(grouped)] == ["id", "customer", "n"]


def test_a_window_that_nobody_looks_at_is_left_out() -> None:
    """With the columns that only it uses."""
    inner = "SELECT id, total + 1 AS t, row_number() OVER (PARTITION BY state ORDER BY id) AS n FROM shop.orders"
    found = view(f"SELECT t FROM ({inner}) x UNION ALL SELECT id FROM shop.customers")
    assert found.occurrences[0].columns == ("total",)
