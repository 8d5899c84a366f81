"""The warehouse on real Spark and Delta, held against a model in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from strobe.algebra.bag import NAN, Bag, Row, canonical
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Occurrence, Output, View
from strobe.auditor import replay
from strobe.data.arrow import from_arrow, to_arrow
from strobe.errors import BrokenInvariant, CommitUnknown, Fenced, NotNow, UserError
from strobe.messages import Commit, CommitHeader
from strobe.spark.relation import SparkRelation, local_data
from strobe.warehouse import claim, inspect, reader, tables, view_table
from strobe.warehouse.appender import APPENDS
from strobe.warehouse.layout import Layout, Sizes
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

WEEK = timedelta(days=7)
START = datetime(2026, 1, 1, tzinfo=timezone.utc)

ALL_TYPES = (
    Column("id", "bigint"),
    Column("price", "decimal(12,3)"),
    Column("name", "string"),
    Column("day", "date"),
    Column("at", "timestamp"),
    Column("ok", "boolean"),
    Column("raw", "binary"),
    Column("x", "double"),
    Column("small", "int"),
    Column("local", "timestamp_ntz"),
)


def relation(name: str, *columns: Column, key: tuple[str, ...] = ()) -> RelationSchema:
    return RelationSchema("shop", name, columns, key)


def view_of(name: str, schema: RelationSchema, condition: str | None, outputs: Mapping[str, str], *key: str) -> View:
    occurrence = Occurrence(0, "t", schema, tuple(c.name for c in schema.columns))
    columns = tuple(Output(n, e) for n, e in outputs.items())
    sql = f"SELECT {outputs} FROM {schema.id} WHERE {condition}"
    return View(name, sql, (occurrence,), (), condition, columns, key)


PAIRS = relation("pairs", Column("a", "bigint"), Column("b", "string"))
WIDE = relation("wide", *ALL_TYPES, key=("id",))

# rows repeat: `half` maps different raw rows to one
BAGGED = view_of("bagged", PAIRS, "r0c0 >= 0 OR r0c0 IS NULL", {"half": "r0c0 div 2", "B": "upper(r0c1)"})
KEYED = view_of("keyed", WIDE, None, {c.name: f"r0c{i}" for i, c in enumerate(ALL_TYPES)}, "id")


def bag(view: View, *rows: tuple[Any, ...], count: int = 1) -> Bag:
    return Bag.of(view.attributes, rows, count)


def half(row: Row) -> list[Row]:
    a, b = row
    if a is not None and a < 0:
        return []
    return [(None if a is None else a // 2, b and b.upper())]


MODEL: dict[str, Callable[[Row], list[Row]]] = {"bagged": half, "keyed": lambda row: [row]}


class Bench:
    """A warehouse beside a model that remembers every state."""

    def __init__(
        self,
        spark: SparkSession,
        path: Path,
        *,
        at: Any = None,
        retention: timedelta = WEEK,
        sizes: Sizes = Sizes(),  # noqa: B008  # frozen
    ) -> None:
        self.spark, self.path = spark, path
        hook = {"at": at} if at else {}
        self.warehouse = Warehouse.create_or_open(spark, Layout(path, sizes=sizes), retention, "tests", **hook)
        self.states: dict[int, dict[str, Counter[Row]]] = {}

    def commit(self, **changes: Any) -> Commit:
        last = self.warehouse.last
        number = last.number + 1 if last else 1
        position = {"shop": f"p{number}"}
        header = CommitHeader(
            number,
            START + timedelta(minutes=number),
            {"bagged": position, "keyed": position},
            {"bagged": {"shop": START + timedelta(minutes=number)}},
            {"shop": "server-1"},
        )
        return Commit(header, changes)

    def join(self, *loads: tuple[View, Iterable[Row]]) -> None:
        loaded = [self.warehouse.load(view, frame(self.spark, view, rows)) for view, rows in loads]
        commit = self.commit()
        self.warehouse.cut_over(loaded, commit)
        self.warehouse.fold()
        state = dict(self.states.get(commit.number - 1, {}))
        for view, rows in loads:
            state[view.name] = Counter(out for row in rows for out in MODEL[view.name](row))
        self.states[commit.number] = state

    def append(self, *several: dict[str, Bag]) -> None:
        self.warehouse.append(self.made(*several))

    def made(self, *several: dict[str, Bag]) -> list[Commit]:
        """The next commits, which the model takes for appended."""
        first = self.commit()
        commits = []
        for i, changes in enumerate(several):
            number = first.number + i
            at = START + timedelta(minutes=number)
            commits.append(Commit(replace(first.header, number=number, committed_at=at), changes))
            state = {name: Counter(rows) for name, rows in self.states[number - 1].items()}
            for name, change in changes.items():
                for row, n in change.items():
                    for out in MODEL[name](row):
                        state[name][out] += n
            self.states[number] = {name: +rows for name, rows in state.items()}
        return commits

    def check(self, only: Iterable[int] | None = None) -> None:
        """Every state, read at its commit, is the model's."""
        for number in only or self.states:
            found = self.warehouse.snapshot(number)
            for name, rows in self.states[number].items():
                assert contents(found.table(name)) == rows, f"{name} at commit {number}"


