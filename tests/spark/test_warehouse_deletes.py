"""Deletes by key and replacements on real Spark and Delta, held against action lists applied one by one in memory."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from bags import expanded
from pyspark.sql import SparkSession

from strobe.algebra.bag import Bag, Row
from strobe.algebra.bounds import Bound, End, Listed, Range
from strobe.algebra.relation import Relation
from strobe.algebra.schema import Column, RelationSchema
from strobe.algebra.view import Equality, Occurrence, Output, View
from strobe.auditor import replay
from strobe.data.arrow import from_arrow, to_arrow
from strobe.errors import UserError
from strobe.merge.removals import combined
from strobe.messages import ActionList, BoundDelete, Commit, CommitHeader, Delete, KeyDelete
from strobe.spark.relation import SparkRelation
from strobe.warehouse import inspect
from strobe.warehouse.appender import APPENDS
from strobe.warehouse.layout import Layout, Sizes
from strobe.warehouse.records import Generation
from strobe.warehouse.warehouse import Warehouse

pytestmark = pytest.mark.spark

START = datetime(2026, 1, 1, tzinfo=timezone.utc)

ORDERS = RelationSchema("shop", "orders", (Column("id", "bigint"), Column("who", "string")), ("id",))
LINES = RelationSchema(
    "shop",
    "lines",
    (Column("order", "decimal(38,30)"), Column("no", "string"), Column("note", "string")),
    ("order", "no"),
)
OCCURRENCES = (Occurrence(0, "o", ORDERS, ("id", "who")), Occurrence(1, "l", LINES, ("order", "no", "note")))


def view(name: str, outputs: Mapping[str, str], *key: str, condition: str | None = None) -> View:
    columns = tuple(Output(n, e) for n, e in outputs.items())
    return View(name, name, OCCURRENCES, (Equality(0, "id", 1, "order"),), condition, columns, key)


PLAIN = view("plain", {"id": "r0c0", "No": "r1c1", "who": "r0c1", "note": "r1c2"}, "id", "No")
# the order's key is shown as the line's decimal; rows are selected and computed
OTHER = view(
    "other", {"nr": "r1c0", "no": "r1c1", "w": "upper(r0c1)"}, "nr", "no", condition="r1c2 IS NULL OR r1c2 <> 'hidden'"
)
BAGGED = view("bagged", {"w": "r0c1", "half": "1 / length(r0c1)"})
OUTPUTS: dict[str, Callable[[Row], list[Row]]] = {
    "plain": lambda r: [(r[0], r[3], r[1], r[4])],
    "other": lambda r: [] if r[4] == "hidden" else [(r[2], r[3], r[1].upper())],
    "bagged": lambda r: [(r[1], 1 / len(r[1]))],
}
VIEWS = {v.name: v for v in (PLAIN, OTHER, BAGGED)}


def row(order: int, no: str, who: str = "ada", note: str | None = None) -> Row:
    return (order, who, Decimal(order), no, note)


def rows(*found: Row) -> Bag:
    return Bag.of(PLAIN.attributes, found)


def of_orders(*ids: int) -> KeyDelete:
    return KeyDelete(0, Bag.of(["r0c0"], [(i,) for i in ids]))


def of_lines(*keys: tuple[int | str, str]) -> KeyDelete:
    return KeyDelete(1, Bag.of(["r1c0", "r1c1"], [(Decimal(i), no) for i, no in keys]))


NOTHING = rows()


def does(view_: str, *deletes: Delete, brings: Relation = NOTHING, replaces: bool = False) -> ActionList:
    return ActionList(view_, (1,), brings, deletes, replaces)


def near(relation: Relation) -> Bag:
    return relation.collect() if isinstance(relation, SparkRelation) else Bag(relation.attributes).add(relation)  # type: ignore[arg-type]


def one_by_one(state: Bag, action: ActionList) -> Bag:
    left = {} if action.replaces else dict(state.items())
    for delete in action.deletes:
        if isinstance(delete, BoundDelete):
            inside = delete.bound.test(PLAIN.attributes)
            left = {r: n for r, n in left.items() if not inside(r)}
            continue
        places = [PLAIN.attributes.index(a) for a in delete.keys.attributes]
        keys = dict(near(delete.keys).items())
        left = {r: n for r, n in left.items() if tuple(r[i] for i in places) not in keys}
    return Bag(PLAIN.attributes, left).add(near(action.delta))


class Bench:
    """A warehouse beside a model that remembers every state."""

    def __init__(self, spark: SparkSession, path: Path, start: Mapping[str, Bag], **sizes: int) -> None:
        self.spark, self.path = spark, path
        layout = Layout(path, sizes=Sizes(**sizes))
        self.warehouse = Warehouse.create_or_open(spark, layout, timedelta(days=7), "tests")
        self.warehouse.fence()
        loaded = [self.load(name, bag) for name, bag in start.items()]
        self.positions = {name: {"shop": "p"} for name in start}
        self.warehouse.cut_over(loaded, Commit(CommitHeader(1, START, self.positions)))
        self.states: dict[int, dict[str, Bag]] = {1: dict(start)}

    def load(self, name: str, bag: Bag) -> Generation:
        types = PLAIN.attribute_types()
        raw = self.spark.createDataFrame(to_arrow(list(types), list(types.values()), expanded(bag)))
        raw = raw.where(VIEWS[name].condition or "true")
        frame = raw.selectExpr(*(f"{o.expression} AS {o.name}" for o in VIEWS[name].outputs))
        return self.warehouse.load(VIEWS[name], frame)

    @property
    def last(self) -> int:
        return max(self.states)

    def append(self, *commits: Sequence[ActionList]) -> tuple[int, ...]:
        """Returns the commits' numbers."""
        made, states = self.made(*commits)
        self.warehouse.append(made)
        self.states = states
        return tuple(commit.number for commit in made)

    def made(self, *commits: Sequence[ActionList]) -> tuple[list[Commit], dict[int, dict[str, Bag]]]:
        """The next commits, and the states with them."""
        made, states = [], dict(self.states)
        for actions in commits:
            number = max(states) + 1
            removals, changes = combined(actions)
            at = START + timedelta(seconds=number)
            made.append(Commit(CommitHeader(number, at, self.positions), changes, removals))
            state = dict(states[number - 1])
            for action in actions:
                state[action.view] = one_by_one(state[action.view], action)
            states[number] = state
        return made, states

    def expected(self, name: str, number: int) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for row_, n in self.states[number][name].items():
            for out in OUTPUTS[name](row_):
                found[out] += n
        return found

    def check(self, numbers: Iterable[int], *names: str) -> None:
        """These states of these views, through the reader."""
        for number in numbers:
            snapshot = self.warehouse.snapshot(number)
            for name in names:
                found = Counter(from_arrow(snapshot.table(name).toArrow()))
                assert found == self.expected(name, number), f"{name} at commit {number}"

    def check_all(self) -> None:
        """All states, as a stranger rebuilds them from the files."""
        for state in replay.states(self.path):
            for name, bag in state.views.items():
                assert Counter(dict(bag.items())) == self.expected(name, state.commit), f"{name} at {state.commit}"

    def changed(self, number: int) -> tuple[str, ...]:
        return next(past.changed for past in inspect.history(Layout(self.path), 100) if past.header.number == number)

    def jobs(self, *commits: Sequence[ActionList]) -> int:
        """How many Spark jobs an append takes."""
        tracker = self.spark.sparkContext.statusTracker()
        before = set(tracker.getJobIdsForGroup(APPENDS))  # the oldest ones are forgotten in time
        self.append(*commits)
        return len(set(tracker.getJobIdsForGroup(APPENDS)) - before)


