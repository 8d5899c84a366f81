"""What PostgreSQL says about its own tables: columns, types, keys, indexes, and how their changes are logged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from strobe.algebra.schema import Column, RelationSchema
from strobe.errors import UserError
from strobe.sources.postgres.connection import Connection, ConnectionSettings, Pool, identifier, rows
from strobe.sources.postgres.values import PgType

IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "f": "FULL", "i": "USING INDEX"}


@dataclass(frozen=True)
class TableColumn:
    name: str
    type: PgType
    declared: str
    not_null: bool
    deterministic: bool
    """Whether its collation calls only equal what is the same text."""
    number: int
    """Of the catalog's row, which stays the same when columns are renamed."""
    toasted: bool
    """Whether long values are stored out of line, and left out of the log when an update leaves them alone."""

    @property
    def searchable(self) -> bool:
        return self.type.searchable and self.deterministic


@dataclass(frozen=True)
class Below:
    """A table below another one."""

    sql: str
    kind: str
    persistence: str
    identity: str


@dataclass(frozen=True)
class PgTable:
    id: int
    schema: str
    table: str
    name: str
    """As views write it: with the schema, unless it is the source's own."""
    kind: str
    identity: str
    columns: tuple[TableColumn, ...]
    primary_key: tuple[str, ...]
    identity_key: tuple[str, ...]
    """The columns of the index that REPLICA IDENTITY names."""
    indexes: tuple[tuple[str, ...], ...]
    row_security: bool = False
    below: Below | None = None
    """A partition or child whose changes do not come as they should."""

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.table)

    @property
    def partitioned(self) -> bool:
        return self.kind == "p"

    @property
    def offered(self) -> tuple[TableColumn, ...]:
        return tuple(c for c in self.columns if c.type.spark)

    @property
    def images(self) -> bool:
        """Whether the log has whole old rows."""
        return self.identity == "f"

    @property
    def logged_key(self) -> tuple[str, ...]:
        """The columns by which the log names old rows, where it does not have them whole."""
        return {"d": self.primary_key, "i": self.identity_key}.get(self.identity, ())

    def column(self, name: str) -> TableColumn | None:
        return next((c for c in self.columns if c.name == name), None)

    def relation(self, source: str) -> RelationSchema:
        columns = tuple(Column(c.name, c.type.spark, c.searchable) for c in self.offered if c.type.spark)
        searchable = {c.name for c in columns if c.searchable}
        key = self.primary_key if self.images or self.identity == "d" else self.logged_key
        key = key if set(key) <= searchable else ()
        indexes = []
        for index in self.indexes:
            usable = []
            for column in index:
                if column not in searchable:
                    break
                usable.append(column)
            if usable:
                indexes.append(tuple(usable))
        return RelationSchema(source, self.name, columns, key, tuple(dict.fromkeys(indexes)), self.images)


_TABLES = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind::text, c.relreplident::text, c.relrowsecurity
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relpersistence = 'p'
  AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
