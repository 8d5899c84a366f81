"""Preflight of a PostgreSQL source: what its server, the role, the publication and each table still lack.

A finding says what to run. Nothing is changed here; `preparation` does that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strobe.errors import UserError
from strobe.sources.base import Finding
from strobe.sources.postgres import ddl
from strobe.sources.postgres.catalog import PgTable, identity_fix, read_tables, unsupported, usable_table
from strobe.sources.postgres.connection import Connection, ConnectionSettings, identifier, rows
from strobe.sources.postgres.preparation import Prepared, read_prepared
from strobe.sources.postgres.values import UNBOUNDED

OLDEST = 140000


def check(connection: Connection, settings: ConnectionSettings, relations: Sequence[str]) -> Iterator[Finding]:
    where, prepare = settings.where, f"Run `strobe prepare {settings.source}`."
    if connection.info.server_version < OLDEST:
        version = connection.info.server_version // 10000
        yield Finding("error", where, f"the server is PostgreSQL {version}", "Strobe needs PostgreSQL 14 or newer.")
        return
    yield from check_server(connection, settings)
    yield from settings.warnings()
    yield from check_trust(connection, settings)
    prepared = read_prepared(connection, settings)
    if prepared.missing:
        yield Finding("error", where, prepared.missing, prepare)
    if prepared.slot and prepared.slot.wal_status == "lost":
        fix = (
            f"Run `strobe prepare --undo {settings.source}`, `strobe prepare {settings.source}`, and rebuild the views."
        )
        yield Finding("error", where, "the server has taken away log that the slot needed", fix)
    for flaw in prepared.flaws:
        fix = (
            f"Run: DROP PUBLICATION {identifier(settings.name)}; then `strobe prepare {settings.source}`, and rebuild."
        )
        yield Finding("error", f"{where}, publication {settings.name}", flaw, fix)
    tables = read_tables(connection, settings)
    for relation in relations:
        yield from check_relation(connection, settings, tables, prepared, relation)


def check_server(connection: Connection, settings: ConnectionSettings) -> Iterator[Finding]:
    where = settings.where
    ((level, slots, used, senders, sending, replication, role),) = rows(
        connection,
        "SELECT current_setting('wal_level'), current_setting('max_replication_slots')::int,"
        " (SELECT count(*) FROM pg_replication_slots), current_setting('max_wal_senders')::int,"
        " (SELECT count(*) FROM pg_stat_replication),"
        " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), current_user::text",
    )
    if level != "logical":
        fix = "Run: ALTER SYSTEM SET wal_level = 'logical'; and restart the server."
        yield Finding("error", where, f"wal_level is {level}: the log has no changes to read", fix)
    if not replication:
        fix = f"Run: ALTER ROLE {identifier(role)} REPLICATION;"
        yield Finding("error", where, f"role {role} may not read the log", fix)
    ours = rows(connection, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", settings.name)[0][0]
    if slots - used + ours < 2:
        fix = f"Run: ALTER SYSTEM SET max_replication_slots = {slots + 4}; and restart the server."
        yield Finding("error", where, f"{used} of {slots} replication slots are taken, and two are needed", fix)
    if senders - sending < 1:
        fix = f"Run: ALTER SYSTEM SET max_wal_senders = {senders + 4}; and restart the server."
        yield Finding("error", where, f"{sending} of {senders} walsenders are taken", fix)


def check_trust(connection: Connection, settings: ConnectionSettings) -> Iterator[Finding]:
    """What the role could be made to do by others."""
    ((role, superuser, restricted),) = rows(
        connection,
        "SELECT current_user::text, rolsuper, current_setting('restrict_nonsystem_relation_kind', true) IS NOT NULL"
        " FROM pg_roles WHERE rolname = current_user",
    )
    if superuser:
        message = f"role {role} is a superuser: whoever owns a table that it reads can act as a superuser"
        yield Finding("warning", settings.where, message, "Use a role with REPLICATION and SELECT alone.")
    if not restricted:
        message = "the server cannot refuse views: a table's owner can replace it by one that runs code as this role"
        yield Finding("warning", settings.where, message, "Update it to 14.13, 15.8, 16.4 or newer.")


_CALLED = """
WITH parts AS (
    SELECT {}::oid AS id UNION SELECT relid FROM pg_partition_tree({}::oid::regclass)
), read AS (
    SELECT 'pg_class'::regclass AS class, id FROM parts
    UNION ALL SELECT 'pg_class'::regclass, i.indexrelid FROM pg_index i JOIN parts p ON p.id = i.indrelid
    UNION ALL SELECT 'pg_statistic_ext'::regclass, s.oid FROM pg_statistic_ext s JOIN parts p ON p.id = s.stxrelid
)
SELECT DISTINCT f.oid::regproc::text FROM read r JOIN pg_depend d ON d.classid = r.class AND d.objid = r.id
LEFT JOIN pg_operator o ON d.refclassid = 'pg_operator'::regclass AND o.oid = d.refobjid
JOIN pg_proc f ON f.oid = CASE WHEN o.oid IS NOT NULL THEN o.oprcode::oid
    WHEN d.refclassid = 'pg_proc'::regclass THEN d.refobjid END
