"""Trees that SQL compiles to: their shape, by which columns rows can be found, and what is certain of their rows."""

from __future__ import annotations

from typing import TypeVar

import pytest

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view, referenced_relations
from strobe.algebra.tree import (
    UNIT,
    Exists,
    Explode,
    Filter,
    Group,
    Join,
    JoinKind,
    Operator,
    Pair,
    Project,
    Scan,
    Union,
    Window,
    operators,
)
from strobe.algebra.view import View, snapshot_name


def relation(id_: str, columns: str, key: tuple[str, ...] = ()) -> RelationSchema:
    source, _, name = id_.partition(".")
    parsed = (column.partition(":") for column in columns.split())
    return RelationSchema(source, name, tuple(Column(name, type_) for name, _, type_ in parsed), key)


ORDERS = relation("shop.orders", "id:bigint customer:bigint placed:date state:string total:decimal(10,2)", ("id",))
CUSTOMERS = relation("shop.customers", "id:bigint name:string city:string", ("id",))
LINES = relation("depot.lines", "order_id:bigint sku:string n:int price:double", ())
Kind = TypeVar("Kind", bound=Operator)
RELATIONS = {r.id: r for r in (ORDERS, CUSTOMERS, LINES)}


def view(sql: str) -> View:
    return compile_view("v", sql, RELATIONS)


def tree(sql: str) -> Operator:
    found = view(sql).tree
    assert found is not None
    return found


def only(kind: type[Kind], sql: str) -> Kind:
    (found,) = (o for o in operators(tree(sql)) if isinstance(o, kind))
    return found


def shape(operator: Operator) -> str:
    """`Filter(Scan)`."""
    inside = ", ".join(map(shape, operator.children))
    return type(operator).__name__ + (f"({inside})" if inside else "")


def test_a_view_of_inner_joins_alone_has_no_tree() -> None:
    """However it is nested, and with DISTINCT it has one."""
    flat = (
        "SELECT t.id FROM (SELECT o.id FROM shop.orders o JOIN shop.customers c ON c.id = o.customer) t WHERE t.id > 1"
    )
    assert view(flat).tree is None
    assert view(flat.replace("SELECT", "SELECT DISTINCT", 1)).tree is not None


def test_a_left_join() -> None:
    """Conditions on one side stand directly on its relation, where that means the same; the right side is padded."""
    v = view(
        "SELECT o.id, c.name FROM shop.orders o LEFT JOIN shop.customers c ON c.id = o.customer AND c.city = 'a' "
        "AND o.total > 1 WHERE o.state = 'open' AND c.name IS NULL"
    )
    assert v.tree is not None
    assert shape(v.tree) == "Filter(Join(Filter(Scan), Filter(Scan)))"
    join = only(Join, v.sql)
    assert (join.kind, join.pairs, join.condition) == (JoinKind.LEFT, (Pair("r0c1", "r1c0"),), "(r0c3 > 1)")
    assert [o.condition for o in operators(v.tree) if isinstance(o, Filter)] == [
        "r1c1 IS NULL",
        "r0c2 = 'open'",
        "r1c2 = 'a'",
    ]
    assert join.raw == {*join.left.columns, *join.right.columns}
    assert join.padded == set(join.right.columns)
    assert (v.equalities, v.condition, v.key) == ((), None, ("id",))
    assert [(o.name, o.expression) for o in v.outputs] == [("id", "r0c0"), ("name", "r1c1")]


def test_a_right_join_is_a_left_one_mirrored() -> None:
    """Its columns stay in the order in which they are written."""
    v = view("SELECT * FROM (SELECT customer FROM shop.orders) o RIGHT JOIN shop.customers c ON c.id = o.customer")
    join = only(Join, v.sql)
    assert (join.kind, join.pairs) == (JoinKind.LEFT, (Pair("r1c0", "r0c0"),))
    assert [o.name for o in v.outputs] == ["customer", "id", "name", "city"]


def test_what_a_padded_side_computes_is_computed_below_the_join() -> None:
    """Otherwise it would have a value where there is no row."""
    sql = (
        "SELECT o.id, c.y FROM shop.orders o LEFT JOIN (SELECT id, coalesce(name, 'x') AS y FROM shop.customers) c "
        "ON c.id = o.customer"
    )
    assert shape(tree(sql)) == "Join(Scan, Project(Scan))"