ORDER BY n.nspname, c.relname
"""
_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8, a.atttypmod, a.attnotnull,
       coalesce(l.collisdeterministic, true), a.attnum, a.attstorage <> 'p', format_type(a.atttypid, a.atttypmod)
FROM pg_attribute a LEFT JOIN pg_collation l ON l.oid = a.attcollation
WHERE a.attrelid = ANY(%s::int8[]::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attrelid, a.attnum
"""
_NUMBERS = """
SELECT attnum, CASE WHEN attisdropped THEN '' ELSE attname END FROM pg_attribute
WHERE attrelid = %s::int8::oid AND attnum > 0 AND (attisdropped OR attgenerated = '') ORDER BY attnum
"""
_INDEXES = """
SELECT i.indrelid::int8, i.indisprimary, i.indisreplident,
       ARRAY(SELECT a.attname::text FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k(attnum, place)
             LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
             WHERE k.place <= i.indnkeyatts ORDER BY k.place)
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
WHERE i.indrelid = ANY(%s::int8[]::oid[]) AND i.indisvalid AND i.indpred IS NULL AND m.amname IN ('btree', 'hash')
ORDER BY i.indisprimary DESC, i.indexrelid
"""
_BELOW = """
WITH RECURSIVE below AS (
    SELECT c.oid AS root, c.oid AS id, c.relkind AS kind, c.relreplident AS identity
    FROM pg_class c WHERE c.oid = ANY(%s::int8[]::oid[]) AND c.relhassubclass
    UNION SELECT b.root, i.inhrelid, b.kind, b.identity FROM below b JOIN pg_inherits i ON i.inhparent = b.id
)
SELECT DISTINCT ON (b.root) b.root::int8, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
       c.relreplident::text
FROM below b JOIN pg_class c ON c.oid = b.id JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE b.id <> b.root AND (b.kind = 'r' OR c.relkind NOT IN ('r', 'p') OR c.relpersistence <> 'p'
       OR c.relkind = 'r' AND c.relreplident NOT IN ('f', b.identity))
ORDER BY b.root, c.oid
"""
"""Of each table, one below it that cannot be followed."""
_TYPES = """
SELECT t.oid::int8, t.typname, t.typtype::text, t.typbasetype::int8, t.typtypmod, n.nspname,
       CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem::int8 ELSE 0 END
FROM pg_type t JOIN pg_namespace n ON n.oid = t.typnamespace WHERE t.oid = ANY(%s::int8[]::oid[])
"""


def read_tables(connection: Connection, settings: ConnectionSettings) -> dict[str, PgTable]:
    """The tables of users, by the name that views give them."""
    found = rows(connection, _TABLES)
    ids = [row[0] for row in found]
    attributes = rows(connection, _COLUMNS, ids)
    types = read_types(connection, {(row[2], row[3]) for row in attributes})
    columns: dict[int, list[TableColumn]] = defaultdict(list)
    for table, name, oid, modifier, not_null, deterministic, number, toasted, declared in attributes:
        type_ = types[oid, modifier]
        columns[table].append(TableColumn(name, type_, declared, not_null, deterministic, number, toasted))
    indexes: dict[int, list[tuple[bool, bool, tuple[str, ...]]]] = defaultdict(list)
    for table, primary, identity, names in rows(connection, _INDEXES, ids):
        plain = names[: names.index(None)] if None in names else names
        if plain:
            indexes[table].append((primary, identity, tuple(plain)))
    unfit = {root: Below(identifier(s, t), *how) for root, s, t, *how in rows(connection, _BELOW, ids)}
    tables = {}
    for oid, schema, table, kind, identity, security in found:
        name = table if schema == settings.schema else f"{schema}.{table}"
        tables[name] = PgTable(
            oid,
            schema,
            table,
            name,
            kind,
            identity,
            tuple(columns[oid]),
            next((c for primary, _, c in indexes[oid] if primary), ()),
            next((c for _, chosen, c in indexes[oid] if chosen), ()),
            tuple(c for _, _, c in indexes[oid]),
            security,
            unfit.get(oid),
        )
    return tables


@dataclass(frozen=True)
class TypeRow:
    """A row of `pg_type`."""

    name: str
    kind: str
    base: int
    """The type beneath a domain."""
    modifier: int
    schema: str
    element: int
    """The type of an array's elements."""


def read_types(connection: Connection, wanted: Collection[tuple[int, int]]) -> dict[tuple[int, int], PgType]:
    """The types of columns, by (oid, modifier); domains are seen through."""
    known: dict[int, TypeRow] = {}
    missing = {oid for oid, _ in wanted}
    while missing:
        known |= {oid: TypeRow(*row) for oid, *row in rows(connection, _TYPES, list(missing))}
        beneath = {t.base for t in known.values() if t.kind == "d"} | {t.element for t in known.values() if t.element}
        missing = beneath - set(known)
    return {(oid, modifier): _resolved(known, oid, modifier) for oid, modifier in wanted}


