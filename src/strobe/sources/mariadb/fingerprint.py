"""What a table is at a moment, as text: the generations of its files, its definition, and where it descends from.

InnoDB gives every file of a table two numbers that it never uses again, its table id and its space id: whatever
rebuilds, empties, replaces or exchanges a table or one of its partitions changes them. Most other changes of a
definition change the second in which the table was created; that counts only once this second is over, since until then
another change would look the same. Together these are a *generation*.

An OPTIMIZE TABLE changes them as a table does that was replaced by another with the log switched off. What tells them
apart is the log: it announces the one (`descent`). So a fingerprint also has the generations from which it descends by
statements of the log that are known to have left rows alone, each with the columns that they touched. A generation that
the log does not explain is harmful.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field

ANY = "any"
"""As an ancestor: whatever the table was when this process began to read the log."""
_TEXT = r"'(?:[^'\\]|\\.|'')*'"
_COLUMN = re.compile(r"\s*`((?:[^`]|``)*)` (.*?),?$")
_COUNTER = re.compile(r"^(\)[^'\n]*?) AUTO_INCREMENT=\d+", re.MULTILINE)
_CHARSET = re.compile(r"(?:CHARACTER SET|CHARSET)[ =](\w+)")
_CHARACTERS = re.compile(r"\w*char|\w*text|enum|set|json", re.IGNORECASE)
_COLLATION = re.compile(r"COLLATE[ =]([^_\W]+)")
_CASCADE = re.compile(r"\bFOREIGN KEY\b.*\bON (DELETE|UPDATE) (CASCADE|SET NULL|SET DEFAULT)", re.IGNORECASE)
_NO_PART_OF_ROWS = re.compile(
    rf"\s*(?:COMMENT {_TEXT}|/\*!\d+ (?:INVISIBLE|COLUMN_FORMAT \w+|STORAGE \w+) \*/|\bINVISIBLE\b"
    rf"|(?:CHARACTER SET \w+|COLLATE \w+)|AUTO_INCREMENT|ON UPDATE current_timestamp(?:\(\d*\))?"
    rf"|DEFAULT (?:{_TEXT}|b'[01]*'|\(.*\)|[\w.+-]+(?:\([^()]*\))?))",
    re.IGNORECASE,
)
"""Of a column's definition: what does not concern the values that are there. Character sets are compared apart."""


@dataclass(frozen=True)
class Fingerprint:
    """A table at a moment."""

    files: tuple[tuple[str | int, ...], ...]
    """Of each partition: its name, table id, space id, and what else the server counts."""
    created: int
    """In which second of the server's clock."""
    definition: str
    """As SHOW CREATE TABLE has it, without what changes by itself."""
    logs_actions: bool = False
    """Whether rows that foreign keys change are in the binlog."""
    ancestors: tuple[tuple[str, Mapping[str, str]], ...] = ()
    """Generations that it descends from, each with the columns that were touched since, and how."""
    announced: str = ""
    """Where the log announced the last change."""
    harm: str = ""
    """What the log says about how its generation came to be, if that was harmful."""
    generation: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        name = hashlib.sha256(json.dumps([self.files, self.created]).encode()).hexdigest()[:16]
        object.__setattr__(self, "generation", name)

    def text(self) -> str:
        """Equal for equal fingerprints."""
        return json.dumps({k: v for k, v in asdict(self).items() if v and k != "generation"}, sort_keys=True)

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        found = json.loads(text)
        found["files"] = tuple(tuple(file) for file in found["files"])
        found["ancestors"] = tuple((generation, touched) for generation, touched in found.get("ancestors", ()))
        return cls(**found)


def without_counters(created: str) -> str:
    """The text of SHOW CREATE TABLE, which has the next number of AUTO_INCREMENT in it."""
    return _COUNTER.sub(r"\1", created)