def test_the_column_of_using() -> None:
    """Of LEFT it is the left one, of RIGHT the right one, of FULL the one that is there: raw, and not padded."""
    sides = "(SELECT customer AS id, total FROM shop.orders) o {} JOIN shop.customers c USING (id)"
    assert view(f"SELECT id FROM {sides.format('LEFT')}").outputs[0].expression == "r0c0"
    assert view(f"SELECT id FROM {sides.format('RIGHT')}").outputs[0].expression == "r1c0"
    full = only(Join, f"SELECT id, o.id AS a FROM {sides.format('FULL')}")
    ((merged),) = full.merged
    assert (merged.left, merged.right) == ("r0c0", "r1c0")
    assert merged.name in full.raw - full.padded
    assert full.padded == {"r0c0", "r1c0"}


def test_exists_and_in() -> None:
    """What the subquery says of the query around it are pairs and a condition; the rest stays inside."""
    exists = only(
        Exists,
        "SELECT o.id FROM shop.orders o WHERE NOT EXISTS (SELECT 1 FROM depot.lines l WHERE o.id = l.order_id AND "
        "l.n > o.total AND l.sku = 'a') AND o.state = 'x'",
    )
    assert exists.negated
    assert (exists.pairs, exists.condition) == ((Pair("r0c0", "r1c0"),), "(r1c2 > r0c2)")
    assert shape(exists) == "Exists(Filter(Scan), Filter(Scan))"
    isin = only(Exists, "SELECT id FROM shop.orders WHERE customer IN (SELECT id + 1 FROM shop.customers)")
    assert (isin.pairs, isin.condition, isin.negated) == ((), "(r0c1 = (r1c0 + 1))", False)


@pytest.mark.parametrize(
    "where",
    [
        "id NOT IN (SELECT id FROM shop.customers)",
        "NOT id IN (SELECT id FROM shop.customers)",
        "customer IS NOT NULL AND NOT (customer IN (SELECT order_id FROM depot.lines WHERE order_id IS NOT NULL))",
        "customer NOT IN (SELECT order_id FROM depot.lines WHERE order_id IS NOT NULL) AND customer IS NOT NULL",
        "lower(state) IS NOT NULL AND lower(state) NOT IN (SELECT l FROM (SELECT sku AS l FROM depot.lines) t "
        "WHERE l IS NOT NULL)",
    ],
)
def test_not_in_where_null_is_impossible(where: str) -> None:
    """Of key columns, and of what a condition says is not NULL, wherever it stands."""
    if where.startswith("lower"):
        where = where.replace("lower(state)", "t.s")
        assert only(Exists, f"SELECT s FROM (SELECT lower(state) AS s FROM shop.orders) t WHERE {where}").negated
    else:
        assert only(Exists, f"SELECT id FROM shop.orders WHERE {where}").negated


def test_union() -> None:
    """A column is raw where it is in every branch, unless types differ; UNION is the groups of all columns."""
    union = only(
        Union,
        "SELECT id, total, state || '' AS s FROM shop.orders UNION ALL SELECT order_id, n, sku FROM depot.lines "
        "UNION ALL SELECT id, id, city FROM shop.customers",
    )
    assert len(union.branches) == 3
    assert [name for name, _ in union.outputs][:1] == list(union.raw)
    assert view("SELECT id FROM shop.orders UNION SELECT id FROM shop.customers").key == ("id",)
    assert shape(tree("SELECT id FROM shop.orders UNION SELECT id FROM shop.orders")) == "Group(Union(Scan, Scan))"


def test_groups() -> None:
    """Groups are found by raw columns that nothing padded; an aggregate that nobody uses is left out."""
    group = only(
        Group,
        "SELECT t.c, t.n FROM (SELECT customer AS c, upper(state) AS u, count(*) AS n, max(total) AS m FROM "
        "shop.orders "
        "GROUP BY 1, u) t",
    )
    assert group.by[0] == "r0c0"
    assert group.cover == ("r0c0",)
    assert [o.expression for o in group.outputs] == ["count(*)"]
    assert shape(group) == "Group(Project(Scan))"
    padded = only(
        Group,
        "SELECT c.city, count(*) AS n FROM shop.orders o LEFT JOIN shop.customers c ON c.id = o.customer GROUP "
        "BY c.city",
    )
    assert padded.by == ("r1c1",)
    assert padded.cover == ()
    assert only(Group, "SELECT count(*) AS n FROM shop.orders").by == ()


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, count(*) AS n FROM shop.orders GROUP BY id", ("id",)),
        ("SELECT customer, count(*) AS n FROM shop.orders GROUP BY customer", ()),
        ("SELECT customer, count(*) AS n FROM shop.orders WHERE customer IS NOT NULL GROUP BY 1", ("customer",)),
        ("SELECT count(*) AS n FROM shop.orders GROUP BY id", ()),
        ("SELECT o.id FROM shop.orders o LEFT JOIN shop.customers c ON c.id = o.customer", ("id",)),
        ("SELECT o.id FROM shop.orders o LEFT JOIN shop.customers c ON c.id <= o.customer", ()),
        ("SELECT o.id FROM shop.orders o LEFT JOIN depot.lines l ON l.order_id = o.id", ()),
        ("SELECT o.id, c.id AS c FROM shop.orders o FULL JOIN shop.customers c ON c.id = o.customer", ()),
        ("SELECT id FROM shop.orders UNION ALL SELECT id FROM shop.customers", ()),
        ("SELECT id FROM shop.orders LATERAL VIEW explode(array(1, 2)) t AS x", ()),
        ("SELECT id, rank() OVER (ORDER BY total) AS r FROM shop.orders", ("id",)),
        ("SELECT DISTINCT id FROM shop.orders", ("id",)),
        ("SELECT DISTINCT sku FROM depot.lines", ()),
        ("SELECT id FROM shop.orders WHERE EXISTS (SELECT 1 FROM depot.lines)", ("id",)),
    ],
)
def test_key_of_a_tree(sql: str, key: tuple[str, ...]) -> None:
    """Only what is certain to be there once, and never NULL."""
    assert view(sql).key == key


