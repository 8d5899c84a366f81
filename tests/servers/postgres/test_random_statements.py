"""PostgreSQL: random statements between two looks. The log comes to what the table shows, or a view stops."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import psycopg
import pytest
from patience import PATIENCE, eventually
from postgres_database import Database
from postgres_server import PostgresServer
from postgres_statements import BEGINNING, PUBLICATION, SCRIPT, USED, Case, Grammar

from strobe.errors import RelationLost, StrobeError, UserError
from strobe.messages import Departed, Position, Transaction
from strobe.sources.postgres.source import PostgresSource

SEED = 20261118
Rows = Counter[tuple[object, ...]]


@dataclass
class Outcome:
    """What became of each relation."""

    stopped: dict[str, str] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Whose log does not come to what the table shows."""

    @property
    def unnoticed(self) -> dict[str, str]:
        return {relation: what for relation, what in self.wrong.items() if relation not in self.stopped}


class Bench:
    """One database, in which the tables are made again for each case."""

    def __init__(self, db: Database) -> None:
        self._db = db
        db.make(SCRIPT, *USED)
        self._admin = psycopg.connect(db.server.admin_dsn(db.name), autocommit=True)

    def close(self) -> None:
        self._admin.close()

    def run(self, case: Case, following: bool = False) -> Outcome:
        """With `following`, the event trigger is there that says where partitions leave."""
        self._begin()
        source = self._db.open()
        try:
            for statement in source.ddl_script() if following else ():
                self._admin.execute(statement.encode())
            source.schemas()
            before = source.fingerprints(list(USED))
            state, start = {r: _shown(source, r) for r in USED}, source.now()
            for statements, commits in case.transactions:
                self._transaction(statements, commits)
            outcome = Outcome()
            self._follow(source, start, state, outcome)
            after = source.fingerprints(list(USED))
            for relation, columns in USED.items():
                if what := source.changed(relation, columns, before[relation], after[relation]):
                    outcome.stopped[relation] = what
                try:
                    found = _shown(source, relation)
                    if found != state[relation]:
                        outcome.wrong[relation] = f"{dict(state[relation])}, and the table shows {dict(found)}"
                except StrobeError as error:
                    outcome.wrong[relation] = outcome.stopped[relation] = str(error)
            return outcome
        finally:
            source.close()

    def _begin(self) -> None:
        for schema in ("aside", "public"):
            self._admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        for publication in (PUBLICATION, "held"):
            self._admin.execute(f"DROP PUBLICATION IF EXISTS {publication}")
        self._admin.execute("CREATE SCHEMA public")
        self._admin.execute("GRANT USAGE ON SCHEMA public TO PUBLIC")
        self._admin.execute(SCRIPT)
        self._admin.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO PUBLIC")
        self._admin.execute(BEGINNING)
        eventually(self._advanced)  # the server may not have noticed yet that the stream before was closed

    def _advanced(self) -> bool:
        try:
            self._admin.execute(f"SELECT pg_replication_slot_advance('{PUBLICATION}', pg_current_wal_lsn())")
        except psycopg.errors.ObjectInUse:
            return False
        return True

    def _transaction(self, statements: tuple[str, ...], commits: bool) -> None:
        """Statements that fail are left out."""
        if len(statements) == 1:
            self._each(statements[0])
            return
        self._admin.execute("BEGIN")
        for statement in statements:
            self._admin.execute("SAVEPOINT before")
            if not self._each(statement):
                self._admin.execute("ROLLBACK TO before")
        self._admin.execute("COMMIT" if commits else "ROLLBACK")

    def _each(self, statement: str) -> bool:
        """Several statements in one text are one transaction, so each is sent alone."""
        try:
            for part in statement.split(";"):
                self._admin.execute(part)
        except psycopg.Error:
            return False
        return True

    def _follow(self, source: PostgresSource, start: Position, state: dict[str, Rows], outcome: Outcome) -> None:
        """Apply what the log has; a relation that is lost is left, and the others are read on."""
        followed, at, end = dict(USED), start, source.now()
        until = time.monotonic() + PATIENCE
        while followed:
            source.focus(followed)
            try:
                for transaction in source.transactions(at, [], lambda: time.monotonic() > until):
                    for relation in followed:
                        if any(left.bound is None for left in transaction.departed.get(relation, ())):
                            raise RelationLost("it is not known which rows left", source="shop", relations=[relation])
                    for relation in followed:
                        _apply(state[relation], relation, transaction)
                    at = transaction.position
                    if end <= at:
                        return
                raise AssertionError("the log did not come to its end in time")
            except RelationLost as lost:
                for relation in lost.relations:
                    outcome.stopped[relation] = str(lost)
                    del followed[relation]
            except UserError as lost:  # of the whole source
                outcome.stopped |= dict.fromkeys(followed, str(lost))
                return


def _shown(source: PostgresSource, relation: str) -> Rows:
    reader = source.reader()
    reader.open()
    try:
        return Counter(reader.scan(relation, USED[relation]))
    finally:
        reader.close()


def _apply(rows: Rows, relation: str, transaction: Transaction) -> None:
    departed = transaction.departed.get(relation, ())
    _depart(rows, relation, [left for left in departed if not left.late])
    _change(rows, relation, transaction)
    _depart(rows, relation, [left for left in departed if left.late])


def _depart(rows: Rows, relation: str, departed: Sequence[Departed]) -> None:
    for left in departed:
        assert left.bound is not None
        inside = left.bound.test(USED[relation])
        for row in [row for row in rows if inside(row)]:
            del rows[row]


def _change(rows: Rows, relation: str, transaction: Transaction) -> None:
    if relation in transaction.gone:
        keys = {key for key, _ in transaction.gone[relation].items()}
        places = [USED[relation].index(c) for c in transaction.gone[relation].attributes]
        for row in [row for row in rows if tuple(row[place] for place in places) in keys]:
            del rows[row]
    if relation in transaction.changes:
        changed = transaction.changes[relation]
        order = [changed.attributes.index(c) for c in USED[relation]]
        for row, count in changed.items():
            picked = tuple(row[place] for place in order)
            rows[picked] += count
            if not rows[picked]:
                del rows[picked]


def _minimal(bench: Bench, case: Case, following: bool) -> Case:
    """The same without statements that make no difference."""
    for smaller in case.smaller():
        if bench.run(smaller, following).unnoticed:
            return _minimal(bench, smaller, following)
    return case


@pytest.fixture
def bench(postgres: PostgresServer) -> Iterator[Bench]:
    db = Database(postgres)
    made = Bench(db)
    yield made
    made.close()
    db.source.close()
    postgres.drop(db.name)


@pytest.mark.parametrize("cases", [150, pytest.param(20_000, marks=[pytest.mark.slow, pytest.mark.timeout(20_000)])])
def test_no_statement_makes_a_view_wrong_unnoticed(bench: Bench, cases: int) -> None:
    """Of any relation: its log comes to what it shows, or the stream raises, or the fingerprints differ harmfully."""
    stopped = needless = 0
    for number in range(cases):
        case = Grammar(SEED + number).case()
        following = number % 2 == 1
        outcome = bench.run(case, following)
        if outcome.unnoticed:
            pytest.fail(f"seed {SEED + number}: {outcome.unnoticed}\n{_minimal(bench, case, following)}")
        stopped += len(outcome.stopped)
        needless += len(set(outcome.stopped) - set(outcome.wrong))
    print(f"{cases} cases: {stopped} of {3 * cases} relations stopped, {needless} of them with the same rows")
    assert stopped - needless > 0, "some statements must have been harmful"
