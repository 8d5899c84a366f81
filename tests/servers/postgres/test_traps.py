"""PostgreSQL: what others put into a database is not called as Strobe's role.

Each trap is one that a user sets who may create objects in a schema that the role can see, or who owns the tables that
are watched: if it is called as that role, a row says so (the function that writes it runs with its owner's rights), and
the call fails.
"""

from __future__ import annotations

import contextlib
from typing import Any

import psycopg
import pytest
from postgres_database import Database, read

from strobe.algebra.bag import Row
from strobe.errors import RelationLost, SourceUnavailable, UserError
from strobe.messages import Lookup
from strobe.sources.base import NotUndone
from strobe.sources.postgres.connection import rows
from strobe.sources.postgres.source import PostgresSource

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE DOMAIN label AS text CHECK (length(VALUE) < 100);
CREATE TABLE orders (id bigint PRIMARY KEY, mood mood, label label, many text[]);
ALTER TABLE orders REPLICA IDENTITY FULL;
CREATE INDEX orders_mood ON orders (mood);
CREATE INDEX orders_label ON orders (label);
INSERT INTO orders SELECT n, 'ok', 'l' || n, ARRAY['a', 'b'] FROM generate_series(1, 100) n;
"""
SPRUNG = """
CREATE SCHEMA trap;
CREATE TABLE trap.sprung (what text);
CREATE FUNCTION trap.spring(what text) RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF session_user <> 'admin' THEN
        RAISE EXCEPTION 'TRAP: % as %', what, session_user;
    END IF;
    RETURN true;
END $$;
GRANT USAGE ON SCHEMA trap TO PUBLIC;
"""
OPERATORS = ("=", "<>", "<", ">", ">=", "<=", "!~", "||")
PAIRS = ("name, name", "name, text", "text, text", "oid, oid", "bigint, bigint", '"char", "char"', "pg_lsn, pg_lsn")
FUNCTIONS = (
    "current_setting(text)",
    "current_setting(text, boolean)",
    "set_config(text, text, boolean)",
    "format_type(oid, integer)",
    "array_agg(name)",
    "unnest(text[])",
    "pg_current_snapshot()",
    "pg_current_wal_insert_lsn()",
    "pg_current_wal_flush_lsn()",
    "pg_postmaster_start_time()",
    "pg_relation_filenode(oid)",
    "pg_export_snapshot()",
    "row_security_active(oid)",
    "has_schema_privilege(text, text)",
    "has_table_privilege(oid, text)",
    "pg_walfile_name(pg_lsn)",
    "pg_logical_emit_message(boolean, text, text)",
    "pg_create_logical_replication_slot(name, name)",
    "pg_copy_logical_replication_slot(name, name, boolean)",
    "pg_logical_slot_peek_binary_changes(name, pg_lsn, integer, text[])",
    "pg_drop_replication_slot(name)",
    "pg_replication_slot_advance(name, pg_lsn)",
    "pg_xact_status(xid8)",
    "substr(text, integer, integer)",
)
SHADOWED = ("pg_class", "pg_namespace", "pg_attribute", "pg_type", "pg_enum", "pg_index", "pg_settings", "pg_locks")
SHADOWED += ("pg_publication", "pg_publication_tables", "pg_replication_slots", "pg_roles", "pg_control_system")
VIEWS_SINCE = {14: 140013, 15: 150008, 16: 160004}


def traps(schema: str) -> list[str]:
    """Functions, operators and relations of the names that Strobe's statements use."""
    made = []
    for signature in FUNCTIONS:
        body = f"BEGIN PERFORM trap.spring('{signature}'); RETURN NULL; END"
        made.append(f"CREATE FUNCTION {schema}.{signature} RETURNS text LANGUAGE plpgsql AS $$ {body} $$")
    for number, pair in enumerate(PAIRS):
        name, (left, right) = f"{schema}.compared_{number}", pair.split(", ")
        body = f"BEGIN RETURN trap.spring('operator on {pair}'); END"
        made.append(f"CREATE FUNCTION {name}({pair}) RETURNS boolean LANGUAGE plpgsql AS $$ {body} $$")
        made += [
            f"CREATE OPERATOR {schema}.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = {name})"
            for operator in OPERATORS
        ]
    made += [f"CREATE VIEW {schema}.{name} AS SELECT trap.spring('{name}') AS oid" for name in SHADOWED]
    return made


