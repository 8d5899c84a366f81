"""What SQLite says about its own tables: columns, row identities, unique keys and indexes."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from strobe.algebra.schema import Column, RelationSchema
from strobe.sources.sqlite.values import searchable, spark_type

PREFIX = "__strobe_"
BUILT_IN_COLLATIONS = {"BINARY", "NOCASE", "RTRIM"}


def quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@dataclass(frozen=True)
class TableColumn:
    name: str
    declared: str
    not_null: bool
    default: str | None
    key_place: int
    """1, 2, … in the primary key; 0 outside it."""
    generated: bool

    @cached_property
    def type(self) -> str | None:
        return spark_type(self.declared)


@dataclass(frozen=True)
class Index:
    """An index over plain columns; `where` is the condition of a partial one."""

    name: str
    columns: tuple[str, ...]
    collations: tuple[str, ...]
    unique: bool
    primary: bool
    where: str = ""


@dataclass(frozen=True)
class SqliteTable:
    name: str
    columns: tuple[TableColumn, ...]
    rowid: str | None
    """A name that means the rowid in this table; None for WITHOUT ROWID tables, whose rows are known by primary key."""
    alias: str | None
    """The INTEGER PRIMARY KEY column, which is the rowid under another name."""
    indexes: tuple[Index, ...]
    refusal: str = ""
    """Why this table cannot be watched exactly; empty when it can."""
    acts_on_itself: bool = False
    """Whether removing a row can delete or change others of the same table by actions of foreign keys."""

    def column(self, name: str) -> TableColumn:
        return next(c for c in self.columns if c.name == name)

    @property
    def offered(self) -> tuple[TableColumn, ...]:
        """The columns whose declared type means something to Spark."""
        return tuple(c for c in self.columns if c.type)

    @property
    def primary_key(self) -> tuple[str, ...]:
        return tuple(c.name for c in sorted(self.columns, key=lambda c: c.key_place) if c.key_place)

    @property
    def identity(self) -> Index:
        """What tells one row from all others while it exists: the rowid, or the primary key."""
        if self.rowid is not None:
            return Index("", (self.rowid,), ("BINARY",), unique=True, primary=True)
        return next(i for i in self.indexes if i.primary)

    @property
    def other_keys(self) -> tuple[Index, ...]:
        """The unique keys besides the identity."""
        return tuple(i for i in self.indexes if i.unique and not (self.rowid is None and i.primary))

    @property
    def renumbered(self) -> bool:
        """Whether VACUUM may give the rows other rowids. It keeps those of tables with an index."""
        return self.rowid is not None and self.alias is None and not self.other_keys

    def schema(self, source: str) -> RelationSchema:
        columns = tuple(Column(c.name, c.type, searchable(c.type)) for c in self.columns if c.type)
        offered = {c.name for c in columns}
        return RelationSchema(source, self.name, columns, self._key(offered), self._searched(offered))

    def _key(self, offered: set[str]) -> tuple[str, ...]:
        """The primary key, if it is never NULL in fact, and different keys stay different once decoded."""
        key = self.primary_key
        columns = [self.column(c) for c in key]
        sure = self.rowid is None or key == (self.alias,) or all(c.not_null for c in columns)
        plain = all(c.name in offered and searchable(c.type or "") for c in columns)
        return key if sure and plain else ()

    def _searched(self, offered: set[str]) -> tuple[tuple[str, ...], ...]:
        found: list[tuple[str, ...]] = [(self.alias,)] if self.alias in offered and self.alias else []
        for index in self.lookup_indexes:
            names = [c for c in index.columns if c in offered]
            if names and names[0] == index.columns[0]:
                found.append(tuple(names))
        return tuple(dict.fromkeys(found))

    @property
    def lookup_indexes(self) -> tuple[Index, ...]:
        return tuple(i for i in self.indexes if not i.where and set(i.collations) <= BUILT_IN_COLLATIONS)


def table_names(connection: sqlite3.Connection) -> list[str]:
    """Ordinary tables of the user's."""
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table' ORDER BY name")
    return [name for name, sql in rows if not _internal(name) and not _virtual(sql)]


def kind_of(connection: sqlite3.Connection, name: str) -> str | None:
    """`table`, `view`, `virtual table`, or None where there is nothing of that name."""
    row = connection.execute(
        "SELECT type, sql FROM sqlite_master WHERE name = ? AND type IN ('table', 'view')", (name,)
    ).fetchone()
    if row is None or _internal(name):
        return None
    return "virtual table" if _virtual(row[1]) else str(row[0])


def _internal(name: str) -> bool:
    return name.lower().startswith((PREFIX, "sqlite_"))


