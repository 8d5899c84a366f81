"""The event trigger that `strobe prepare --follow-ddl` installs, and what it writes into the log.

When a statement takes partitions out of a published table, or attaches one, the trigger writes a message into the log
of the very transaction: which they are, and in which bounds their rows were. It compares what the statement saw, which
a function that is declared STABLE still sees at its end, with what is there by then. What went must have been taken by
this transaction: another one's may have been committed while the statement waited for a lock.

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
from strobe.sources.postgres.pgoutput import Emitted
from strobe.sources.postgres.slot import copy_slot, peek
from strobe.sources.postgres.snapshot import end_of_log
from strobe.sources.postgres.values import PgType, decoder

TAGS = ("ALTER TABLE", "DROP TABLE", "DROP SCHEMA", "DROP OWNED", "DROP EXTENSION")

_FUNCTION = """CREATE OR REPLACE FUNCTION {function}() RETURNS event_trigger
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog
SET "DateStyle" = 'ISO, MDY' SET "TimeZone" = 'UTC' SET standard_conforming_strings = on AS $strobe$
DECLARE found jsonb;
BEGIN
  WITH RECURSIVE tree AS (
    SELECT r.prrelid AS root, r.prrelid AS id, NULL::oid AS parent, NULL::text AS gone, '[]'::jsonb AS chain
    FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid JOIN pg_class c ON c.oid = r.prrelid
    WHERE p.pubname = {publication} AND c.relkind = 'p'
  UNION ALL
    SELECT t.root, i.inhrelid, i.inhparent, i.xmax::text, t.chain || jsonb_build_array(jsonb_build_array(
      k.partstrat::text, pg_get_expr(c.relpartbound, 0),
      (SELECT jsonb_agg(a.attname ORDER BY n.place) FROM unnest(k.partattrs::int2[]) WITH ORDINALITY n (number, place)
       LEFT JOIN pg_attribute a ON a.attrelid = i.inhparent AND a.attnum = n.number AND n.number > 0)))
    FROM tree t JOIN pg_inherits i ON i.inhparent = t.id JOIN pg_class c ON c.oid = i.inhrelid
    JOIN pg_partitioned_table k ON k.partrelid = i.inhparent
  ), kept AS (
    SELECT t.*, EXISTS (SELECT FROM pg_partition_ancestors(t.id) k WHERE k.relid = t.root) AS there FROM tree t
  ), here AS (SELECT pg_current_xact_id()::text::int8 AS xid), gone AS (
    SELECT t.root, t.id, c.relname, t.chain FROM kept t JOIN kept above ON above.root = t.root AND above.id = t.parent
    JOIN pg_class c ON c.oid = t.id, here
    WHERE above.there AND NOT t.there AND pg_xact_status((
      here.xid + ((t.gone::int8 - here.xid + 2147483648) & 4294967295) - 2147483648)::text::xid8) = 'in progress'
  )
  SELECT jsonb_build_object('token', (SELECT token FROM {tokens}),
    'left', (SELECT jsonb_agg(jsonb_build_array(root::int8, id::int8, relname, chain)) FROM gone),
    'came', (SELECT jsonb_agg(jsonb_build_array(t.root::int8, now.relid::oid::int8, now.relid::text))
             FROM tree t, pg_partition_tree(t.root::regclass) now
             WHERE t.parent IS NULL AND NOT EXISTS (SELECT FROM tree b WHERE b.root = t.root AND b.id = now.relid)))
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
    made = _FUNCTION.format(function=function, publication=literal(settings.name, connection), tokens=tokens)
    ((role,),) = rows(connection, "SELECT current_user::text")
    return [
        f"CREATE TABLE IF NOT EXISTS {tokens} (token text NOT NULL)",
        f"REVOKE ALL ON {tokens} FROM PUBLIC",
        f"GRANT SELECT ON {tokens} TO {identifier(str(role))}",
        f"INSERT INTO {tokens} SELECT gen_random_uuid()::text WHERE NOT EXISTS (SELECT FROM {tokens})",
        made,
        f"DROP EVENT TRIGGER IF EXISTS {name}",
        f"CREATE EVENT TRIGGER {name} ON ddl_command_end WHEN TAG IN ({tags}) EXECUTE FUNCTION {function}()",
        f"ALTER EVENT TRIGGER {name} ENABLE ALWAYS",
    ]


def removal(connection: Connection, settings: ConnectionSettings) -> list[str]:
    """What takes it out again."""
    if not rows(connection, "SELECT 1 FROM pg_event_trigger WHERE evtname = %s", settings.name):
        return []
    name, function = identifier(settings.name), identifier(settings.schema, settings.name)
    dropped = [f"DROP EVENT TRIGGER {name}", f"DROP FUNCTION IF EXISTS {function}()"]
    return [*dropped, f"DROP TABLE IF EXISTS {_tokens(settings)}"]


def _tokens(settings: ConnectionSettings) -> str:
    return identifier(settings.schema, settings.name)


def installed(connection: Connection, settings: ConnectionSettings) -> bool:
    """Whether the trigger is there, and fires, and its messages can be told from others'."""
    found = rows(
        connection,
        "SELECT t.evtenabled = 'A' AND t.evtevent = 'ddl_command_end' AND p.prosrc LIKE %s AND p.provolatile = 's'"
        " FROM pg_event_trigger t JOIN pg_proc p ON p.oid = t.evtfoid WHERE t.evtname = %s",
        "%pg_logical_emit_message%",
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


@dataclass(frozen=True)
class Statement:
    token: str
    left: tuple[Left, ...]
    came: tuple[tuple[int, int, str], ...]
    """Tables with partitions that were attached."""


def parse(content: bytes) -> Statement:
    """What the trigger wrote; `ValueError` if it is something else."""
    try:
        found = json.loads(content)
        token = str(found["token"])
        left = [
            Left(int(table), int(id_), str(name), tuple((str(s), str(b), tuple(columns)) for s, b, columns in chain))
            for table, id_, name, chain in found["left"] or ()
        ]
        came = [(int(table), int(id_), str(name)) for table, id_, name in found["came"] or ()]
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(str(error)) from None
    return Statement(token, tuple(left), tuple(came))


def left_in_log(looking: Connection, settings: ConnectionSettings) -> frozenset[int]:
    """The partitions that left since the slot was confirmed, and of which the log says so."""
    if not installed(looking, settings):
        return frozenset()
    token = read_token(looking, settings)
    slot, _ = copy_slot(looking, settings)
    found: set[int] = set()
    for message in peek(looking, settings, slot, end_of_log(settings, looking), "M"):
        if isinstance(message, Emitted) and message.transactional and message.prefix == settings.name:
            with suppress(ValueError):
                statement = parse(message.content)
                found.update(left.id for left in statement.left if statement.token == token)
    return frozenset(found)


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