JOIN pg_roles u ON u.oid = f.proowner AND NOT u.rolsuper AND u.rolname <> current_user
WHERE f.oid >= 16384 ORDER BY 1
"""
"""The functions of users that the planner may call when a table is read: those in the expressions of its indexes,
statistics and partition keys. Superusers need no such way."""


def check_relation(
    connection: Connection,
    settings: ConnectionSettings,
    tables: Mapping[str, PgTable],
    prepared: Prepared,
    relation: str,
) -> Iterator[Finding]:
    where = f"{settings.where}, table {relation}"
    try:
        table = usable_table(settings, tables, relation)
    except UserError as error:
        yield Finding("error", error.where, error.message, error.fix)
        return
    if prepared.publication is not None and relation not in prepared.publication:
        fix = f"Run `strobe prepare {settings.source}`."
        yield Finding("error", where, "it is not in the publication", fix)
    yield from _privileges(connection, settings, table, where)
    if table.partitioned and not ddl.installed(connection, settings):
        message = (
            "the log does not say when partitions are dropped, detached or attached: the views of the table stop then"
        )
        fix = f"Run `strobe prepare --follow-ddl {settings.source}`, as a superuser, if that happens."
        yield Finding("warning", where, message, fix)
    yield from _columns(table, where)
    called = [name for (name,) in rows(connection, _CALLED.format(table.id, table.id))]
    if called:
        message = f"its indexes, statistics or partition keys call {', '.join(called)}, which may run as Strobe's role"
        fix = "Trust whoever may replace these functions with what the role may do, or leave the table out of views."
        yield Finding("warning", where, message, fix)


def _privileges(connection: Connection, settings: ConnectionSettings, table: PgTable, where: str) -> Iterator[Finding]:
    ((schema, select, role, filtered),) = rows(
        connection,
        "SELECT has_schema_privilege(%s, 'USAGE'), has_table_privilege(%s::int8::oid, 'SELECT'), current_user::text,"
        " row_security_active(%s::int8::oid)",
        table.schema,
        table.id,
        table.id,
    )
    if not schema:
        fix = f"Run: GRANT USAGE ON SCHEMA {identifier(table.schema)} TO {identifier(role)};"
        yield Finding("error", where, f"role {role} may not use schema {table.schema}", fix)
    if not select:
        fix = f"Run: GRANT SELECT ON {table.sql} TO {identifier(role)};"
        yield Finding("error", where, f"role {role} may not read the table", fix)
    if filtered:
        fix = f"Run: ALTER ROLE {identifier(role)} BYPASSRLS;"
        yield Finding("error", where, "row security hides rows from answers that the log has", fix)


def _columns(table: PgTable, where: str) -> Iterator[Finding]:
    if left_out := unsupported(table):
        yield Finding("warning", where, f"columns of types that are not supported are left out: {', '.join(left_out)}")
    unbounded = [c.name for c in table.columns if c.type.name == "numeric" and c.type.modifier < 4]
    if unbounded:
        message = f"numeric without precision is read as {UNBOUNDED}: {', '.join(unbounded)}"
        yield Finding("warning", where, message, "A value that does not fit stops the views that use it.")
    toasted = [c.name for c in table.offered if c.toasted and c.name not in table.primary_key]
    if toasted and not table.images:
        yield Finding(
            "warning",
            where,
            f"long values of {', '.join(toasted)} that an update leaves alone are not in the log: views that use such "
            "a column stop there",
            identity_fix(table, keyed=False),
        )
