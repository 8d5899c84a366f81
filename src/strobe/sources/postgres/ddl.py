"""The event trigger that `strobe prepare --follow-ddl` installs, and what it writes into the log.

When a statement takes partitions out of a published table, or attaches one, the trigger writes a message into the log
of the very transaction: which they are, in which bounds the rows of those were that left, and the rows of those that
came. It compares what the statement saw, which a function that is declared STABLE still sees at its end, with what is
there by then. What went or came must have done so by this transaction: another one's may have been committed while the
statement waited for a lock. What came is read by a function that is VOLATILE, since it may have got rows meanwhile. No
lock is taken on partitions that stay: the trigger fires for tables that have nothing to do with them.

A partition that is truncated, which fires no event trigger, gets another file. So the message has the files, and the
proof compares them with those that were known (`definition`).

A trigger that fails lets the statement pass, without a message; then the fingerprints differ, and views stop. So they
do after DETACH … CONCURRENTLY, which takes two transactions.

Every role that can connect may write messages. So those of the trigger carry a token, which is in a table that only the
trigger and Strobe's role can read; one without it is nobody's, and is passed over.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg

from strobe.algebra.bounds import Bound, End, Listed, Range
from strobe.errors import Unfit, UserError
from strobe.sources.postgres.connection import Connection, ConnectionSettings, identifier, literal, rows
from strobe.sources.postgres.partitions import Moved
from strobe.sources.postgres.pgoutput import Emitted
from strobe.sources.postgres.slot import copy_slot, peek
from strobe.sources.postgres.snapshot import end_of_log
from strobe.sources.postgres.values import PgType, decoder

TAGS = ("ALTER TABLE", "DROP TABLE", "DROP SCHEMA", "DROP OWNED", "DROP EXTENSION")

MOST_ROWS, MOST_BYTES = 10_000, 8 * 2**20
"""Of a partition that is attached, as text in the message: they are in the log once more."""

_CAME = """CREATE OR REPLACE FUNCTION {function}(root oid, before oid[]) RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog SET row_security = off
SET "DateStyle" = 'ISO, MDY' SET "TimeZone" = 'UTC' SET "IntervalStyle" = 'postgres' SET extra_float_digits = 1
SET bytea_output = 'hex' SET standard_conforming_strings = on AS $strobe$
DECLARE
  part record;
  names jsonb;
  texts text;
  line jsonb;
  lines jsonb[];
  bytes int8;
  whole bool;
  came jsonb;
