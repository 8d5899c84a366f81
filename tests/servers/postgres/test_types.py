"""PostgreSQL: types, names, schemas and partitions."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from postgres_database import Database, read

from strobe.algebra.bag import Bag
from strobe.errors import UserError
from strobe.messages import Lookup, Query
from strobe.sources.lookups import answer_on_driver
from strobe.sources.postgres.values import CODECS

REPERTOIRE = """
CREATE FUNCTION repertoire(encoding text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE found text := '';
BEGIN
    FOR byte IN 1..255 LOOP
        BEGIN
            found := found || convert_from(set_byte('\\x00', 0, byte), encoding);
        EXCEPTION WHEN OTHERS THEN NULL;
        END;
    END LOOP;
    RETURN found;
END $$"""


def test_types_that_are_read_as_text(db: Database) -> None:
    """As the server writes them, from the stream and from answers; never looked up by. Arrays of domains and enums."""
    values = {
        "time": "12:30:00.5",
        "interval": "1 day 02:00:00",
        "bit(3)": "101",
        "varbit": "01",
        "inet": "10.0.0.1/8",
        "macaddr": "08:00:2b:01:02:03",
        "xml": "<a/>",
    }
    columns = ", ".join(f"c{n} {declared}" for n, declared in enumerate(values))
    source = db.make(
        "CREATE TYPE mood AS ENUM ('sad', 'so so'); CREATE DOMAIN cents AS numeric(8,2);"
        f"CREATE TABLE t (id int PRIMARY KEY, {columns}, m mood[], d cents[])",
        "t",
    )
    (schema,) = source.schemas()
    assert [c.type for c in schema.columns[-2:]] == ["array<string>", "array<decimal(8,2)>"]
    assert [c.name for c in schema.columns if c.searchable] == ["id"]
    start = source.now()
    text = ", ".join(f"'{value}'" for value in values.values())
    db.run(f"""INSERT INTO t VALUES (1, {text}, '{{sad,"so so"}}', '{{1.5,NULL}}')""")
    expected = Bag.of(
        [c.name for c in schema.columns], [(1, *values.values(), ("sad", "so so"), (Decimal("1.50"), None))]
    )
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == expected
    reader = source.reader()
    reader.open()
    assert Bag.of([c.name for c in schema.columns], reader.scan("t", [c.name for c in schema.columns])) == expected
    reader.close()


def test_keys_that_a_database_cannot_store(db: Database) -> None:
    """In a database whose encoding lacks a key's characters no row has it, and the server would refuse it; what the
    encoding has is found."""
    source = db.make("CREATE TABLE t (id text PRIMARY KEY, f char(3))", "t", encoding="LATIN1")
    db.run("INSERT INTO t VALUES ('é', 'ÿ'), ('e', 'x')")
    for column, keys in (("id", ["é", "e\u0301", "日本", "€", "\x80"]), ("f", ["ÿ  ", "Ÿ  "])):
        lookup = Lookup(0, "t", ("id",), (column,), Bag.of((column,), [(key,) for key in keys]))
        (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "shop", (lookup,)), 10)
        assert found == Bag.of(("id",), [("é",)])


def test_what_an_encoding_has_is_what_the_server_says(db: Database) -> None:
    """Python and the server know the same characters of every encoding of one byte."""
    db.make(REPERTOIRE)
    for encoding, codec in CODECS.items():
        ((there,),) = db.server.execute(db.name, "SELECT repertoire(%s)", encoding)
        ours = bytes(range(1, 256)).decode(codec, errors="ignore")
        assert sorted(there) == sorted(ours), encoding


def test_types_of_users(db: Database) -> None:
    """Enums, domains, uuids and json are text; what is stored is what is searched for, label or not."""
    source = db.make(
        "CREATE TYPE mood AS ENUM ('sad', 'it''s ok'); CREATE DOMAIN cents AS numeric(8,2) CHECK (VALUE > 0);"
        "CREATE TABLE t (id uuid PRIMARY KEY, m mood, c cents, j jsonb, k json, f char(4), p point, r int4range[])",
        "t",
    )
    (schema,) = source.schemas()
    types = {c.name: c.type for c in schema.columns}
    assert types == {"id": "string", "m": "string", "c": "decimal(8,2)", "j": "string", "k": "string", "f": "string"}
    assert [c.name for c in schema.columns if not c.searchable] == ["j", "k"]
    start = source.now()
    one = "11111111-1111-1111-1111-111111111111"
    db.run(f"INSERT INTO t VALUES ('{one}', 'it''s ok', 1.5, '{{\"a\":  1}}', '{{\"a\":  1}}', 'x', '(1,2)', NULL)")
    row = (one, "it's ok", Decimal("1.50"), '{"a": 1}', '{"a":  1}', "x   ")
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == Bag.of(tuple(types), [row])
    for on, keys in (
        (("m",), [("it's ok",), ("no label",)]),
        (("id",), [(one,), ("no uuid",)]),
        (("id", "m"), [(one, "it's ok"), (one, "no label")]),
        (("c", "f"), [(Decimal("1.5"), "x   "), (Decimal("1.5"), "x   y")]),
    ):
        lookup = Lookup(0, "t", tuple(types), on, Bag.of(on, keys))
        (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "shop", (lookup,)), 100)
        assert found == Bag.of(tuple(types), [row])
    assert any("p (point), r (int4range[])" in f.message for f in source.check(["t"]))


@pytest.mark.parametrize(
    ("declared", "value", "reason"),
    [
        ("numeric", "'NaN'", "finite"),
        ("numeric", "1e-30", "digits after the point"),
        ("numeric", "1e30", "digits before the point"),
        ("date", "'infinity'", "years 1 and 9999"),
        ("date", "'0044-03-15 BC'", "years 1 and 9999"),
        ("timestamp", "'-infinity'", "years 1 and 9999"),
        ("timestamptz", "'10000-01-01'", "years 1 and 9999"),
        ("int[]", "'{{1,2},{3,4}}'", "several dimensions"),
        ("int[]", "'[2:3]={1,2}'", "first element"),
        ("date[]", "'{2024-01-01,infinity}'", "years 1 and 9999"),
    ],
)
def test_values_that_spark_cannot_hold_are_refused(db: Database, declared: str, value: str, reason: str) -> None:
    """From the stream and from an answer alike, naming the column; and ignored where nobody uses it."""
    source = db.make(f"CREATE TABLE t (id int PRIMARY KEY, v {declared})", "t")
    start = source.now()
    db.run(f"INSERT INTO t VALUES (1, {value})")
    with pytest.raises(UserError, match=reason) as caught:
        read(source, start)
    assert "column v" in caught.value.where
    reader = source.reader()
    reader.open()
    with pytest.raises(UserError, match=reason):
        list(reader.scan("t", ["v"]))
    reader.close()
    source.focus({"t": ["id"]})
    (transaction,) = read(source, start)
    assert transaction.changes["t"] == Bag.of(("id",), [(1,)])


def test_collations_where_equality_is_wider(db: Database) -> None:
    """A column whose collation calls different texts equal is no key and is not searched by."""
    source = db.make(
        "CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);"
        "CREATE TABLE t (id text COLLATE loose PRIMARY KEY, a int); ALTER TABLE t REPLICA IDENTITY FULL",
        "t",
    )
    (schema,) = source.schemas()
    assert schema.key == () and not schema.column("id").searchable


def test_the_servers_settings_do_not_change_values(db: Database) -> None:
    """Date style, time zone and float digits of the role are overruled in the stream and in answers."""
    source = db.make("CREATE TABLE t (id date PRIMARY KEY, f float8, z timestamptz, b bytea)", "t")
    role = db.server.role
    for setting in ("datestyle = 'SQL, DMY'", "timezone = 'Asia/Kathmandu'", "bytea_output = 'escape'"):
        db.server.execute(db.name, f"ALTER ROLE {role} IN DATABASE {db.name} SET {setting}")
    db.server.execute(db.name, f"ALTER ROLE {role} IN DATABASE {db.name} SET extra_float_digits = 0")
    again, start = db.open(), source.now()
    db.run("INSERT INTO t VALUES ('2024-02-29', 0.1::float8 + 0.2, '2024-01-01 00:00:00+00', '\\x00')")
    (transaction,) = read(again, start)
    ((row, _),) = transaction.changes["t"].items()
    reader = again.reader()
    reader.open()
    assert [row] == list(reader.scan("t", ["id", "f", "z", "b"]))
    assert row[:2] == (date(2024, 2, 29), 0.30000000000000004) and row[2].isoformat() == "2024-01-01T00:00:00+00:00"
    reader.close()
    again.close()


def test_any_name_and_other_schemas(db: Database) -> None:
    """Tables of other schemas are `schema.table`; names hold whatever PostgreSQL allows."""
    source = db.make(
        'CREATE SCHEMA "we ird"; CREATE TABLE "we ird"."o""rd;er\'s %s" ("i d" int PRIMARY KEY, "%s" text);'
        f'GRANT USAGE ON SCHEMA "we ird" TO {db.server.role}; GRANT SELECT ON ALL TABLES IN SCHEMA "we ird" '
        f"TO {db.server.role}"
    )
    name = "we ird.o\"rd;er's %s"
    db.server.publish(db.name, source.prepare_script([name]))
    source.prepare([name])
    assert source.check([name])[0].severity == "warning" and source.schemas()[0].id == f"shop.{name}"
    start = source.now()
    db.server.execute(db.name, """INSERT INTO "we ird"."o""rd;er's %%s" VALUES (%s, 'x')""", 1)
    (transaction,) = read(source, start)
    assert transaction.changes[name] == Bag.of(("i d", "%s"), [(1, "x")])
    lookup = Lookup(0, name, ("%s",), ("i d",), Bag.of(("i d",), [(1,)]))
    (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "shop", (lookup,)), 100)
    assert found == Bag.of(("%s",), [("x",)])


def test_partitions_come_as_their_table(db: Database) -> None:
    """Also a row that moves from one partition to another, which is one event."""
    source = db.make(
        "CREATE TABLE p (id int, at int, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);"
        "CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);"
        "CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20)",
        "p",
    )
    assert [s.name for s in source.schemas()] == ["p"]
    start = source.now()
    db.run("INSERT INTO p VALUES (1, 1)")
    db.run("UPDATE p SET at = 11")
    first, second = read(source, start)
    assert first.changes["p"] == Bag.of(("id", "at"), [(1, 1)])
    assert second.gone["p"] == Bag.of(("id", "at"), [(1, 1)])
    assert second.changes["p"] == Bag.of(("id", "at"), [(1, 11)])
