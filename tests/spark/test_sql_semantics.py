"""A compiled view means in Spark what the user's own SQL means there: names, types and rows, duplicates included."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, datetime, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.sql import compile_view
from strobe.algebra.sql_functions import ALLOWED, SYNTAX
from strobe.algebra.view import View, snapshot_name
from strobe.data.arrow import to_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def _relation(id_: str, columns: str, key: tuple[str, ...]) -> RelationSchema:
    source, _, name = id_.partition(".")
    parsed = tuple(Column(column, type_) for column, _, type_ in (c.partition(":") for c in columns.split()))
    return RelationSchema(source, name, parsed, key)


D, DT = Decimal, datetime
UTC = timezone.utc
TABLES: list[tuple[RelationSchema, list[tuple[Any, ...]]]] = [
    (
        _relation("shop.orders", "id:bigint customer:bigint Placed:date state:string total:decimal(10,2)", ("id",)),
        [
            (1, 10, date(2024, 2, 29), "open", D("12.50")),
            (2, 10, date(2023, 12, 31), "closed", D("2.00")),
            (3, 11, None, "open", None),
            (4, None, date(1999, 1, 1), None, D("-7.25")),
            (2**62, 12, date(2024, 3, 1), "it's", D("99999999.99")),
        ],
    ),
    (
        _relation("shop.customers", "id:bigint name:string city:string vip:boolean", ("id",)),
        [
            (10, "Ærøskøbing 日本", "a_b%c", True),
            (11, "O'Neil\n\\x", None, None),
            (12, "", "Wien", False),
            (3, "🙂 smile", "wien", True),
        ],
    ),
    (
        _relation("billing.invoices", "id:int order_id:bigint amount:decimal(12,4) rate:double at:timestamp", ("id",)),
        [
            (1, 1, D("12.5000"), 1.0, DT(2024, 2, 29, 23, 59, 59, 123456, tzinfo=UTC)),
            (2, 1, D("12.5000"), float("nan"), None),
            (3, 2, None, 1e10, DT(1970, 1, 1, tzinfo=UTC)),
            (4, None, D("-7.2500"), -0.0, DT(2024, 3, 1, tzinfo=UTC)),
            (5, 2**62, D("3.0001"), None, DT(2024, 3, 1, tzinfo=UTC)),
        ],
    ),
    (
        _relation("depot.main.lines", "order_id:bigint sku:string n:int raw:binary", ()),
        [
            (1, "a", 1, b"\x00\xff"),
            (1, "a", 1, b"\x00\xff"),
            (1, "b", None, None),
            (2, None, 3, b""),
            (3, "ä", -3, b"x"),
        ],
    ),
]
RELATIONS = {relation.id: relation for relation, _ in TABLES}


@pytest.fixture(scope="module")
def snapshots(spark: SparkSession) -> SparkSession:
    for relation, rows in TABLES:
        table = to_arrow([c.name for c in relation.columns], [c.type for c in relation.columns], rows)
        spark.createDataFrame(table).coalesce(1).cache().createOrReplaceTempView(snapshot_name(relation))
    return spark


def compiled_sql(view: View) -> str:
    """The compiled form as a query: occurrences crossed, equalities and condition applied, outputs projected."""
    sources = []
    for o in view.occurrences:
        columns = ", ".join(f"`{c}` AS {o.attribute(c)}" for c in o.columns)
        sources.append(f"(SELECT {columns} FROM {snapshot_name(o.relation)})")
    occurrences = view.occurrences
    conditions = [
        f"{occurrences[e.left].attribute(e.left_column)} = {occurrences[e.right].attribute(e.right_column)}"
        for e in view.equalities
    ] + ([view.condition] if view.condition else [])
    outputs = ", ".join(f"{o.expression} AS `{o.name}`" for o in view.outputs)
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    return f"SELECT {outputs} FROM {' CROSS JOIN '.join(sources)}{where}"


def check_same(spark: SparkSession, sql: str) -> tuple[View, int]:
    view = compile_view("v", sql, RELATIONS)
    theirs, ours = spark.sql(view.recompute_sql), spark.sql(compiled_sql(view))

    def fields(frame: Any) -> list[Any]:
        return [(f["name"], f["type"]) for f in json.loads(frame.schema.json())["fields"]]

    assert fields(theirs) == fields(ours), (sql, view)
    rows = theirs.collect()
    expected = Counter(map(repr, rows))
    assert expected == Counter(map(repr, ours.collect())), (sql, view)
    if view.key:
        names = [f.name for f in theirs.schema.fields]
        places = [names.index(k) for k in view.key]
        keys = Counter(tuple(row[p] for p in places) for row in rows)
        assert all(n == 1 for n in keys.values()), (sql, view.key)
    return view, len(rows)


FROM3 = "FROM shop.orders o JOIN shop.customers c ON c.id = o.customer JOIN billing.invoices i ON i.order_id = o.id"

VIEWS = {
    "three relations": f"SELECT o.id, o.Placed, c.name, i.amount {FROM3} WHERE o.state = 'open'",
    "all columns of one": "SELECT * FROM shop.orders",
    "case of names as written": "SELECT O.ID, PLACED, o.ToTaL FROM shop.orders o",
    "stars of aliases": "SELECT o.*, c.name, C.City FROM shop.orders o, shop.customers c WHERE o.customer = c.id",
    "comma binds like join": (
        "SELECT o.id, c.id AS c, i.id AS i FROM shop.orders o, shop.customers c JOIN billing.invoices i"
        " ON i.order_id = o.id WHERE c.id = o.customer"
    ),
    "cross join": "SELECT c.id, l.sku FROM shop.customers c CROSS JOIN depot.main.lines l WHERE c.vip AND l.n > 0",
    "join without condition": "SELECT c.id, l.sku FROM shop.customers c INNER JOIN depot.main.lines l",
    "using": "SELECT * FROM shop.orders o JOIN shop.customers c USING (id)",
    "using, star of one": "SELECT i.*, l.sku FROM depot.main.lines l JOIN billing.invoices i USING (order_id)",
    "using, star of the other": "SELECT i.rate, l.* FROM billing.invoices i JOIN depot.main.lines l USING (order_id)",
    "using, left of two": (
        "SELECT ORDER_ID, i.order_id AS a, l.order_id AS b FROM billing.invoices i JOIN depot.main.lines l "
        "USING (order_id)"
    ),
    "using twice": (
        "SELECT * FROM (SELECT id AS order_id, state FROM shop.orders) o JOIN (SELECT order_id, amount, id AS i FROM"
        " billing.invoices) i USING (order_id) JOIN depot.main.lines l USING (order_id)"
    ),
    "using twice, star of the middle": (
        "SELECT i.*, l.n FROM (SELECT id AS order_id, state FROM shop.orders) o JOIN billing.invoices i"
        " USING (order_id) JOIN depot.main.lines l USING (order_id)"
    ),
    "using two columns": (
        "SELECT * FROM (SELECT id AS k, state AS s, total FROM shop.orders) a JOIN (SELECT 1 AS one, state AS"
        " s, id AS k"
        " FROM shop.orders) b USING (s, k)"
    ),
    "using over different types": (
        "SELECT * FROM (SELECT id AS k FROM billing.invoices) a JOIN (SELECT total AS k FROM shop.orders) b USING (k)"
    ),
    "using over text and number": (
        "SELECT a.k AS a, b.k AS b FROM (SELECT try_cast(id AS string) AS k FROM billing.invoices) a"
        " JOIN (SELECT id AS k FROM shop.orders) b USING (k)"
    ),
    "self join": (
        "SELECT a.id, b.id AS other FROM shop.orders a JOIN shop.orders b ON a.customer = b.customer AND a.id <> b.id"
    ),
    "three times the same": (
        "SELECT a.sku, b.n, c.raw FROM depot.main.lines a, depot.main.lines b, depot.main.lines c"
        " WHERE a.order_id = b.order_id AND b.order_id = c.order_id"
    ),
    "unaliased relations": (
        "SELECT orders.id, customers.name FROM shop.orders JOIN shop.customers ON orders.customer = customers.id"
    ),
    "fully qualified": (
        "SELECT shop.orders.id, `shop`.customers.`name`, shop.customers.city FROM shop.orders JOIN shop.customers"
        " ON shop.orders.customer = shop.customers.id"
    ),
    "schema in the name": "SELECT depot.main.lines.sku, main.lines.n, lines.raw FROM depot.main.lines",
    "qualified star": "SELECT shop.orders.* FROM shop.orders, shop.customers WHERE orders.customer = customers.id",
    "parenthesised join": (
        "SELECT o.id, c.name, i.amount FROM shop.orders o JOIN (shop.customers c JOIN billing.invoices i ON "
        "c.id > i.id)"
        " ON o.customer = c.id AND i.order_id = o.id"
    ),
    "aliased join": (
        "SELECT t.name, t.state FROM (shop.orders o JOIN (SELECT id AS cid, name FROM shop.customers) c"
        " ON o.customer = c.cid) AS t WHERE t.id > 1"
    ),
    "column aliases of a relation": "SELECT x, y.b FROM shop.customers AS y(x, b, c, d) WHERE d IS NOT TRUE",
    "subquery": (
        "SELECT s.id, s.t FROM (SELECT id, total * 2 AS t, customer FROM shop.orders WHERE total > 0) s"
        " JOIN shop.customers c ON s.customer = c.id WHERE s.t > 1"
    ),
    "subquery without alias": "SELECT id, t FROM (SELECT id, total + 1 AS t FROM shop.orders)",
    "subquery in subquery": (
        "SELECT b.y FROM (SELECT a.x + 1 AS y FROM (SELECT id - 1 AS x FROM billing.invoices) a) b WHERE y > 2"
    ),
    "doubled parentheses": "SELECT a.x FROM ((SELECT id AS x FROM shop.orders)) a",
    "precedence survives": (
        "SELECT t.x * 2 AS a, -t.x AS b, t.p AND false AS c FROM (SELECT n + 1 AS x, n = 1 OR n = 3 AS p FROM"
        " depot.main.lines) t"
    ),
    "cte": (
        "WITH big AS (SELECT * FROM shop.orders WHERE total > 0), named(cid, n) AS (SELECT id, upper(name) FROM"
        " shop.customers) SELECT big.id, N FROM big JOIN named ON cid = big.customer"
    ),
    "cte twice": (
        "WITH x AS (SELECT order_id, n FROM depot.main.lines WHERE n > 0) SELECT a.n, b.n AS m FROM x a JOIN "
        "X b USING (order_id)"
    ),
    "cte of cte": (
        "WITH a AS (SELECT id FROM shop.orders), b AS (SELECT id + 1 AS id FROM a) SELECT b.id, a.id AS i "
        "FROM a, b WHERE a.id = b.id"
    ),
    "shadowed cte": (
        "WITH t AS (SELECT 1 AS x, id FROM shop.orders) SELECT s.x, t.x AS y FROM (WITH t AS (SELECT 2 AS x, id FROM"
        " shop.customers) SELECT * FROM t) s, t WHERE t.id < 3"
    ),
    "cte that names its outer namesake": (
        "WITH t AS (SELECT id FROM shop.customers) SELECT * FROM (WITH t AS (SELECT id + 1 AS id FROM t) "
        "SELECT id FROM t) u"
    ),
    "cte never used": "WITH t AS (SELECT id FROM shop.customers), u AS (SELECT * FROM t) SELECT id FROM shop.orders",
    "alias of an earlier column": "SELECT n + 1 AS m, m * 2 AS k, k AS j FROM depot.main.lines",
    "comments and hints of style": (
        "SELECT id -- the key, 'quoted\n , /* nested /* comment */ ' */ state AS s\nFROM shop.orders -- end"
    ),
    "select all": "SELECT ALL id, `all` FROM (SELECT id, state AS `all` FROM shop.orders) t",
    "semicolon": "SELECT id FROM shop.orders ; ",
    "no column used": "SELECT l.sku FROM depot.main.lines l, shop.customers c",
    "constants only": "SELECT 1 AS one FROM shop.orders, depot.main.lines",
    "projected equality as the key": (
        "SELECT i.order_id, i.id AS i, o.state FROM shop.orders o JOIN billing.invoices i ON i.order_id = o.id"
    ),
    "names that are keywords": (
        "SELECT t.`left`, t.`date`, t.date AS d, t.`end`, t.value, t.key, t.`we``ird` AS w FROM (SELECT id AS"
        " `left`, Placed AS"
        " `date`, state AS `end`, total AS value, customer AS key, id AS `we``ird` FROM shop.orders) t WHERE "
        "t.end = 'open'"
    ),
    "unicode names": (
        "SELECT t.`größe` AS `größe`, `日本` FROM (SELECT total AS `größe`, state AS `日本` FROM shop.orders) t"
    ),
    "or of joins": (
        "SELECT o.id, i.id AS i FROM shop.orders o, billing.invoices i WHERE o.id = i.order_id OR o.total = i.amount"
    ),
    "or in parentheses and and": (
        "SELECT o.id FROM shop.orders o JOIN billing.invoices i ON (o.id = i.order_id AND (o.state = 'open' "
        "OR i.id = 3))"
    ),
    "between and and": (
        "SELECT o.id, l.n FROM shop.orders o, depot.main.lines l WHERE o.id BETWEEN 1 AND 3 AND l.n NOT "
        "BETWEEN -1 AND 0"
        " AND o.id = l.order_id AND NOT o.id = 3"
    ),
    "case with and": (
        "SELECT o.id FROM shop.orders o, depot.main.lines l WHERE CASE WHEN l.n > 0 AND o.id > 1 THEN true "
        "WHEN o.id = 1 OR"
        " l.n IS NULL THEN NULL ELSE false END AND o.id = l.order_id"
    ),
    "null safe": (
        "SELECT o.id, c.id AS c FROM shop.orders o JOIN shop.orders c ON o.state <=> c.state AND o.total IS "
        "NOT DISTINCT FROM c.total"
    ),
    "distinct from": (
        "SELECT o.id FROM shop.orders o WHERE o.state IS DISTINCT FROM 'open' AND o.total IS DISTINCT FROM NULL"
    ),
    "theta join": (
        "SELECT o.id, i.id AS i FROM shop.orders o JOIN billing.invoices i ON o.total < i.amount AND o.id != i.id"
    ),
    "decimal against integer": (
        "SELECT o.id, i.id AS i FROM shop.orders o JOIN billing.invoices i ON o.total = i.id - 1"
    ),
    "decimals of two scales": "SELECT o.id, i.id AS i FROM shop.orders o JOIN billing.invoices i ON o.total = i.amount",
    "double against integer": "SELECT o.id, i.id AS i FROM shop.orders o JOIN billing.invoices i ON i.rate = o.id",
    "int against bigint": "SELECT o.id, i.rate FROM shop.orders o JOIN billing.invoices i ON i.id = o.id",
}

EXPRESSIONS = [
    r"'a\'b\n\t\\ \u00e9 \% \_'",
    "'it''s'",
    "'a' 'b'",
    r"r'a\nb\d'",
    "r'a\\'",
    'R"it\'s \\"',
    r'''"dq 'in' \" "''',
    "'日本 🙂'",
    "1e10",
    "1.50",
    "1L",
    "1.5BD",
    "1S",
    "7Y",
    "2.5D",
    "2.5F",
    ".5",
    "1.5e+3",
    "1.e2",
    "1E-2BD",
    "5.",
    "X'1Fff'",
    "date'2024-02-29'",
    "timestamp '2024-02-29 12:00:00.123456'",
    "timestamp_ntz '2024-02-29 12:00:00'",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999",
    "0.1 + 0.2",
    "7/2",
    "1.00/3.00",
    "-7 % 3",
    "-7 div 2",
    "o.total / 3",
    "o.id % 3",
    "o.total * i.amount - -o.id",
    "- - o.id",
    "~o.id & 5 | 2 ^ 1",
    "o.id << 2",
    "o.id >> 1",
    "o.state || '-' || c.name",
    "cast(o.total AS int)",
    "CAST(o.total AS decimal(20,4))",
    "try_cast(o.state AS bigint)",
    "o.total::string",
    "int(o.total)",
    "string(o.Placed)",
    "date(i.at)",
    "CAST(o.id AS varchar(5))",
    "o.state IS NULL",
    "c.vip IS NOT TRUE",
    "c.vip IS FALSE",
    "c.vip IS UNKNOWN",
    "NOT c.vip",
    "!c.vip",
    "o.state IN ('open', NULL)",
    "o.id NOT IN (1, 2)",
    "(o.id, o.customer) IN ((1L, 10L))",
    r"c.city LIKE 'a\\_b%'",
    "c.city NOT LIKE 'a!_b!%c' ESCAPE '!'",
    "c.city ILIKE 'WIEN'",
    "c.city LIKE ANY ('a%', 'W%')",
    r"c.name RLIKE '\\w+'",
    "c.name REGEXP 'Æ'",
    "CASE o.state WHEN 'open' THEN 1 WHEN 'closed' THEN 2 END",
    "CASE WHEN o.total > 0 THEN 'plus' ELSE concat('minus', o.id) END",
    "coalesce(o.total, i.amount, 0)",
    "nvl(o.state, 'none')",
    "ifnull(o.state, 'none')",
    "nvl2(o.state, 1, 2)",
    "nullif(o.state, 'open')",
    "if(o.id = 1, 'one', 'more')",
    "decode(o.state, 'open', 1, 'closed', 2, 3)",
    "greatest(o.id, i.id)",
    "round(o.total, 1)",
    "round(2.5)",
    "bround(2.5)",
    "ceil(o.total)",
    "floor(o.total, 1)",
    "log(2, o.id)",
    "ln(o.id)",
    "pmod(-7, 3)",
    "try_divide(o.total, 0)",
    "substring(c.name, 2, 3)",
    "substring(c.name FROM 2 FOR 3)",
    "substr(c.name, -2)",
    "left(c.name, 2) || right(c.name, 1)",
    "trim(BOTH 'o' FROM o.state)",
    "trim(LEADING FROM c.name)",
    "ltrim('o', o.state)",
    "overlay(c.name PLACING '__' FROM 2)",
    "position('p' IN o.state)",
    "locate('p', o.state, 1)",
    "instr(o.state, 'p')",
    "split(o.state, 'p')[0]",
    "split_part(o.state, 'p', 1)",
    "element_at(array(o.id, i.id), 1)",
    "regexp_replace(o.state, '(o)(p)', '$2$1')",
    "regexp_extract(o.state, 'o(.)', 1)",
    "concat_ws(',', o.state, c.city, o.id)",
    "format_string('%05d %s', o.id, o.state)",
    "upper(c.name)",
    "initcap(o.state)",
    "length(c.name)",
    "char_length(c.name)",
    "lpad(o.id, 5, '0')",
    "translate(o.state, 'op', 'OP')",
    "year(o.Placed)",
    "extract(MONTH FROM o.Placed)",
    "extract(SECOND FROM i.at)",
    "date_part('day', o.Placed)",
    "date_add(o.Placed, 1)",
    "date_sub(o.Placed, int(o.id % 3))",
    "datediff(o.Placed, DATE '2024-01-01')",
    "datediff(DAY, o.Placed, i.at)",
    "timestampdiff(HOUR, o.Placed, i.at)",
    "timestampadd(MONTH, 1, i.at)",
    "dateadd(DAY, 1, i.at)",
    "o.Placed + INTERVAL 1 DAY",
    "o.Placed + INTERVAL '1-2' YEAR TO MONTH",
    "i.at - INTERVAL 1 DAY 2 HOURS",
    "date_trunc('MONTH', i.at)",
    "trunc(o.Placed, 'MM')",
    "date_format(i.at, 'yyyy-MM-dd HH:mm:ss')",
    "to_date('20240229', 'yyyyMMdd')",
    "to_timestamp('2024-02-29 01:02:03')",
    "unix_timestamp(i.at)",
    "from_unixtime(o.id % 100)",
    "add_months(o.Placed, 1)",
    "last_day(o.Placed)",
    "months_between(o.Placed, i.at)",
    "make_date(2024, 2, 29)",
    "md5(o.state)",
    "sha2(c.name, 256)",
    "hash(o.id, o.state)",
    "xxhash64(o.total)",
    "hex(o.state)",
    "unhex('1F')",
    "base64(CAST(o.state AS binary))",
    "isnan(i.rate)",
    "nanvl(i.rate, 0)",
    "o.state = 'today'",
    "typeof(o.total)",
    "equal_null(o.state, c.city)",
    "to_char(o.total, '99999999D99')",
    "o.id > 1 = true",
]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_means_what_spark_says(snapshots: SparkSession, name: str) -> None:
    """Each spelling of joins, subqueries and names gives the same rows, names and types as Spark's own reading."""
    _, rows = check_same(snapshots, VIEWS[name])
    assert rows or name in ("using over text and number",), "a view without rows shows nothing"


