"""What a statement in the binlog does to tables: statements are there where rows are not.

With row-based logging, only statements that change definitions are logged as text. Those that may change rows of a
watched table without saying which (TRUNCATE, dropping, most of ALTER TABLE) are found here, as are statements that
should have been rows. Where this cannot tell, it says so, and the stream stops: a view that has to be rebuilt without
need is better than one that is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""`(?:[^`]|``)*` | "(?:[^"\\]|\\.|"")*" | '(?:[^'\\]|\\.|'')*' | [^\W]+[\w$]* | [$\w]+ | \S""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT = re.compile(
    r"""('(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*`)
        | /\*(?!M?!).*?\*/ | --\s[^\n]*(?:\n|$) | \#[^\n]*(?:\n|$)""",
    re.VERBOSE | re.DOTALL,
)
_EXECUTED = re.compile(r"/\*M?!\d*|\*/")

NOTHING = {
    *("SET", "FLUSH", "GRANT", "REVOKE", "ANALYZE", "OPTIMIZE", "REPAIR", "CHECK", "INSTALL", "UNINSTALL", "SHUTDOWN"),
    *("LOCK", "UNLOCK", "USE", "DO", "KILL", "RESET", "PURGE", "CHANGE", "START", "STOP"),
}
ROWS = {"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "CALL", "MERGE", "WITH", "EXECUTE"}
HARMLESS_CLAUSES = {
    *("ENGINE", "COMMENT", "AUTO_INCREMENT", "ROW_FORMAT", "KEY_BLOCK_SIZE", "STATS_PERSISTENT", "STATS_AUTO_RECALC"),
    *(
        "STATS_SAMPLE_PAGES",
        "ALGORITHM",
        "LOCK",
        "FORCE",
        "ENABLE",
        "DISABLE",
        "MAX_ROWS",
        "MIN_ROWS",
        "AVG_ROW_LENGTH",
    ),
    *("PAGE_COMPRESSED", "PAGE_COMPRESSION_LEVEL", "CHECKSUM", "DELAY_KEY_WRITE", "WAIT", "NOWAIT", "ORDER", "ANALYZE"),
    *("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "PARTITION", "REMOVE", "REORGANIZE", "COALESCE", "REBUILD"),
    *("OPTIMIZE", "CHECK", "REPAIR", "ENCRYPTION", "COMPRESSION", "AUTOEXTEND_SIZE", "ENGINE_ATTRIBUTE"),
    *("SECONDARY_ENGINE", "SECONDARY_ENGINE_ATTRIBUTE", "SECONDARY_LOAD", "SECONDARY_UNLOAD", "WITH", "WITHOUT"),
}


@dataclass(frozen=True)
class Effect:
    """Why a statement ends the stream: for one table, or for all (`table` is None)."""

    table: str | None
    what: str


def tokens(sql: str) -> list[str]:
    text = _EXECUTED.sub(" ", _COMMENT.sub(lambda m: m[1] or " ", sql))
    return _TOKEN.findall(text)


def first_words(sql: str, count: int = 2) -> str:
    return " ".join(tokens(sql[:200])[:count]).upper()


def effect(sql: str, schema: str, database: str, watched: Mapping[str, Collection[str]]) -> Effect | None:
    """What a statement does to the watched tables of a database; `watched` has their columns that are used."""
    words = tokens(sql)
    if not words:
        return None
    reader = _Statement(words, schema, database, watched)
    verb = words[0].upper()
    if verb in NOTHING:
        return None
    if verb in ROWS:
        return Effect(None, f"{verb} was logged as a statement and not as rows (binlog_format of its session)")
    return {
        "TRUNCATE": reader.truncate,
        "DROP": reader.drop,
        "RENAME": reader.rename,
        "ALTER": reader.alter,
        "CREATE": reader.create,
    }.get(verb, reader.unknown)()


class _Statement:
    def __init__(self, words: list[str], schema: str, database: str, watched: Mapping[str, Collection[str]]) -> None:
        self._words, self._schema, self._database, self._watched = words, schema, database, watched
        self._lower = {name.lower(): name for name in watched}

    def _upper(self, at: int) -> str:
        return self._words[at].upper() if at < len(self._words) else ""

    def _name(self, at: int) -> tuple[str | None, int]:
        """The watched table that is named at a place, if it is one, and where its name ends."""
        parts = [_unquoted(self._words[at])] if at < len(self._words) else [""]
        at += 1
        while self._upper(at) == "." and at + 1 < len(self._words):
            parts.append(_unquoted(self._words[at + 1]))
            at += 2
        schema = parts[-2] if len(parts) > 1 else self._schema
        if schema.lower() != self._database.lower():
            return None, at
        return self._lower.get(parts[-1].lower()), at

    def _skip(self, at: int, *words: str) -> int:
        while self._upper(at) in words:
            at += 1
        return at

    def _named(self, at: int) -> Iterator[tuple[str, int]]:
        """All watched tables whose name stands anywhere from here on."""
        while at < len(self._words):
            table, end = self._name(at)
            if table:
                yield table, at
            at = max(end, at + 1)

    def truncate(self) -> Effect | None:
        table, _ = self._name(self._skip(1, "TABLE"))
        return Effect(table, "it was truncated, which the binlog has no rows for") if table else None

    def drop(self) -> Effect | None:
        what = self._upper(1)
        if what in ("DATABASE", "SCHEMA"):
            name = _unquoted(self._words[self._skip(2, "IF", "EXISTS")])
            return Effect(None, "the database was dropped") if name.lower() == self._database.lower() else None
        if what not in ("TABLE", "TABLES"):
            return None  # TEMPORARY tables, views, indexes, users
        for table, _ in self._named(self._skip(2, "IF", "EXISTS")):
            return Effect(table, "it was dropped")
        return None

    def rename(self) -> Effect | None:
        if self._upper(1) not in ("TABLE", "TABLES"):
            return None
        for table, _ in self._named(2):
            return Effect(table, "it was renamed, or another table was given its name")
        return None

    def create(self) -> Effect | None:
        at = self._skip(1, "OR")
        replaces = self._upper(at) == "REPLACE"
        at = self._skip(at, "REPLACE")
        if not replaces or self._upper(at) != "TABLE":
            return None
        table, _ = self._name(self._skip(at + 1, "IF", "NOT", "EXISTS"))
        return Effect(table, "it was replaced by a new table") if table else None

    def unknown(self) -> Effect | None:
        for table, _ in self._named(1):
            return Effect(table, f"the binlog has a statement that Strobe does not know: {self._upper(0)}")
        return None

    def alter(self) -> Effect | None:
        at = self._skip(1, "ONLINE", "IGNORE")
        if self._upper(at) != "TABLE":
            return None
        ignoring = "IGNORE" in (self._upper(1), self._upper(2))
        table, at = self._name(self._skip(at + 1, "IF", "EXISTS"))
        if table and ignoring:
            return Effect(table, "ALTER IGNORE TABLE may have dropped rows")
        for start, end in self._clauses(at):
            clause = self._words[start:end]
            heads = [word.upper() for word in clause]
            if heads[0] in ("EXCHANGE", "RENAME", "CONVERT") and not set(heads[1:2]) & {"COLUMN", "INDEX", "KEY"}:
                for other, place in self._named(start + 1):
                    if place < end:
                        return Effect(other, f"ALTER TABLE … {heads[0]} may have changed its rows")
            if table:
                used = {column.lower() for column in self._watched[table]}
                reason = _clause(clause, heads, used)
                if reason:
                    return Effect(table, f"ALTER TABLE … {' '.join(clause[:4])} {reason}")
        return None

    def _clauses(self, at: int) -> Iterator[tuple[int, int]]:
        """Where the parts of ALTER TABLE between commas begin and end."""
        depth, start = 0, at
        for place in range(at, len(self._words) + 1):
            word = self._words[place] if place < len(self._words) else ","
            depth += (word == "(") - (word == ")")
            if word in (",", ";") and (not depth or place == len(self._words)):
                if place > start:
                    yield start, place
                start = place + 1


def _clause(clause: list[str], heads: list[str], used: Collection[str]) -> str | None:
    """What one part of ALTER TABLE may change about the used columns, or None."""
    what = heads[1] if len(heads) > 1 else ""
    if heads[0] in HARMLESS_CLAUSES or (heads[0] == "ALTER" and what != "PARTITION"):
        return None
    if heads[0] == "ADD":
        return _addition(heads, what)
    if heads[0] in ("DROP", "MODIFY", "CHANGE") or (heads[0] == "RENAME" and what == "COLUMN"):
        if what in ("PRIMARY", "PARTITION", "SYSTEM"):
            return "changes its key or its rows"
        if what in ("INDEX", "KEY", "CONSTRAINT", "FOREIGN", "CHECK", "PERIOD"):
            return None
        at = 1
        while at < len(heads) - 1 and heads[at] in ("COLUMN", "IF", "EXISTS"):
            at += 1
        return "changes a column that a view uses" if _unquoted(clause[at]).lower() in used else None
    if heads[0] == "RENAME" and what in ("INDEX", "KEY"):
        return None
    return "may have changed its rows"


def _addition(heads: list[str], what: str) -> str | None:
    if what in ("SYSTEM", "PERIOD") or "PRIMARY" in heads:
        return "may have changed its rows or its key"
    if "FOREIGN" in heads and ("CASCADE" in heads or "SET" in heads):
        return "makes the server change its rows without logging them (foreign-key actions)"
    return None


def _unquoted(word: str) -> str:
    if len(word) > 1 and word[0] == word[-1] and word[0] in '`"':
        return word[1:-1].replace(word[0] * 2, word[0])
    return word