def changed(columns: Collection[str], before: str, after: str) -> str:
    """What happened to a table between two fingerprints; empty if nothing that concerns these columns."""
    if before == after:
        return ""
    if not after:
        return "it is not there any more, or may not be read any more"
    if not before:
        return "it was not there"
    old, new = Fingerprint.parse(before), Fingerprint.parse(after)
    used = _with_their_sources(columns, old.definition)
    if old.generation != new.generation:
        touched = next((touched for ancestor, touched in new.ancestors if ancestor == old.generation), None)
        if touched is None and old.announced != new.announced:
            touched = next((touched for ancestor, touched in new.ancestors if ancestor == ANY), None)
        if touched is None:
            return new.harm or _unexplained(old, new)
        for column in sorted(used):
            if column in touched:
                return touched[column]
    return _difference(used, old, new)


def _unexplained(old: Fingerprint, new: Fingerprint) -> str:
    if old.files != new.files:
        return "its rows were replaced, or its file was made again, by something that the binlog does not report"
    return "its definition was changed by something that the binlog does not report"


def _difference(used: Collection[str], old: Fingerprint, new: Fingerprint) -> str:
    """What differs in the definition."""
    for what, find in (("engine", _engine), ("primary key", _key)):
        if find(old.definition) != find(new.definition):
            return f"its {what} was changed"
    if "SYSTEM VERSIONING" in _plain(new.definition) and "SYSTEM VERSIONING" not in _plain(old.definition):
        return "it was given system versioning"
    actions = _actions(new.definition)
    if not new.logs_actions and (actions if old.logs_actions else actions - _actions(old.definition)):
        return "the server changes its rows without logging them (foreign-key actions)"
    before, now = _columns(old.definition), _columns(new.definition)
    for column in sorted(used):
        if before.get(column) != now.get(column):
            return f"its column {column} was {'changed' if column in now else 'dropped or renamed'}"
    return ""


def _with_their_sources(columns: Collection[str], definition: str) -> set[str]:
    """These columns, in small letters, and those from which they are computed."""
    definitions = dict(_lines(definition))
    found: set[str] = set()
    left = [column.lower() for column in columns]
    while left:
        column = left.pop()
        if column not in found:
            found.add(column)
            computed = definitions.get(column, "").partition(" AS (")[2]
            left += [name.replace("``", "`").lower() for name in re.findall(r"`((?:[^`]|``)*)`", computed)]
    return found


def _lines(definition: str) -> Iterator[tuple[str, str]]:
    """The columns with their definitions: SHOW CREATE TABLE has one in each line."""
    for line in definition.splitlines():
        if column := _COLUMN.match(line):
            yield column[1].replace("``", "`").lower(), column[2]


def _columns(definition: str) -> dict[str, tuple[str, str]]:
    """Of each column what concerns its values, and its character set."""
    options = "\n".join(line for line in definition.splitlines() if line.startswith(")"))
    default = _charset(options)
    return {
        name: (
            _NO_PART_OF_ROWS.sub("", declared),
            (_charset(_plain(declared)) or default) if _CHARACTERS.match(declared) else "",
        )
        for name, declared in _lines(definition)
    }


def _charset(text: str) -> str:
    found = _CHARSET.search(text) or _COLLATION.search(text)
    return {"utf8": "utf8mb3"}.get(found[1], found[1]) if found else ""


def _plain(definition: str) -> str:
    """Without the texts in it, which may look like anything."""
    return re.sub(_TEXT, "''", definition, flags=re.DOTALL)


def _engine(definition: str) -> str:
    found = re.search(r"^\) ENGINE=(\w+)", _plain(definition), re.MULTILINE)
    return found[1].lower() if found else ""


def _key(definition: str) -> str:
    return next((line.strip(" ,") for line in definition.splitlines() if line.startswith("  PRIMARY KEY")), "")


def _actions(definition: str) -> set[str]:
    return {line.strip(" ,") for line in _plain(definition).splitlines() if _CASCADE.search(line)}
