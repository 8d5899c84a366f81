"""Asks a server what its tables are at this moment."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pymysql

from strobe.errors import UserError
from strobe.sources.mariadb import snapshot
from strobe.sources.mariadb.catalog import charsets, logs_actions
from strobe.sources.mariadb.connection import ConnectionSettings, grantee, quote, rows, several
from strobe.sources.mariadb.fingerprint import Fingerprint, without_counters
from strobe.sources.mariadb.session import Session, is_mysql
from strobe.sources.mariadb.snapshot import End

_SPECIAL = re.compile(r"[^0-9A-Za-z_/]")
SETTLED = 2
"""Seconds after which no other change can have the second of this one: a file's clock may be a tick behind."""
_UNDER_WAY = {1146, 1205, 1213, 1412, 1684, 1969, 3024}
"""Errors while a table is being changed: it is gone, locked, or another one."""
_NO_RIGHT = 1227


@dataclass(frozen=True)
class Facts:
    """What a server has been told at its start."""

    folds_case: bool
    logs_actions: bool
    charsets: Mapping[int, str]

    @classmethod
    def of(cls, connection: Any) -> Facts:
        ((folding,),) = rows(connection, "SELECT @@global.lower_case_table_names")
        return cls(folding != "0", logs_actions(connection), charsets(connection))


@dataclass
class Look:
    """What one question found."""

    low: End
    """The end of the log before."""
    high: End
    """The end of the log after."""
    found: dict[str, Fingerprint] = field(default_factory=dict)
    """Without their descent."""
    gone: set[str] = field(default_factory=set)


def look(connection: Any, settings: ConnectionSettings, relations: Collection[str], facts: Facts) -> Look:
    """What these tables are. One of which that cannot be said now is neither found nor gone.

    A definition is asked for after the generation: it waits until a change that is being made is in the log as well.
    """
    session, ends = Session.of(connection, settings.database, settings.statement_timeout), _ends(connection)
    created, files = _created(connection, settings, relations), _files(connection, settings, relations, facts)
    try:
        found, low, moments, ids = several(connection, session.question(), ends, created, files)
    except pymysql.err.OperationalError as error:
        if error.args[0] == _NO_RIGHT and "PROCESS" in str(error.args[1]):
            raise no_right(connection, settings) from error
        raise
    session.verify(found[0], settings.where)
    seconds = {name: (second, now) for name, kind, second, now in moments if kind != "VIEW"}
    there = sorted(seconds.keys() & set(relations))
    definitions, high = _definitions(connection, there, ends)
    seen = Look(snapshot.end(low), snapshot.end(high), gone=set(relations) - set(there))
    for relation, definition in definitions.items():
        second, now = seconds[relation]
        own = _own(_file_name(settings.database, relation, facts), ids)
        if second is not None and own and abs(int(now) - int(second)) >= SETTLED:
            definition = without_counters(definition)
            seen.found[relation] = Fingerprint(own, int(second), definition, facts.logs_actions)
    return seen


def _ends(connection: Any) -> str:
    return snapshot.status(connection) if is_mysql(connection) else "SHOW MASTER STATUS"


def _created(connection: Any, settings: ConnectionSettings, relations: Collection[str]) -> str:
    """Each table by its name alone: a server would open all tables of the database for a list."""
    return " UNION ALL ".join(
        "SELECT TABLE_NAME, TABLE_TYPE, UNIX_TIMESTAMP(CREATE_TIME), UNIX_TIMESTAMP() FROM information_schema.TABLES"
        f" WHERE TABLE_SCHEMA = {connection.escape(settings.database)} AND TABLE_NAME = {connection.escape(relation)}"
        for relation in sorted(relations)
    )


def _files(connection: Any, settings: ConnectionSettings, relations: Collection[str], facts: Facts) -> str:
    """All that InnoDB says of the files of these tables: for each partition one, with its name behind a `#`."""
    names = [_file_name(settings.database, relation, facts) for relation in sorted(relations)]
    plain = [connection.escape(name) for name in names if "%" not in name]
    patterns = [connection.escape(name.replace("_", r"\_")) for name in names if "%" in name]
    tests = [f"SUBSTRING_INDEX(NAME, '#', 1) IN ({', '.join(plain)})"] if plain else []
    tests += [f"NAME LIKE {pattern}" for pattern in patterns]
    return f"SELECT NAME, found.* FROM information_schema.{_view(connection)} found WHERE {' OR '.join(tests)}"


def _view(connection: Any) -> str:
    return "INNODB_TABLES" if is_mysql(connection) else "INNODB_SYS_TABLES"


def _file_name(database: str, relation: str, facts: Facts) -> str:
    """As InnoDB has it, in the character set that servers use for names of files; `@%` stands for what is not ASCII,
    which only a server can write."""
    parts = (database.lower(), relation.lower()) if facts.folds_case else (database, relation)
    return "/".join(_SPECIAL.sub(lambda s: f"@{ord(s[0]):04x}" if s[0].isascii() else "@%", part) for part in parts)


def _own(name: str, files: Sequence[tuple[Any, ...]]) -> tuple[tuple[str, ...], ...]:
    """What InnoDB says of the files of one table: the partition, and all but the name."""
    pattern = re.compile(re.escape(name).replace("@%", "@[0-9a-zA-Z]{2,4}"))
    found = ((file[0].partition("#"), [value for value in file[1:] if value != file[0]]) for file in files)
    return tuple(sorted((split[2], *map(str, values)) for split, values in found if pattern.fullmatch(split[0])))


def _definitions(connection: Any, relations: Sequence[str], ends: str) -> tuple[dict[str, str], list[tuple[Any, ...]]]:
    """SHOW CREATE TABLE of each that is not being changed, and the end of the log afterwards."""
    try:
        *found, high = several(connection, *[_show(relation) for relation in relations], ends)
        return {relation: row[0][1] for relation, row in zip(relations, found, strict=True)}, high
    except pymysql.err.MySQLError as error:
        if error.args[0] not in _UNDER_WAY:
            raise
    definitions = {}
    for relation in relations:
        try:
            definitions[relation] = rows(connection, _show(relation))[0][1]
        except pymysql.err.MySQLError as error:
            if error.args[0] not in _UNDER_WAY:
                raise
    return definitions, rows(connection, ends)


def _show(relation: str) -> str:
    return f"SHOW CREATE TABLE {quote(relation)}"


def shows_files(connection: Any) -> bool:
    """Whether the user has the right PROCESS: without it a server does not show which files its tables have."""
    try:
        rows(connection, f"SELECT 1 FROM information_schema.{_view(connection)} LIMIT 1")
    except pymysql.err.OperationalError as error:
        if error.args[0] != _NO_RIGHT:
            raise
        return False
    return True


def no_right(connection: Any, settings: ConnectionSettings) -> UserError:
    user, account = grantee(connection)
    message = f"the user {user} lacks a right: it may not read which files its tables have, so that nothing is proven"
    return UserError(message, where=settings.where, fix=f"GRANT PROCESS ON *.* TO {account};")
