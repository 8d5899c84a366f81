"""MariaDB and MySQL: random statements while rows change. What the stream sums to is right, or something objected."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import mariadb_ddl
import pymysql
import pytest
from mariadb_ddl import USED, Case
from mariadb_shop import Shop, rows_of
from patience import eventually

from strobe.algebra.bag import Bag
from strobe.errors import RelationLost, SourceUnavailable, UserError
from strobe.messages import Position
from strobe.sources.mariadb.source import MariadbSource

BATCH = 60
"""Tables at a time."""
LONG = 170


def fingerprints(source: MariadbSource, tables: Collection[str]) -> Mapping[str, str]:
    found: dict[str, str] = {}

    def told() -> bool:
        found.update(source.fingerprints([table for table in tables if table not in found]))
        return len(found) == len(tables)

    eventually(told)
    return found


def prepare(shop: Shop, cases: Sequence[Case]) -> None:
    shop.run("SET sql_log_bin = 0", *(statement for case in cases for statement in case.create))


def execute(shop: Shop, cases: Sequence[Case]) -> None:
    """All scripts; whatever the server refuses has not happened."""
    with shop.session() as do:
        for case in cases:
            for statement in case.script:
                with contextlib.suppress(pymysql.err.MySQLError):
                    do(statement.replace("{db}", f"`{shop.name}`"))


def streamed(
    source: MariadbSource, start: Position, end: Position, tables: Collection[str]
) -> tuple[dict[str, Bag], set[str]]:
    """The sums of the changes of each table, and the tables for which the stream stopped."""
    sums, lost = {table: Bag(USED) for table in tables}, set[str]()
    reached = [start]
    while reached[-1] < end:
        try:
            for transaction in source.transactions(reached[-1], [], lambda: end <= reached[-1]):
                reached.append(transaction.position)
                for table, change in transaction.changes.items():
                    sums[table] = sums[table].add(change)  # type: ignore[arg-type]
        except RelationLost as error:
            lost |= set(error.relations)
            source.focus({table: USED for table in tables if table not in lost})
    return sums, lost


def contents(source: MariadbSource, table: str) -> Bag | None:
    """What the table holds; None where its columns are gone."""
    try:
        return rows_of(source, table, USED)
    except (UserError, SourceUnavailable):
        return None


@dataclass(frozen=True)
class Outcome:
    """What became of a case."""

    case: Case
    same: bool
    """Whether its table is what its stream sums to."""
    stopped: bool

    @property
    def unnoticed(self) -> bool:
        return not self.same and not self.stopped


def outcomes(shop: Shop, cases: Sequence[Case]) -> list[Outcome]:
    tables = [case.table for case in cases]
    prepare(shop, cases)
    source = shop.source()
    source.focus(dict.fromkeys(tables, USED))
    before = fingerprints(source, tables)
    start, initial = source.now(), {table: rows_of(source, table, USED) for table in tables}
    source.schemas()
    execute(shop, cases)
    end = source.now()
    sums, lost = streamed(source, start, end, tables)
    after = fingerprints(source, tables)
    source.close()
    now = shop.source()
    found = []
    for case in cases:
        table = case.table
        same = initial[table].add(sums[table]) == contents(now, table)
        said = source.changed(table, USED, before[table], after[table])
        found.append(Outcome(case, same, bool(said or table in lost)))
    now.close()
    return found


def smallest(shop: Shop, case: Case) -> Case:
    """The same without statements that it goes unnoticed without."""
    for place, statement in enumerate(case.script):
        if "sql_log_bin" in statement:  # rows that change after it would not be logged
            continue
        fewer = replace(case, script=case.script[:place] + case.script[place + 1 :])
        alone = Shop(shop.server)
        unnoticed = outcomes(alone, [fewer])[0].unnoticed
        alone.run(f"DROP DATABASE {alone.name}")
        if unnoticed:
            return smallest(shop, fewer)
    return case


def batch(shop: Shop, seed: int, count: int = BATCH) -> Counter[str]:
    """How many of so many random cases were right, and how many of these were stopped without need; of logged ones and
    of others."""
    rng, counts = random.Random(seed), Counter[str]()
    for found in outcomes(shop, [mariadb_ddl.case(rng, number, shop.mysql) for number in range(count)]):
        if found.unnoticed:
            case = smallest(shop, found.case)
            pytest.fail(f"seed {seed}, table {case.table}, silently wrong: {'; '.join(case.create)}; {case.shown}")
        kind = "logged" if found.case.logged else "unlogged"
        counts[f"{kind}, right"] += found.same
        counts[f"{kind}, right, and stopped"] += found.same and found.stopped
    return counts


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_is_wrong_in_silence(either: Shop, seed: int) -> None:
    """After random statements, each table is what its stream sums to, or the stream or the fingerprint objected."""
    counts = batch(either, seed)
    print(f"seed {seed}, {BATCH} tables: {dict(counts)}")
    assert counts["logged, right, and stopped"] < counts["logged, right"], "not everything is refused"


@pytest.mark.slow
@pytest.mark.timeout(20_000)
def test_nothing_is_wrong_in_silence_for_long(either: Shop) -> None:
    """The same, ten thousand times on each server."""
    counts = Counter[str]()
    for seed in range(1000, 1000 + LONG):
        shop = Shop(either.server)
        counts += batch(shop, seed)
        shop.run(f"DROP DATABASE {shop.name}")
    print(f"{LONG * BATCH} tables: {dict(counts)}")
