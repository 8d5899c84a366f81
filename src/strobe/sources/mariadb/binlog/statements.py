"""What a statement in the binlog does to tables: statements are there where rows are not.

With row-based logging, only statements that change definitions are logged as text. Each is one of three things:

* *harmful*: it may have changed rows, or their way into the log, in a way that the rows in the log do not show; the
  views of the table stop;
* *announced*: it is positively known to have left all rows alone, but for the columns that it names;
* *doubtful*: anything else, such as a form of ALTER TABLE that is not known here. The views go on if the table's
  fingerprint shows that nothing was renewed, and stop if something was (`fingerprint`).

Only what a fingerprint cannot show must therefore be recognised as harmful: rows that were logged as statements, and
tables or partitions that may trade places twice between two looks. A statement is not known to be free of that unless
its first word says so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from strobe.sources.mariadb.binlog.sql import Statement, Token, Unreadable, readings, spelled

LEAVE_TABLES_ALONE = {
    *("SET", "FLUSH", "GRANT", "REVOKE", "INSTALL", "UNINSTALL", "SHUTDOWN", "LOCK", "UNLOCK", "USE", "KILL", "RESET"),
    *("PURGE", "CHANGE", "START", "STOP", "CLONE", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "XA"),
}
HARMLESS_OPTIONS = {
    *("COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_PERSISTENT", "STATS_AUTO_RECALC"),
    *("STATS_SAMPLE_PAGES", "MAX_ROWS", "MIN_ROWS", "AVG_ROW_LENGTH", "PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL"),
    *("CHECKSUM", "PACK_KEYS", "DELAY_KEY_WRITE", "ENCRYPTION", "ENCRYPTED", "ENCRYPTION_KEY_ID", "COMPRESSION"),
    *("AUTOEXTEND_SIZE", "ENGINE_ATTRIBUTE", "SECONDARY_ENGINE_ATTRIBUTE", "CHARSET", "COLLATE", "ALGORITHM", "LOCK"),
}
"""With one value each: they concern how rows are stored, and not what they are."""
HARMLESS_CLAUSES = {
    *(("FORCE",), ("ENABLE", "KEYS"), ("DISABLE", "KEYS"), ("WITH", "VALIDATION"), ("WITHOUT", "VALIDATION")),
    *(("REMOVE", "PARTITIONING"), ("ONLINE",)),
}
KEEPING_ROWS = {"ADD", "COALESCE", "REORGANIZE", "REBUILD", "OPTIMIZE", "ANALYZE", "CHECK"}
"""What may be done with partitions without losing a row."""
PARTITIONS = {
    *KEEPING_ROWS,
    *("DROP", "REPAIR", "EXCHANGE", "TRUNCATE", "DISCARD", "IMPORT", "CONVERT"),
}
CONSTRAINTS = {"INDEX", "KEY", "FOREIGN", "CONSTRAINT", "CHECK"}
"""Words that cannot be the name of a column; what they name is no part of a row."""
LOGGED_AS_TEXT = "was logged as a statement and not as rows (binlog_format of its session)"


@dataclass(frozen=True)
class Effect:
    """What a statement does, or may do, to one table or to all (`table` is None)."""

    table: str | None
    what: str


@dataclass(frozen=True)
class Verdict:
    """What a statement does to the watched tables."""

    harm: Effect | None = None
    doubt: Effect | None = None
    announced: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """The tables whose definition it renews and whose rows it leaves alone, but for these columns (in small letters),
    each with what happened to it."""

    def concerns(self, table: str) -> bool:
        effects = [effect for effect in (self.harm, self.doubt) if effect]
        return table in self.announced or any(effect.table in (table, None) for effect in effects)

    def harm_to(self, used: Mapping[str, Collection[str]]) -> Effect | None:
        """The harm that it does where these columns of the watched tables are used."""
        if self.harm is not None:
            return self.harm
        for table, touched in self.announced.items():
            for column in used.get(table, ()):
                if column.lower() in touched:
                    return Effect(table, touched[column.lower()])
        return None


@dataclass(frozen=True)
class Scene:
    """Against what statements are judged."""

    database: str
    tables: Collection[str]
    """The watched tables of the database."""
    folds_case: bool = False
    """Whether names of tables are the same in any case (`lower_case_table_names`)."""
    logs_actions: bool = False
    """Whether rows that foreign keys change are in the binlog."""


class _Effect(Exception):
    def __init__(self, table: str | None, what: str) -> None:
        self.effect = Effect(table, what)


class _Harm(_Effect):
    pass


class _Doubt(_Effect):
    def __init__(self, table: str | None, tokens: Sequence[Token]) -> None:
        super().__init__(table, f"the binlog has a statement that Strobe does not know: {spelled(tokens[:8])}")


def judge(statement: Statement, scene: Scene) -> Verdict:
    """What a statement does to the watched tables."""
    announced: dict[str, dict[str, str]] = {}
    doubt: Effect | None = None
    if statement.problem:
        return Verdict(Effect(None, f"the binlog has a statement that Strobe cannot read: {statement.problem}"))
    try:
        for tokens in readings(statement):
            try:
                for table, columns in _Reading(tokens, statement.schema, scene).announced().items():
                    announced.setdefault(table, {}).update(columns)
            except _Doubt as found:
                doubt = found.effect
    except Unreadable as problem:
        return Verdict(Effect(None, f"the binlog has a statement that Strobe cannot read: {problem}"))
    except _Harm as harm:
        return Verdict(harm.effect)
    return Verdict(doubt=doubt, announced={} if doubt else announced)


class _Reading:
    """One way to read a statement."""

    def __init__(self, tokens: list[Token], schema: str, scene: Scene) -> None:
        while tokens and tokens[-1].key == ";":
            tokens.pop()
        self._tokens, self._schema, self._scene = tokens, schema, scene

    def announced(self) -> Mapping[str, Mapping[str, str]]:
        """The tables that it renews, with the columns that it touches. Raises `_Harm` or `_Doubt`."""
        if self._key(0) == "SET" and self._key(1) == "STATEMENT":
            end = next((i for i, token in enumerate(self._tokens) if token.key == "FOR"), None)
            if end is None:
                raise _Doubt(None, self._tokens)
            return _Reading(self._tokens[end + 1 :], self._schema, self._scene).announced()
        verb = self._key(0)
        if not self._tokens or verb in LEAVE_TABLES_ALONE or (verb == "BEGIN" and len(self._tokens) == 1):
            return {}
        act = {
            "TRUNCATE": self._truncate,
            "DROP": self._drop,
            "RENAME": self._rename,
            "ALTER": self._alter,
            "CREATE": self._create,
            "OPTIMIZE": self._maintain,
            "ANALYZE": self._maintain,
            "CHECK": self._maintain,
            "REPAIR": self._maintain,
        }.get(verb)
        if act is None:
            raise _Harm(None, f"{verb or 'something'} {LOGGED_AS_TEXT}")
        return act()

    # Words and names

    def _key(self, at: int) -> str:
        return self._tokens[at].key if at < len(self._tokens) else ""

    def _called(self, at: int) -> str:
        return self._tokens[at].named if at < len(self._tokens) else ""

    def _skip(self, at: int, *keys: str) -> int:
        while self._key(at) in keys and at < len(self._tokens):
            at += 1
        return at

    def _name(self, at: int) -> tuple[str | None, int]:
        """The watched table that is named at a place, if it is one, and where its name ends."""
        parts = [""] if self._key(at) == "." else [self._called(at)]
        at += self._key(at) != "."
        while self._key(at) == "." and at + 1 < len(self._tokens):
            parts.append(self._tokens[at + 1].named)
            at += 2
        schema = (parts[-2] if len(parts) > 1 else "") or self._schema
        if not self._same(schema, self._scene.database):
            return None, at
        return next((table for table in self._scene.tables if self._same(table, parts[-1])), None), at

    def _same(self, one: str, other: str) -> bool:
        return one.lower() == other.lower() if self._scene.folds_case else one == other

    def _named(self, at: int) -> Iterator[str]:
        """All watched tables whose name is anywhere from here on."""
        while at < len(self._tokens):
            table, end = self._name(at)
            if table:
                yield table
            at = max(end, at + 1)

    def _wait(self, at: int) -> int:
        """Behind `WAIT 5` or `NOWAIT`, which may follow a name."""
        return at + 2 if self._key(at) == "WAIT" and self._key(at + 1).isdigit() else self._skip(at, "NOWAIT")

    # Statements

    def _truncate(self) -> Mapping[str, Mapping[str, str]]:
        table, _ = self._name(self._skip(1, "TABLE"))
        if table:
            raise _Harm(table, "it was truncated, which the binlog has no rows for")
        return {}

    def _drop(self) -> Mapping[str, Mapping[str, str]]:
        what = self._key(1)
        if what in ("DATABASE", "SCHEMA"):
            if self._same(self._called(self._skip(2, "IF", "EXISTS")), self._scene.database):
                raise _Harm(None, "the database was dropped")
        elif what in ("TABLE", "TABLES"):
            for table in self._named(self._skip(2, "IF", "EXISTS")):
                raise _Harm(table, "it was dropped")
        elif what == "INDEX":
            at = self._skip(2, "IF", "EXISTS")
            indexed, _ = self._name(self._after("ON", at + 1))
            if indexed and self._called(at).upper() == "PRIMARY":
                raise _Harm(indexed, "its primary key was dropped")
            return {indexed: {}} if indexed else {}
        return {}

    def _after(self, key: str, at: int) -> int:
        while at < len(self._tokens) and self._key(at) != key:
            at += 1
        return at + 1

    def _rename(self) -> Mapping[str, Mapping[str, str]]:
        if self._key(1) in ("TABLE", "TABLES"):
            for table in self._named(2):
                raise _Harm(table, "it was renamed, or another table was given its name")
        return {}

    def _create(self) -> Mapping[str, Mapping[str, str]]:
        at = self._skip(1, "OR")
        replaces = self._key(at) == "REPLACE"
        at = self._skip(at, "REPLACE")
        if self._key(at) == "TABLE":
            table, _ = self._name(self._skip(at + 1, "IF", "NOT", "EXISTS"))
            if table and replaces:
                raise _Harm(table, "it was replaced by a new table")
            if table:
                raise _Doubt(table, self._tokens)
            return {}
        at = self._skip(at, "UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
        if self._key(at) != "INDEX":
            return {}  # views, triggers, routines, users: whatever is in their bodies
        table, _ = self._name(self._after("ON", self._skip(at + 1, "IF", "NOT", "EXISTS") + 1))
        return {table: {}} if table else {}

    def _maintain(self) -> Mapping[str, Mapping[str, str]]:
        """OPTIMIZE and its kin. ANALYZE may be followed by a statement, which is executed."""
        at = self._skip(1, "NO_WRITE_TO_BINLOG", "LOCAL")
        if self._key(at) not in ("TABLE", "TABLES"):
            raise _Harm(None, f"{self._key(0)} {self._key(at)} {LOGGED_AS_TEXT}")
        named = list(self._named(at + 1))
        if self._key(0) == "REPAIR" and named:
            raise _Harm(named[0], "REPAIR TABLE may have removed rows")
        return {table: {} for table in named} if self._key(0) == "OPTIMIZE" else {}

    def _alter(self) -> Mapping[str, Mapping[str, str]]:
        at = self._skip(1, "ONLINE", "IGNORE")
        if self._key(at) != "TABLE":
            return {}
        ignoring = "IGNORE" in (self._key(1), self._key(2))
        table, at = self._name(self._skip(at + 1, "IF", "EXISTS"))
        at = self._wait(at)
        if table and ignoring:
            raise _Harm(table, "ALTER IGNORE TABLE may have dropped rows")
        touched: dict[str, str] = {}
        doubt: _Doubt | None = None
        for clause in _clauses(self._tokens[at:]):
            key = clause[0].key
            second = clause[1].key if len(clause) > 1 else ""
            if key in ("EXCHANGE", "CONVERT") or (key == "RENAME" and second not in ("COLUMN", "INDEX", "KEY")):
                others = _Reading(clause[1:], self._schema, self._scene)._named(0)
                for concerned in (*([table] if table else ()), *others):
                    raise _Harm(concerned, f"ALTER TABLE … {key} may have changed its rows")
            try:
                touched |= _judge_clause(clause, table, self._scene.logs_actions) if table else {}
            except _Doubt as found:
                doubt = found  # a later clause may do harm
        if doubt is not None:
            raise doubt
        return {table: touched} if table else {}


def _clauses(tokens: Sequence[Token]) -> Iterator[list[Token]]:
    """The parts of ALTER TABLE between commas. What is done with partitions is the last one, commas and all."""
    depth, start = 0, 0
    for place in range(len(tokens) + 1):
        sign = tokens[place].key if place < len(tokens) else ","
        depth += (sign == "(") - (sign == ")")
        following = tokens[place + 1].key if place + 1 < len(tokens) else ""
        if place == start and sign in PARTITIONS and following == "PARTITION":
            yield list(tokens[start:])
            return
        if sign == "," and (not depth or place == len(tokens)):
            if place > start:
                yield list(tokens[start:place])
            start = place + 1


# One clause of ALTER TABLE: the columns that it touches


def _judge_clause(clause: Sequence[Token], table: str, logs_actions: bool) -> dict[str, str]:
    keys = [token.key for token in clause]
    first, second = keys[0], keys[1] if len(keys) > 1 else ""
    said = f"ALTER TABLE … {spelled(clause[:4])}"
    if second == "PARTITION" and first in PARTITIONS:
        if first not in KEEPING_ROWS:
            raise _Harm(table, f"{said} may have changed its rows")
        return {}
    if first in ("TRUNCATE", "DISCARD", "IMPORT"):
        raise _Harm(table, f"{said} may have changed its rows")
    if _has_action(keys) and not logs_actions:
        what = "makes the server change its rows without logging them (foreign-key actions)"
        raise _Harm(table, f"{said} {what}")
    if first == "ADD":
        return _judge_addition(clause, keys, table, said)
    if first == "DROP":
        return _judge_drop(clause, keys, table, said)
    if first in ("MODIFY", "CHANGE") or (first == "RENAME" and second == "COLUMN"):
        _refuse_key(keys, table, said)
        return _column(clause, keys, table, said)
    if first == "ALTER":
        return _judge_alteration(clause, keys, table)
    if first == "RENAME" and second in ("INDEX", "KEY"):
        return {}
    _judge_options(clause, keys, table)
    return {}


def _has_action(keys: Sequence[str]) -> bool:
    pairs = list(zip(keys, keys[1:], keys[2:], strict=False))
    return any(a == "ON" and b in ("DELETE", "UPDATE") and c in ("CASCADE", "SET") for a, b, c in pairs)


def _refuse_key(keys: Sequence[str], table: str, said: str) -> None:
    """A column may be made the primary key in its definition, by the word KEY alone."""
    if "PRIMARY" in keys or any(b == "KEY" and a != "UNIQUE" for a, b in pairwise(keys)):
        raise _Harm(table, f"{said} changes its key or its rows")


def _judge_addition(clause: Sequence[Token], keys: Sequence[str], table: str, said: str) -> dict[str, str]:
    if len(keys) > 2 and (keys[1], keys[2]) in (("SYSTEM", "VERSIONING"), ("PERIOD", "FOR")):
        raise _Harm(table, f"{said} may have changed its rows or its key")
    if len(keys) > 1 and keys[1] in CONSTRAINTS | {"PRIMARY", "UNIQUE", "FULLTEXT", "SPATIAL"}:
        if "PRIMARY" in keys:
            raise _Harm(table, f"{said} may have changed its rows or its key")
        return {}
    _refuse_key(keys, table, said)
    return {}


def _judge_drop(clause: Sequence[Token], keys: Sequence[str], table: str, said: str) -> dict[str, str]:
    second, third = [*keys[1:3], "", ""][:2]
    at = 3 if keys[2:4] != ["IF", "EXISTS"] else 4
    dropped = clause[at - 1].named.upper() if at - 1 < len(clause) else ""
    if second == "PRIMARY" or (second in CONSTRAINTS and dropped == "PRIMARY"):
        raise _Harm(table, f"{said} changes its key or its rows")
    if (second, third) in (("SYSTEM", "VERSIONING"), ("PERIOD", "FOR")):
        raise _Harm(table, f"{said} changes its key or its rows")
    return {} if second in CONSTRAINTS else _column(clause, keys, table, said)


def _column(clause: Sequence[Token], keys: Sequence[str], table: str, said: str) -> dict[str, str]:
    """The column that is dropped, changed or renamed."""
    at = 1
    while at < len(keys) - 1 and keys[at] in ("COLUMN", "IF", "EXISTS"):
        at += 1
    if not (at < len(clause) and clause[at].named):
        raise _Doubt(table, clause)
    return {clause[at].named.lower(): f"{said} changes a column that a view uses"}


def _judge_alteration(clause: Sequence[Token], keys: Sequence[str], table: str) -> dict[str, str]:
    """Defaults, visibility and enforcement: nothing that is in a row."""
    if len(keys) > 1 and keys[1] in CONSTRAINTS:
        return {}
    at = 2 if len(keys) > 1 and keys[1] == "COLUMN" else 1
    at += 3 if keys[at : at + 2] == ["IF", "EXISTS"] else 1
    what = tuple(keys[at : at + 2])
    if what in (("SET", "DEFAULT"), ("DROP", "DEFAULT"), ("SET", "VISIBLE"), ("SET", "INVISIBLE")):
        return {}
    raise _Doubt(table, clause)


def _judge_options(clause: Sequence[Token], keys: Sequence[str], table: str) -> None:
    """Options of the table, with commas between them or without, and how it is partitioned behind them."""
    at = 0
    while at < len(keys):
        if tuple(keys[at:]) in HARMLESS_CLAUSES or keys[at : at + 2] == ["PARTITION", "BY"]:
            return
        if keys[at] == "DEFAULT" and keys[at + 1 : at + 2] != ["="]:
            at += 1
        named = keys[at : at + 1]
        if keys[at : at + 2] == ["CHARACTER", "SET"]:
            named, at = ["CHARSET"], at + 1
        at += 1
        at += keys[at : at + 1] == ["="]
        value = clause[at].text.strip("'\"").upper() if at < len(clause) else ""
        if not (value and (named[0] in HARMLESS_OPTIONS or (named[0] == "ENGINE" and value == "INNODB"))):
            raise _Doubt(table, clause)
        at += 1