def frame(spark: SparkSession, view: View, rows: Iterable[Row]) -> DataFrame:
    """A view computed by Spark from raw rows."""
    types = view.attribute_types()
    raw = local_data(spark, to_arrow(list(types), list(types.values()), list(rows)))
    chosen = raw.where(view.condition) if view.condition else raw
    return chosen.selectExpr(*[f"{o.expression} AS {o.name}" for o in view.outputs])


def contents(table: DataFrame) -> Counter[Row]:
    return Counter(from_arrow(table.toArrow()))


def wide(number: int, **other: Any) -> Row:
    row: dict[str, Any] = {
        "id": number,
        "price": Decimal("1.500"),
        "name": "Zoë ☃",
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 23, 59, 59, 999999, tzinfo=timezone.utc),
        "ok": True,
        "raw": b"\x00\xff",
        "x": 0.1,
        "small": -1,
        "local": datetime(2024, 3, 31, 2, 30, 0, 5),
    }
    return tuple(canonical(v) for v in {**row, **other}.values())


EMPTY = wide(9, **{c.name: None for c in ALL_TYPES[1:]})
ODD = wide(2**62, price=Decimal("-999999999.999"), name="", x=NAN, raw=b"")
FIRST_PAIRS = [(1, "x"), (0, "x"), (2, None), (None, None), (-1, "hidden")]
FIRST_WIDE = [wide(1), wide(2), EMPTY, ODD]


def started(spark: SparkSession, path: Path, **options: Any) -> Bench:
    bench = Bench(spark, path, **options)
    assert bench.warehouse.fence() is None
    bench.join((BAGGED, FIRST_PAIRS), (KEYED, FIRST_WIDE))
    return bench


def some_commits(bench: Bench) -> None:
    """Commits that come, go, repeat, cancel, and touch one view, both or none."""
    gone = bag(KEYED, wide(1), count=-1)
    bench.append(
        {"bagged": bag(BAGGED, (1, "x"), (3, "y"), (3, "Y"))},
        {"keyed": gone.add(bag(KEYED, wide(1, name=None, x=-0.0))), "bagged": bag(BAGGED, (None, None), count=2)},
        {},
    )
    bench.append({"bagged": bag(BAGGED, (0, "x"), (2, None), (None, None), count=-1).add(bag(BAGGED, (-5, "no")))})
    bench.append(
        {"keyed": bag(KEYED, EMPTY, ODD, count=-1).add(bag(KEYED, wide(3, x=float("inf")), wide(2**62, ok=None)))},
        # these two cancel once they are projected
        {"bagged": bag(BAGGED, (6, "z"), count=-1).add(bag(BAGGED, (7, "Z")))},
    )


