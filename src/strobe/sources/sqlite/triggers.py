"""The change log inside a SQLite database, and the triggers that write it.

Every change of a watched table is a row of `__strobe_log`: -1 with the old values, +1 with the new ones. AFTER triggers
would do, were it not for REPLACE: `INSERT OR REPLACE` and `UPDATE OR REPLACE` remove conflicting rows without firing a
delete trigger (unless the writer's connection has `recursive_triggers` on, and then they do fire it). A BEFORE trigger
sees the rows in danger, but not what becomes of them: the same trigger fires for `INSERT OR IGNORE` and for upserts,
where nothing is removed, and in those cases no AFTER INSERT trigger fires. So:

* A BEFORE trigger *notes* the rows that conflict with the new one on any unique key, in a table of notes.
* A note says what the log adds up to for one row identity (rowid, or primary key of a WITHOUT ROWID table): these
  values, or nothing (`gone`). Once an identity is noted, every AFTER trigger that touches it *settles* it: the log gets
  -1 with the noted values and +1 with the row that is there now, and the note becomes that row.
* An AFTER trigger also settles the notes that match the new row on a unique key and whose rows are no longer there: the
  rows that were removed silently. It logs them once, because settling sets `gone`.
* For an identity without a note, AFTER triggers log OLD and NEW as they come.

Settling compares with what is there, and sums do not depend on order; so rows that the users' own triggers or
foreign-key actions change in between come out right, and so do deletes by REPLACE that fire triggers. What it needs is
that the log is right about a row at the moment the row is noted, and that the AFTER trigger really comes. Hence these
triggers must run before the users' own AFTER triggers (SQLite runs the youngest first): one that fails with `FAIL`
keeps the change and skips the triggers that have not run yet. And where foreign keys lead from a table back to itself,
removing a row may delete or change the very row being updated: there the row being updated is noted as well, and
deletes settle all notes.

Notes are taken away by Strobe itself (`discard`) while it holds the write lock: no statement is under way then, so
every note says only what its table says. Only where VACUUM may give rows other rowids (in tables without INTEGER
PRIMARY KEY and unique index, where nothing but an explicit rowid can conflict) must no note outlive its statement:
there each BEFORE trigger first takes away all notes of the table, and deletes do not look at them.

A statement inside a trigger takes over the conflict clause of the statement that fired it, so no statement here may
depend on its own, nor ever meet a conflict. Unary plus takes away a column's affinity where it would keep SQLite from
using the index of a table of notes, whose columns have none so that values are kept as they are.

All of this rests on the unique keys that were known when the triggers were made, and on these triggers being the
youngest. A unique index or a trigger that comes and goes again leaves no trace in the schema. So a view, the *seal*,
is created after the triggers: `sqlite_master` numbers objects in the order of their creation, and `VACUUM` keeps that
order among triggers and views. A trigger that is younger than the seal was created, or dropped and put back, later.
The BEFORE triggers look for one and for a unique index that they do not know, and log a gap (sign 0) if there is any.
As long as the seal is the youngest object of all, there is none, and that is one step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from strobe.sources.sqlite.catalog import PREFIX, Index, SqliteTable, quote

META = f"{PREFIX}meta"
LOG = f"{PREFIX}log"
WATCHED = f"{PREFIX}watched"
SEAL = f"{PREFIX}seal"
FORMAT = "1"
EVENTS = ("before_insert", "before_update", "before_delete", "after_insert", "after_update", "after_delete")


def create_log(journal_mode: str) -> list[str]:
    """The tables that every prepared database has. The first row of the log anchors the first position."""
    mode = journal_mode.replace("'", "''")
    return [
        f"CREATE TABLE {META} (name TEXT PRIMARY KEY, value TEXT)",
        f"INSERT INTO {META} VALUES ('format', '{FORMAT}'), ('identity', lower(hex(randomblob(16)))),"
        f" ('journal_mode', '{mode}')",
        f"CREATE TABLE {WATCHED} (id INTEGER PRIMARY KEY, relation TEXT, columns TEXT, since INTEGER, retired INTEGER)",
        f"CREATE TABLE {LOG} (seq INTEGER PRIMARY KEY, mark INTEGER DEFAULT (random()),"
        " at REAL DEFAULT ((julianday('now') - 2440587.5) * 86400.0), relation INTEGER, sign INTEGER)",
        f"INSERT INTO {LOG} (seq, sign) VALUES (0, 0)",
    ]


def widen_log(present: int, wanted: int) -> list[str]:
    return [f"ALTER TABLE {LOG} ADD COLUMN v{i}" for i in range(present, wanted)]


SEALING = f"CREATE VIEW {SEAL} AS SELECT 'triggers younger than this are not known'"


def seal() -> list[str]:
    """Make the seal the youngest of all triggers and views."""
    return [f"DROP VIEW IF EXISTS {SEAL}", SEALING]


def note_name(watch: int) -> str:
    return f"{PREFIX}note_{watch}"


def index_name(watch: int) -> str:
    return f"{PREFIX}columns_{watch}"


def trigger_name(relation: str, event: str) -> str:
    return f"{PREFIX}{relation}_{event}"


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


@dataclass(frozen=True)
class Watch:
    """A table to watch: which columns, under which number in the log."""

    table: SqliteTable
    columns: tuple[str, ...]
    id: int

    @property
    def note(self) -> str:
        return note_name(self.id)

    @property
    def noted(self) -> tuple[str, ...]:
        """Columns that notes keep: those watched, then other columns of unique keys."""
        keys = (c for key in self.table.other_keys for c in key.columns)
        return tuple(dict.fromkeys(self.columns + tuple(keys)))

    def create_notes(self) -> list[str]:
        identity = self.table.identity
        parts = [f'r{i} COLLATE "{c}"' for i, c in enumerate(identity.collations)]
        values = [f"v{i}" for i in range(len(self.noted))]
        key = ", ".join(f"r{i}" for i in range(len(identity.columns)))
        body = ", ".join([*parts, "gone INTEGER", *values, f"PRIMARY KEY ({key})"])
        return [f"CREATE TABLE {self.note} ({body}) WITHOUT ROWID"] + [
            f"CREATE INDEX {self.note}_key_{n} ON {self.note} ("
            + ", ".join(f'{self._v(c)} COLLATE "{o}"' for c, o in zip(key.columns, key.collations, strict=True))
            + ")"
            for n, key in enumerate(self.table.other_keys)
        ]

    def hold_columns(self) -> dict[str, str]:
        """An index without entries, by its name. SQLite drops no column that is part of one, whereas it does drop what
        only triggers name if the connection has `legacy_alter_table` on. A column that is dropped and added again would
        leave no trace in the schema."""
        name = index_name(self.id)
        columns = ", ".join(f'{quote(c)} COLLATE "BINARY"' for c in self.columns)
        first = quote(self.columns[0])
        never = f"{first} IS NULL AND {first} IS NOT NULL"
        return {name: f"CREATE INDEX {name} ON {quote(self.table.name)} ({columns}) WHERE {never}"}

    def triggers(self) -> dict[str, str]:
        """The text of every trigger by its name, as `sqlite_master` keeps it."""
        before_update = [self._note_others(k, updating=True) for k in self._keys()]
        if self.table.acts_on_itself:
            before_update += [self._note_old(k) for k in self._keys()]
        after_insert = [*self._settle_removed(), self._event("NEW", 1), *self._settle("NEW")]
        moved = f"NOT ({self._is('OLD', 'NEW')})"
        after_update = [
            *self._settle_removed(),
            self._event("OLD", -1),
            self._event("NEW", 1),
            *self._settle("OLD"),
            *self._settle("NEW", moved),
        ]
        after_delete = [self._event("OLD", -1), *self._settle("OLD")]
        if self.table.acts_on_itself:
            after_delete += self._settle_all_removed()
        before_insert = [self._note_others(k, updating=False) for k in self._keys()]
        if self.table.renumbered:
            before_insert.insert(0, f"DELETE FROM {self.note}")
            before_update.insert(0, f"DELETE FROM {self.note}")
            after_delete = [
                self._log_row("OLD", -1),
                f"DELETE FROM {self.note} WHERE {self._noted_as('OLD', self.note)}",
            ]
        before = ([self._log_gap(), *body] for body in (before_insert, before_update, []))
        bodies = (*before, after_insert, after_update, after_delete)
        return dict(map(self._trigger, EVENTS, bodies))

    def _trigger(self, when: str, body: Sequence[str]) -> tuple[str, str]:
        name = trigger_name(self.table.name, when)
        moment = when.replace("_", " ").upper()
        steps = "".join(f"\n  {statement};" for statement in body)
        on = quote(self.table.name)
        return name, f"CREATE TRIGGER {quote(name)} {moment} ON {on} FOR EACH ROW BEGIN{steps}\nEND"

    def _keys(self) -> tuple[Index, ...]:
        return (self.table.identity, *self.table.other_keys)

    def _log_gap(self) -> str:
        """Log a gap if rows may go without being seen: by a unique index that is not known, a younger trigger, or these
        triggers themselves, if they look at another table than their own. With `legacy_alter_table` on, what a trigger
        says in its body does not follow its table to another name."""
        known = ", ".join(_literal(key.name) for key in self.table.indexes if key.unique) or "''"
        trigger = _literal(trigger_name(self.table.name, EVENTS[0]))
        here = f"(SELECT tbl_name FROM sqlite_master WHERE name = {trigger})"
        sealed = f"(SELECT rowid FROM sqlite_master WHERE name = '{SEAL}')"
        unknown = f"m.type = 'index' AND m.sql LIKE 'CREATE UNIQUE %' AND m.name NOT IN ({known})"
        younger = f"m.type = 'trigger' AND m.rowid > {sealed}"
        own = _literal(f"FROM {quote(self.table.name)}") + " || ' AS t'"  # in two parts: this is in the body, too
        return (
            f"INSERT INTO {LOG} (relation, sign) SELECT {self.id}, 0"
            f" WHERE (SELECT name FROM sqlite_master ORDER BY rowid DESC LIMIT 1) <> '{SEAL}' AND EXISTS"
            f" (SELECT 1 FROM sqlite_master AS m WHERE m.tbl_name = {here} AND ({unknown} OR {younger}))"
            f" OR EXISTS (SELECT 1 FROM (SELECT tbl_name, sql FROM sqlite_master WHERE name = {trigger}"
            f" ORDER BY rowid DESC LIMIT 1) WHERE tbl_name <> {_literal(self.table.name)} COLLATE NOCASE"
            f" AND instr(sql, {own}))"
        )

    def _note_others(self, key: Index, updating: bool) -> str:
        """Note the rows that conflict with NEW on this key."""
        rids = ", ".join(f"t.{self._name(c)}" for c in self.table.identity.columns)
        values = ", ".join(f"t.{quote(c)}" for c in self.noted)
        found = f"{self._conflict(key, updating)} AND NOT {self._is_known('t')}"
        return f"INSERT INTO {self.note} SELECT {rids}, 0, {values} FROM {quote(self.table.name)} AS t WHERE {found}"

    def _note_old(self, key: Index) -> str:
        """Note the row about to be updated if it conflicts with another, whose removal may change it first."""
        rids = ", ".join(f"OLD.{self._name(c)}" for c in self.table.identity.columns)
        values = ", ".join(f"OLD.{quote(c)}" for c in self.noted)
        other = f"EXISTS (SELECT 1 FROM {quote(self.table.name)} AS t WHERE {self._conflict(key, updating=True)})"
        return f"INSERT INTO {self.note} SELECT {rids}, 0, {values} WHERE {other} AND NOT {self._is_known('OLD')}"

    def _conflict(self, key: Index, updating: bool) -> str:
        """The table's row `t` is another than NEW's, and has this key of NEW's."""
        where = [
            f't.{self._name(c)} = {self._coming(c)} COLLATE "{o}"'
            for c, o in zip(key.columns, key.collations, strict=True)
        ]
        if key.where:
            where.append(f"({key.where})")
        if updating:
            where.append(f"NOT ({self._is('t', 'OLD')})")
            if not key.where:
                where.append(f"NOT ({self._unchanged(key)})")
        return " AND ".join(where)

    def _is_known(self, row: str) -> str:
        return f"EXISTS (SELECT 1 FROM {self.note} AS n WHERE {self._noted_as(row)})"

    def _coming(self, column: str) -> str:
        """NEW's value as it will be stored: OR REPLACE puts the default in place of a NULL that is not allowed."""
        value = f"NEW.{self._name(column)}"
        if column == self.table.rowid:
            return value
        facts = self.table.column(column)
        return f"coalesce({value}, ({facts.default}))" if facts.not_null and facts.default is not None else value

    def _unchanged(self, key: Index) -> str:
        return " AND ".join(
            f'NEW.{self._name(c)} IS OLD.{self._name(c)} COLLATE "{o}"'
            for c, o in zip(key.columns, key.collations, strict=True)
        )

    def _event(self, row: str, sign: int) -> str:
        return f"{self._log_row(row, sign)} WHERE NOT {self._is_known(row)}"

    def _log_row(self, row: str, sign: int) -> str:
        values = ", ".join(f"{row}.{quote(c)}" for c in self.columns)
        return f"{self._log()} SELECT {self.id}, {sign}, {values}"

    def _settle(self, row: str, condition: str = "1") -> list[str]:
        """Bring log and note of this row's identity to what is in the table now, if it is noted."""
        here = quote(self.table.name)
        found = f"{self._noted_as(row)} AND {condition}"
        values = ", ".join(f"t.{quote(c)}" for c in self.columns)
        change = ", ".join(
            [f"gone = NOT EXISTS (SELECT 1 FROM {here} AS t WHERE {self._is_noted(self.note)})"]
            + [
                f"{self._v(c)} = (SELECT t.{quote(c)} FROM {here} AS t WHERE {self._is_noted(self.note)})"
                for c in self.noted
            ]
        )
        return [
            f"{self._log()} SELECT {self.id}, -1, {self._values()} FROM {self.note} AS n WHERE {found} AND NOT n.gone",
            f"{self._log()} SELECT {self.id}, 1, {values} FROM {self.note} AS n CROSS JOIN {here} AS t"
            f" WHERE {found} AND {self._is_noted('n')}",
            f"UPDATE {self.note} SET {change} WHERE {self._noted_as(row, self.note)} AND {condition}",
        ]

    def _settle_removed(self) -> list[str]:
        """Log the noted rows that NEW removed silently on another key than the identity."""
        return [sql for key in self.table.other_keys for sql in self._settle_where(partial(self._matches, key))]

    def _matches(self, key: Index, note: str) -> str:
        parts = zip(key.columns, key.collations, strict=True)
        return " AND ".join(f'{note}.{self._v(c)} = +NEW.{quote(c)} COLLATE "{o}"' for c, o in parts)

    def _settle_all_removed(self) -> list[str]:
        """`UPDATE OR REPLACE` may remove a row whose foreign key's cascade deletes the very row being updated: then
        there is no AFTER UPDATE, and the delete is the last that is heard of it."""
        return self._settle_where(lambda note: "1")

    def _settle_where(self, condition: Callable[[str], str]) -> list[str]:
        """Log the noted rows that meet a condition (given the name of the table of notes) and are no longer there."""

        def found(note: str) -> str:
            there = f"EXISTS (SELECT 1 FROM {quote(self.table.name)} AS t WHERE {self._is_noted(note)})"
            return f"{condition(note)} AND NOT {note}.gone AND NOT {there}"

        empty = ", ".join(["gone = 1"] + [f"{self._v(c)} = NULL" for c in self.noted])
        return [
            f"{self._log()} SELECT {self.id}, -1, {self._values()} FROM {self.note} AS n WHERE {found('n')}",
            f"UPDATE {self.note} SET {empty} WHERE {found(self.note)}",
        ]

    def _log(self) -> str:
        return f"INSERT INTO {LOG} (relation, sign, {self._values('')})"

    def _values(self, alias: str = "n.") -> str:
        return ", ".join(f"{alias}v{i}" for i in range(len(self.columns)))

    def _v(self, column: str) -> str:
        return f"v{self.noted.index(column)}"

    def _name(self, column: str) -> str:
        return column if column == self.table.rowid and column != self.table.alias else quote(column)

    def _noted_as(self, row: str, note: str = "n") -> str:
        """The note's identity is this row's."""
        return " AND ".join(f"{note}.r{i} = +{row}.{self._name(c)}" for i, c in enumerate(self.table.identity.columns))

    def _is_noted(self, note: str) -> str:
        """The identity of the table's row `t` is this note's."""
        identity = self.table.identity
        return " AND ".join(
            f't.{self._name(c)} = {note}.r{i} COLLATE "{o}"'
            for i, (c, o) in enumerate(zip(identity.columns, identity.collations, strict=True))
        )

    def _is(self, one: str, other: str) -> str:
        identity = self.table.identity
        return " AND ".join(
            f'{one}.{self._name(c)} IS {other}.{self._name(c)} COLLATE "{o}"'
            for c, o in zip(identity.columns, identity.collations, strict=True)
        )