def _virtual(sql: str) -> bool:
    return re.match(r"\s*CREATE\s+VIRTUAL\b", sql, re.IGNORECASE) is not None


def read_table(connection: sqlite3.Connection, name: str) -> SqliteTable:
    columns = tuple(
        TableColumn(column, declared or "", bool(not_null), default, place, hidden in (2, 3))
        for _, column, declared, not_null, default, place, hidden in connection.execute(
            f"PRAGMA table_xinfo({quote(name)})"
        )
        if hidden != 1
    )
    has_rowid, rowid = _rowid(connection, name, columns)
    indexes, refusal = _indexes(connection, name, columns)
    primary = [c for c in columns if c.key_place]
    lone = len(primary) == 1 and primary[0].declared.upper() == "INTEGER" and not any(i.primary for i in indexes)
    alias = primary[0].name if has_rowid and lone else None
    if has_rowid and rowid is None:
        rowid = alias
        refusal = refusal if alias else "its columns take all of SQLite's names for the rowid (rowid, _rowid_, oid)"
    return SqliteTable(name, columns, rowid, alias, indexes, refusal, _acts_on_itself(connection, name))


def _rowid(connection: sqlite3.Connection, name: str, columns: Sequence[TableColumn]) -> tuple[bool, str | None]:
    """Whether the table has rowids, and the name for them that no column took."""
    taken = {c.name.lower() for c in columns}
    free = [n for n in ("_rowid_", "rowid", "oid") if n not in taken]
    if not free:
        return not _without_rowid(connection, name), None
    try:
        connection.execute(f"SELECT {free[0]} FROM {quote(name)} LIMIT 0")
    except sqlite3.OperationalError as error:
        if "no such column" not in str(error):
            raise
        return False, None
    return True, free[0]


def _without_rowid(connection: sqlite3.Connection, name: str) -> bool:
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?", (name,)).fetchone()
    return re.search(r"WITHOUT\s+ROWID[^)]*$", sql, re.IGNORECASE) is not None


def _acts_on_itself(connection: sqlite3.Connection, name: str) -> bool:
    above, frontier = set[str](), {name.lower()}
    while frontier and name.lower() not in above:
        parents = {
            row[2].lower()
            for table in frontier
            for row in connection.execute(f"PRAGMA foreign_key_list({quote(table)})")
            if not {row[5], row[6]} <= {"NO ACTION", "RESTRICT"}
        }
        frontier = parents - above
        above |= parents
    return name.lower() in above


def _indexes(
    connection: sqlite3.Connection, name: str, columns: Sequence[TableColumn]
) -> tuple[tuple[Index, ...], str]:
    generated = {c.name for c in columns if c.generated}
    found: list[Index] = []
    refusal = ""
    for _, index, unique, origin, partial in connection.execute(f"PRAGMA index_list({quote(name)})").fetchall():
        parts = [
            (column, collation)
            for _, _, column, _, collation, is_key in connection.execute(f"PRAGMA index_xinfo({quote(index)})")
            if is_key
        ]
        expression = any(column is None for column, _ in parts)
        if unique:
            refusal = refusal or _refusal(index, parts, expression, generated)
        if not expression:
            where = _condition(connection, index) if partial else ""
            names, collations = zip(*parts, strict=True)
            found.append(Index(index, names, tuple(c.upper() for c in collations), bool(unique), origin == "pk", where))
    return tuple(found), refusal


def _refusal(index: str, parts: Sequence[tuple[str, str]], expression: bool, generated: set[str]) -> str:
    """Rows that `INSERT OR REPLACE` removes by such an index cannot be foreseen by a trigger."""
    if expression:
        return f"its unique index {index} is on an expression"
    if any(column in generated for column, _ in parts):
        return f"its unique index {index} is on a generated column"
    if any(collation.upper() not in BUILT_IN_COLLATIONS for _, collation in parts):
        return f"its unique index {index} has a collation that is not SQLite's own"
    return ""


_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|`(?:[^`]|``)*`|\[[^\]]*\]|--[^\n]*|/\*.*?\*/|[A-Za-z_]\w*|.""", re.DOTALL
)


def _condition(connection: sqlite3.Connection, index: str) -> str:
    """The text after WHERE in the definition of a partial index."""
    (sql,) = connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index' AND name = ?", (index,)).fetchone()
    depth = 0
    for token in _TOKEN.finditer(sql):
        depth += {"(": 1, ")": -1}.get(token[0], 0)
        if depth == 0 and token[0].upper() == "WHERE":
            return str(sql[token.end() :]).strip()
    return "1"