@pytest.mark.parametrize("chunk", range(0, len(EXPRESSIONS), 12))
def test_expressions_survive_exactly(snapshots: SparkSession, chunk: int) -> None:
    """Literals, operators and functions reach Spark as written: in SELECT, through a subquery, and as a condition."""
    some = EXPRESSIONS[chunk : chunk + 12]
    items = ", ".join(f"{e} AS x{i}" for i, e in enumerate(some))
    check_same(snapshots, f"SELECT {items} {FROM3}")
    outer = ", ".join(f"t.x{i} AS y{i}, t.x{i} <=> t.x{i} AS z{i}" for i in range(len(some)))
    check_same(snapshots, f"SELECT {outer} FROM (SELECT {items} {FROM3}) t WHERE x0 IS NOT NULL OR x1 IS NULL")


def test_allowed_functions_exist_and_are_scalar(spark: SparkSession) -> None:
    """Every function on the list is one of Spark's, and neither aggregate, window, generator nor lambda."""
    registry = spark._jvm.org.apache.spark.sql.catalyst.analysis.FunctionRegistry.builtin()  # type: ignore[union-attr]
    groups = {}
    functions = registry.listFunction().iterator()
    while functions.hasNext():
        identifier = functions.next()
        groups[identifier.funcName()] = registry.lookupFunction(identifier).get().getGroup()
    assert not ALLOWED - SYNTAX - groups.keys()
    refused = {"agg_funcs", "window_funcs", "generator_funcs", "lambda_funcs", "map_funcs", "variant_funcs"}
    assert not {name for name in ALLOWED if groups.get(name) in refused}