def test_every_state_is_read_back_at_its_commit(spark: SparkSession, tmp_path: Path) -> None:
    """Duplicates, NULLs and all types: the log alone, after one fold, and after another."""
    bench = started(spark, tmp_path / "w")
    some_commits(bench)
    bench.check()
    published = bench.warehouse.fold()
    assert published is not None and published.commit == 7
    assert bench.warehouse.fold() == published, "a fold without news writes nothing"
    bench.append({"bagged": bag(BAGGED, (3, "y"), (3, "y"))}, {"bagged": bag(BAGGED, (2, "y"), (1, "x"), count=-1)})
    keyed_before = inspect.version(bench.warehouse.layout.view("keyed"))
    bench.warehouse.fold()
    assert inspect.version(bench.warehouse.layout.view("keyed")) == keyed_before, "an unchanged view keeps its version"
    bench.check([1, 4, 7, 8, 9])
    another_engine(bench)
    history = inspect.history(Layout(bench.path), 3)
    assert [past.header.number for past in history] == [9, 8, 7]
    assert [past.changed for past in history] == [("bagged",), ("bagged",), ()]
    assert history[0].header.positions["bagged"] == {"shop": "p8"}
    assert history[0].header.as_of["bagged"]["shop"] == START + timedelta(minutes=8)
    assert bench.warehouse.commit_at(START + timedelta(minutes=4, seconds=59)) == 4
    assert bench.warehouse.commit_at(datetime.now(timezone.utc) + WEEK) == 9
    with pytest.raises(UserError, match="nothing is kept"):
        bench.warehouse.commit_at(START)
    with pytest.raises(UserError, match="no commit 10"):
        bench.warehouse.table("bagged", 10)
    with pytest.raises(UserError, match="no view 'other'"):
        bench.warehouse.table("other", 3)
    assert inspect.rows_of(Layout(bench.path), "bagged") == bench.states[9]["bagged"].total()


def another_engine(bench: Bench) -> None:
    """`deltalake` reads the view tables at the versions that belong together, and copies are numbered without gaps."""
    for published in inspect.published(Layout(bench.path)):
        for name, version in published.views.items():
            table = DeltaTable(str(bench.path / "views" / name), version=version).to_pyarrow_table()
            rows = list(from_arrow(table))
            if name == "bagged":
                assert table.schema.names[-1] == "_copy"
                numbers: dict[Row, list[int]] = {}
                for *row, copy in rows:
                    numbers.setdefault(tuple(row), []).append(copy)
                assert all(sorted(n) == list(range(1, len(n) + 1)) for n in numbers.values())
                rows = [row[:-1] for row in rows]
            assert Counter(rows) == bench.states[published.commit][name]


def test_an_append_is_one_spark_job(spark: SparkSession, tmp_path: Path) -> None:
    """Three commits over two views cost one job and one file."""
    bench = started(spark, tmp_path / "w")
    tracker = spark.sparkContext.statusTracker()
    before = set(tracker.getJobIdsForGroup(APPENDS))
    one = {"bagged": bag(BAGGED, (1, "x")), "keyed": bag(KEYED, wide(50))}
    files = len(inspect.log_files(inspect.open_log(bench.warehouse.layout)))
    bench.append(one, {"bagged": bag(BAGGED, (2, "x"))}, {})
    assert len(set(tracker.getJobIdsForGroup(APPENDS)) - before) == 1, "the oldest ones are forgotten"
    assert len(inspect.log_files(inspect.open_log(bench.warehouse.layout))) == files + 1


def test_changes_in_spark_join_the_same_append(spark: SparkSession, tmp_path: Path) -> None:
    """A large change, held in Spark, and a small one, in memory, end up in one commit."""
    bench = started(spark, tmp_path / "w")
    large = bag(BAGGED, *((n, "n") for n in range(100)), (1, "x"))
    before = bench.commit()
    bench.append({"bagged": large, "keyed": bag(KEYED, wide(77))}, {"bagged": bag(BAGGED, (9, "n"))})
    spark_bench = started(spark, tmp_path / "other")
    relation_ = SparkRelation.of_bag(spark, large, BAGGED.attribute_types())
    at, positions = before.header.committed_at, before.header.positions
    second = Commit(CommitHeader(3, at, positions), {"bagged": bag(BAGGED, (9, "n"))})
    first = Commit(CommitHeader(2, at, positions), {"bagged": relation_, "keyed": bag(KEYED, wide(77))})
    spark_bench.warehouse.append([first, second])
    spark_bench.states = bench.states
    spark_bench.check()


