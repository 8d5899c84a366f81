"""TPC-H as views: its tables, its 22 queries without ORDER BY and LIMIT, and a few rows that these queries do not leave
out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from random import Random
from typing import Any

from strobe.algebra.bag import Bag
from strobe.algebra.schema import Column, RelationSchema

_MONEY = "decimal(15,2)"


def _table(name: str, columns: str, *key: str) -> RelationSchema:
    parsed = (column.partition(":") for column in columns.split())
    return RelationSchema("t", name, tuple(Column(column, type_ or _MONEY) for column, _, type_ in parsed), key)


TABLES = {
    table.id: table
    for table in (
        _table("region", "r_regionkey:bigint r_name:string", "r_regionkey"),
        _table("nation", "n_nationkey:bigint n_name:string n_regionkey:bigint", "n_nationkey"),
        _table(
            "part",
            "p_partkey:bigint p_name:string p_mfgr:string p_brand:string p_type:string p_size:int p_container:string",
            "p_partkey",
        ),
        _table(
            "supplier",
            "s_suppkey:bigint s_name:string s_address:string s_nationkey:bigint s_phone:string s_acctbal "
            "s_comment:string",
            "s_suppkey",
        ),
        _table(
            "partsupp",
            "ps_partkey:bigint ps_suppkey:bigint ps_availqty:int ps_supplycost",
            "ps_partkey",
            "ps_suppkey",
        ),
        _table(
            "customer",
            "c_custkey:bigint c_name:string c_address:string c_nationkey:bigint c_phone:string c_acctbal "
            "c_mktsegment:string c_comment:string",
            "c_custkey",
        ),
        _table(
            "orders",
            "o_orderkey:bigint o_custkey:bigint o_orderstatus:string o_totalprice o_orderdate:date "
            "o_orderpriority:string o_shippriority:int o_comment:string",
            "o_orderkey",
        ),
        _table(
            "lineitem",
            "l_orderkey:bigint l_linenumber:int l_partkey:bigint l_suppkey:bigint l_quantity l_extendedprice "
            "l_discount l_tax l_returnflag:string l_linestatus:string l_shipdate:date l_commitdate:date "
            "l_receiptdate:date l_shipinstruct:string l_shipmode:string",
            "l_orderkey",
            "l_linenumber",
        ),
    )
}

QUERIES = {
    1: """
        SELECT l_returnflag, l_linestatus, sum(l_quantity) AS sum_qty, sum(l_extendedprice) AS sum_base_price,
        sum(l_extendedprice * (1 - l_discount)) AS sum_disc_price, sum(l_extendedprice * (1 - l_discount) * (1 +
        l_tax)) AS sum_charge, avg(l_quantity) AS avg_qty, avg(l_extendedprice) AS avg_price, avg(l_discount) AS
        avg_disc, count(*) AS count_order FROM t.lineitem WHERE l_shipdate <= DATE '1998-12-01' - INTERVAL '90' DAY
        GROUP BY l_returnflag, l_linestatus
    """,
    2: """
        SELECT s_acctbal, s_name, n_name, p_partkey, p_mfgr, s_address, s_phone, s_comment FROM t.part, t.supplier,
        t.partsupp, t.nation, t.region WHERE p_partkey = ps_partkey AND s_suppkey = ps_suppkey AND p_size = 15 AND
        p_type LIKE '%BRASS' AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name = 'EUROPE' AND
        ps_supplycost = (SELECT min(ps_supplycost) FROM t.partsupp, t.supplier, t.nation, t.region WHERE p_partkey =
        ps_partkey AND s_suppkey = ps_suppkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND r_name
        = 'EUROPE')
    """,
    3: """
        SELECT l_orderkey, sum(l_extendedprice * (1 - l_discount)) AS revenue, o_orderdate, o_shippriority FROM
        t.customer, t.orders, t.lineitem WHERE c_mktsegment = 'BUILDING' AND c_custkey = o_custkey AND l_orderkey =
        o_orderkey AND o_orderdate < DATE '1995-03-15' AND l_shipdate > DATE '1995-03-15' GROUP BY l_orderkey,
        o_orderdate, o_shippriority
    """,
    4: """
        SELECT o_orderpriority, count(*) AS order_count FROM t.orders WHERE o_orderdate >= DATE '1993-07-01' AND
        o_orderdate < DATE '1993-07-01' + INTERVAL '3' MONTH AND EXISTS (SELECT * FROM t.lineitem WHERE l_orderkey =
        o_orderkey AND l_commitdate < l_receiptdate) GROUP BY o_orderpriority
    """,
    5: """
        SELECT n_name, sum(l_extendedprice * (1 - l_discount)) AS revenue FROM t.customer, t.orders, t.lineitem,
        t.supplier, t.nation, t.region WHERE c_custkey = o_custkey AND l_orderkey = o_orderkey AND l_suppkey =
        s_suppkey AND c_nationkey = s_nationkey AND s_nationkey = n_nationkey AND n_regionkey = r_regionkey AND
        r_name = 'ASIA' AND o_orderdate >= DATE '1994-01-01' AND o_orderdate < DATE '1994-01-01' + INTERVAL '1' YEAR
        GROUP BY n_name
    """,
    6: """
        SELECT sum(l_extendedprice * l_discount) AS revenue FROM t.lineitem WHERE l_shipdate >= DATE '1994-01-01'
        AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR AND l_discount BETWEEN 0.06 - 0.01 AND 0.06 + 0.01
        AND l_quantity < 24
    """,
    7: """
        SELECT supp_nation, cust_nation, l_year, sum(volume) AS revenue FROM (SELECT n1.n_name AS supp_nation,
        n2.n_name AS cust_nation, extract(YEAR FROM l_shipdate) AS l_year, l_extendedprice * (1 - l_discount) AS
        volume FROM t.supplier, t.lineitem, t.orders, t.customer, t.nation n1, t.nation n2 WHERE s_suppkey =
        l_suppkey AND o_orderkey = l_orderkey AND c_custkey = o_custkey AND s_nationkey = n1.n_nationkey AND
        c_nationkey = n2.n_nationkey AND ((n1.n_name = 'FRANCE' AND n2.n_name = 'GERMANY') OR (n1.n_name = 'GERMANY'
        AND n2.n_name = 'FRANCE')) AND l_shipdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31') AS shipping GROUP
        BY supp_nation, cust_nation, l_year
    """,
    8: """
        SELECT o_year, sum(CASE WHEN nation = 'BRAZIL' THEN volume ELSE 0 END) / sum(volume) AS mkt_share FROM
        (SELECT extract(YEAR FROM o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) AS volume, n2.n_name AS
        nation FROM t.part, t.supplier, t.lineitem, t.orders, t.customer, t.nation n1, t.nation n2, t.region WHERE
        p_partkey = l_partkey AND s_suppkey = l_suppkey AND l_orderkey = o_orderkey AND o_custkey = c_custkey AND
        c_nationkey = n1.n_nationkey AND n1.n_regionkey = r_regionkey AND r_name = 'AMERICA' AND s_nationkey =
        n2.n_nationkey AND o_orderdate BETWEEN DATE '1995-01-01' AND DATE '1996-12-31' AND p_type = 'ECONOMY
        ANODIZED STEEL') AS all_nations GROUP BY o_year
    """,
    9: """
        SELECT nation, o_year, sum(amount) AS sum_profit FROM (SELECT n_name AS nation, extract(YEAR FROM
        o_orderdate) AS o_year, l_extendedprice * (1 - l_discount) - ps_supplycost * l_quantity AS amount FROM
        t.part, t.supplier, t.lineitem, t.partsupp, t.orders, t.nation WHERE s_suppkey = l_suppkey AND ps_suppkey =
        l_suppkey AND ps_partkey = l_partkey AND p_partkey = l_partkey AND o_orderkey = l_orderkey AND s_nationkey =
        n_nationkey AND p_name LIKE '%green%') AS profit GROUP BY nation, o_year
    """,
    10: """
        SELECT c_custkey, c_name, sum(l_extendedprice * (1 - l_discount)) AS revenue, c_acctbal, n_name, c_address,
        c_phone, c_comment FROM t.customer, t.orders, t.lineitem, t.nation WHERE c_custkey = o_custkey AND
        l_orderkey = o_orderkey AND o_orderdate >= DATE '1993-10-01' AND o_orderdate < DATE '1993-10-01' + INTERVAL
        '3' MONTH AND l_returnflag = 'R' AND c_nationkey = n_nationkey GROUP BY c_custkey, c_name, c_acctbal,
        c_phone, n_name, c_address, c_comment
    """,
    11: """
        SELECT ps_partkey, sum(ps_supplycost * ps_availqty) AS value FROM t.partsupp, t.supplier, t.nation WHERE
        ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY' GROUP BY ps_partkey HAVING
        sum(ps_supplycost * ps_availqty) > (SELECT sum(ps_supplycost * ps_availqty) * 0.0001 FROM t.partsupp,
        t.supplier, t.nation WHERE ps_suppkey = s_suppkey AND s_nationkey = n_nationkey AND n_name = 'GERMANY')
    """,
    12: """
        SELECT l_shipmode, sum(CASE WHEN o_orderpriority = '1-URGENT' OR o_orderpriority = '2-HIGH' THEN 1 ELSE 0
        END) AS high_line_count, sum(CASE WHEN o_orderpriority <> '1-URGENT' AND o_orderpriority <> '2-HIGH' THEN 1
        ELSE 0 END) AS low_line_count FROM t.orders, t.lineitem WHERE o_orderkey = l_orderkey AND l_shipmode IN
        ('MAIL', 'SHIP') AND l_commitdate < l_receiptdate AND l_shipdate < l_commitdate AND l_receiptdate >= DATE
        '1994-01-01' AND l_receiptdate < DATE '1994-01-01' + INTERVAL '1' YEAR GROUP BY l_shipmode
    """,
    13: """
        SELECT c_count, count(*) AS custdist FROM (SELECT c_custkey, count(o_orderkey) AS c_count FROM t.customer
        LEFT OUTER JOIN t.orders ON c_custkey = o_custkey AND o_comment NOT LIKE '%special%requests%' GROUP BY
        c_custkey) AS c_orders GROUP BY c_count
    """,
    14: """
        SELECT 100.00 * sum(CASE WHEN p_type LIKE 'PROMO%' THEN l_extendedprice * (1 - l_discount) ELSE 0 END) /
        sum(l_extendedprice * (1 - l_discount)) AS promo_revenue FROM t.lineitem, t.part WHERE l_partkey = p_partkey
        AND l_shipdate >= DATE '1995-09-01' AND l_shipdate < DATE '1995-09-01' + INTERVAL '1' MONTH
    """,
    15: """
        WITH revenue (supplier_no, total_revenue) AS (SELECT l_suppkey, sum(l_extendedprice * (1 - l_discount)) FROM
        t.lineitem WHERE l_shipdate >= DATE '1996-01-01' AND l_shipdate < DATE '1996-01-01' + INTERVAL '3' MONTH
        GROUP BY l_suppkey) SELECT s_suppkey, s_name, s_address, s_phone, total_revenue FROM t.supplier, revenue
        WHERE s_suppkey = supplier_no AND total_revenue = (SELECT max(total_revenue) FROM revenue)
    """,
    16: """
        SELECT p_brand, p_type, p_size, count(DISTINCT ps_suppkey) AS supplier_cnt FROM t.partsupp, t.part WHERE
        p_partkey = ps_partkey AND p_brand <> 'Brand#45' AND p_type NOT LIKE 'MEDIUM POLISHED%' AND p_size IN (49,
        14, 23, 45, 19, 3, 36, 9) AND ps_suppkey NOT IN (SELECT s_suppkey FROM t.supplier WHERE s_comment LIKE
        '%Customer%Complaints%') GROUP BY p_brand, p_type, p_size
    """,
    17: """
        SELECT sum(l_extendedprice) / 7.0 AS avg_yearly FROM t.lineitem, t.part WHERE p_partkey = l_partkey AND
        p_brand = 'Brand#23' AND p_container = 'MED BOX' AND l_quantity < (SELECT 0.2 * avg(l_quantity) FROM
        t.lineitem WHERE l_partkey = p_partkey)
    """,
    18: """
        SELECT c_name, c_custkey, o_orderkey, o_orderdate, o_totalprice, sum(l_quantity) AS q FROM t.customer,
        t.orders, t.lineitem WHERE o_orderkey IN (SELECT l_orderkey FROM t.lineitem GROUP BY l_orderkey HAVING
        sum(l_quantity) > 300) AND c_custkey = o_custkey AND o_orderkey = l_orderkey GROUP BY c_name, c_custkey,
        o_orderkey, o_orderdate, o_totalprice
    """,
    19: """
        SELECT sum(l_extendedprice* (1 - l_discount)) AS revenue FROM t.lineitem, t.part WHERE (p_partkey =
        l_partkey AND p_brand = 'Brand#12' AND p_container IN ('SM CASE', 'SM BOX') AND l_quantity >= 1 AND
        l_quantity <= 11 AND p_size BETWEEN 1 AND 5 AND l_shipmode IN ('AIR', 'AIR REG') AND l_shipinstruct =
        'DELIVER IN PERSON') OR (p_partkey = l_partkey AND p_brand = 'Brand#23' AND l_quantity >= 10 AND l_quantity
        <= 20 AND p_size BETWEEN 1 AND 10)
    """,
    20: """
        SELECT s_name, s_address FROM t.supplier, t.nation WHERE s_suppkey IN (SELECT ps_suppkey FROM t.partsupp
        WHERE ps_partkey IN (SELECT p_partkey FROM t.part WHERE p_name LIKE 'forest%') AND ps_availqty > (SELECT 0.5
        * sum(l_quantity) FROM t.lineitem WHERE l_partkey = ps_partkey AND l_suppkey = ps_suppkey AND l_shipdate >=
        DATE '1994-01-01' AND l_shipdate < DATE '1994-01-01' + INTERVAL '1' YEAR)) AND s_nationkey = n_nationkey AND
        n_name = 'CANADA'
    """,
    21: """
        SELECT s_name, count(*) AS numwait FROM t.supplier, t.lineitem l1, t.orders, t.nation WHERE s_suppkey =
        l1.l_suppkey AND o_orderkey = l1.l_orderkey AND o_orderstatus = 'F' AND l1.l_receiptdate > l1.l_commitdate
        AND EXISTS (SELECT * FROM t.lineitem l2 WHERE l2.l_orderkey = l1.l_orderkey AND l2.l_suppkey <>
        l1.l_suppkey) AND NOT EXISTS (SELECT * FROM t.lineitem l3 WHERE l3.l_orderkey = l1.l_orderkey AND
        l3.l_suppkey <> l1.l_suppkey AND l3.l_receiptdate > l3.l_commitdate) AND s_nationkey = n_nationkey AND
        n_name = 'SAUDI ARABIA' GROUP BY s_name
    """,
    22: """
        SELECT cntrycode, count(*) AS numcust, sum(c_acctbal) AS totacctbal FROM (SELECT substring(c_phone FROM 1
        FOR 2) AS cntrycode, c_acctbal FROM t.customer WHERE substring(c_phone FROM 1 FOR 2) IN ('13', '31', '23')
        AND c_acctbal > (SELECT avg(c_acctbal) FROM t.customer WHERE c_acctbal > 0.00 AND substring(c_phone FROM 1
        FOR 2) IN ('13', '31')) AND NOT EXISTS (SELECT * FROM t.orders WHERE o_custkey = c_custkey)) AS custsale
        GROUP BY cntrycode
    """,
}

_NATIONS = ("FRANCE", "GERMANY", "BRAZIL", "CANADA", "SAUDI ARABIA")
_REGIONS = ("EUROPE", "ASIA", "AMERICA")
_DAYS = {
    "o_orderdate": [date(1993, 8, 1), date(1993, 10, 5), date(1994, 2, 1), date(1995, 2, 1), date(1996, 1, 5)],
    "l_shipdate": [date(1994, 3, 1), date(1995, 9, 9), date(1996, 2, 1), date(1995, 4, 1)],
    "l_commitdate": [date(1994, 3, 5), date(1995, 9, 1), date(1996, 3, 1)],
    "l_receiptdate": [date(1994, 3, 9), date(1995, 9, 20), date(1996, 2, 20)],
}
_VALUES: dict[str, Sequence[Any]] = {
    "p_name": ["green apple", "forest mint", "rose"],
    "p_mfgr": ["Manufacturer#1", None],
    "p_brand": ["Brand#12", "Brand#23", "Brand#45", "Brand#11"],
    "p_type": ["LARGE BRASS", "PROMO TIN", "ECONOMY ANODIZED STEEL", "MEDIUM POLISHED TIN"],
    "p_size": [15, 3, 49],
    "p_container": ["MED BOX", "SM CASE"],
    "s_phone": ["11-1", None],
    "s_comment": ["Customer and Complaints", "fine", "good"],
    "ps_availqty": [1, 50, 400],
    "c_phone": ["13-77", "31-12", "23-5", "99-0"],
    "c_mktsegment": ["BUILDING", "BUILDING", "MACHINERY"],
    "c_comment": ["", None],
    "o_orderstatus": ["F", "O"],
    "o_orderpriority": ["1-URGENT", "2-HIGH", "5-LOW"],
    "o_shippriority": [0],
    "o_comment": ["special wrapped requests", "none", None],
    "l_quantity": [Decimal(1), Decimal(11), Decimal(20), Decimal(200)],
    "l_discount": [Decimal("0.05"), Decimal("0.06"), Decimal("0.10")],
    "l_tax": [Decimal("0.00"), Decimal("0.08"), None],
    "l_returnflag": ["R", "N", "A"],
    "l_linestatus": ["O", "F"],
    "l_shipinstruct": ["DELIVER IN PERSON", "NONE"],
    "l_shipmode": ["MAIL", "SHIP", "AIR"],
    **_DAYS,
}
_ROWS = {"region": 3, "nation": 5, "part": 5, "supplier": 5, "partsupp": 18, "customer": 6, "orders": 9, "lineitem": 26}


def _value(rng: Random, column: Column, table: str) -> Any:
    if column.name in _VALUES:
        return rng.choice(_VALUES[column.name])
    if column.name.endswith("key"):
        to = {"nation": "nation", "region": "region", "part": "part", "supp": "supplier", "order": "orders"}
        return rng.randrange(_ROWS[to.get(column.name.split("_")[1].removesuffix("key"), "customer")])
    if column.type == _MONEY:
        return Decimal(rng.randint(100, 99_999)) / 100
    return rng.randint(1, 4) if column.type == "int" else f"{table} {rng.randrange(3)}"


def _row(rng: Random, table: RelationSchema, number: int) -> tuple[Any, ...]:
    row = {column.name: _value(rng, column, table.name) for column in table.columns}
    if len(table.key) == 1:
        row[table.key[0]] = number
    if table.name in ("region", "nation"):
        row[f"{table.name[0]}_name"] = (_REGIONS if table.name == "region" else _NATIONS)[number]
    return tuple(row.values())


def _added(rng: Random, table: RelationSchema, rows: Bag, numbers: Sequence[int]) -> Bag:
    places = [i for i, column in enumerate(table.columns) if column.name in table.key]
    for number in numbers:
        new = _row(rng, table, number)
        if all([row[i] for i in places] != [new[i] for i in places] for row, _ in rows.items()):
            rows = rows.add(Bag.of(rows.attributes, [new]))
    return rows


def states(rng: Random, refreshes: int) -> list[Mapping[str, Bag]]:
    """What the tables hold before the first refresh and after each: orders come with their lines, and go with them
    (RF1 and RF2), and some other row is another."""
    now: dict[str, Bag] = {}
    for id_, table in TABLES.items():
        empty = Bag([column.name for column in table.columns])
        now[id_] = _added(rng, table, empty, range(_ROWS[table.name]))
    found: list[Mapping[str, Bag]] = [now]
    for _ in range(refreshes):
        gone = rng.randrange(_ROWS["orders"])
        now = {**now, **{id_: _without(now[id_], gone) for id_ in ("t.orders", "t.lineitem")}}
        now["t.orders"] = _added(rng, TABLES["t.orders"], now["t.orders"], [gone])
        now["t.lineitem"] = _added(rng, TABLES["t.lineitem"], now["t.lineitem"], range(6))
        other = rng.choice([id_ for id_ in sorted(TABLES) if id_ not in ("t.region", "t.nation")])
        row = rng.choice(sorted((row for row, _ in now[other].items()), key=repr))
        rest = now[other].add(Bag.of(now[other].attributes, [row], -1))
        now[other] = _added(rng, TABLES[other], rest, [row[0]])
        found.append(now)
    return found


def _without(rows: Bag, order: int) -> Bag:
    return Bag(rows.attributes, {row: n for row, n in rows.items() if row[0] != order})
