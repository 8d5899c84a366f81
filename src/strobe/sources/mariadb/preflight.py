"""Preflight of a MariaDB or MySQL source: each thing that is missing, with the statement that mends it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pymysql

from strobe.errors import StrobeError
from strobe.sources.base import Finding
from strobe.sources.mariadb import snapshot
from strobe.sources.mariadb.catalog import MariadbTable, cascades, logs_actions, read_tables
from strobe.sources.mariadb.connection import ConnectionSettings, grantee, quote, rows
from strobe.sources.mariadb.definitions import shows_files
from strobe.sources.mariadb.global_names import GlobalNames
from strobe.sources.mariadb.position import created
from strobe.sources.mariadb.session import is_mysql

OLDEST, OLDEST_MYSQL = (10, 6), (8, 0)
SETTINGS = {
    "binlog_format": ("ROW", "changes are logged as statements and not as rows"),
    "binlog_row_image": ("FULL", "rows are logged in part"),
    "binlog_row_metadata": ("FULL", "rows are logged without their columns' names and types"),
}
MYSQL_SETTINGS = {
    **SETTINGS,
    "gtid_mode": ("ON", "without GTIDs nobody can tell what a snapshot has seen"),
    "binlog_row_value_options": ("", "JSON values are logged in part"),
}
DURABLE = {"sync_binlog": "1", "innodb_flush_log_at_trx_commit": "1"}
OTHERS = (
    "log_bin",
    "binlog_expire_logs_seconds",
    "binlog_storage_engine",
    "log_slave_updates",
    "gtid_slave_pos",
    "wsrep_on",
    "binlog_checksum",
)
GTID_FIX = (
    "SET GLOBAL enforce_gtid_consistency = ON; then, one after the other, SET GLOBAL gtid_mode = OFF_PERMISSIVE;"
    " ON_PERMISSIVE; and, when Ongoing_anonymous_transaction_count is 0, ON; and the same in the configuration."
)
SHORT_SECONDS = 24 * 3600


def check(
    connection: Any, settings: ConnectionSettings, relations: Sequence[str], names: GlobalNames | None
) -> Iterator[Finding]:
    problem = version(connection, settings) or log_is_off(connection, settings)
    if problem:
        yield problem
        return
    yield from settings.address.warnings(f"{settings.where}, dsn")
    yield from check_settings(connection, settings)
    yield from privileges(connection, settings)
    tables = read_tables(connection, settings.database)
    if names is not None:
        yield from names.check(settings, tables)
    for relation in relations:
        yield from check_relation(connection, settings, relation, tables.get(relation))


def version(connection: Any, settings: ConnectionSettings) -> Finding | None:
    ((text,),) = rows(connection, "SELECT version()")
    found = re.match(r"(\d+)\.(\d+)", text)
    oldest = OLDEST_MYSQL if is_mysql(connection) else OLDEST
    if not found or (int(found[1]), int(found[2])) < oldest:
        fix = "Strobe needs MariaDB 10.6, MySQL 8.0, or newer."
        return Finding("error", settings.where, f"the server's version is {text}", fix)
    return None


def log_is_off(connection: Any, settings: ConnectionSettings) -> Finding | None:
    if variables(connection)["log_bin"] in ("ON", "1"):
        return None
    fix = "Set log_bin (and binlog_format = ROW, binlog_row_metadata = FULL) in the server's configuration; restart it."
    return Finding("error", settings.where, "the binlog is off", fix)


def variables(connection: Any) -> dict[str, str]:
    names = ", ".join(f"'{name}'" for name in (*OTHERS, *DURABLE, *MYSQL_SETTINGS))
    return dict(rows(connection, f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"))


def check_settings(connection: Any, settings: ConnectionSettings) -> Iterator[Finding]:
    found = variables(connection)
    for name, (wanted, meaning) in (MYSQL_SETTINGS if is_mysql(connection) else SETTINGS).items():
        value = found.get(name, "ROW" if name == "binlog_format" else "")  # MySQL will have no other format one day
        if value.upper() != wanted:
            note = " New sessions only: let writers connect anew." if name != "binlog_row_metadata" else ""
            fix = f"SET GLOBAL {name} = '{wanted}'; and the same in the server's configuration.{note}"
            yield Finding(
                "error", settings.where, f"{name} is {value}: {meaning}", GTID_FIX if name == "gtid_mode" else fix
            )
    yield from elsewhere(settings, found, is_mysql(connection) and replicates(connection))
    for name, wanted in DURABLE.items():
        if found.get(name, wanted) != wanted:
            message = f"{name} is {found[name]}: after a crash of its machine, tables and binlog may disagree"
            yield Finding("warning", settings.where, message, f"SET GLOBAL {name} = {wanted};")
    if found.get("binlog_checksum", "CRC32") == "NONE":
        message = "binlog_checksum is NONE: values that are damaged in the binlog or on their way are not noticed"
        yield Finding("warning", settings.where, message, "SET GLOBAL binlog_checksum = CRC32;")
    seconds = int(found.get("binlog_expire_logs_seconds") or 0)
    if 0 < seconds < SHORT_SECONDS:
        message = (
            f"the binlog is kept for {seconds / 3600:.1f} h: after a longer stop of Strobe views have to be rebuilt"
        )
        fix = "SET GLOBAL binlog_expire_logs_seconds = 604800; keeps a week."
        yield Finding("warning", settings.where, message, fix)
    ((databases, ignored),) = [row[2:4] for row in _status(connection)] or [("", "")]
    if databases or ignored:
        message = "binlog_do_db or binlog_ignore_db is set: changes may be missing from the binlog"
        yield Finding("error", settings.where, message, "Take both out of the server's configuration; restart it.")


def replicates(connection: Any) -> bool:
    """Whether a MySQL server takes in changes of others."""
    for statement in ("SHOW REPLICA STATUS", "SHOW SLAVE STATUS"):
        try:
            return bool(rows(connection, statement))
        except pymysql.err.Error:
            continue  # before 8.0.22, or for want of a right, which `privileges` finds
    return False


def elsewhere(settings: ConnectionSettings, found: Mapping[str, str], replica: bool) -> Iterator[Finding]:
    """Changes that come in from other servers, or a log that is kept in another way."""
    if found.get("binlog_storage_engine"):
        message = "the binlog is kept by a storage engine, where offsets mean something else"
        yield Finding(
            "error", settings.where, message, "Take binlog_storage_engine out of the configuration; restart it."
        )
    replica = replica or bool(found.get("gtid_slave_pos")) or found.get("wsrep_on") == "ON"
    if replica and found.get("log_slave_updates") != "ON":
        message = "the server takes in changes of others, and does not write them to its own binlog"
        fix = "Set log_slave_updates = ON in its configuration and restart it, or watch the server that they come from."
        yield Finding("error", settings.where, message, fix)


def _status(connection: Any) -> list[tuple[Any, ...]]:
    try:
        return rows(connection, snapshot.status(connection) if is_mysql(connection) else "SHOW MASTER STATUS")
    except pymysql.err.Error:
        return []  # for want of a right, which `privileges` finds


def privileges(connection: Any, settings: ConnectionSettings) -> Iterator[Finding]:
    try:
        logs = rows(connection, "SHOW BINARY LOGS")
    except pymysql.err.Error:
        right = "REPLICATION CLIENT ON *.*" if is_mysql(connection) else "BINLOG MONITOR ON *.*"
        yield denied(connection, settings, right, "it may not list the binlog's files")
        return
    try:
        created(settings, logs[-1][0])
    except (StrobeError, pymysql.err.Error):
        yield denied(connection, settings, "REPLICATION SLAVE ON *.*", "it may not read the binlog")
    if not shows_files(connection):
        what = "it may not read which files its tables have, by which changes are found that the binlog does not report"
        yield denied(connection, settings, "PROCESS ON *.*", what)


def denied(connection: Any, settings: ConnectionSettings, right: str, what: str) -> Finding:
    user, account = grantee(connection)
    return Finding("error", settings.where, f"the user {user} lacks a right: {what}", f"GRANT {right} TO {account};")


def check_relation(
    connection: Any, settings: ConnectionSettings, relation: str, table: MariadbTable | None
) -> Iterator[Finding]:
    where = f"{settings.where}, table {relation}"
    target = f"{quote(settings.database)}.{quote(relation)}"
    if table is None:
        problem = denied(connection, settings, f"SELECT ON {target}", "")
        message = f"there is no table {relation} in {settings.database}, or no right to read it"
        yield Finding("error", where, message, f"Mend its name, or: {problem.fix}")
        return
    if not table.usable:
        what = table.type.lower() if table.type != "BASE TABLE" else f"a table of engine {table.engine}"
        message = f"it is {what}: only InnoDB's tables are in the server's snapshots"
        fix = f"ALTER TABLE {target} ENGINE = InnoDB;" if table.type == "BASE TABLE" else "Use the tables behind it."
        yield Finding("error", where, message, fix)
        return
    try:
        rows(connection, f"SELECT 1 FROM {quote(relation)} LIMIT 0")
        constraints = [] if logs_actions(connection) else cascades(connection, relation)
    except pymysql.err.Error:
        problem = denied(connection, settings, f"SELECT ON {target}", "")
        yield Finding("error", where, "the table, or some of its columns, may not be read", problem.fix)
        return
    for constraint in constraints:
        message = (
            f"the foreign key {constraint} has an action (CASCADE or SET NULL):"
            " rows that the server changes by it are not in the binlog"
        )
        fix = (
            f"ALTER TABLE {target} DROP FOREIGN KEY {quote(constraint)}; and add it again without the action,"
            " or leave the table out of views."
        )
        yield Finding("error", where, message, fix)
    if is_mysql(connection) and not table.searchable_key:
        message = "it has no primary key: while it is written to without a pause, answers have to wait for one"
        fix = f"ALTER TABLE {target} ADD COLUMN id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY;"
        yield Finding("warning", where, message, fix)
    left_out = [c for c in table.columns if not c.kind]
    if left_out:
        names = ", ".join(f"{c.name} ({c.declared})" for c in left_out)
        yield Finding("warning", where, f"columns of these types are left out: {names}")