def set_everywhere(db: Database) -> None:
    role = db.server.role
    own = f'CREATE SCHEMA "{role}"'
    db.run(SPRUNG, own, *traps("public"), *traps(f'"{role}"'))
    db.run(f'GRANT USAGE ON SCHEMA "{role}" TO PUBLIC; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}')
    db.run(f'ALTER DATABASE {db.name} SET search_path = public, "{role}", trap, pg_catalog')
    db.run(f'ALTER ROLE {role} IN DATABASE {db.name} SET search_path = "{role}", public, trap, pg_catalog')


def all_rows(source: PostgresSource, relation: str, *columns: str) -> list[Row]:
    reader = source.reader(at_a_position=True)
    reader.open()
    try:
        return sorted(reader.scan(relation, columns))
    finally:
        reader.close()


def looked_up(source: PostgresSource, column: str, *keys: str) -> list[Any]:
    reader = source.reader()
    reader.open()
    try:
        found = reader.lookup(Lookup(0, "orders", ("id", column), (column,)), [(key,) for key in keys])
        return sorted(found)
    finally:
        reader.close()


def test_nothing_in_a_schema_that_the_role_can_see_is_called(db: Database) -> None:
    """Functions, operators and relations of the names that catalog queries use, in public, in a schema of the role's
    own name and in another one, all of which the database puts before pg_catalog; and casts of the user's own types."""
    db.name = db.server.database(TABLES)
    set_everywhere(db)
    cast = "BEGIN PERFORM trap.spring('cast'); RETURN NULL; END"
    db.run(
        f"CREATE FUNCTION trap.made(text) RETURNS mood LANGUAGE plpgsql AS $$ {cast} $$",
        f"CREATE FUNCTION trap.shown(mood) RETURNS text LANGUAGE plpgsql AS $$ {cast} $$",
        "CREATE CAST (text AS mood) WITH FUNCTION trap.made(text) AS IMPLICIT",
        "CREATE CAST (mood AS text) WITH FUNCTION trap.shown(mood) AS ASSIGNMENT",
    )
    with pytest.raises(Exception, match="TRAP"):  # they are set as they should be
        psycopg.connect(db.server.dsn(db.name)).execute("SELECT set_config('a.b', 'c', false)")
    source = db.source = db.open()
    assert [relation.name for relation in source.schemas() if relation.name == "orders"]
    db.server.publish(db.name, source.prepare_script(["orders"]))
    source.prepare(["orders"])
    assert [finding for finding in source.check(["orders"]) if finding.severity == "error"] == []
    start = source.now()
    source.verify(start)
    assert source.identity() and source.fingerprints(["orders"])["orders"]
    assert len(all_rows(source, "orders", "id", "mood", "label", "many")) == 100
    assert looked_up(source, "label", "l7", "l8", "none") == [(7, "l7"), (8, "l8")]
    assert len(looked_up(source, "mood", "ok", "merry")) == 100 and looked_up(source, "mood", "sad") == []
    reader = source.reader()
    with reader.shared(["orders"], 2) as shared:
        assert shared is not None
        shared.reader.open()
        with contextlib.closing(shared.reader):
            assert len(list(shared.reader.scan_portion("orders", ["id"], 0))) == 100
    db.run("INSERT INTO public.orders VALUES (1000, 'sad', 'new', NULL)")
    source.focus({"orders": {"id", "mood"}})
    (found,) = read(source, start)
    assert set(found.changes) == {"orders"}
    source.discard(found.position)
    source.kept()
    db.run(f"DROP PUBLICATION {db.source.settings.name}")  # which the owner of the tables has made
    assert source.undo() == [f"replication slot {db.source.settings.name}"]


def test_undo_goes_on_with_what_the_role_may_take_out(db: Database) -> None:
    """The slot, which keeps the server's log; the owner's statement is named for the publication."""
    source = db.make(TABLES, "orders")
    name = source.settings.name
    with pytest.raises(NotUndone) as caught:
        source.undo()
    assert caught.value.removed == (f"replication slot {name}",)
    assert caught.value.left == (f'DROP PUBLICATION "{name}"',) and caught.value.left[0] in caught.value.fix
    assert not db.server.execute(db.name, "SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", name)


