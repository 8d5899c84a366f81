"""Nothing that changes a SQLite table, or what is logged of it, goes unnoticed; everyday statements stop nothing."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from sqlite_statements import COLUMNS, TABLES, WATCHED, Grammar, Step

from strobe.errors import LostGuarantee, RelationLost
from strobe.sources.sqlite.source import SqliteSource
from strobe.sources.sqlite.triggers import LOG
from strobe.sources.sqlite.triggers import WATCHED as WATCHED_TABLES

Rows = Counter[tuple[Any, ...]]


class Kept:
    """A database, and the contents of its tables as they follow from the initial rows and the stream."""

    def __init__(self, path: Path, tables: Sequence[str] = WATCHED) -> None:
        self._path = path
        self._source = SqliteSource("depot", path)
        self._after = self._source.now()
        self._initial = {table: self._read(table) for table in tables}
        self.contents = dict(self._initial)
        self._proven = dict(self._source.fingerprints(tables))
        self.stopped: dict[str, str] = {}

    def run(self, step: Step) -> None:
        """Execute statements, of which any may fail, with a connection of their own."""
        with closing(sqlite3.connect(self._path, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous = OFF")
            for sql in step:
                try:
                    connection.execute(sql).fetchall()
                except sqlite3.Error:
                    continue
            if connection.in_transaction:
                connection.execute("ROLLBACK")

    def look(self) -> None:
        """Follow the stream to its end, ask for fingerprints, and compare the tables that are not stopped."""
        while self._going:
            self._source.focus(dict.fromkeys(self._going, COLUMNS))
            try:
                self._follow()
                break
            except RelationLost as lost:
                self.stopped |= dict.fromkeys(lost.relations, lost.message)
            except LostGuarantee as lost:
                self.stopped |= dict.fromkeys(self._going, lost.message)
        found = self._source.fingerprints(self._going) if self._going else {}
        for table in self._going:
            if what := self._source.changed(table, COLUMNS, self._proven[table], found[table]):
                self.stopped[table] = what
            self._proven[table] = found[table]
        for table in self._going:
            now = self._read(table)
            assert self.contents[table] == now, f"{table} should be {now}, is {self.contents[table]}"

    def needless(self) -> list[str]:
        """The tables that were stopped although the log has all that happened to them."""
        return [table for table in self.stopped if self._logged(table)]

    def _logged(self, table: str) -> bool:
        total = self._initial[table].copy()
        try:
            with closing(sqlite3.connect(self._path)) as connection:
                for sign, *row in connection.execute(
                    f"SELECT sign, v0, v1, v2, v3 FROM {LOG} AS l JOIN {WATCHED_TABLES} AS w ON l.relation = w.id"
                    " WHERE w.relation = ?",
                    (table,),
                ):
                    total[tuple(row)] += sign
            return {k: n for k, n in total.items() if n} == self._read(table)
        except sqlite3.Error:
            return False

    @property
    def _going(self) -> list[str]:
        return [table for table in self.contents if table not in self.stopped]

    def _follow(self) -> None:
        end = self._source.now()
        if end.text == self._after.text:
            return
        for transaction in self._source.transactions(self._after, [], lambda: self._after.text == end.text):
            for table, change in transaction.changes.items():
                for row, n in change.items():
                    self.contents[table][row] += n
                self.contents[table] = Counter({row: n for row, n in self.contents[table].items() if n})
            self._after = transaction.position

    def _read(self, table: str) -> Rows:
        """The rows that the application sees."""
        with closing(sqlite3.connect(self._path)) as connection:
            return Counter(connection.execute(f"SELECT {', '.join(COLUMNS)} FROM {table}"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with rows, which is prepared."""
    path = tmp_path_factory.mktemp("prepared") / "depot.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for sql in TABLES:
            connection.execute(sql)
        for table in ("t", "u", "o"):
            connection.execute(f"INSERT INTO {table} VALUES (1, 'x', 'p', 1), (2, 'y', 'p', 2), (3, 'z', 'q', 3)")
    SqliteSource("depot", path).prepare(WATCHED)
    return path


@pytest.fixture
def database(prepared: Path, tmp_path: Path) -> Iterator[Path]:
    yield Path(shutil.copy(prepared, tmp_path / "depot.db"))


def strobes_triggers(path: Path) -> dict[str, str]:
    with closing(sqlite3.connect(path)) as connection:
        return dict(
            connection.execute(
                "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND name LIKE '\\_%' ESCAPE '\\'"
            )
        )