def test_a_row_that_cannot_be_computed_commits_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """An ANSI error names the view, nothing of the append is there, and the next one goes on."""
    bench = Bench(spark, tmp_path / "w")
    bench.warehouse.fence()
    ratio = view_of("ratio", PAIRS, None, {"q": "1 / r0c0", "n": "cast(r0c1 AS int)"})
    other = view_of("other", PAIRS, None, {"q": "r0c0"})
    loaded = [bench.warehouse.load(v, frame(spark, v, [(1, "1")])) for v in (ratio, other)]
    bench.warehouse.cut_over(loaded, bench.commit())
    for row in ((0, "1"), (1, "one")):
        both = bench.commit(other=bag(other, (1, "1")), ratio=bag(ratio, row))
        with pytest.raises(UserError, match=r"view ratio.*(DIVIDE_BY_ZERO|CAST_INVALID_INPUT)"):
            bench.warehouse.append([both])
    with pytest.raises(UserError, match=r"view ratio.*DIVIDE_BY_ZERO"):
        bench.warehouse.load(ratio, frame(spark, ratio, [(0, "1")]))
    assert inspect.last_header(Layout(bench.path)) is not None and inspect.last_header(Layout(bench.path)).number == 1  # type: ignore[union-attr]
    bench.warehouse.append([bench.commit(ratio=bag(ratio, (2, "7")))])
    assert contents(bench.warehouse.table("ratio")) == Counter([(1.0, 1), (0.5, 7)])
    with pytest.raises(BrokenInvariant, match="do not follow"):
        bench.warehouse.append([Commit(CommitHeader(9, START))])


class Crash(Exception):
    pass


class Failpoint:
    """A hook that crashes at one point, once it is armed."""

    def __init__(self) -> None:
        self.point = ""

    def __call__(self, name: str) -> None:
        if name == self.point:
            self.point = ""
            raise Crash


def test_a_fold_interrupted_anywhere_is_done_again(spark: SparkSession, tmp_path: Path) -> None:
    """After a crash at any point of a fold, readers see every state, and the next start folds to the same."""
    at = Failpoint()
    bench = started(spark, tmp_path / "w", at=at)
    for point in ("fold.before", "fold.view", "fold.before_publish", "fold.after_publish"):
        last = max(bench.states)
        bench.append(
            {"bagged": bag(BAGGED, (1, "x"), (3, point), (3, point)), "keyed": bag(KEYED, wide(100 + last))},
            {"bagged": bag(BAGGED, (2, point), count=-1)},
        )
        at.point = point
        with pytest.raises(Crash):
            bench.warehouse.fold()
        bench.check([last + 1])
        restart(bench, at)
        published = bench.warehouse.fold()
        assert published is not None and published.commit == last + 2
        bench.check([last + 2])
    another_engine(bench)


def restart(bench: Bench, at: Failpoint) -> None:
    """Open the warehouse again, as a new process would."""
    bench.warehouse.close()
    bench.warehouse = Warehouse.create_or_open(bench.spark, Layout(bench.path), WEEK, "tests", at)
    last = bench.warehouse.fence()
    assert last is not None
    bench.warehouse.use([v for v in (BAGGED, KEYED) if v.name in bench.warehouse.definitions])


def test_a_load_interrupted_anywhere_leaves_a_whole_view(spark: SparkSession, tmp_path: Path) -> None:
    """Until the joining commit is in the log the old generation goes on; from then on the new one does."""
    at = Failpoint()
    bench = started(spark, tmp_path / "w", at=at)
    for point in ("load.table", "load.definitions", "append.before", "append.after", "load.joined"):
        last = max(bench.states)
        generation = bench.warehouse.definitions["bagged"].generation
        bench.append({"bagged": bag(BAGGED, (1, "x"), (1, "x"))})
        at.point = point
        rebuilt = [*FIRST_PAIRS, (40, point)]
        with pytest.raises(Crash):
            bench.join((BAGGED, rebuilt))
        joined = point in ("append.after", "load.joined")
        if joined:
            new = Counter(out for row in rebuilt for out in half(row))
            bench.states[last + 2] = {**bench.states[last + 1], "bagged": new}
        bench.check([max(bench.states)])
        restart(bench, at)
        assert (bench.warehouse.definitions["bagged"].generation > generation) == joined
        bench.append({"bagged": bag(BAGGED, (1, "x"), (3, "more"))})
        published = bench.warehouse.fold()
        assert published is not None, "a load that was undone keeps nobody from folding"
        assert published.commit == max(bench.states)
    bench.join((BAGGED, [(5, "again")]))
    bench.append({"bagged": bag(BAGGED, (5, "again"), (4, "again"))})
    bench.warehouse.fold()
    bench.check([1, 9, max(bench.states)])
    another_engine(bench)
    stored = [d for d in inspect.definitions(Layout(bench.path)) if d.view == "bagged"]
    assert [d.from_commit for d in stored[1:]] == [(d.to_commit or 0) + 1 for d in stored[:-1]]
    assert stored[-1].to_commit is None


