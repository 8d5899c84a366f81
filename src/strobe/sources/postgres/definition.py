"""What a fingerprint of a table says, and what happened between two of them. Pure: no server is asked.

Whatever differs counts as harmful unless it is known to be harmless: see `changed`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from strobe.sources.postgres.catalog import IDENTITIES
from strobe.sources.postgres.partitions import Moved

NOTHING = Moved()
VARCHAR = 1043
"""The id of the type, in every database."""
REMEMBERED = 1000
"""How many partitions that left a view's fingerprint remembers."""


class Table(NamedTuple):
    """The table itself, or one below it."""

    id: int
    name: str
    kind: str
    persistence: str
    identity: str
    method: int
    file: int
    row: str


class Link(NamedTuple):
    """What makes a table a partition or a child of another."""

    child: int
    parent: int
    detaching: bool
    row: str
    born: bool
    """Whether the child was created as a partition, by CREATE TABLE … PARTITION OF: then it was empty. One that was
    attached has columns whose catalog rows were written later than those of its system columns."""


class Column(NamedTuple):
    number: int
    name: str
    dropped: bool
    type: int
    modifier: int
    collation: int
    generated: str
    row: str


class Type(NamedTuple):
    id: int
    name: str
    kind: str
    base: int
    modifier: int
    element: int


class Label(NamedTuple):
    """A value of an enum."""

    id: int
    type: int
    text: str
    row: str


class Publication(NamedTuple):
    id: int
    all_tables: bool
    inserts: bool
    updates: bool
    deletes: bool
    truncates: bool
    via_root: bool
    row: str


class Entry(NamedTuple):
    """What puts a table into the publication."""

    table: int
    id: int
    narrowed: bool
    row: str


@dataclass(frozen=True)
class Definition:
    """A fingerprint, read."""

    root: int
    hidden: bool
    """Whether row security would hide rows from Strobe's role."""
    tables: dict[int, Table]
    links: dict[tuple[int, int], Link]
    above: list[Any]
    columns: dict[str, Column]
    types: dict[int, Type]
    labels: dict[int, Label]
    key: list[Any]
    identity: list[Any]
    publication: Publication | None
    entries: dict[int, Entry]
    schemas: list[Any]
    gone: frozenset[int]
    """Partitions through which rows came, and that are there no more."""
    back: frozenset[int]
    """Partitions that are there, and have left, as the log says."""
    left: frozenset[int]
    """Partitions that were there at an earlier look, and whose leaving the log says."""
    moved: Moved
    """What the log says since."""
    mistaken: frozenset[str]
    """Columns that are read as what they were when the tables were first looked at, and are no more."""

    @classmethod
    def of(cls, text: str) -> Definition:
        facts: dict[str, list[Any]] = json.loads(text)
        ((root, hidden),) = facts["root"]
        tables = [Table(*row) for row in facts["table"]]
        links = [Link(*row) for row in facts.get("link", ())]
        columns = [Column(*row) for row in facts.get("column", ())]
        types = [Type(*row) for row in facts.get("type", ())]
        labels = [Label(*row) for row in facts.get("label", ())]
        publications = [Publication(*row) for row in facts.get("publication", ())]
        entries = [Entry(*row) for row in facts.get("entry", ())]
        return cls(
            root,
            hidden,
            {t.id: t for t in tables},
            {(link.child, link.parent): link for link in links},
            facts.get("above", []),
            {c.name: c for c in columns if not c.dropped},
            {t.id: t for t in types},
            {label.id: label for label in labels},
            facts.get("key", []),
            facts.get("identity", []),
            publications[0] if publications else None,
            {entry.table: entry for entry in entries},
            facts.get("schema", []),
            frozenset(facts.get("gone", ())),
            frozenset(facts.get("back", ())),
            frozenset(facts.get("left", ())),
            Moved(),
            frozenset(facts.get("mistaken", ())),
        )

    @property
    def itself(self) -> Table:
        return self.tables[self.root]

    @property
    def partitioned(self) -> bool:
        return self.itself.kind == "p"

    @property
    def key_columns(self) -> set[str]:
        """The columns by which the log may name old rows."""
        numbers = {n for _, columns, _ in self.key for n in columns}
        numbers |= {int(n) for _, columns, _ in self.identity for n in columns.split()}
        return {c.name for c in self.columns.values() if c.number in numbers}

    def types_of(self, columns: Collection[str]) -> set[int]:
        """The users' types that columns are made of: domains and what is beneath them, arrays and their elements."""
        found: set[int] = set()
        missing = {c.type for name, c in self.columns.items() if name in columns} & set(self.types)
        while missing:
            found |= missing
            beneath = {part for n in missing for part in (self.types[n].base, self.types[n].element)}
            missing = (beneath & set(self.types)) - found
        return found