def test_windows() -> None:
    """One operator for each PARTITION BY; ties are broken by the key of the rows."""
    v = view(
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY placed DESC) AS a, rank() OVER (PARTITION BY "
        "customer ORDER BY placed) AS b, sum(total) OVER (PARTITION BY upper(state)) AS c FROM shop.orders"
    )
    assert v.tree is not None
    first, second = (o for o in operators(v.tree) if isinstance(o, Window))
    assert [o.expression for o in second.outputs] == [
        f"row_number() OVER (PARTITION BY {UNIT}, r0c1 ORDER BY r0c2 DESC, r0c0)",
        f"rank() OVER (PARTITION BY {UNIT}, r0c1 ORDER BY r0c2)",
    ]
    assert (first.cover, second.cover) == ((), ("r0c1",))
    assert {first.number, second.number} == {0, 1}
    assert v.recompute_sql == (
        "SELECT id, row_number() OVER (PARTITION BY customer ORDER BY placed DESC, `orders`.`id`) AS a, rank() OVER "
        "(PARTITION BY customer ORDER BY placed) AS b, sum(total) OVER (PARTITION BY upper(state)) AS c FROM "
        f"{snapshot_name(ORDERS)} AS `orders`"
    )


@pytest.mark.parametrize(
    ("over", "said"),
    [
        ("row_number() OVER (ORDER BY n)", "(ORDER BY n, `l`.`order_id`, `l`.`sku`)"),
        ("lag(n) OVER (PARTITION BY sku ORDER BY n)", "ORDER BY n, `l`.`order_id`)"),
        ("sum(n) OVER (ORDER BY n ROWS 1 PRECEDING)", "ORDER BY n , `l`.`order_id`, `l`.`sku` ROWS 1 PRECEDING)"),
        ("sum(n) OVER (ORDER BY n)", "(ORDER BY n)"),
        ("dense_rank() OVER (ORDER BY n)", "(ORDER BY n)"),
        ("first_value(n) OVER w", "OVER (ORDER BY n, `l`.`order_id`, `l`.`sku`)"),
        ("rank() OVER w", "rank() OVER w"),
        (
            "sum(n) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
            "ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)",
        ),
    ],
)
def test_ties_without_a_key_are_broken_by_what_is_used(over: str, said: str) -> None:
    """By all columns that the view uses of these rows, where the result depends on them, and nowhere else."""
    v = view(f"SELECT order_id, sku, {over} AS x FROM depot.lines l WINDOW w AS (ORDER BY n)")
    assert said in v.recompute_sql
    assert "price" not in v.recompute_sql


def test_certain_words_for_uncertain_aggregates() -> None:
    """The same words are in the tree and in what is recomputed; aggregates that are certain stay as they are."""
    v = view("SELECT sum(l.price) AS s, sum(l.n) AS t, array_agg(l.sku) AS a, avg(l.n) AS m FROM depot.lines l")
    ours = [o.expression for o in only(Group, v.sql).outputs]
    assert ours[1] == "sum(r0c1)"
    for text in ours:
        for column, attribute in zip(("sku", "n", "price"), ("r0c0", "r0c1", "r0c2"), strict=True):
            text = text.replace(attribute, f"l.{column}")
        assert text in v.recompute_sql
    assert ours[0].startswith("aggregate(sort_array(collect_list(CAST(r0c2 AS DOUBLE)))")
    assert ours[2] == "sort_array(array_agg(r0c0))"