BEGIN
  FOR part IN
    WITH RECURSIVE known AS (SELECT DISTINCT b AS id FROM unnest(before) b), now AS (
      SELECT i.inhrelid AS id, i.xmin::text AS link, i.xmin::text::int8 AS made, k.id IS NULL AS new
      FROM pg_inherits i LEFT JOIN known k ON k.id = i.inhrelid WHERE i.inhparent = root
    UNION ALL
      SELECT i.inhrelid, i.xmin::text, CASE WHEN now.new THEN now.made ELSE i.xmin::text::int8 END, k.id IS NULL
      FROM now JOIN pg_inherits i ON i.inhparent = now.id LEFT JOIN known k ON k.id = i.inhrelid
    ), here AS (SELECT pg_current_xact_id()::text::int8 AS xid)
    SELECT now.id, now.link, c.relkind::text AS kind FROM now JOIN pg_class c ON c.oid = now.id, here
    WHERE CASE WHEN now.new THEN pg_xact_status((
      here.xid + ((now.made - here.xid + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress' END
  LOOP
    SELECT jsonb_agg(attname ORDER BY attnum), string_agg(
      format('CASE WHEN t.%1$I IS NULL THEN NULL ELSE format(%2$L, t.%1$I) END', attname, '%s'), ', ' ORDER BY attnum)
    INTO names, texts FROM pg_attribute WHERE attrelid = part.id AND attnum > 0 AND NOT attisdropped;
    lines := '{{}}';
    bytes := 0;
    whole := part.kind = 'p' OR part.kind = 'r' AND current_setting('transaction_isolation') = 'read committed';
    IF whole AND part.kind = 'r' THEN
      FOR line IN EXECUTE format('SELECT to_jsonb(ARRAY[%s]::text[]) FROM ONLY %s t', texts, part.id::regclass) LOOP
        lines := lines || line;
        bytes := bytes + octet_length(line::text);
        whole := cardinality(lines) <= {rows} AND bytes <= {bytes};
        EXIT WHEN NOT whole;
      END LOOP;
    END IF;
    came := coalesce(came, '[]') || jsonb_build_array(jsonb_build_array(root::int8, part.id::int8,
      part.id::regclass::text, part.link, coalesce(pg_relation_filenode(part.id)::int8, 0), names,
      CASE WHEN whole THEN to_jsonb(lines) END));
  END LOOP;
  RETURN came;
END $strobe$"""

_FUNCTION = """CREATE OR REPLACE FUNCTION {function}() RETURNS event_trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
SET "DateStyle" = 'ISO, MDY' SET "TimeZone" = 'UTC' SET standard_conforming_strings = on AS $strobe$
DECLARE found jsonb;
BEGIN
  WITH RECURSIVE tree AS (
    SELECT r.prrelid AS root, r.prrelid AS id, NULL::oid AS parent, NULL::text AS gone, '[]'::jsonb AS chain,
      0::int8 AS file, NULL::text AS deleted, ARRAY[r.prrelid] AS path
    FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
    WHERE p.pubname = {publication} AND c.relkind = 'p'
  UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmax::text, t.chain || jsonb_build_array(jsonb_build_array(
      k.partstrat::text, pg_get_expr(c.relpartbound, 0),
      (SELECT jsonb_agg(a.attname ORDER BY n.place) FROM unnest(k.partattrs::int2[]) WITH ORDINALITY n (number, place)
       LEFT JOIN pg_attribute a ON a.attrelid = i.inhparent AND a.attnum = n.number AND n.number > 0))),
      c.relfilenode::int8, c.xmax::text, t.path || i.inhrelid
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.id JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_partitioned_table k ON k.partrelid = i.inhparent
  ), kept AS (
    SELECT t.*, EXISTS (SELECT FROM pg_partition_ancestors(t.id) k WHERE k.relid = t.root) AS there FROM tree t
  ), here AS (SELECT pg_current_xact_id()::text::int8 AS xid), files AS (
    SELECT t.root, t.path, t.id, CASE WHEN EXISTS (SELECT FROM pg_partition_tree(t.id::regclass))
      THEN coalesce(pg_relation_filenode(t.id)::int8, 0)
      WHEN pg_xact_status((
        here.xid + ((t.deleted::int8 - here.xid + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress'
      THEN t.file ELSE -1 END AS file
    FROM kept t, here WHERE NOT t.there
  ), gone AS (
    SELECT t.root, t.id, c.relname, t.chain,
      (SELECT jsonb_agg(jsonb_build_array(f.id::int8, f.file)) FROM files f
       WHERE f.root = t.root AND t.id = ANY (f.path)) AS files
    FROM kept t JOIN kept above ON above.root = t.root AND above.id = t.parent
    JOIN pg_class c ON c.oid = t.id, here
    WHERE above.there AND NOT t.there AND pg_xact_status((
      here.xid + ((t.gone::int8 - here.xid + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress'
  )
  SELECT jsonb_build_object('token', (SELECT token FROM {tokens}),
    'left', (SELECT jsonb_agg(jsonb_build_array(root::int8, id::int8, relname, chain, files)) FROM gone),
    'came', (SELECT jsonb_agg(each) FROM (SELECT root, array_agg(id) AS ids FROM tree GROUP BY root) t,
               jsonb_array_elements({function}(t.root, t.ids)) each))
  INTO found;
  IF found->'left' <> 'null' OR found->'came' <> 'null' THEN
    PERFORM pg_logical_emit_message(true, {publication}, convert_to(found::text, 'UTF8'));
  END IF;
EXCEPTION WHEN OTHERS THEN
  NULL;
END $strobe$"""


def statements(connection: Connection, settings: ConnectionSettings) -> list[str]:
    """What installs the trigger; nothing if it is there, and as it should be."""
    if installed(connection, settings):
        return []
    name, function = identifier(settings.name), identifier(settings.schema, settings.name)
    tags = ", ".join(literal(tag, connection) for tag in TAGS)
    tokens = _tokens(settings)
    ((role,),) = rows(connection, "SELECT current_user::text")
    return [
        f"CREATE TABLE IF NOT EXISTS {tokens} (token text NOT NULL)",
        f"REVOKE ALL ON {tokens} FROM PUBLIC",
        f"GRANT SELECT ON {tokens} TO {identifier(str(role))}",
        f"INSERT INTO {tokens} SELECT gen_random_uuid()::text WHERE NOT EXISTS (SELECT FROM {tokens})",
        *_functions(connection, settings),
        f"REVOKE ALL ON FUNCTION {function}(oid, oid[]) FROM PUBLIC",
        f"DROP EVENT TRIGGER IF EXISTS {name}",
        f"CREATE EVENT TRIGGER {name} ON ddl_command_end WHEN TAG IN ({tags}) EXECUTE FUNCTION {function}()",
        f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS",
    ]


def removal(connection: Connection, settings: ConnectionSettings) -> list[str]:
    """What takes it out again."""
    if not rows(connection, "SELECT 1 FROM pg_event_trigger WHERE evtname = %s", settings.name):
        return []
    name, function = identifier(settings.name), identifier(settings.schema, settings.name)
    functions = [f"DROP FUNCTION IF EXISTS {function}({arguments})" for arguments in ("", "oid, oid[]")]
    return [f"DROP EVENT TRIGGER {name}", *functions, f"DROP TABLE IF EXISTS {_tokens(settings)}"]


def _functions(connection: Connection, settings: ConnectionSettings) -> tuple[str, str]:
    """What finds the partitions that came, with their rows, and what the event trigger calls."""
    function, publication = identifier(settings.schema, settings.name), literal(settings.name, connection)
    return (
        _CAME.format(function=function, rows=MOST_ROWS, bytes=MOST_BYTES),
        _FUNCTION.format(function=function, publication=publication, tokens=_tokens(settings)),
    )


def _tokens(settings: ConnectionSettings) -> str:
    return identifier(settings.schema, settings.name)


def installed(connection: Connection, settings: ConnectionSettings) -> bool:
    """Whether the trigger is there, and fires, and its messages can be told from others'."""
    reading, firing = (made.split("$strobe$")[1] for made in _functions(connection, settings))
    found = rows(
        connection,
        "SELECT t.evtenabled = 'A' AND t.evtevent = 'ddl_command_end' AND p.prosrc = %s AND p.provolatile = 's'"
        " AND EXISTS (SELECT FROM pg_proc r WHERE r.proname = p.proname AND r.pronamespace = p.pronamespace"
        " AND r.proargtypes = '26 1028' AND r.prosrc = %s AND r.provolatile = 'v')"
        " FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid WHERE t.evtname = %s",
        firing,
        reading,
        settings.name,
    )
    return found == [(True,)] and read_token(connection, settings) is not None


def read_token(connection: Connection, settings: ConnectionSettings) -> str | None:
    """What the messages of the trigger carry; None where Strobe's role cannot know it."""
    readable = rows(
        connection,
        "SELECT 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s"
        " AND c.relkind = 'r' AND has_table_privilege(c.oid, 'SELECT')",
        settings.schema,
        settings.name,
    )
    found = rows(connection, f"SELECT token::text FROM {_tokens(settings)}") if readable else []
    return str(found[0][0]) if len(found) == 1 else None


def execute(connection: Connection, settings: ConnectionSettings, statements: Sequence[str]) -> None:
    try:
        for statement in statements:
            connection.execute(statement)
    except psycopg.errors.InsufficientPrivilege as error:
        raise UserError(
            f"the role may not do this: {error.diag.message_primary}",
            where=settings.where,
            fix="Only a superuser may make event triggers: let one run what `strobe prepare --follow-ddl --dry-run "
            f"{settings.source}` prints.",
        ) from None


def partition_key(connection: Connection, table: int) -> tuple[str, ...] | None:
    """The columns by whose values the partitions of a table can be told apart; None if they cannot."""
    found = rows(
        connection,
        "SELECT k.partstrat::text, a.attname FROM pg_partitioned_table k"
        " CROSS JOIN unnest(k.partattrs::int2[]) WITH ORDINALITY n (number, place)"
        " LEFT JOIN pg_attribute a ON a.attrelid = k.partrelid AND a.attnum = n.number AND n.number > 0"
        " WHERE k.partrelid = %s::int8::oid ORDER BY n.place",
        table,
    )
    return None if any(s == "h" or name is None for s, name in found) else tuple(str(name) for _, name in found)


@dataclass(frozen=True)
class Left:
    """A partition that a statement took out of a table."""

    table: int
    id: int
    name: str
    chain: tuple[tuple[str, str, tuple[str | None, ...]], ...]
    """From the table down to the partition: the strategy, the bound, and the key's columns, None for expressions."""
    files: Mapping[int, int]
    """Of the partition and of those below it, by their ids."""


@dataclass(frozen=True)
class Came:
    """A partition that a statement attached to a table, or that was below it."""

    table: int
    id: int
    name: str
    link: str
    """The generation of what makes it a partition."""
    file: int
    columns: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...] | None
    """As text, over the columns; None if they are too many, or cannot be known for certain."""


@dataclass(frozen=True)
class Statement:
    token: str
    left: tuple[Left, ...]
    came: tuple[Came, ...]

    @property
    def moved(self) -> Moved:
        left = {id_: file for left in self.left for id_, file in left.files.items()}
        return Moved(left, {came.id: (came.link, came.file) for came in self.came if came.rows is not None})


def parse(content: bytes) -> Statement:
    """What the trigger wrote; `ValueError` if it is something else."""
    try:
        found = json.loads(content)
        token = str(found["token"])
        left = [
            Left(
                int(table),
                int(id_),
                str(name),
                tuple((str(s), str(b), tuple(columns)) for s, b, columns in chain),
                {int(below): int(file) for below, file in files},
            )
            for table, id_, name, chain, files in found["left"] or ()
        ]
        came = [
            Came(
                int(table),
                int(id_),
                str(name),
                str(link),
                int(file),
                tuple(map(str, columns)),
                None if texts is None else tuple(map(tuple, texts)),
            )
            for table, id_, name, link, file, columns, texts in found["came"] or ()
        ]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return Statement(token, tuple(left), tuple(came))


def moved_in_log(looking: Connection, settings: ConnectionSettings) -> Moved:
    """The partitions that left or came since the slot was confirmed, and of which the log says so."""
    if not installed(looking, settings):
        return Moved()
    token = read_token(looking, settings)
    slot, _ = copy_slot(looking, settings)
    found = Moved()
    for message in peek(looking, settings, slot, end_of_log(settings, looking), "M"):
        if isinstance(message, Emitted) and message.transactional and message.prefix == settings.name:
            with suppress(ValueError):
                statement = parse(message.content)
                found = found.and_then(statement.moved) if statement.token == token else found
    return found


# Bounds.

_COMPARED = ("int2", "int4", "int8", "numeric", "date", "timestamp", "timestamptz")
"""Types whose order is the same here, in Python and in Spark."""
_EQUAL = (*_COMPARED, "bool", "text", "varchar", "uuid", "enum")
"""Types in which equal values are the same."""
_VALUE = re.compile(r"'((?:[^']|'')*)'|([^\s,()']+)")


class Unknown(Exception):
    """Rows in a bound cannot be told apart from others, for this reason."""


def bound_of(left: Left, types: Mapping[str, PgType]) -> Bound:
    """The rows that were in a partition. `types` are those of the columns that are watched."""
    conditions: list[Range | Listed] = []
    for strategy, text, names in left.chain:
        columns = tuple(name for name in names if name is not None)
        if len(columns) < len(names) or not columns:
            raise Unknown("its partition key is an expression")
        if missing := [c for c in columns if c not in types]:
            raise Unknown(f"no view uses column {', '.join(missing)}, which tells the rows of a partition apart")
        if text == "DEFAULT" or strategy not in "rl":
            raise Unknown("the rows of a partition by hash, or of the default one, cannot be told by their values")
        allowed = _COMPARED if strategy == "r" else _EQUAL
        if unfit := [f"{c} ({types[c].name})" for c in columns if types[c].name not in allowed]:
            raise Unknown(f"bounds of column {', '.join(unfit)} are not compared alike by Spark")
        decode = [_decoded(types[c]) for c in columns]
        try:
            found = _range(columns, text, decode) if strategy == "r" else _listed(columns[0], text, decode[0])
        except (KeyError, ValueError, ArithmeticError):
            raise Unknown(f"its bound cannot be read: {text}") from None
        conditions.append(found)
    return Bound(tuple(conditions))


def _decoded(type_: PgType) -> Callable[[str], Any]:
    decode = decoder(type_)
    if type_.name == "bool":
        return {"true": True, "false": False}.__getitem__

    def value(text: str) -> Any:
        try:
            return decode(text.encode())
        except Unfit as reason:
            raise Unknown(f"a bound cannot be read: {reason}") from None

    return value


def _range(columns: tuple[str, ...], text: str, decode: Sequence[Callable[[str], Any]]) -> Range:
    found = re.fullmatch(r"FOR VALUES FROM \((.*)\) TO \((.*)\)", text, re.DOTALL)
    if found is None:
        raise Unknown(f"its bound cannot be read: {text}")
    lower, low = _end(found[1], decode)
    upper, high = _end(found[2], decode)
    return Range(columns, End(lower, low != "MAXVALUE"), End(upper, high == "MAXVALUE"))


def _end(text: str, decode: Sequence[Callable[[str], Any]]) -> tuple[tuple[Any, ...], str]:
    """The values before the first that is infinite, and which that is."""
    values: list[Any] = []
    for (quoted, plain), decoded in zip(_VALUE.findall(text), decode, strict=True):
        if plain in ("MINVALUE", "MAXVALUE"):
            return tuple(values), plain
        values.append(decoded(plain or quoted.replace("''", "'")))
    return tuple(values), ""


def _listed(column: str, text: str, decode: Callable[[str], Any]) -> Listed:
    found = re.fullmatch(r"FOR VALUES IN \((.*)\)", text, re.DOTALL)
    if found is None:
        raise Unknown(f"its bound cannot be read: {text}")
    items = _VALUE.findall(found[1])
    values = [decode(plain or quoted.replace("''", "'")) for quoted, plain in items if plain != "NULL"]
    return Listed(column, tuple(values), null=len(values) < len(items))