def test_a_view_joins_with_what_its_table_does_not_hold_yet(spark: SparkSession, tmp_path: Path) -> None:
    """The commit that brings views in carries what changed since they were loaded, appended elsewhere or not at all,
    and is appended with those before it, of the generations before; the next fold publishes it first."""
    beside = started(spark, tmp_path / "beside")
    some_commits(beside)
    waiting = beside.made({"bagged": bag(BAGGED, (1, "x"), count=-1)}, {"keyed": bag(KEYED, wide(60))})
    bench = started(spark, tmp_path / "w")
    bench.append({"bagged": bag(BAGGED, (7, "old"))})
    loads = (BAGGED, FIRST_PAIRS), (KEYED, FIRST_WIDE)
    loaded = [bench.warehouse.load(view, frame(spark, view, rows)) for view, rows in loads]
    bench.warehouse.prepare_log(loaded)
    carried = beside.warehouse.unsettled(spark, 1, waiting)
    before = bench.made({"bagged": bag(BAGGED, (1, "of the generation before"))}, {})
    joined = Commit(replace(bench.commit().header, number=5, committed_at=START + timedelta(minutes=5)))
    bench.warehouse.cut_over(loaded, joined, carried=carried, before=before)
    bench.states[5] = beside.states[max(beside.states)]
    bench.append({"bagged": bag(BAGGED, (3, "y"), (9, "new")), "keyed": bag(KEYED, wide(70))})
    bench.check()
    assert bench.warehouse.unpublished
    bench.warehouse.fold()
    assert not bench.warehouse.unpublished
    assert [row.commit for row in inspect.published(Layout(bench.path))] == [1, 5, 6]
    bench.check()
    another_engine(bench)
    for state in replay.states(bench.path):
        found = {name: Counter(dict(rows.items())) for name, rows in state.views.items()}
        assert found == bench.states[state.commit], state.commit


def test_a_dropped_view_is_there_until_it_was_dropped(spark: SparkSession, tmp_path: Path) -> None:
    """Readers of older commits still have it, the next fold leaves its table at its last state, and it can come back as
    the next generation."""
    bench = started(spark, tmp_path / "w")
    bench.append({"keyed": bag(KEYED, wide(60)), "bagged": bag(BAGGED, (1, "x"))})
    bench.warehouse.cut_over([], bench.commit(), dropped=["keyed"])
    bench.states[3] = {"bagged": bench.states[2]["bagged"]}
    assert bench.warehouse.snapshot().views == ("bagged",)
    assert bench.warehouse.unpublished
    bench.warehouse.empty()
    bench.warehouse.fold()
    assert not bench.warehouse.unpublished
    left = spark.read.format("delta").load(str(bench.path / "views" / "keyed"))
    assert Counter(from_arrow(left.toArrow())) == bench.states[2]["keyed"]
    bench.join((KEYED, [wide(5)]))
    bench.check()
    with pytest.raises(UserError, match="no view 'keyed' at commit 3"):
        bench.warehouse.table("keyed", 3)