@pytest.mark.parametrize(
    ("argument", "kept"),
    [
        ("n * 2", True),
        ("total * 1.5", True),
        ("CASE WHEN n > 1 THEN total ELSE 0 END", True),
        ("coalesce(n, 0) + 1", True),
        ("CAST(state AS int)", True),
        ("length(state)", True),
        ("n / 2", False),
        ("price", False),
        ("total * price", False),
        ("CAST(n AS double)", False),
        ("sqrt(n)", False),
        ("if(n > 1, price, 0)", False),
    ],
)
def test_which_sums_are_exact(argument: str, kept: bool) -> None:
    """Sums of integers and decimals are Spark's own; those of what may be a double are in order."""
    v = view(f"SELECT sum({argument}) AS s FROM shop.orders o JOIN depot.lines l ON l.order_id = o.id")
    assert (f"sum({argument})" in v.recompute_sql) is kept


def test_qualify_is_rewritten() -> None:
    """Spark cannot read it."""
    v = view(
        "SELECT DISTINCT customer AS c FROM shop.orders WHERE id > 1 "
        "QUALIFY count(*) OVER (PARTITION BY state) > 1 AND c IS NOT NULL AND total > 0"
    )
    assert v.recompute_sql == (
        "SELECT DISTINCT * EXCEPT (`_q0`, `_q1`) FROM (SELECT customer AS c , count(*) OVER (PARTITION BY state) AS "
        f"`_q0`, total AS `_q1` FROM {snapshot_name(ORDERS)} AS `orders` WHERE id > 1 ) AS `_q` WHERE `_q0` > 1 AND c "
        "IS NOT NULL AND `_q1` > 0"
    )
    assert shape(tree(v.sql)) == "Group(Filter(Filter(Filter(Window(Filter(Scan))))))"


def test_generators() -> None:
    """In LATERAL VIEW, and as an item of SELECT."""
    explode = only(Explode, "SELECT id, x FROM shop.orders LATERAL VIEW OUTER explode(split(state, 'a')) t AS x")
    assert (explode.generator, explode.outer, len(explode.made)) == ("explode(split(r0c1, 'a'))", True, 1)
    assert len(only(Explode, "SELECT posexplode(split(state, 'a')) AS (p, x), id FROM shop.orders").made) == 2


def test_joins_follow_equalities() -> None:
    """A part of a FROM joins next to what an equality connects it with, so that its rows can be asked for."""
    sql = (
        "SELECT o.id FROM (SELECT DISTINCT id, city FROM shop.customers) c, depot.lines l, shop.orders o "
        "WHERE o.customer = c.id AND l.order_id = o.id"
    )
    assert all(o.pairs for o in operators(tree(sql)) if isinstance(o, Join))


def test_names_that_nothing_uses_are_not_read() -> None:
    """Neither columns of relations, nor what is computed of them."""
    v = view(
        "SELECT t.id FROM (SELECT *, upper(state) AS u, rank() OVER (ORDER BY total) AS r FROM shop.orders) t "
        "LEFT JOIN shop.customers c ON c.id = t.customer"
    )
    assert [o.columns for o in v.occurrences] == [("id", "customer"), ("id",)]
    assert not any(isinstance(o, (Project, Window)) for o in operators(tree(v.sql)))
    assert [o.occurrence.index for o in operators(tree(v.sql)) if isinstance(o, Scan)] == [0, 1]


def test_relations_inside_of_conditions_are_referenced() -> None:
    """Those of subqueries in WHERE too."""
    inner = "SELECT 1 FROM x.y WHERE y.a IN (SELECT b FROM z.w)"
    sql = f"SELECT id FROM shop.orders o WHERE EXISTS ({inner}) UNION SELECT 1 FROM q.r"
    assert referenced_relations(sql) == ["shop.orders", "x.y", "z.w", "q.r"]


def test_scalar_subqueries_are_joined() -> None:
    """One row for all, or one for each value of what correlates them; a count of nothing is 0."""
    v = view(
        "SELECT o.id, (SELECT count(*) FROM depot.lines l WHERE l.order_id = o.id AND l.n > 1) AS c FROM shop.orders o "
        "WHERE o.total > (SELECT avg(total) FROM shop.orders)"
    )
    assert v.tree is not None
    assert shape(v.tree) == "Project(Filter(Join(Join(Scan, Group(Scan)), Group(Filter(Scan)))))"
    correlated, alone = (o for o in operators(v.tree) if isinstance(o, Join))
    assert (alone.kind, alone.pairs) == (JoinKind.INNER, ())
    assert (correlated.kind, correlated.pairs) == (JoinKind.LEFT, (Pair("r0c0", "r2c0"),))
    assert v.key == ("id",)
    assert isinstance(v.tree, Project)
    assert v.tree.outputs[-1].expression.startswith("coalesce(x")