COLUMNS = {
    "orders": ["id", "customer", "state", "total"],
    "customers": ["id", "name", "city"],
    "lines": ["order_id", "sku", "n"],
}
NAMES = {"orders": "shop.orders", "customers": "shop.customers", "lines": "depot.main.lines"}
NUMBERS = {"id", "customer", "total", "order_id", "n"}


@st.composite
def random_views(draw: st.DrawFn) -> str:
    """A random SELECT over one to three sources, each a relation, a subquery or a CTE, with random conditions."""
    kinds = [draw(st.sampled_from(sorted(NAMES))) for _ in range(draw(st.integers(1, 3)))]
    ctes, sources = [], []
    columns: list[tuple[str, str]] = []
    for i, kind in enumerate(kinds):
        own = COLUMNS[kind]
        number = next(c for c in own if c in NUMBERS)
        body = f"SELECT * FROM {NAMES[kind]} WHERE {number} {draw(st.sampled_from(['> 1', 'IS NOT NULL', '<> 3']))}"
        form = draw(st.sampled_from(["relation", "subquery", "cte"]))
        if form == "cte":
            ctes.append(f"c{i} AS ({body})")
        sources.append({"relation": NAMES[kind], "subquery": f"({body})", "cte": f"c{i}"}[form] + f" t{i}")
        columns += [(f"t{i}.{c}", c) for c in own]
    numbers = [c for c, name in columns if name in NUMBERS]
    strings = [c for c, name in columns if name not in NUMBERS]

    def condition(pool: list[str], depth: int = 2) -> str:
        a, b = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        simple = [f"{a} = {b}", f"{a} < {b}", f"{a} <=> {b}", f"{a} IS NULL"]
        simple += [f"{a} BETWEEN 1 AND {b}", f"{a} IN (1, 2, {b})"]
        if depth:
            left, right = condition(pool, depth - 1), condition(pool, depth - 1)
            simple += [f"{left} AND {right}", f"({left} OR {right})", f"NOT ({left})", f"{left} OR {right}"] * 2
        return draw(st.sampled_from(simple))

    joined = sources[0]
    for i, source in enumerate(sources[1:], 1):
        visible = [n for n in numbers if int(n[1]) <= i]
        on = condition(visible, 1)
        joined += draw(st.sampled_from([f", {source}", f" JOIN {source} ON {on}", f" CROSS JOIN {source}"]))
    expressions = [*numbers, *strings, *(f"{n} + 1" for n in numbers), *(f"upper({s})" for s in strings)]
    items = draw(st.lists(st.sampled_from(expressions), min_size=1, max_size=4))
    selected = ", ".join(f"{e} AS x{i}" for i, e in enumerate(items))
    with_ = f"WITH {', '.join(ctes)} " if ctes else ""
    where = f" WHERE {condition(numbers)}" if draw(st.booleans()) else ""
    return f"{with_}SELECT {selected} FROM {joined}{where}"


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(sql=random_views())
def test_random_views_mean_what_spark_says(snapshots: SparkSession, sql: str) -> None:
    """Random views, too, have the same rows in their compiled form."""
    check_same(snapshots, sql)