@pytest.mark.parametrize("how", ["folded", "with rows in the log", "empty, with rows in the log"])
def test_the_table_of_a_view_that_left_is_emptied(spark: SparkSession, tmp_path: Path, how: str) -> None:
    """Whatever it holds, also by another coordinator after a crash; a view of that name that comes later is not."""
    at = Failpoint()
    bench = started(spark, tmp_path / "w", at=at)
    if how.startswith("empty"):
        bench.append({"bagged": bag(BAGGED, *FIRST_PAIRS, count=-1)})
        bench.warehouse.fold()
    bench.append({"bagged": bag(BAGGED, (1, "x"))})
    if how == "folded":
        bench.warehouse.fold()
    leaves = bench.commit()
    bench.states[leaves.number] = {"keyed": bench.states[leaves.number - 1]["keyed"]}
    at.point = "load.joined"
    with pytest.raises(Crash):
        bench.warehouse.cut_over([], leaves, dropped=["bagged"], empty=True)
    restart(bench, at)
    for _ in range(2):
        bench.warehouse.empty()
        bench.warehouse.fold()
        assert spark.read.format("delta").load(str(bench.path / "views" / "bagged")).count() == 0
    bench.join((BAGGED, [(5, "again")]))
    bench.warehouse.empty()
    bench.check()


def test_a_load_that_was_taken_back_does_not_join(spark: SparkSession, tmp_path: Path) -> None:
    """Its table holds the generation before again."""
    bench = started(spark, tmp_path / "w")
    loaded = [bench.warehouse.load(BAGGED, frame(spark, BAGGED, [(7, "new")]))]
    bench.warehouse.take_back()
    with pytest.raises(NotNow, match=r"view bagged.*taken back"):
        bench.warehouse.cut_over(loaded, bench.commit())
    bench.append({"bagged": bag(BAGGED, (1, "x"))})
    bench.warehouse.fold()
    bench.check()


def test_a_fenced_coordinator_commits_no_more(spark: SparkSession, tmp_path: Path) -> None:
    """A second one is refused while the first is alive; once it takes over, the first one's append fails in Delta."""
    bench = started(spark, tmp_path / "w")
    first = bench.warehouse
    second = Warehouse.create_or_open(spark, Layout(bench.path), WEEK, "tests")
    with pytest.raises(NotNow, match="another coordinator is at work: process"):
        second.fence()
    last = second.fence(take_over=True)
    assert last is not None and last.number == 1 and second.epoch == first.epoch + 1
    change = {"bagged": bag(BAGGED, (1, "x"))}
    with pytest.raises(Fenced):
        bench.append(change)
    bench.states.pop(2)
    with pytest.raises(Fenced):
        first.maintain()
    second.use([BAGGED, KEYED])
    bench.warehouse = second
    bench.append(change)
    bench.check()
    standing = claim.fences(inspect.properties(inspect.open_log(second.layout)))
    assert [(f.epoch, f.bound) for f in standing] == [(1, 0), (2, 1)]


@pytest.mark.slow  # three minutes of racing; the fence itself is shown by the test before
def test_a_fence_gets_in_against_a_busy_appender(spark: SparkSession, tmp_path: Path) -> None:
    """The exact bound is overtaken; with slack first, the former coordinator is stopped and nothing it did is lost."""
    import threading

    bench = started(spark, tmp_path / "w")
    first, stopped = bench.warehouse, threading.Event()
    outcome: list[Exception] = []

    def busy() -> None:
        try:
            while not stopped.is_set():
                bench.append({"bagged": bag(BAGGED, (1, "x"))})
        except (Fenced, CommitUnknown) as error:
            outcome.append(error)

    thread = threading.Thread(target=busy)
    thread.start()
    second = Warehouse.create_or_open(spark, Layout(bench.path), WEEK, "tests")
    try:
        last = second.fence(take_over=True)
        thread.join(300)
    finally:
        stopped.set()
        thread.join()
    assert last is not None and isinstance(outcome[0], Fenced)
    assert first.last is not None and first.last.number == last.number
    bench.states = {n: s for n, s in bench.states.items() if n <= last.number}
    bench.warehouse = second
    bench.check([last.number])


def test_rivals_collide_on_the_epoch(spark: SparkSession, tmp_path: Path) -> None:
    """Of two that claim one epoch, the second is told so."""
    bench = started(spark, tmp_path / "w")
    layout = bench.warehouse.layout
    assert claim.add_fence(spark, layout, "fence_2", 2, 1)
    with pytest.raises(NotNow, match="same moment"):
        claim.add_fence(spark, layout, "fence_2", 2, 1)
    assert not claim.add_fence(spark, layout, "fence_3", 3, 0)