ODD = "it's \\ ${env:HOME}"
ALMOST_SIX = "5." + "9" * 30
MANY = rows(*(row(i, no, f"w{i % 7}", "hidden" if i % 5 == 0 else None) for i in range(1, 1001) for no in "abc"))
FEW = rows(row(1, "a", "x"), row(1, "b", "x"), row(2, "a", "y"), row(2, "b", "y"))


START_WITH = {"plain": MANY, "other": MANY, "bagged": FEW}


@pytest.fixture(scope="module")
def bench(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    return Bench(spark, tmp_path_factory.mktemp("deletes") / "w", START_WITH)


BOTH = ("plain", "other")


def test_an_append_with_removals_is_one_spark_job(bench: Bench) -> None:
    """As it is without; also where keys of two occurrences go, and everything."""
    assert bench.jobs([does(v, brings=rows(row(900_000, "a"))) for v in BOTH]) == 1
    assert bench.jobs([does(v, of_orders(900_000, 999)) for v in BOTH], [does("plain", of_lines((998, "a")))]) == 1
    absent = range(2000, 3000)
    assert bench.jobs([does("plain", of_orders(*absent), of_lines(*((i, "a") for i in absent)))]) == 1
    assert bench.jobs([does("plain", of_lines((997, "a"))), does("bagged", replaces=True, brings=FEW)]) == 1
    bench.check_all()


def test_what_goes_is_found_wherever_it_is(bench: Bench) -> None:
    """In the table, only in the log, in an earlier commit of the append, in an earlier list of the commit."""
    numbers = bench.append(  # from the table; keys that do not fit the type of an equal column are nobody's
        [does(v, of_orders(1, 2, 2**62, 5000), brings=rows(row(2, "b", "new"))) for v in BOTH],
        [does(v, of_lines((3, "a"), (3, "zzz")), brings=rows(row(3, "a", "w3"))) for v in BOTH],
        [does(v, of_orders(4), of_lines((4, "a"), (5, "c"), (ALMOST_SIX, "c"))) for v in BOTH],
    )
    assert bench.changed(numbers[1]) == (), "what goes and comes in one commit is no change"
    numbers += bench.append([does(v, brings=rows(row(5000, "a"), row(5000, "b"), row(4, "b"))) for v in BOTH])
    numbers += bench.append(
        [does(v, of_lines((5000, "b")), brings=rows(row(6000, "a"), row(6001, "a"))) for v in BOTH],
        [does("plain", of_orders(6000, 5000, 7), brings=rows(row(7, "z"))), does("other", of_lines((6000, "a")))],
        [does("plain", of_orders(7), brings=rows(row(6000, "a"), row(7, "z"))), does("other", of_orders(6001))],
        [
            does("plain", brings=rows(row(7000, "a"), row(7000, ODD))),
            does("plain", of_lines((7000, "a"), (6001, "a")), brings=rows(row(7000, "c"))),
            does("plain", of_orders(6000)),
        ],
    )
    bench.check(numbers, "plain")
    bench.check(numbers[-1:], "other")
    bench.warehouse.fold()
    numbers = bench.append([does(v, of_orders(8000, 5000, 4, 3)) for v in BOTH], [does("plain", of_lines((7000, ODD)))])
    bench.check(numbers[1:], *BOTH)
    bench.check_all()


def test_what_is_in_a_bound_goes(bench: Bench) -> None:
    """From the table, the log, earlier commits and lists; a bound alone, with keys, and of a column shown by its equal;
    in one Spark job."""
    orders = BoundDelete(0, Bound((Range(("r0c0",), End((20,)), End((40,), False)),)))
    lines = BoundDelete(1, Bound((Range(("r1c0", "r1c1"), End((Decimal(50), "b")), End((Decimal(52),), True)),)))
    odd = BoundDelete(1, Bound((Listed("r1c1", (ODD, "zz")),)))
    assert bench.jobs([does(v, orders) for v in BOTH]) == 1
    numbers = bench.append(
        [does(v, brings=rows(row(30, "a"), row(51, ODD), row(60_000, ODD))) for v in BOTH],
        [does(v, lines, of_orders(70, 71), brings=rows(row(50, "c"))) for v in BOTH],
        [does("plain", odd, brings=rows(row(61_000, ODD))), does("other", orders, odd)],
        [does("plain", BoundDelete(0, Bound((Range(("r0c0",), End(), End((5,))),))))],
    )
    bench.check(numbers, "plain")
    bench.check(numbers[-1:], "other")
    bench.warehouse.fold()
    numbers = bench.append([does(v, orders, odd) for v in BOTH], [does("plain", BoundDelete(1, Bound()), brings=MANY)])
    bench.check(numbers, *BOTH)
    bench.check_all()


def test_what_is_replaced_goes_altogether(bench: Bench) -> None:
    """Also where rows repeat, from table, log and append; rows that stay the same are no change."""
    both = ("plain", "bagged")
    bench.append([does("bagged", brings=rows(row(3, "a", "x"), row(3, "b", "zz")))])
    now = bench.states[bench.last]
    numbers = bench.append(
        [does(v, brings=now[v], replaces=True) for v in both],
        [does("plain", of_orders(1), brings=rows(row(9000, "a"))), does("bagged", brings=rows(row(9, "c", "x")))],
        [does(v, brings=rows(row(9, "a"), row(2, "b", "y")), replaces=True) for v in both],
        [does("plain", of_lines((9, "a"))), does("bagged", brings=rows(row(9, "d", "y")))],
    )
    assert bench.changed(numbers[0]) == ()
    bench.check(numbers, "bagged")
    bench.check(numbers[-1:], "plain")
    bench.append([does(v, replaces=True) for v in both])
    bench.warehouse.fold()
    numbers = bench.append([does("plain", of_orders(2)), does("bagged", replaces=True, brings=FEW)])  # empty tables
    bench.check(numbers, *both)
    bench.append([does("plain", brings=MANY)])
    bench.check_all()


def test_a_row_that_cannot_be_computed_beside_a_removal_commits_nothing(bench: Bench) -> None:
    """The view is named, and the next append goes on from the state before."""
    bad = does("bagged", brings=rows(row(3, "a", "")), replaces=True)
    with pytest.raises(UserError, match=r"view bagged.*DIVIDE_BY_ZERO"):
        bench.append([does("plain", of_orders(1))], [bad])
    bench.check_all()
    bench.append([does("plain", of_orders(10)), does("bagged", replaces=True, brings=FEW)])
    bench.check_all()


def test_what_commits_that_were_not_appended_take_out(bench: Bench) -> None:
    """Views that join bring what their own log says, and what was to follow: keys of rows in table, log and neither."""
    before = bench.last
    bench.append([does(v, of_orders(20), brings=rows(row(9100, "a"), row(9101, "a"))) for v in BOTH])
    own = bench.states
    waiting, bench.states = bench.made(
        [does(v, of_orders(9100, 21), brings=rows(row(9102, "a"))) for v in BOTH],
        [does("plain", of_lines((9102, "a"), (22, "b")), brings=rows(row(9103, "z")))],
    )
    carried = bench.warehouse.unsettled(bench.spark, before, waiting)
    for name in BOTH:
        frame, small = carried[name]
        found = {line[:-1]: line[-1] for line in from_arrow(frame.toArrow())}
        then, now = bench.expected(name, before), bench.expected(name, bench.last)
        assert found == {line: n for line in then | now if (n := now[line] - then[line])}
        assert small
    bench.states = own


def test_a_view_whose_last_rows_cannot_be_computed_does_not_join(bench: Bench) -> None:
    """It is named, nothing is committed, also of what was waiting, and the others go on once it is taken back."""
    (bad,), _ = bench.made([does("bagged", brings=rows(row(3, "a", "")))])
    carried = bench.warehouse.unsettled(bench.spark, bench.last, [bad])
    loaded, number = bench.load("bagged", FEW), bench.last
    (waiting,), _ = bench.made([does("plain", of_orders(30))])
    cutover = Commit(CommitHeader(number + 2, START + timedelta(seconds=number + 2), bench.positions))
    with pytest.raises(UserError, match=r"view bagged.*DIVIDE_BY_ZERO"):
        bench.warehouse.cut_over([loaded], cutover, carried=carried, before=[waiting])
    bench.warehouse.take_back()
    bench.check([number], "bagged", "plain")
    for n in range(3):
        bench.append([does("plain", of_orders(30 + n)), does("bagged", brings=rows(row(4 + n, "a", "x")))])
    bench.warehouse.fence()
    bench.warehouse.use([VIEWS[name] for name in bench.positions])
    assert sum(definition.view == "bagged" for definition in inspect.definitions(Layout(bench.path))) == 1
    published = bench.warehouse.fold()
    assert published is not None and published.commit == bench.last
    bench.check_all()


@pytest.mark.parametrize("how", ["together", "in Spark"])
def test_any_history(bench: Bench, how: str) -> None:
    """Random action lists: where one task searches a view, and by keys that are in Spark."""
    anything(random.Random(how), bench, how == "in Spark")


def test_any_history_where_many_tasks_search_a_view(spark: SparkSession, tmp_path: Path) -> None:
    """It is as exact as where one does."""
    anything(random.Random("spread"), Bench(spark, tmp_path / "w", START_WITH, together=0))


def test_any_history_of_a_table_with_deletion_vectors(spark: SparkSession, tmp_path: Path) -> None:
    """Its files hold rows that are gone, and that must not go again."""
    bench = Bench(spark, tmp_path / "w", {"plain": MANY}, large=3)
    bench.append([does("plain", of_orders(3, 10))])
    bench.warehouse.fold()
    vectors = inspect.open_table(bench.warehouse.layout.view("plain")).deletion_vectors().read_all()
    assert pa.table(vectors).num_rows
    bench.append([does("plain", of_orders(3, 10, 11), brings=rows(row(3, "a")))])
    anything(random.Random(1), bench)


def anything(rng: random.Random, bench: Bench, in_spark: bool = False) -> None:
    """Two appends of three commits, in which one view has two action lists."""
    names = [name for name in BOTH if name in bench.positions]
    for _ in range(2):
        bench.append(*([action(rng, bench, name, in_spark) for name in (*names, "plain")] for _ in range(3)))
    bench.check([bench.last], *names)
    bench.check_all()


def action(rng: random.Random, bench: Bench, name: str, in_spark: bool) -> ActionList:
    """Whatever has the keys of what comes goes, so that keys stay keys."""
    keys = {(rng.randint(1, 4), rng.choice("abcd")) for _ in range(rng.randint(0, 3))}
    brought = rows(*(row(i, no, rng.choice(["x", "yy"]), rng.choice([None, "hidden"])) for i, no in keys))
    deletes = [of_lines(*keys, (rng.randint(1, 4), "a"))]
    if rng.random() < 0.4:
        deletes.append(of_orders(rng.randint(1, 4), 2**62))
    replaces = rng.random() < 0.1
    if not in_spark or rng.random() < 0.3:
        return does(name, *deletes, brings=brought, replaces=replaces)
    types = PLAIN.attribute_types()
    far = [KeyDelete(d.occurrence, SparkRelation.of_bag(bench.spark, near(d.keys), types)) for d in deletes]
    some = SparkRelation.of_bag(bench.spark, brought, types) if rng.random() < 0.7 else brought
    return does(name, *far, brings=some, replaces=replaces)
