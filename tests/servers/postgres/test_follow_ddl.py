"""PostgreSQL: partitions that are dropped, detached or attached are followed, at their place among the changes of rows.

Views over a partitioned table are kept by the live pipeline, the warehouse in memory, while several writers change all
tables and partitions come and go in random orders. Each commit is compared with what the server itself had: every
transaction of the writers leaves a copy of the tables as they were when it committed.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path

import psycopg
import pytest
from committing import no_spark
from memory_live import MemoryWarehouse, contents, keep
from patience import PATIENCE, Writing, eventually
from postgres_database import Database, read
from postgres_server import PostgresServer
from postgres_under_test import PostgresUnderTest
from special_values import TYPES, special

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound, End, Range
from strobe.config.load import load_project
from strobe.errors import RelationLost, SourceUnavailable, UserError
from strobe.messages import CommitHeader
from strobe.pipeline.pipeline import Pipeline
from strobe.planning.topology import Topology, assemble
from strobe.simulator.world import Contents, evaluate
from strobe.sources.postgres.connection import ConnectionSettings
from strobe.sources.postgres.source import PostgresSource

LINES = """
CREATE TABLE lines (id bigint, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
ALTER TABLE lines REPLICA IDENTITY FULL;
CREATE TABLE lines_1 PARTITION OF lines FOR VALUES FROM (0) TO (10);
CREATE TABLE lines_2 PARTITION OF lines FOR VALUES FROM (10) TO (20);
ALTER TABLE lines_1 REPLICA IDENTITY FULL;
ALTER TABLE lines_2 REPLICA IDENTITY FULL;
INSERT INTO lines VALUES (1, 1, 'a'), (2, 11, 'b');
"""
ATTACH = "ALTER TABLE lines ATTACH PARTITION more FOR VALUES FROM (30) TO (40)"
OTHER = "ALTER TABLE lines ATTACH PARTITION other FOR VALUES FROM (40) TO (50)"
BACK = "ALTER TABLE lines ATTACH PARTITION lines_2 FOR VALUES FROM (10) TO (20)"
MORE = """
CREATE TABLE more (junk int, note text, id bigint NOT NULL, day int NOT NULL, PRIMARY KEY (id, day));
ALTER TABLE more DROP COLUMN junk;
ALTER TABLE more REPLICA IDENTITY FULL;
INSERT INTO more (id, day, note)
"""
FORGED = "SELECT pg_logical_emit_message(true, 'strobe_test_shop', $${}$$)"
KINDS = """
CREATE TABLE listed (k text, n int) PARTITION BY LIST (k);
CREATE TABLE listed_1 PARTITION OF listed FOR VALUES IN ('a', 'it''s, (\\x)', '', NULL);
CREATE TABLE listed_2 PARTITION OF listed FOR VALUES IN ('NULL', 'b');
INSERT INTO listed VALUES ('a', 1), ('it''s, (\\x)', 2), ('', 3), (NULL, 4), ('NULL', 5), ('b', 6);
CREATE TABLE several (a int, b numeric(8,2), c date) PARTITION BY RANGE (a, b);
CREATE TABLE several_1 PARTITION OF several FOR VALUES FROM (MINVALUE, MINVALUE) TO (1, 5.50);
CREATE TABLE several_2 PARTITION OF several FOR VALUES FROM (1, 5.50) TO (3, MAXVALUE);
CREATE TABLE several_3 PARTITION OF several FOR VALUES FROM (3, MAXVALUE) TO (9, MINVALUE);
INSERT INTO several SELECT a, b + d, '2024-01-01' FROM generate_series(0, 8) a, generate_series(5, 6) b,
    unnest(ARRAY[0, 0.49, 0.5]) d WHERE b < 6 OR d = 0;
CREATE TABLE below (at timestamptz, up bool, n int) PARTITION BY RANGE (at);
CREATE TABLE below_1 PARTITION OF below FOR VALUES FROM ('2024-01-01 00:00+02') TO ('2024-02-01')
    PARTITION BY LIST (up);
CREATE TABLE below_1a PARTITION OF below_1 FOR VALUES IN (true);
CREATE TABLE below_1b PARTITION OF below_1 FOR VALUES IN (false);
CREATE TABLE below_2 PARTITION OF below FOR VALUES FROM ('2024-02-01') TO (MAXVALUE);
INSERT INTO below VALUES ('2024-01-05', true, 1), ('2024-01-05', false, 2), ('2024-03-05', true, 3);
CREATE TABLE hashed (n int) PARTITION BY HASH (n);
CREATE TABLE hashed_1 PARTITION OF hashed FOR VALUES WITH (MODULUS 1, REMAINDER 0);
CREATE TABLE rest (n int) PARTITION BY RANGE (n);
CREATE TABLE rest_1 PARTITION OF rest DEFAULT;
CREATE TABLE computed (n int) PARTITION BY RANGE ((n + 1));
CREATE TABLE computed_1 PARTITION OF computed FOR VALUES FROM (1) TO (5);
CREATE TABLE worded (k text) PARTITION BY RANGE (k);
CREATE TABLE worded_1 PARTITION OF worded FOR VALUES FROM ('a') TO ('b');
DO $$ DECLARE t regclass; BEGIN
  FOR t IN SELECT oid FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace LOOP
    EXECUTE format('ALTER TABLE %s REPLICA IDENTITY FULL', t);
  END LOOP;
END $$;
"""
KINDS_OF = {
    "listed": ("listed_1", 2, ""),
    "several": ("several_2", 26, ""),
    "below": ("below_1a", 2, ""),
    "hashed": ("hashed_1", 0, "by hash"),
    "rest": ("rest_1", 0, "the default one"),
    "computed": ("computed_1", 0, "an expression"),
    "worded": ("worded_1", 0, "not compared alike"),
}
"""By table, a partition, how many different rows are left without it, and why they cannot be told apart."""
FIRST = Bound((Range(("day",), End((0,)), End((10,), False)),))


def followed(db: Database, script: str = LINES) -> PostgresSource:
    source = db.make(script, "lines")
    for statement in source.ddl_script():
        db.run(statement)
    source.schemas()
    source.focus({"lines": ["id", "day", "note"]})
    return source


@pytest.mark.parametrize(
    "statements",
    [
        ["DROP TABLE lines_1"],
        ["ALTER TABLE lines DETACH PARTITION lines_1"],
        ["ALTER TABLE lines DETACH PARTITION lines_1; DROP TABLE lines_1"],
        ["DO $$ BEGIN BEGIN PERFORM 1; DROP TABLE lines_1; EXCEPTION WHEN OTHERS THEN NULL; END; END $$"],
        ["SAVEPOINT a", "DROP TABLE lines_2", "ROLLBACK TO a", "DROP TABLE lines_1"],
        ["SET DateStyle = german", "SET TimeZone = 'Asia/Tokyo'", "DROP TABLE lines_1"],
        [
            "CREATE TABLE lines_3 PARTITION OF lines FOR VALUES FROM (20) TO (30)",
            "ALTER TABLE lines_3 REPLICA IDENTITY FULL",
            "DROP TABLE lines_1",
        ],
    ],
)
def test_the_log_says_which_partition_left_and_where(db: Database, statements: Sequence[str]) -> None:
    """Once, in the transaction that took it; the fingerprints then differ in nothing that harms."""
    source = followed(db)
    start, before = source.now(), source.fingerprints(["lines"])["lines"]
    db.run("INSERT INTO lines VALUES (3, 3, 'c')")
    db.run(*statements)
    db.run("INSERT INTO lines VALUES (4, 14, 'd')")
    _, left, _ = read(source, start)
    ((departed,),) = left.departed.values()
    assert departed.bound == FIRST and not departed.late and "lines_1" in departed.what
    after = source.fingerprints(["lines"])["lines"]
    assert source.changed("lines", ["id"], before, after) == ""
    assert departed.partition and source.was_known(departed.partition, source.proven(before, after))
    again = db.open()  # another process, which has not read the log yet
    assert again.changed("lines", ["id"], before, after) == ""
    again.close()


def test_a_snapshot_that_is_older_than_a_departure_is_taken_again(db: Database) -> None:
    """It would not find the partition's rows, though it had not seen that they left."""
    source = followed(db)
    reader = source.reader()
    reader.open()
    db.run("DROP TABLE lines_1")
    with pytest.raises(SourceUnavailable, match="a partition left"):
        list(reader.scan("lines", ["id"]))
    reader.open()
    assert list(reader.scan("lines", ["id"])) == [(2,)]
    reader.close()


HALF = "SELECT 7, 37, NULL"
BELOW = """
CREATE TABLE more (id bigint, day int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (id);
CREATE TABLE more_1 PARTITION OF more FOR VALUES FROM (0) TO (8);
CREATE TABLE more_2 (note text, id bigint NOT NULL, day int NOT NULL, PRIMARY KEY (id, day));
ALTER TABLE more ATTACH PARTITION more_2 FOR VALUES FROM (8) TO (20);
ALTER TABLE more_1 REPLICA IDENTITY FULL; ALTER TABLE more_2 REPLICA IDENTITY FULL;
INSERT INTO more VALUES (7, 37, NULL), (8, 38, 'a "b", {c}\\')
"""


@pytest.mark.parametrize(
    ("before", "statements", "came"),
    [
        ([f"{MORE} SELECT 1, 31, 'n' WHERE false"], [ATTACH], {}),
        ([f"{MORE} {HALF}"], [ATTACH], {(7, 37, None): 1}),
        ([], [f"{MORE} {HALF}", ATTACH], {(7, 37, None): 1}),
        ([BELOW], [ATTACH], {(7, 37, None): 1, (8, 38, 'a "b", {c}\\'): 1}),
        ([f"{MORE} {HALF}"], [ATTACH, "UPDATE lines SET note = 'u', id = 9 WHERE id = 7"], {(9, 37, "u"): 1}),
        (
            [f"{MORE} {HALF}"],
            [ATTACH, "DELETE FROM lines WHERE id = 7", "INSERT INTO lines VALUES (8, 38)"],
            {(8, 38, None): 1},
        ),
        ([f"{MORE} {HALF}"], ["INSERT INTO lines VALUES (3, 3)", ATTACH], {(7, 37, None): 1, (3, 3, None): 1}),
        ([f"{MORE} {HALF}"], [f"DO $$ BEGIN {ATTACH}; DELETE FROM lines WHERE day = 37; END $$"], {}),
        (
            [f"{MORE} {HALF}"],
            [f"DO $$ BEGIN {ATTACH}; ALTER TABLE lines_1 SET (fillfactor = 90); END $$", "ALTER TABLE more SET LOGGED"],
            {(7, 37, None): 1},
        ),
        ([f"{MORE} {HALF}"], ["SAVEPOINT a", ATTACH, "ROLLBACK TO a", "DELETE FROM more", ATTACH], {}),
        ([f"{MORE} {HALF}"], ["DROP TABLE lines_2", ATTACH], {(7, 37, None): 1}),
    ],
)
def test_the_log_has_the_rows_of_a_partition_that_is_attached(
    db: Database, before: Sequence[str], statements: Sequence[str], came: dict[tuple[object, ...], int]
) -> None:
    """In the transaction that attaches it, among its other changes; the fingerprints then differ in nothing that
    harms, and what is read is what there was and what the log brought."""
    source = followed(db)
    db.run(*before)
    start, old = source.now(), source.fingerprints(["lines"])["lines"]
    db.run(*statements)
    found = read(source, start)
    changes = [_bag(t.changes["lines"]) for t in found if t.changes]
    assert changes == ([Bag(("id", "day", "note"), came)] if came else [])
    new = source.fingerprints(["lines"])["lines"]
    assert source.changed("lines", ["id"], old, new) == ""
    again = db.open()  # another process, which has not read the log yet
    assert again.changed("lines", ["id"], old, new) == ""
    again.close()


@pytest.mark.parametrize("at_first", [True, False])
def test_a_partition_that_was_truncated_is_not_taken_for_one_that_moved(db: Database, at_first: bool) -> None:
    """TRUNCATE of a partition is in no log. So the rows that the view has, or that came with a partition, are not those
    that the table has, from a place on that nobody knows."""
    source = followed(db)
    db.run(f"{MORE} {HALF}")
    start, old = source.now(), source.fingerprints(["lines"])["lines"]
    for statement in ("TRUNCATE lines_1", "DROP TABLE lines_1") if at_first else (ATTACH, "TRUNCATE more"):
        db.run(statement)
    read(source, start)
    for each in (source, db.open()):
        assert "truncated" in each.changed("lines", ["id"], old, each.fingerprints(["lines"])["lines"])
        each.close()


@pytest.mark.parametrize("leave", ["DROP TABLE below_1", "ALTER TABLE below DETACH PARTITION below_1"])
@pytest.mark.parametrize("truncated", [True, False])
def test_the_files_of_all_that_is_below_a_partition_are_compared(db: Database, leave: str, truncated: bool) -> None:
    source = db.make(KINDS, "below")
    for statement in source.ddl_script():
        db.run(statement)
    source.schemas()
    old = source.fingerprints(["below"])["below"]
    if truncated:
        db.run("TRUNCATE below_1b")
    db.run(leave)
    what = source.changed("below", ["n"], old, source.fingerprints(["below"])["below"])
    assert ("below_1b was truncated" in what) == truncated == bool(what)


def test_a_log_that_cannot_be_read_any_more_says_nothing(db: Database) -> None:
    """The views stop, with what happened to the publication."""
    source = followed(db)
    old = source.fingerprints(["lines"])["lines"]
    for statement in ("DROP TABLE lines_1", "DROP PUBLICATION strobe_test_shop", "INSERT INTO lines VALUES (5, 15)"):
        db.run(statement)
    assert "publication" in source.changed("lines", ["id"], old, source.fingerprints(["lines"])["lines"])


def test_a_drop_that_waited_for_a_truncate_is_not_taken_for_one_that_did_not(db: Database) -> None:
    """The statement's own look at the catalog is from before it waited."""
    source = followed(db)
    old = source.fingerprints(["lines"])["lines"]
    with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
        connection.execute("TRUNCATE lines_1")
        waiting = threading.Thread(target=db.run, args=("DROP TABLE lines_1",))
        waiting.start()
        eventually(lambda: db.server.execute(db.name, "SELECT 1 FROM pg_locks WHERE NOT granted"))
    waiting.join(PATIENCE)
    assert "truncated" in source.changed("lines", ["id"], old, source.fingerprints(["lines"])["lines"])


def test_rows_that_come_while_a_partition_is_about_to_be_attached_come_with_it(db: Database) -> None:
    """The statement waits for the writer, and began before that one committed."""
    source = followed(db)
    db.run(f"{MORE} {HALF}")
    start = source.now()
    with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
        connection.execute("INSERT INTO more (id, day) VALUES (8, 38)")
        connection.execute("DELETE FROM more WHERE id = 7")
        waiting = threading.Thread(target=db.run, args=(ATTACH,))
        waiting.start()
        eventually(lambda: db.server.execute(db.name, "SELECT 1 FROM pg_locks WHERE NOT granted"))
    waiting.join(PATIENCE)
    (transaction,) = read(source, start)
    assert transaction.changes["lines"] == Bag(("id", "day", "note"), {(8, 38, None): 1})


@pytest.mark.parametrize(
    "other",
    [
        [f"{MORE.replace('more', 'other')} {HALF.replace('37', '47')}", OTHER],
        [
            "CREATE TABLE other PARTITION OF lines FOR VALUES FROM (40) TO (50)",
            "ALTER TABLE other REPLICA IDENTITY FULL",
            "INSERT INTO lines VALUES (7, 47)",
        ],
        [BELOW.replace("more", "other").replace("37", "47").replace("38", "48"), OTHER],
    ],
)
def test_what_another_transaction_attached_is_in_its_message_alone(db: Database, other: Sequence[str]) -> None:
    """Also where the statement waited for that one, and finds what it has brought."""
    source = followed(db)
    db.run(f"{MORE} {HALF}")
    start = source.now()
    with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
        for statement in other:
            connection.execute(statement.encode())
        waiting = threading.Thread(target=db.run, args=(ATTACH,))
        waiting.start()
        eventually(lambda: db.server.execute(db.name, "SELECT 1 FROM pg_locks WHERE NOT granted"))
    waiting.join(PATIENCE)
    first, second = (_bag(t.changes["lines"]) for t in read(source, start))
    assert second == Bag(("id", "day", "note"), {(7, 37, None): 1})
    reader = source.reader()
    reader.open()
    there = Bag.of(second.attributes, reader.scan("lines", second.attributes))
    reader.close()
    assert there == first.add(second).add(Bag.of(second.attributes, [(1, 1, "a"), (2, 11, "b")]))


def test_a_snapshot_that_is_older_than_an_attached_partition_is_taken_again(db: Database) -> None:
    """It would find the partition's rows, though it had not seen that they came."""
    source = followed(db)
    db.run(f"{MORE} {HALF}")
    reader = source.reader()
    reader.open()
    db.run(ATTACH)
    with pytest.raises(SourceUnavailable, match="a partition left or came"):
        list(reader.scan("lines", ["id"]))
    reader.open()
    assert sorted(reader.scan("lines", ["id"])) == [(1,), (2,), (7,)]
    reader.close()


def test_by_keys_alone_the_rows_of_an_attached_partition_come_too(db: Database) -> None:
    """Where nothing else was done to the table before, in the same transaction."""
    source = followed(db, LINES.replace(" REPLICA IDENTITY FULL", " REPLICA IDENTITY DEFAULT"))
    db.run(f"{MORE} SELECT 7, 37, 'm'".replace("IDENTITY FULL", "IDENTITY DEFAULT"))
    start = source.now()
    db.run(ATTACH, "CREATE TABLE between ()", "UPDATE lines SET note = 'u' WHERE id = 7")
    (transaction,) = read(source, start)
    assert transaction.changes["lines"] == Bag(("id", "day", "note"), {(7, 37, "u"): 1}) and not transaction.gone


def test_values_that_come_with_a_partition_are_those_that_are_read(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Of every type, special ones, whatever the settings of the session that attaches."""
    test = PostgresUnderTest(tmp_path, request)
    natives = {f"more_{n}": native for n, native in enumerate([*test.columns, *test.values])}
    spark = {**{t: t for t in test.values}, **test.columns}
    test.create({name: ({"id": "bigint", "c": native}, ()) for name, native in natives.items()})
    for name, native in natives.items():
        values = (
            [v for v in special(spark[native]) if test.holds(native, v)]
            if native in TYPES or native in (test.columns)
            else test.values[native]
        )
        test.apply([(name, None, row) for row in [*enumerate(values), (len(values), None)]])
        whole = f'CREATE TABLE "whole_{name}" (LIKE "{name}") PARTITION BY RANGE (id)'
        test.run([(whole, ()), (f'ALTER TABLE "whole_{name}" REPLICA IDENTITY FULL', ())])
    source = test.open()
    source.prepare([f"whole_{name}" for name in natives])
    for statement in source.ddl_script():
        test.server.execute(test.database, statement.encode())
    source.schemas()
    start = source.now()
    odd = ["DateStyle = german", "TimeZone = 'Asia/Tokyo'", "bytea_output = escape", "extra_float_digits = -3"]
    odd += ["IntervalStyle = iso_8601", "standard_conforming_strings = off"]
    for name in natives:
        attach = f'ALTER TABLE "whole_{name}" ATTACH PARTITION "{name}" FOR VALUES FROM (0) TO (1000)'
        test.run([*((f"SET {setting}", ()) for setting in odd), (attach, ())])
    came = {name: rows for t in read(source, start) for name, rows in t.changes.items()}  # type: ignore[arg-type]
    reader = source.reader()
    reader.open()
    for name in natives:
        scanned = Bag.of(("id", "c"), reader.scan(f"whole_{name}", ("id", "c")))
        assert len(scanned) > 1 and repr(came[f"whole_{name}"]) == repr(scanned), natives[name]
    reader.close()


@pytest.mark.parametrize(
    ("statements", "what"),
    [
        ([f"{MORE} SELECT n, 30, 'm' FROM generate_series(1, 10001) n", ATTACH], "too many rows"),
        ([f"{MORE} SELECT n, 30, repeat(md5(n::text), 40000) FROM generate_series(1, 9) n", ATTACH], "too many rows"),
        (["SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", f"{MORE} VALUES (7, 37, 'm')", ATTACH], "unknown ones"),
        (["ALTER TABLE lines DETACH PARTITION lines_2", BACK], "after it had left"),
        ([f"{MORE} VALUES (7, 37, 'm')", ATTACH, "DROP TABLE lines_1"], "order is not certain"),
        (["INSERT INTO lines VALUES (3, 3)", "DROP TABLE lines_1"], "order is not certain"),
    ],
)
def test_what_cannot_be_placed_stops_the_views_of_the_table(db: Database, statements: Sequence[str], what: str) -> None:
    """At its place in the log, even where the catalog is as it was."""
    source = followed(db)
    start = source.now()
    db.run("INSERT INTO lines VALUES (5, 15, 'e')")
    db.run(*statements)
    until = time.monotonic() + PATIENCE
    found = []
    with pytest.raises(RelationLost, match=what) as lost:
        found.extend(source.transactions(start, [], lambda: time.monotonic() > until))
    assert lost.value.relations == {"lines"} and sum(bool(t.changes) for t in found) == 1


FORGERIES = {
    "not what it writes": "nonsense",
    "nested": "[" * 100_000,
    "a partition that is there": '{{"left": {left}, "came": null}}',
    "another token": '{{"token": "00000000-0000-0000-0000-000000000000", "left": {left}, "came": null}}',
    "no token": '{{"token": null, "left": {left}, "came": [[{root}, {root}, "lines"]]}}',
}


@pytest.mark.parametrize("content", FORGERIES.values(), ids=FORGERIES)
def test_a_message_that_the_trigger_did_not_write_is_passed_over(db: Database, content: str) -> None:
    """Any role that can connect may write one: it takes nothing out of a view, and stops none; it is reported."""
    source = followed(db)
    start, before = source.now(), source.fingerprints(["lines"])["lines"]
    ((root, child),) = db.server.execute(db.name, "SELECT 'lines'::regclass::oid::int8, 'lines_1'::regclass::oid::int8")
    left = f'[[{root}, {child}, "lines_1", [["r", "FOR VALUES FROM (0) TO (10)", ["day"]]]]]'
    text = content.format(left=left, root=root) if "{" in content else content
    db.server.execute(db.name, "CREATE ROLE stranger LOGIN" if not _there(db, "stranger") else "SELECT 1")
    db.run("SET ROLE stranger", FORGED.replace("{}", text), "RESET ROLE", "INSERT INTO lines VALUES (3, 3, 'c')")
    (transaction,) = read(source, start)
    assert not transaction.departed and transaction.changes
    assert "it did not write" in source.warning
    assert source.changed("lines", ["id"], before, source.fingerprints(["lines"])["lines"]) == ""
    db.run("DROP TABLE lines_1")
    assert read(source, transaction.position)[0].departed


def _there(db: Database, role: str) -> bool:
    return bool(db.server.execute(db.name, f"SELECT 1 FROM pg_roles WHERE rolname = '{role}'"))


def test_a_token_that_cannot_be_read_is_no_trigger(db: Database) -> None:
    """Without it the trigger's messages are nobody's: the drop is not in the log, and stops the views."""
    source = followed(db)
    start, before = source.now(), source.fingerprints(["lines"])["lines"]
    db.run(f"REVOKE ALL ON strobe_test_shop FROM {_role(source)}")
    db.run("DROP TABLE lines_1", "INSERT INTO lines VALUES (4, 14, 'd')")
    assert not read(source, start)[0].departed
    assert source.changed("lines", ["id"], before, source.fingerprints(["lines"])["lines"])
    assert source.ddl_script()


def _role(source: PostgresSource) -> str:
    return psycopg.conninfo.conninfo_to_dict(source.settings.dsn)["user"]  # type: ignore[return-value]


def test_nobody_else_can_read_the_token(db: Database) -> None:
    followed(db)
    if not _there(db, "stranger"):
        db.server.execute(db.name, "CREATE ROLE stranger LOGIN")
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.run("SET ROLE stranger", "SELECT token FROM public.strobe_test_shop")


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE lines DETACH PARTITION lines_1 CONCURRENTLY",
        "TRUNCATE lines_1",
        "SET event_triggers = off; DROP TABLE lines_1",
        "DROP EVENT TRIGGER strobe_test_shop; DROP TABLE lines_1",
    ],
)
def test_what_the_log_does_not_say_still_stops_the_views(db: Database, statement: str) -> None:
    source = followed(db)
    before = source.fingerprints(["lines"])["lines"]
    with psycopg.connect(db.server.admin_dsn(db.name), autocommit=True) as connection:
        for part in statement.split(";"):
            try:
                connection.execute(part.encode())
            except psycopg.errors.UndefinedObject:
                pytest.skip("this server cannot switch event triggers off")
    assert source.changed("lines", ["id"], before, source.fingerprints(["lines"])["lines"])


def test_bounds_of_many_kinds_are_read(db: Database) -> None:
    """The rows that left are those in the bound, for what the server calls a list, a range of several columns, and
    partitions below others; where they cannot be told apart, the reason is there."""
    source = db.make(KINDS, *KINDS_OF)
    for statement in source.ddl_script():
        db.run(statement)
    tables = {t.name: t for t in source.schemas()}
    for name, (partition, rest, why) in KINDS_OF.items():
        columns = [c.name for c in tables[name].columns]
        source.focus({name: columns})
        reader = source.reader()
        reader.open()
        there = Bag.of(columns, reader.scan(name, columns))
        reader.close()
        start = source.now()
        db.run(f"DROP TABLE {partition}")
        ((left,),) = read(source, start)[0].departed.values()
        assert why in left.unknown and (left.bound is None) == bool(why), name
        if left.bound is not None:
            reader.open()
            assert there.outside(left.bound) == Bag.of(columns, reader.scan(name, columns)), name
            assert len(there.outside(left.bound)) == rest, name
            reader.close()


def test_the_trigger_is_in_nobodys_way(db: Database) -> None:
    """A statement about another table takes no lock on a partition, and so waits for none."""
    followed(db)
    with psycopg.connect(db.server.admin_dsn(db.name)) as connection:
        connection.execute("CREATE TABLE other (n int)")
        connection.execute("ALTER TABLE other ADD COLUMN m int")
        connection.execute("DROP TABLE other")
        held = connection.execute("SELECT relation::regclass::text FROM pg_locks WHERE pid = pg_backend_pid()")
        assert not [name for (name,) in held if name and name.startswith("lines")]


def test_undo_takes_the_trigger_out(db: Database) -> None:
    """By a superuser; Strobe's own role says who can."""
    source = followed(db)
    with pytest.raises(UserError, match="may not do this"):
        source.undo()
    admin = PostgresSource(ConnectionSettings("shop", db.server.admin_dsn(db.name), "public", source.settings.name))
    assert admin.ddl_script() == [] and admin.undo()[0] == "event trigger strobe_test_shop"
    admin.follow_ddl()
    assert admin.ddl_script() == []
    admin.close()


TABLES = {
    "sales": """
        CREATE TABLE customers (id int PRIMARY KEY, name text);
        INSERT INTO customers VALUES (1, 'Ada'), (2, 'Bob'), (3, NULL);
        CREATE TABLE lines (id int, day int, customer int, note text, PRIMARY KEY (id, day)) PARTITION BY RANGE (day);
        CREATE INDEX ON lines (customer);
    """,
    "billing": """
        CREATE TABLE payments (id bigint PRIMARY KEY, line int, cents int);
        CREATE INDEX ON payments (line);
        INSERT INTO payments VALUES (1, 1, 500), (2, 2, 700);
    """,
}
FULL = "ALTER TABLE {} REPLICA IDENTITY FULL"
WRITES = {
    "sales": [
        "INSERT INTO lines VALUES ({line}, {day}, {customer}, 'v{n}') ON CONFLICT (id, day) DO UPDATE SET note = 'u'",
        "INSERT INTO lines VALUES ({line}, {day}, {customer}, 'w{n}') ON CONFLICT DO NOTHING",
        "UPDATE lines SET customer = {customer} WHERE id = {line}",
        "UPDATE lines SET day = {day} WHERE id = {line} AND day = {other}"
        " AND NOT EXISTS (SELECT FROM lines WHERE id = {line} AND day = {day})",
        "DELETE FROM lines WHERE id = {line} AND day < {day}",
        "UPDATE customers SET name = 'c{n}' WHERE id = {customer}",
        "DELETE FROM customers WHERE id = {customer}",
        "INSERT INTO customers VALUES ({customer}, 'again') ON CONFLICT DO NOTHING",
    ],
    "billing": [
        "INSERT INTO payments VALUES ({n}, {line}, {n}) ON CONFLICT DO NOTHING",
        "DELETE FROM payments WHERE id < {n} - 8",
        "UPDATE payments SET line = {line} WHERE id = {n} - 3",
    ],
}
WEEKS = 4
"""Partitions, of ten days each."""

TWO_SOURCES = """
    sql: SELECT l.id AS l, l.day, l.note, c.id AS c, c.name, p.id AS p, p.cents FROM sales.lines l
         JOIN sales.customers c ON c.id = l.customer JOIN billing.payments p ON p.line = l.id
"""
PAIRS = """
    sql: SELECT a.id AS a, a.day, a.note, b.id AS b, b.day AS other, b.note AS noted, c.id AS c FROM sales.lines a
         JOIN sales.customers c ON c.id = a.customer JOIN sales.lines b ON b.customer = c.id
"""
PROJECT = """
version: 1
project: live
sources:
  sales: {type: postgres, dsn: "${SALES_DSN}"}
  billing: {type: postgres, dsn: "${BILLING_DSN}"}
views:
"""


class Shop:
    """Two databases, one with a table whose partitions come and go."""

    def __init__(self, server: PostgresServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server, self.folder, self.monkeypatch = server, folder, monkeypatch
        self.databases: dict[str, str] = {}
        self.made = 0
        self.bounds: dict[str, tuple[int, int]] = {}
        """Of every partition that there ever was."""
        self.there: dict[int, str] = {}
        self.done = 0
        """How many partitions have left."""

    def opened(self, views: str, full: bool) -> Topology:
        for name, script in TABLES.items():
            self.databases[name] = self.server.database(script)
            self.monkeypatch.setenv(f"{name.upper()}_DSN", self.server.dsn(self.databases[name]))
        self.full, self.pause = full, 0.005 if full else 0.02
        if full:
            for name, table in (("sales", "customers"), ("sales", "lines"), ("billing", "payments")):
                self.server.execute(self.databases[name], FULL.format(table).encode())
        for week in range(WEEKS):
            for statement in self.create(week):
                self.server.execute(self.databases["sales"], statement.encode())
        self.server.execute(
            self.databases["sales"], b"INSERT INTO lines SELECT i, i * 7, 1 + i % 3, 'x' FROM generate_series(1, 5) i"
        )
        (self.folder / "strobe.yml").write_text(PROJECT + views)
        topology = assemble(load_project(self.folder))
        for name, source in topology.sources.items():
            if relations := [relation.name for relation in topology.relations(name)]:
                self.server.publish(self.databases[name], source.prepare_script(relations))
                source.prepare(relations)
        for statement in topology.sources["sales"].ddl_script():
            self.server.execute(self.databases["sales"], statement.encode())
        return topology

    def create(self, week: int) -> list[str]:
        self.made += 1
        name = f"lines_{self.made}"
        self.bounds[name], self.there[week] = (10 * week, 10 * week + 10), name
        made = f"CREATE TABLE {name} PARTITION OF lines FOR VALUES FROM ({10 * week}) TO ({10 * week + 10})"
        return [made, FULL.format(name)] if self.full else [made]

    def attach(self, week: int) -> list[str]:
        """A partition that was a table with rows before."""
        self.made += 1
        name, first = f"lines_{self.made}", 10 * week
        self.bounds[name], self.there[week] = (first, first + 10), name
        day, many = f"{first} + i * {self.made} % 10", self.made % 4
        made = [
            f"CREATE TABLE {name} (note text, day int, customer int, id int, PRIMARY KEY (id, day))",
            f"INSERT INTO {name} SELECT 'attached', {day}, 1 + i % 3, i FROM generate_series(1, {many}) i",
            *([FULL.format(name)] if self.full else []),
        ]
        return [*made, f"ALTER TABLE lines ATTACH PARTITION {name} FOR VALUES FROM ({first}) TO ({first + 10})"]

    def write(self, source: str, number: int, writing: Writing) -> None:
        rng = random.Random(f"{source} {number}")
        with psycopg.connect(self.server.admin_dsn(self.databases[source]), autocommit=True) as connection:
            n = 100 * (number + 1)
            while writing.goes_on:
                try:
                    with connection.transaction(force_rollback=rng.random() < 0.1):
                        for statement in rng.choices(WRITES[source], k=rng.randint(1, 3)):
                            n += 1
                            connection.execute(_filled(statement, rng, n).encode())
                        time.sleep(rng.choice([0, 0, 0, 0.02]))
                except (psycopg.errors.DeadlockDetected, psycopg.errors.IntegrityError):
                    pass  # also a row for which there is no partition
                writing.rest(self.pause)

    def retain(self, writing: Writing) -> None:
        """Partitions leave and come, alone and several in one transaction, with rows after that."""
        rng = random.Random("retention")
        with psycopg.connect(self.server.admin_dsn(self.databases["sales"])) as connection:
            while writing.goes_on:
                before = dict(self.there)
                try:
                    self._transaction(connection, rng)
                    connection.commit()
                    self.done += len(set(before.values()) - set(self.there.values()))
                except psycopg.errors.DeadlockDetected:
                    connection.rollback()
                    self.there = before
                writing.rest(20 * self.pause)

    def _transaction(self, connection: psycopg.Connection[tuple[object, ...]], rng: random.Random) -> None:
        """What fails leaves its mark in the catalog, and a new partition with one is taken for an attached one: so
        nothing fails here."""
        rows = rng.random()
        weeks = rng.sample(range(WEEKS), rng.choice([1, 1, 2]))
        leaving = [self.there.pop(week) for week in weeks if week in self.there]
        coming = [week for week in weeks if rng.random() < 0.8]
        alone = self.full or (len(coming) == 1 and rows <= 0.6)  # by keys alone, nothing else in the transaction
        made = [rng.choice([self.create, self.attach] if alone else [self.create])(week) for week in coming]
        if rng.random() < 0.5:
            for statements in made:
                for statement in statements[: -1 if "ATTACH" in statements[-1] else 0]:
                    connection.execute(statement.encode())
                    statements.remove(statement)
            connection.commit()
        connection.execute(b"LOCK TABLE lines IN ACCESS EXCLUSIVE MODE")
        for name in leaving:
            leave = rng.choice(["DROP TABLE {0}", "ALTER TABLE lines DETACH PARTITION {0}"])
            connection.execute(leave.format(name).encode())
        for statement in [statement for statements in made for statement in statements]:
            connection.execute(statement.encode())
        if rows > 0.6:
            self._insert(connection, rng)

    def _insert(self, connection: psycopg.Connection[tuple[object, ...]], rng: random.Random) -> None:
        for week in self.there:
            row = (rng.randint(1, 5), 10 * week + rng.randrange(10), rng.randint(1, 3))
            connection.execute(b"INSERT INTO lines VALUES (%s, %s, %s, 'with DDL') ON CONFLICT DO NOTHING", row)

    def run(self, topology: Topology, seconds: float) -> tuple[MemoryWarehouse, Past, dict[str, Bag]]:
        start = {name: contents(topology, name) for name in topology.sources}
        views = {name: planned.view for name, planned in topology.views.items()}
        states = {name: evaluate(v, {s: c for s, (_, c) in start.items()}) for name, v in views.items()}
        positions = {name: {s: start[s][0] for s in view.sources} for name, view in views.items()}
        found = {s: topology.sources[s].fingerprints([r.name for r in topology.relations(s)]) for s in topology.sources}
        prints = {name: {r.id: found[r.source][r.name] for r in view.relations} for name, view in views.items()}
        last = CommitHeader(1, datetime.now(timezone.utc), positions)
        warehouse = MemoryWarehouse(topology, last, states, 0.02)
        pipeline = Pipeline(topology, warehouse, last, through_spark=no_spark, fingerprints=prints)
        least = 10 if self.full else 2  # by keys alone, commits wait for a quiet moment
        writing = Writing(seconds, lambda: self.done > 5 and len(warehouse.commits) > least)
        writers = [
            *(threading.Thread(target=self.write, args=(s, n, writing)) for s in topology.sources for n in range(2)),
            threading.Thread(target=self.retain, args=(writing,)),
        ]
        for writer in writers:
            writer.start()
        deadline = time.monotonic() + seconds + 2 * PATIENCE

        def done() -> bool:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the pipeline did not come to rest: {pipeline.engine.oldest()}")
            return not any(writer.is_alive() for writer in writers) and pipeline.idle()

        try:
            keep(pipeline, done)
        finally:
            writing.stop()
            for writer in writers:
                writer.join()
        return warehouse, Past(self, topology, start), states


def _filled(statement: str, rng: random.Random, n: int) -> str:
    values = {"line": rng.randint(1, 5), "day": rng.randrange(10 * WEEKS), "other": rng.randrange(10 * WEEKS)}
    return statement.format(n=n, customer=rng.randint(1, 3), **values)


class Past:
    """Every state that the sources were in: the log, and the bounds with which the test made each partition."""

    def __init__(self, shop: Shop, topology: Topology, start: Mapping[str, tuple[str, Contents]]) -> None:
        self._states: dict[str, list[tuple[int, Contents]]] = {}
        self.left = 0
        for name, (text, state) in start.items():
            source = topology.sources[name]
            position, end = source.position(text), source.now()
            found = self._states[name] = [(position.order[0], state)]
            for transaction in source.transactions(position, [], lambda: False):
                state = dict(state)
                for relation, keys in transaction.gone.items():
                    state[relation] = _bag(state[relation].key_delete(keys, [(a, a) for a in keys.attributes]))
                early = [d for d in transaction.departed.get("lines", ()) if not d.late]
                late = [d for d in transaction.departed.get("lines", ()) if d.late]
                self.left += len(early) + len(late)
                for departed in early:
                    state["lines"] = shop_without(shop, state["lines"], departed.what)
                for relation, change in transaction.changes.items():
                    state[relation] = state[relation].add(_bag(change))
                for departed in late:
                    state["lines"] = shop_without(shop, state["lines"], departed.what)
                found.append((transaction.position.order[0], state))
                if end <= transaction.position:
                    break
            assert state == contents(topology, name)[1], "the log comes to what the server has"

    def at(self, topology: Topology, positions: Mapping[str, str]) -> dict[str, Contents]:
        found = {}
        for source, text in positions.items():
            place = topology.sources[source].position(text).order[0]
            found[source] = [state for at, state in self._states[source] if at <= place][-1]
        return found


def shop_without(shop: Shop, rows: Bag, what: str) -> Bag:
    """Without the rows of the partition that a clause names."""
    low, high = shop.bounds[what.split()[1]]
    return Bag(
        rows.attributes, {row: n for row, n in rows.items() if not low <= row[rows.attributes.index("day")] < high}
    )


def _bag(rows: object) -> Bag:
    assert isinstance(rows, Bag)
    return rows


@pytest.fixture
def shop(postgres: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    made = Shop(postgres, tmp_path, monkeypatch)
    yield made
    for database in made.databases.values():
        postgres.drop(database)


@pytest.mark.parametrize(
    ("algorithm", "level", "full"),
    [
        ("sweep", "strong", True),
        ("sweep", "complete", True),
        ("nested-sweep", "strong", True),
        ("t-strobe", "strong", False),
    ],
)
def test_every_commit_is_right_while_partitions_leave(shop: Shop, algorithm: str, level: str, full: bool) -> None:
    """Under writers, and in random orders; with whole old rows, and with the keys only."""
    more = f"    algorithm: {algorithm}\n    consistency: {level}\n    freshness: 20ms\n"
    topology = shop.opened(f"  v:{TWO_SOURCES}{more}  w:{PAIRS}{more}", full)
    try:
        warehouse, past, states = shop.run(topology, 1.2)
        assert past.left > 5 and len(warehouse.commits) > (10 if full else 2)
        for commit in warehouse.commits:
            for name, removal in commit.removals.items():
                states[name] = _bag(removal.rest(states[name]))
            for name, change in commit.changes.items():
                states[name] = states[name].add(_bag(change))
            for name, state in states.items():
                expected = evaluate(topology.views[name].view, past.at(topology, commit.header.positions[name]))
                assert state == expected, f"{name} at commit {commit.number}: {commit.header.positions[name]}"
    finally:
        topology.sources.close()