def test_foreign_newer_and_damaged_folders_are_refused_and_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    """One message each, and nothing in the folder changes."""
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").write_text("years of work")
    with pytest.raises(UserError, match="not empty and holds no warehouse"):
        Warehouse.create_or_open(spark, Layout(foreign), WEEK, "tests")
    assert [p.name for p in foreign.iterdir()] == ["thesis.txt"]
    bench = Bench(spark, tmp_path / "w")
    with pytest.raises(UserError, match="belongs to the project 'tests'"):
        Warehouse.create_or_open(spark, Layout(bench.path), WEEK, "others")
    view_table.set_properties(spark, bench.warehouse.layout.log, {"strobe.format": "2"})
    version = inspect.version(bench.warehouse.layout.log)
    with pytest.raises(UserError, match="format 2"):
        Warehouse.create_or_open(spark, Layout(bench.path), WEEK, "tests")
    with pytest.raises(UserError, match="format 2"):
        reader.snapshot(spark, Layout(bench.path))
    assert inspect.version(bench.warehouse.layout.log) == version
    for name in ("log", "published"):
        damaged = Bench(spark, tmp_path / f"damaged_{name}")
        for file in (damaged.path / name / "_delta_log").glob("*.json"):
            file.write_text("{nonsense")
        with pytest.raises(UserError, match=r"damaged|cannot be read"):
            Warehouse.create_or_open(spark, Layout(damaged.path), WEEK, "tests")
    spark.range(3).write.format("delta").save(str(tmp_path / "elsewhere" / "log"))
    with pytest.raises(UserError, match="something else"):
        Warehouse.create_or_open(spark, Layout(tmp_path / "elsewhere"), WEEK, "tests")


def test_a_warehouse_whose_making_was_interrupted_is_made_again(spark: SparkSession, tmp_path: Path) -> None:
    """A folder of a table to which nothing was committed is no reason to refuse; one with somebody's data is."""
    layout = Layout(tmp_path / "w")
    for name in ("published", "log"):
        log = layout.root / name / "_delta_log"
        log.mkdir(parents=True)
        (log / ".00000000000000000000.json.1.tmp").write_text("half a commit")
    (layout.root / "published" / "part-0.parquet").write_text("rows")
    with pytest.raises(UserError, match="not empty"):
        tables.check_before_use(layout, "tests")
    (layout.root / "published" / "part-0.parquet").unlink()
    tables.check_before_use(layout, "tests")
    Warehouse.create_or_open(spark, layout, WEEK, "tests").fence()


def test_columns_that_a_table_cannot_hold_are_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Before anything is written."""
    bench = Bench(spark, tmp_path / "w")
    bench.warehouse.fence()
    for outputs in ({"a b": "r0c0"}, {"a": "r0c0", "A": "r0c0"}, {"_copy": "r0c0"}, {"n": "NULL"}):
        view = view_of("odd", PAIRS, None, outputs)
        empty = frame(spark, view_of("odd", PAIRS, None, {f"`{n}`": e for n, e in outputs.items()}), [])
        with pytest.raises(UserError, match="column"):
            bench.warehouse.load(view, empty)
    assert not Path(Layout(bench.path).view("odd")).exists()


def test_large_tables_have_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    """Folding into them is exact too, and another engine reads them through a query."""
    bench = started(spark, tmp_path / "w", sizes=Sizes(large=3))
    some_commits(bench)
    bench.warehouse.fold()
    bench.check([1, 5, 7])
    table = DeltaTable(str(bench.path / "views" / "keyed"))
    assert "deletionVectors" in (table.protocol().writer_features or [])
    rows = QueryBuilder().register("v", table).execute("SELECT * FROM v").read_all()
    import pyarrow as pa

    assert Counter(from_arrow(pa.table(rows))) == bench.states[7]["keyed"]
    assert inspect.rows_of(Layout(bench.path), "keyed") == bench.states[7]["keyed"].total()