def wrong(prepared: Path, folder: Path, steps: Sequence[Step]) -> tuple[str, Kept]:
    """What is wrong after a case, and how the tables are."""
    for file in folder.iterdir():
        file.unlink()
    kept = Kept(Path(shutil.copy(prepared, folder / "depot.db")))
    try:
        for step in steps:
            kept.run(step) if step else kept.look()
    except (AssertionError, sqlite3.Error) as error:
        return str(error) or repr(error), kept
    return "", kept


def smallest(prepared: Path, folder: Path, steps: Sequence[Step]) -> list[Step]:
    """A failing case, without the steps and statements that it fails without."""
    case = list(steps)
    for i in reversed(range(len(case))):
        fewer = case[:i] + case[i + 1 :]
        if wrong(prepared, folder, fewer)[0]:
            case = fewer
            continue
        for j in reversed(range(len(case[i]))):
            fewer = [*case[:i], case[i][:j] + case[i][j + 1 :], *case[i + 1 :]]
            if fewer[i] and wrong(prepared, folder, fewer)[0]:
                case = fewer
    return case


def explore(prepared: Path, folder: Path, seeds: range) -> None:
    """Random cases, none of which may end in rows that are wrong in silence; prints how many stops were needless."""
    triggers, stops, needless = strobes_triggers(prepared), 0, 0
    for seed in seeds:
        steps = Grammar(random.Random(seed), triggers).case()
        reason, kept = wrong(prepared, folder, steps)
        assert not reason, f"seed {seed}: {reason}\n" + "\n".join(map(repr, smallest(prepared, folder, steps)))
        stops += len(kept.stopped)
        needless += len(kept.needless())
    print(f"{len(seeds)} cases, {stops} tables stopped, {needless} needlessly")


def test_nothing_goes_unnoticed(prepared: Path, tmp_path: Path) -> None:
    """Random statements, alone and in pairs that undo each other: the stream's rows are those there, or it stops."""
    explore(prepared, tmp_path, range(200))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(10))
def test_nothing_goes_unnoticed_in_many_cases(prepared: Path, tmp_path: Path, part: int) -> None:
    """The same for many more."""
    explore(prepared, tmp_path, range(1000 + 2000 * part, 3000 + 2000 * part))


def test_everyday_statements_stop_nothing(prepared: Path, tmp_path: Path) -> None:
    """Indexes, added columns, VACUUM, other tables' changes and the like, between row changes of every kind."""
    triggers = strobes_triggers(prepared)
    for seed in range(100):
        steps = Grammar(random.Random(seed), triggers).harmless()
        reason, kept = wrong(prepared, tmp_path, steps)
        assert not reason and not kept.stopped, f"seed {seed}: {reason}{kept.stopped}\n" + "\n".join(map(repr, steps))


HARMFUL = {
    "a trigger put back": ["{drop}", "DELETE FROM t", "{put_back}"],
    "a unique index for a while": [
        "CREATE UNIQUE INDEX i ON t(d)",
        "REPLACE INTO t VALUES (4, 'w', 'w', 2)",
        "DROP INDEX i",
    ],
    "a trigger for a while": [
        "CREATE TRIGGER i AFTER INSERT ON t BEGIN SELECT RAISE(IGNORE); END",
        "INSERT INTO t VALUES (4, 'w', 'w', 4)",
        "DROP TRIGGER i",
    ],
    "another table under the name": ["ALTER TABLE t RENAME TO n", "ALTER TABLE o RENAME TO t"],
    "a table made anew": [
        "CREATE TABLE n (a INTEGER PRIMARY KEY, b TEXT UNIQUE, c TEXT, d INTEGER)",
        "DROP TABLE t",
        "ALTER TABLE n RENAME TO t",
    ],
    "columns that trade names": [
        "ALTER TABLE t RENAME COLUMN b TO e",
        "ALTER TABLE t RENAME COLUMN c TO b",
        "ALTER TABLE t RENAME COLUMN e TO c",
    ],
    "the texts written to": [
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = replace(sql, ', -1,', ', 0,') WHERE type = 'trigger'",
    ],
    "names traded for a while, and triggers that do not follow": [
        "PRAGMA legacy_alter_table = ON",
        *("ALTER TABLE t RENAME TO n", "ALTER TABLE u RENAME TO t", "ALTER TABLE n RENAME TO u"),
        "UPDATE OR REPLACE u SET a = 3 WHERE 1",
        *("ALTER TABLE u RENAME TO n", "ALTER TABLE t RENAME TO u", "ALTER TABLE n RENAME TO t"),
    ],
    "the version set": ["PRAGMA schema_version = 1"],
    "the log emptied": ["DELETE FROM __strobe_log"],
}