def proven(before: str, after: str) -> str:
    """What a view rests on that rested on a fingerprint before: the later one, and which partitions left since."""
    old, new = Definition.of(before), Definition.of(after)
    left = [*json.loads(before).get("left", ()), *sorted(set(old.tables) - set(new.tables))][-REMEMBERED:]
    return json.dumps({**json.loads(after), "left": left}, separators=(",", ":")) if left else after


def knows(fingerprint: str, partition: int) -> bool:
    """Whether a view that rests on this fingerprint has had rows of a partition."""
    try:
        found = Definition.of(fingerprint)
    except (KeyError, TypeError, ValueError):
        return True  # the next look stops the view
    return partition in found.tables or partition in found.left


def unexplained(before: str, after: str, moved: Moved) -> bool:
    """Whether partitions left or were attached between two fingerprints of which this does not say."""
    try:
        old, new = Definition.of(before), Definition.of(after)
    except (KeyError, TypeError, ValueError):
        return False
    left = (frozenset(old.tables) | new.gone) - frozenset(new.tables) - old.left
    attached = {link.child for place, link in new.links.items() if place not in old.links and not link.born}
    return not (left <= moved.left.keys() and attached <= moved.came.keys())


def changed(columns: Collection[str], before: str, after: str, moved: Moved = NOTHING) -> str:
    """What happened between two fingerprints, as a clause; empty if it cannot have altered what views see that use
    these columns. Each kind of fact has its own comparison, which finds nothing only where the facts are the same or
    differ in a way that is known to be harmless. Of partitions that `moved` the log
    says when they left, or came with which rows."""
    if before == after:
        return ""
    if not before:
        return "it was created, or given this name"
    if not after:
        return "it was dropped, renamed or moved to another schema"
    try:
        old, new = Definition.of(before), Definition.of(after)
    except (KeyError, TypeError, ValueError):
        return "its definition was recorded by another version of Strobe"
    if old.root != new.root:
        return "it was replaced by another table of the same name"
    new = replace(new, left=old.left | moved.left.keys(), moved=moved)
    used = {*columns, *old.key_columns}
    return next((what for compare in _COMPARED if (what := compare(old, new, used))), "")


def _compare_publication(old: Definition, new: Definition, _columns: Collection[str]) -> str:
    before, after = old.publication, new.publication
    if after == before:
        return ""
    if before is None or after is None:
        return "the publication was dropped" if before else "the publication was created"
    if before.id != after.id:
        return "the publication was dropped and created again"
    if not (after.inserts and after.updates and after.deletes and after.truncates):
        return "the publication was altered: it no longer publishes all kinds of changes"
    if not after.via_root:
        return "the publication was altered: it publishes partitions under their own names"
    return "the publication was altered, and may have left out changes for a while"


def _compare_entries(old: Definition, new: Definition, _columns: Collection[str]) -> str:
    before, after = old.entries.get(old.root), new.entries.get(new.root)
    if before != after:
        if after is None:
            return "it was taken out of the publication"
        if after.narrowed:
            return "the publication was given a row filter or a column list for it"
        if before is None:
            return "it was put into the publication by name"
        return "it was taken out of the publication and put back, or its row filter or column list was altered"
    if old.entries != new.entries:
        return "a table that it is a partition of was put into the publication or taken out"
    if after is None and old.schemas != new.schemas:
        return "its schema was taken out of the publication or put into it"
    return ""


def _compare_itself(old: Definition, new: Definition, _columns: Collection[str]) -> str:
    before, after = old.itself, new.itself
    if before.kind != after.kind:
        return "it became a relation of another kind"
    if before.persistence != after.persistence:
        return "it was made UNLOGGED" if after.persistence == "u" else "it was UNLOGGED for a while"
    if before.method != after.method:
        return "it was given another access method"
    if before.file != after.file and new.root not in new.entries:
        return "it was truncated or rewritten"
    if before.identity != after.identity and after.identity != "f":
        return f"its REPLICA IDENTITY was changed to {IDENTITIES[after.identity]}"
    if after.identity == "i" and old.identity != new.identity:
        return "the index of its REPLICA IDENTITY was replaced"
    if old.key != new.key and old.key:
        return "its primary key was dropped or replaced"
    if old.above != new.above:
        return "it became a partition or a child of another table, or is no longer one"
    if new.hidden and not old.hidden:
        return "row security was enabled, and would hide rows"
    return ""