def test_a_table_that_became_a_view_is_not_read(db: Database) -> None:
    """Its owner may replace it at any moment, and a view calls functions with the rights of whoever reads it."""
    source = db.make(TABLES, "orders")
    if not source_refuses_views(source):
        pytest.skip("this server cannot refuse views")
    db.run(SPRUNG)
    reader = source.reader()
    reader.open()
    with contextlib.closing(reader):
        list(reader.scan("orders", ["id"]))
    db.run(
        "ALTER TABLE orders RENAME TO hidden",
        "CREATE VIEW orders AS SELECT id, trap.spring('view') FROM hidden",
        f"GRANT SELECT ON orders TO {db.server.role}",
    )
    reader = source.reader()
    reader.open()
    with contextlib.closing(reader), pytest.raises(RelationLost, match="not a table any more"):
        list(reader.scan("orders", ["id"]))
    with pytest.raises(SourceUnavailable, match="restricted"):
        with source.reader().shared(["orders"], 2):
            pass


def test_what_a_table_is_checked_and_hidden_by_is_not_run(db: Database) -> None:
    """Policies, constraints, defaults, triggers and rules for writing call functions of the table's owner; reading does
    not, and where a policy would hide rows it stops before."""
    source = db.make(TABLES, "orders")
    db.run(
        SPRUNG,
        "CREATE FUNCTION trap.fire() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN PERFORM trap.spring('trigger'); RETURN NEW; END $$",
        "ALTER TABLE orders ADD CHECK (trap.spring('check' || id))",
        "ALTER TABLE orders ADD n boolean DEFAULT trap.spring('default')",
        "ALTER DOMAIN label ADD CHECK (trap.spring(VALUE))",
        "CREATE TRIGGER t BEFORE INSERT OR UPDATE OR DELETE ON orders EXECUTE FUNCTION trap.fire()",
        "CREATE RULE r AS ON DELETE TO orders DO ALSO SELECT trap.spring('rule')",
    )
    assert len(all_rows(source, "orders", "id", "label")) == 100 and len(looked_up(source, "label", "l7")) == 1
    db.run("CREATE POLICY p ON orders USING (trap.spring('policy'))", "ALTER TABLE orders ENABLE ROW LEVEL SECURITY")
    for look in (lambda: all_rows(source, "orders", "id"), lambda: looked_up(source, "label", "l7")):
        with pytest.raises(UserError, match="row-level security"):
            look()


def source_refuses_views(source: PostgresSource) -> bool:
    with source.settings.connect() as connection:
        ((known,),) = rows(connection, "SELECT current_setting('restrict_nonsystem_relation_kind', true) IS NOT NULL")
        assert known or connection.info.server_version < VIEWS_SINCE.get(connection.info.server_version // 10000, 0)
    return bool(known)


def test_sessions_cannot_write(db: Database) -> None:
    """Nor can a function that one of them calls make it so; what prepares the database can."""
    source = db.make(TABLES, "orders")
    db.run(f"GRANT ALL ON orders TO {db.server.role}")
    write = "DELETE FROM public.orders"
    allow = "SELECT set_config('transaction_read_only', 'off', false)"
    for statements in ([write], ["SELECT 1", allow, write]):
        with source.settings.connect() as connection, pytest.raises(Exception, match=r"read-only|before any query"):
            with connection.transaction():
                for statement in statements:
                    connection.execute(statement)
    with source.settings.connect(writes=True) as connection, connection.transaction(force_rollback=True):
        connection.execute(write)


def test_what_may_run_as_the_role_all_the_same_is_reported(db: Database) -> None:
    """The planner computes constant expressions of indexes and statistics, whatever functions are in them. Functions of
    PostgreSQL and of its superusers are trusted."""
    db.server.execute("postgres", "DROP ROLE IF EXISTS tenant; CREATE ROLE tenant")
    source = db.make(
        TABLES
        + """
        CREATE FUNCTION two() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 2; END $$;
        CREATE INDEX ON orders ((id + two()));
        CREATE FUNCTION one() RETURNS bigint IMMUTABLE LANGUAGE plpgsql AS $$ BEGIN RETURN 1; END $$;
        ALTER FUNCTION one() OWNER TO tenant;
        CREATE INDEX ON orders ((id + one()));
        CREATE TABLE plain (id bigint PRIMARY KEY, at timestamptz DEFAULT now(), CHECK (id + one() > 0));
        CREATE INDEX ON plain (abs(id));
        """,
        "orders",
        "plain",
    )
    (finding,) = [f for f in source.check(["orders", "plain"]) if "may run as" in f.message]
    assert (finding.severity, finding.where) == ("warning", "source shop, table orders")
    assert "call public.one," in finding.message