def _resolved(known: Mapping[int, TypeRow], oid: int, modifier: int) -> PgType:
    while oid in known:
        type_ = known[oid]
        if type_.kind == "d":
            oid, modifier = type_.base, type_.modifier
            continue
        if type_.element:
            return PgType(type_.name, modifier, oid, element=_resolved(known, type_.element, modifier))
        if type_.kind == "e":
            return PgType("enum", modifier, oid, identifier(type_.schema, type_.name))
        if type_.schema == "pg_catalog" or type_.name == "citext":
            return PgType(type_.name, modifier, oid)
        return PgType(f"{type_.schema}.{type_.name}", modifier, oid)
    return PgType("?", modifier, oid)


class LiveCatalog:
    """The catalog as it is whenever it is asked."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def types(self, wanted: set[tuple[int, int]]) -> Mapping[tuple[int, int], PgType]:
        with self._pool.session() as connection:
            return read_types(connection, wanted)

    def numbers(self, table: int) -> Sequence[tuple[int, str]]:
        """The numbers of a table's columns with their names, which are empty for columns that were dropped."""
        with self._pool.session() as connection:
            return [(number, name) for number, name in rows(connection, _NUMBERS, table)]


def identity_fix(table: PgTable, keyed: bool) -> str:
    statement = f"ALTER TABLE {table.sql} REPLICA IDENTITY FULL;"
    return f"Add a primary key, or run: {statement}" if keyed else f"Run: {statement}"


def unsupported(table: PgTable) -> Sequence[str]:
    return [f"{c.name} ({c.declared})" for c in table.columns if not c.type.spark]


def _unfit(table: PgTable, below: Below) -> str:
    if not table.partitioned:
        return f"{below.sql} inherits from it: a query shows the rows of both, and the log has them apart"
    if below.kind not in ("r", "p"):
        return f"its partition {below.sql} is not a table of this database: its changes are not in the log"
    if below.persistence != "p":
        return f"its partition {below.sql} is UNLOGGED: its changes are not in the log"
    return f"its partition {below.sql} has REPLICA IDENTITY {IDENTITIES[below.identity]}, which does not name old rows"


def _unfit_fix(table: PgTable, below: Below) -> str:
    if not table.partitioned or below.kind not in ("r", "p"):
        return "Use it in no view, or make it a partitioned table with partitions of this database."
    if below.persistence != "p":
        return f"Run: ALTER TABLE {below.sql} SET LOGGED;"
    return f"Run: ALTER TABLE {below.sql} REPLICA IDENTITY {'FULL' if table.images else 'DEFAULT'};"


def usable_table(settings: ConnectionSettings, tables: Mapping[str, PgTable], relation: str) -> PgTable:
    """The table, or the reason why it cannot be watched."""
    where = f"{settings.where}, table {relation}"
    table = tables.get(relation)
    if table is None:
        fix = f"Name a table of schema {settings.schema}, or schema.table; views and foreign tables have no change log."
        raise UserError("there is no such table", where=where, fix=fix)
    if table.below is not None:
        raise UserError(_unfit(table, table.below), where=where, fix=_unfit_fix(table, table.below))
    if not table.images and not table.logged_key:
        identity = IDENTITIES[table.identity]
        message = f"old rows are not in the log (REPLICA IDENTITY {identity}, and no primary key that names them)"
        raise UserError(message, where=where, fix=identity_fix(table, keyed=table.identity == "d"))
    if not table.images and not table.relation(settings.source).key:
        message = f"its key ({', '.join(table.logged_key)}) has a type or a collation that names no row exactly"
        raise UserError(message, where=where, fix=identity_fix(table, keyed=False))
    if not table.offered:
        raise UserError("none of its columns has a type that is supported", where=where)
    return table
