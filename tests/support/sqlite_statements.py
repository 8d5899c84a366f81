"""Random statements for SQLite that may change rows, or what is logged of them, without a row change in the log.

A case is a list of steps. A step is a list of statements that one connection executes, each of which may fail; a look
is an empty step. `t` and `u` are watched, `o` is not. The pairs of statements come from the grammar too: what is made
is unmade again, with other things between, so that nothing of it is to be seen afterwards.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

Step = tuple[str, ...]
LOOK: Step = ()

TABLES = (
    "CREATE TABLE t (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER)",
    "CREATE TABLE u (a INTEGER, b TEXT, c TEXT, d INTEGER)",
    "CREATE TABLE o (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER)",
    "CREATE TABLE child (a INTEGER PRIMARY KEY, b TEXT REFERENCES t(b) ON DELETE CASCADE ON UPDATE CASCADE)",
    "CREATE INDEX known ON t(d)",
    "CREATE TABLE archive (a INTEGER, b TEXT)",
    "CREATE TRIGGER mine AFTER DELETE ON t WHEN OLD.d = 3 BEGIN INSERT INTO archive VALUES (OLD.a, OLD.b); END",
)
WATCHED = ("t", "u")
COLUMNS = ("a", "b", "c", "d")
PRAGMAS = (
    "PRAGMA recursive_triggers = ON",
    "PRAGMA foreign_keys = ON",
    "PRAGMA ignore_check_constraints = ON",
    "PRAGMA legacy_alter_table = ON",
    "PRAGMA defer_foreign_keys = ON",
    "PRAGMA case_sensitive_like = ON",
    "PRAGMA reverse_unordered_selects = ON",
    "PRAGMA cell_size_check = ON",
    "PRAGMA trusted_schema = OFF",
)


class Grammar:
    """`strobe` are the texts of Strobe's triggers by name."""

    def __init__(self, rng: random.Random, strobe: dict[str, str]) -> None:
        self._rng, self._strobe = rng, strobe
        self._one = rng.choice
        self._free = 0

    def case(self) -> list[Step]:
        steps: list[Step] = []
        for _ in range(self._one([1, 2, 3, 5])):
            steps += self._one([self._single, self._pair, self._together, self._rows])()
            if self._rng.random() < 0.3:
                steps.append(LOOK)
        return [*steps, LOOK]

    def harmless(self) -> list[Step]:
        """A case of everyday statements, which stop no view."""
        steps: list[Step] = []
        for _ in range(self._one([1, 2, 3, 5])):
            kinds = self._rng.sample([self._everyday, self._everyday, self._rows], k=2)
            steps += [step for kind in kinds for step in kind()]
            if self._rng.random() < 0.3:
                steps.append(LOOK)
        return [*steps, LOOK]

    def _single(self) -> list[Step]:
        do, undo = self._alteration()
        return [self._with_pragmas(self._one([do, undo, self._lonely()]))]

    def _pair(self) -> list[Step]:
        """There and back, with rows between, in one transaction or in several."""
        do, undo = self._alteration()
        inner = [self._one([self._row, self._row, self._nested_pair])() for _ in range(self._one([0, 1, 1, 3]))]
        between = [statement for step in inner for statement in step]
        if self._rng.random() < 0.5:
            return [self._with_pragmas([self._begin(), *do, *between, *undo, self._end()])]
        return [self._with_pragmas(do), self._with_pragmas(between), self._with_pragmas(undo)]

    def _nested_pair(self) -> list[str]:
        do, undo = self._alteration()
        return [*do, *self._row(), *undo]

    def _together(self) -> list[Step]:
        """Several that need not have to do with one another, in one transaction."""
        parts = [self._one([self._alteration()[0], self._lonely(), self._row()]) for _ in range(3)]
        return [self._with_pragmas([self._begin(), *(s for part in parts for s in part), self._end()])]

    def _rows(self) -> list[Step]:
        return [self._with_pragmas(self._row()) for _ in range(self._one([1, 2, 4]))]

    def _begin(self) -> str:
        return self._one(["BEGIN", "BEGIN IMMEDIATE"])

    def _end(self) -> str:
        return self._one(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK"])

    def _with_pragmas(self, statements: Sequence[str]) -> Step:
        return (*self._rng.sample(PRAGMAS, k=self._one([0, 0, 1, 2])), *statements)

    # Rows

    def _row(self) -> list[str]:
        table = self._one(["t", "t", "t", "u", "o", "n", "child"])
        text = lambda: self._one(["NULL", "'x'", "'X'", "'y'", "'z'", "5"])  # noqa: E731
        number = lambda: self._one(["NULL", "1", "2", "3", "4"])  # noqa: E731
        clause = self._one(["", " OR REPLACE", " OR REPLACE", " OR IGNORE", " OR FAIL", " OR ABORT", " OR ROLLBACK"])
        where = self._one([f"a = {number()}", f"b = {text()}", f"c IS {text()}", f"d > {number()}", "1"])
        change = self._one([f"a = {number()}", f"b = {text()}", f"c = {text()}", f"d = {number()}", "a = a + 1"])
        kind = self._rng.random()
        if table == "child":
            return [f"INSERT{clause} INTO child VALUES ({number()}, {text()})"]
        if kind < 0.5:
            rows = ", ".join(f"({number()}, {text()}, {text()}, {number()})" for _ in range(self._one([1, 1, 3])))
            upsert = self._one(["", "", " ON CONFLICT DO NOTHING", f" ON CONFLICT (a) DO UPDATE SET {change}"])
            return [f"INSERT{clause} INTO {table} (a, b, c, d) VALUES {rows}{upsert if not clause else ''}"]
        if kind < 0.85:
            return [f"UPDATE{clause} {table} SET {change} WHERE {where}"]
        return [f"DELETE FROM {table}" + self._one(["", f" WHERE {where}", f" WHERE {where}"])]

    # The schema

    def _name(self) -> str:
        self._free += 1
        return f"n{self._free}"

    def _alteration(self) -> tuple[list[str], list[str]]:
        """Statements, and others that undo what they did to the schema."""
        return self._one(self._alterations)(self)

    def _an_index(self) -> tuple[list[str], list[str]]:
        table, name = self._one(["t", "t", "u", "o"]), self._name()
        unique = self._one(["", "UNIQUE ", "UNIQUE "])
        column = self._one(["b", "c", "c", "d", "c, d", "lower(c)", "b COLLATE NOCASE", "c DESC"])
        where = self._one(["", "", " WHERE d > 1", " WHERE c IS NOT NULL"])
        return [f"CREATE {unique}INDEX {name} ON {table}({column}){where}"], [f"DROP INDEX {name}"]

    def _a_trigger(self) -> tuple[list[str], list[str]]:
        table, name = self._one(["t", "t", "u", "o"]), self._name()
        when, what = self._one(["BEFORE", "AFTER"]), self._one(["INSERT", "UPDATE", "DELETE", "UPDATE OF c"])
        row = "OLD" if what == "DELETE" else "NEW"
        body = self._one(
            [
                "SELECT RAISE(FAIL, 'no')",
                "SELECT RAISE(IGNORE)",
                f"SELECT RAISE(FAIL, 'no') WHERE {row}.d = 2",
                f"UPDATE {table} SET c = 'w' WHERE a = {row}.a",
                f"DELETE FROM {table} WHERE d = 4",
                f"INSERT INTO archive VALUES ({row}.a, {row}.b)",
                f"INSERT OR REPLACE INTO {table} (a, b, c, d) VALUES (9, {row}.b, 'k', 0)",
            ]
        )
        return [f"CREATE TRIGGER {name} {when} {what} ON {table} BEGIN {body}; END"], [f"DROP TRIGGER {name}"]

    def _strobes_trigger(self) -> tuple[list[str], list[str]]:
        names = self._rng.sample(sorted(self._strobe), k=self._one([1, 1, 2, len(self._strobe)]))
        return [f'DROP TRIGGER "{name}"' for name in names], [self._strobe[name] for name in names]

    def _a_table_name(self) -> tuple[list[str], list[str]]:
        table, other = self._one(["t", "t", "u", "o"]), self._one(["n", "N", "t2"])
        return [f"ALTER TABLE {table} RENAME TO {other}"], [f"ALTER TABLE {other} RENAME TO {table}"]

    def _swapped_tables(self) -> tuple[list[str], list[str]]:
        one, other = self._rng.sample(["t", "u", "o"], k=2)
        swap = [
            f"ALTER TABLE {one} RENAME TO n",
            f"ALTER TABLE {other} RENAME TO {one}",
            f"ALTER TABLE n RENAME TO {other}",
        ]
        return swap, swap

    def _a_column_name(self) -> tuple[list[str], list[str]]:
        table, column = self._one(["t", "t", "u", "o"]), self._one(COLUMNS)
        return (
            [f"ALTER TABLE {table} RENAME COLUMN {column} TO e"],
            [f"ALTER TABLE {table} RENAME COLUMN e TO {column}"],
        )

    def _swapped_columns(self) -> tuple[list[str], list[str]]:
        table, (one, other) = self._one(["t", "t", "u"]), self._rng.sample(["b", "c"], k=2)
        swap = [
            f"ALTER TABLE {table} RENAME COLUMN {one} TO e",
            f"ALTER TABLE {table} RENAME COLUMN {other} TO {one}",
            f"ALTER TABLE {table} RENAME COLUMN e TO {other}",
        ]
        return swap, swap

    def _a_column(self) -> tuple[list[str], list[str]]:
        table, column = self._one(["t", "t", "u", "o"]), self._one(["e", "f", *COLUMNS])
        type_ = self._one(["TEXT", "INTEGER DEFAULT 5", "TEXT AS (c || 'x')", "JSON", "TEXT NOT NULL DEFAULT 'q'"])
        add, drop = f"ALTER TABLE {table} ADD COLUMN {column} {type_}", f"ALTER TABLE {table} DROP COLUMN {column}"
        return ([add], [drop]) if column in "ef" else ([drop], [add])

    def _a_new_table(self) -> tuple[list[str], list[str]]:
        """The steps that SQLite's manual names for changes that ALTER TABLE cannot make."""
        table = self._one(["t", "t", "u", "o"])
        kind = self._one(["", "", " WITHOUT ROWID", " STRICT"])
        ddl = f"CREATE TABLE n (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER){kind}"
        copy = (
            f"INSERT OR IGNORE INTO n SELECT {self._one(['a, b, c, d', 'a, b, b, d', 'a, c, b, d + 1'])} FROM {table}"
        )
        back = [text for name, text in self._strobe.items() if name.startswith(f"__strobe_{table}_")]
        put_back = self._one([[], back, back])
        return [ddl, copy, f"DROP TABLE {table}", f"ALTER TABLE n RENAME TO {table}", *put_back], []

    def _in_its_place(self) -> tuple[list[str], list[str]]:
        """Something of the table's name in a schema or of a kind that is asked first."""
        table = self._one(WATCHED)
        return [f"CREATE TEMP TABLE {table} AS SELECT * FROM main.{table}"], [f"DROP TABLE temp.{table}"]

    def _strobes_own(self) -> tuple[list[str], list[str]]:
        return [f"DROP VIEW {'__strobe_seal'}"], ["CREATE VIEW __strobe_seal AS SELECT 1"]

    _alterations: Sequence[Callable[[Grammar], tuple[list[str], list[str]]]] = (
        _an_index,
        _a_trigger,
        _strobes_trigger,
        _a_table_name,
        _swapped_tables,
        _a_column_name,
        _swapped_columns,
        _a_column,
        _a_new_table,
        _in_its_place,
        _strobes_own,
    )

    def _lonely(self) -> list[str]:
        """What has no opposite."""
        table = self._one(["t", "u", "o", "child"])
        return self._one(
            [
                self._everyday()[0],
                [f"DROP TABLE {table}"],
                [f"PRAGMA schema_version = {self._rng.randint(1, 200)}"],
                [
                    "PRAGMA writable_schema = ON",
                    self._one(
                        [
                            "DELETE FROM sqlite_master WHERE type = 'trigger'",
                            "UPDATE sqlite_master SET sql = replace(sql, ', -1,', ', 0,') WHERE type = 'trigger'",
                            "UPDATE sqlite_master SET sql = replace(sql, 'd INTEGER', 'd TEXT') WHERE name = 't'",
                        ]
                    ),
                    "PRAGMA writable_schema = OFF",
                ],
                ["DELETE FROM __strobe_log"],
                ["DROP TRIGGER mine"],
            ]
        )

    def _everyday(self) -> list[Step]:
        name, column = self._name(), self._one(COLUMNS)
        table = self._one(["t", "u", "o"])
        return [
            tuple(step)
            for step in self._one(
                [
                    [["VACUUM"]],
                    [["ANALYZE"]],
                    [["REINDEX"]],
                    [[f"CREATE INDEX {name} ON {table}({column})"]],
                    [[f"CREATE INDEX {name} ON {table}({column})", f"DROP INDEX {name}"]],
                    [[f"ALTER TABLE {table} ADD COLUMN {name} TEXT DEFAULT 'q'"]],
                    [["BEGIN", f"CREATE TABLE {name} (x)", *self._row(), f"DROP TABLE {name}", "COMMIT"]],
                    [[f"CREATE TABLE {name} AS SELECT * FROM t", f"CREATE UNIQUE INDEX {name}i ON {name}(a)"]],
                    [[f"CREATE TRIGGER {name} AFTER INSERT ON o BEGIN DELETE FROM archive; END"]],
                    [[f"CREATE VIEW {name} AS SELECT * FROM {table}"]],
                    [["ALTER TABLE o RENAME TO n", *self._row(), "ALTER TABLE n RENAME TO o"]],
                    [["ALTER TABLE o RENAME COLUMN c TO e", "ALTER TABLE o RENAME COLUMN e TO c"]],
                    [["BEGIN", "CREATE TABLE n (a, b, c, d)", "DROP TABLE o", "ALTER TABLE n RENAME TO o", "COMMIT"]],
                    [["PRAGMA user_version = 7", "PRAGMA application_id = 7"]],
                    [["PRAGMA wal_checkpoint(TRUNCATE)"]],
                    [["PRAGMA optimize"]],
                    [[f"CREATE TEMP TABLE {table} AS SELECT 1 AS a", f"DELETE FROM {table}"]],
                    [["BEGIN", f"CREATE UNIQUE INDEX {name} ON {table}(d)", "DROP TRIGGER mine", "ROLLBACK"]],
                ]
            )
        ]