def _compare_tree(old: Definition, new: Definition, _columns: Collection[str]) -> str:
    what = "partition" if new.partitioned else "child"
    for number, before in old.tables.items():
        after = new.tables.get(number)
        if after is None and number in new.left:
            if new.moved.left.get(number) != before.file:
                return f"{what} {before.name} was truncated or rewritten before it left"
            continue
        if after is None:
            return f"{what} {before.name} was dropped or detached"
        if number != new.root and (before.kind, before.method, before.file) != (after.kind, after.method, after.file):
            return f"{what} {after.name} was truncated or rewritten"
    for number, after in new.tables.items():
        if number not in old.tables and not new.partitioned:
            return f"table {after.name} was made to inherit from it"
        if old.tables.get(number) != after and (problem := _unfit(new, after)):
            return f"{what} {after.name} {problem}"
    for place, link in new.links.items():
        before_link = old.links.get(place)
        name = new.tables[link.child].name
        if before_link is None and link.child in new.moved.came:
            if new.moved.came[link.child] != (link.row, new.tables[link.child].file):
                return f"{what} {name} was attached, and then truncated, rewritten or attached again"
        elif before_link is None and not (link.born and link.child not in old.tables):
            return f"{what} {name} was attached, and may have had rows already"
        if before_link is not None and (before_link.row, before_link.detaching) != (link.row, link.detaching):
            return f"{what} {name} was detached" + ("" if link.detaching else " and attached again")
    between = new.gone - old.gone - set(old.tables)
    if between - new.left:
        return f"a {what} with rows came, and was dropped or detached again"
    if any(n in new.moved.came and new.moved.came[n][1] != new.moved.left.get(n) for n in between):
        return f"a {what} was attached, truncated or rewritten, and left again"
    if new.back:
        return f"{what} {new.tables[min(new.back)].name} is there, and the log says that it left"
    stayed = {place for place in old.links if place[0] not in new.left}
    return "" if stayed <= set(new.links) else f"a {what} was detached"


def _unfit(tree: Definition, table: Table) -> str:
    """Why the changes of a partition do not come as they should; empty if they do."""
    if table.id == tree.root:
        return ""
    if table.kind not in ("r", "p"):
        return "is not a table of this database"
    if table.persistence != "p":
        return "is UNLOGGED: its changes are not in the log"
    if table.kind == "r" and table.identity not in ("f", tree.itself.identity):
        wanted = IDENTITIES[tree.itself.identity]
        return f"has REPLICA IDENTITY {IDENTITIES[table.identity]}, and needs {wanted} as the whole table has"
    return ""


def _compare_columns(old: Definition, new: Definition, columns: Collection[str]) -> str:
    rewritten = old.itself.file != new.itself.file
    for name in columns:
        before, after = old.columns.get(name), new.columns.get(name)
        if before is None:
            return f"its column {name} was added, or given this name"
        if after is None:
            return f"its column {name} was dropped or renamed"
        if before.number != after.number:
            return f"its column {name} is another one now: it was dropped and added again, or columns were renamed"
        if before[2:-1] != after[2:-1] and not _longer(before, after):
            return f"its column {name} has another type or collation"
        if rewritten and before.row != after.row:
            return f"its column {name} was rewritten"
        if name in new.mistaken:
            return f"its column {name} was another one when the table was first looked at"
    return ""


def _longer(before: Column, after: Column) -> bool:
    """Whether a `varchar` only takes longer texts: then no row is another one, unless the table was rewritten. The view
    holds text of any length."""
    longer = after.modifier == -1 or 0 < before.modifier <= after.modifier
    same = before._replace(modifier=after.modifier, row=after.row) == after
    return same and after.type == VARCHAR and longer


def _compare_types(old: Definition, new: Definition, columns: Collection[str]) -> str:
    for number in old.types_of(columns):
        if old.types[number] != new.types.get(number):
            return f"type {old.types[number].name} was altered"
    for label in old.labels.values():
        if label.type in old.types_of(columns) and new.labels.get(label.id) != label:
            return f"value {label.text!r} of type {old.types[label.type].name} was renamed"
    return ""


_COMPARED: tuple[Callable[[Definition, Definition, Collection[str]], str], ...] = (
    _compare_publication,
    _compare_entries,
    _compare_itself,
    _compare_tree,
    _compare_columns,
    _compare_types,
)
