"""PostgreSQL: preflight, least privileges, and secrets."""

from __future__ import annotations

import threading

import postgres_server
import psycopg
import pytest
from patience import PATIENCE
from postgres_database import ORDERS, Database, read

from strobe.errors import RelationLost, SourceUnavailable, UserError
from strobe.sources.postgres.connection import ConnectionSettings, object_name
from strobe.sources.postgres.source import PostgresSource


def test_preflight_says_the_statement_that_mends(db: Database) -> None:
    """Each thing that is missing is found, and gone once its statement has been run."""
    source = db.make(
        f"{ORDERS}; REVOKE SELECT ON orders FROM {db.server.role}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY"
    )
    role = db.server.role
    db.server.execute("postgres", f"ALTER ROLE {role} NOREPLICATION")
    try:
        found = {f.message: f.fix for f in source.check(["orders"]) if f.severity == "error"}
        for fix in (
            f'Run: ALTER ROLE "{role}" REPLICATION;',
            f'Run: GRANT SELECT ON "public"."orders" TO "{role}";',
            f'Run: ALTER ROLE "{role}" BYPASSRLS;',
            "Run `strobe prepare shop`.",
        ):
            assert fix in found.values()
            if fix.startswith("Run: "):
                db.run(fix.removeprefix("Run: "))
        with pytest.raises(UserError, match="may not do this") as caught:
            source.prepare(["orders"])
        assert "CREATE PUBLICATION" in caught.value.fix
        db.server.publish(db.name, source.prepare_script(["orders"]))
        source.prepare(["orders"])
        again = db.open()
        assert [f for f in again.check(["orders"]) if f.severity == "error"] == []
        db.run('ALTER PUBLICATION strobe_test_shop DROP TABLE "orders"')
        assert ["publication" in f.message for f in again.check(["orders"]) if f.severity == "error"] == [True]
        again.focus({"orders": ["id"]})
        with pytest.raises(RelationLost, match="publication"):
            read(again, again.now())
    finally:
        db.server.execute("postgres", f"ALTER ROLE {role} REPLICATION NOBYPASSRLS")


def test_settings_of_the_server_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that only a restart changes: each with a statement that, run as it stands, mends it."""
    wrong = {"wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "0"}
    for name, value in wrong.items():
        monkeypatch.setitem(postgres_server.SETTINGS, name, value)
    with postgres_server.running() as server:
        db = Database(server)
        found = [f for f in db.make(ORDERS).check(["orders"]) if f.severity == "error"]
        for name in wrong:
            (fix,) = [f.fix for f in found if f"ALTER SYSTEM SET {name} = " in f.fix]
            assert "restart" in fix
            monkeypatch.delitem(postgres_server.SETTINGS, name)
            server.execute("postgres", fix.removeprefix("Run: ").partition(";")[0])
        server.stop()
        server.start()
        (unprepared,) = [f.fix for f in db.open().check(["orders"]) if f.severity == "error"]
        assert "strobe prepare" in unprepared


def test_a_row_policy_stops_answers_instead_of_filtering_them(db: Database) -> None:
    source = db.make(ORDERS, "orders")
    db.run("ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    reader = source.reader()
    reader.open()
    with pytest.raises(UserError, match="row-level security"):
        list(reader.scan("orders", ["id"]))
    reader.close()


def test_a_table_is_published_before_it_is_read(db: Database) -> None:
    """`prepare` waits for transactions that wrote to a table before it was published: their changes are not in the
    stream, even if they commit later."""
    source = db.make(f"{ORDERS}; CREATE TABLE late (id int PRIMARY KEY)", "orders")
    writer = psycopg.connect(db.server.admin_dsn(db.name))
    writer.execute("INSERT INTO late VALUES (1)")
    owner = PostgresSource(
        ConnectionSettings("shop", db.server.admin_dsn(db.name), "public", object_name("test", "shop"))
    )
    preparing = threading.Thread(target=owner.prepare, args=(["orders", "late"],))
    preparing.start()
    preparing.join(0.5)
    assert preparing.is_alive()
    writer.commit()
    preparing.join(PATIENCE)
    assert not preparing.is_alive()
    reader = source.reader(at_a_position=True)
    seen = reader.open()
    assert list(reader.scan("late", ["id"])) == [(1,)]
    reader.close()
    db.run("INSERT INTO orders VALUES (1, 1, NULL)")  # the log goes on
    assert [list(t.changes) for t in read(source, seen.through)] == [["orders"]]
    writer.close()
    owner.close()


def test_no_secret_is_shown(db: Database) -> None:
    """Not in errors, not in what is printed of a source."""
    source = db.make(ORDERS, "orders")
    password = db.server.password
    wrong = PostgresSource(
        ConnectionSettings("shop", db.server.dsn(db.name).replace(password, "wr0ng-pass"), "public", "x")
    )
    with pytest.raises(SourceUnavailable) as caught:
        wrong.schemas()
    shown = f"{caught.value} {caught.value.document()} {source.settings!r} {wrong.check(['orders'])}"
    assert "wr0ng-pass" not in shown and password not in shown
    with pytest.raises(UserError, match="cannot be read") as refused:
        PostgresSource(ConnectionSettings("shop", "postgresql://u:s3cret@[", "public", "x")).schemas()
    assert "s3cret" not in str(refused.value)