@pytest.mark.parametrize("statements", HARMFUL.values(), ids=HARMFUL)
def test_what_changes_rows_unseen_stops_its_table(database: Path, statements: list[str]) -> None:
    """Each of these would have left a view of `t` wrong, or could have."""
    name = "__strobe_t_after_delete"
    texts = {"{drop}": f"DROP TRIGGER {name}", "{put_back}": strobes_triggers(database)[name]}
    kept = Kept(database)
    kept.run(tuple(texts.get(sql, sql) for sql in statements))
    kept.look()
    assert "t" in kept.stopped


def test_a_watched_column_is_not_dropped(database: Path) -> None:
    """SQLite refuses, even where `legacy_alter_table` has it overlook triggers: nothing could be seen of a column that
    is dropped and added again."""
    with closing(sqlite3.connect(database)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        with pytest.raises(sqlite3.OperationalError, match="drop column"):
            connection.execute("ALTER TABLE t DROP COLUMN d")


def test_a_table_that_has_the_name_for_a_while_is_not_read(database: Path) -> None:
    """A snapshot taken meanwhile refuses the table; afterwards nothing is wrong, and nothing stops."""
    kept, source = Kept(database), SqliteSource("depot", database)
    swap = ("ALTER TABLE t RENAME TO n", "ALTER TABLE o RENAME TO t", "ALTER TABLE n RENAME TO o")
    kept.run(swap)
    reader = source.reader()
    reader.open()
    with pytest.raises(RelationLost):
        list(reader.scan("t", ["a"]))
    reader.close()
    kept.run(swap)
    kept.look()
    assert not kept.stopped


def test_a_table_prepared_anew(database: Path) -> None:
    """With a column more, nothing is missing from the log; after a gap, the fingerprint shows that there was one."""
    source = SqliteSource("depot", database)
    kept, before = Kept(database), source.fingerprints(["t", "u"])
    kept.run(("ALTER TABLE t ADD COLUMN e TEXT",))
    source.prepare(["t"])
    after = source.fingerprints(["t", "u"])
    assert [source.changed(table, COLUMNS, before[table], after[table]) for table in ("t", "u")] == ["", ""]
    kept.run(("DROP TRIGGER __strobe_t_after_delete", "DELETE FROM t"))
    source.prepare(["t"])
    after = source.fingerprints(["t", "u"])
    assert source.changed("t", COLUMNS, before["t"], after["t"]) and not source.changed(
        "u", COLUMNS, before["u"], after["u"]
    )


def test_a_fingerprint_shows_every_change_of_the_schema(database: Path) -> None:
    """Whether it is harmful is another question; row changes alone leave the fingerprint as it was."""
    source, kept = SqliteSource("depot", database), Kept(database)
    first = source.fingerprints(["t"])
    kept.run(("DELETE FROM t",))
    assert source.fingerprints(["t"]) == first
    kept.run(("BEGIN", "CREATE INDEX i ON o(c)", "DROP INDEX i", "COMMIT"))
    second = source.fingerprints(["t"])
    assert second != first and source.changed("t", COLUMNS, first["t"], second["t"]) == ""


def test_a_table_that_is_not_watched_has_no_fingerprint(database: Path) -> None:
    """Neither has one of a database that is not prepared any more."""
    source = SqliteSource("depot", database)
    found = source.fingerprints(["t", "o", "nothing"])
    assert found["t"] and found["o"] == found["nothing"] == ""
    source.undo()
    after = source.fingerprints(["t"])["t"]
    assert after == "" and source.changed("t", COLUMNS, found["t"], after)


def test_a_hole_in_the_log_is_noticed(database: Path) -> None:
    """Rows of the log that somebody took away before they were read."""
    kept = Kept(database)
    kept.run(("INSERT INTO u VALUES (4, 'w', 'w', 4), (5, 'w', 'w', 5)", "DELETE FROM __strobe_log WHERE seq = 1"))
    kept.look()
    assert set(kept.stopped) == {"t", "u"}
