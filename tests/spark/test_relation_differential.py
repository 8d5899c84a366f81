"""Bags in memory and relations in Spark agree on random expressions: two implementations of one algebra.

Each example holds many cases, which reach Spark as one job: the results are laid side by side over all attributes there
are, with the number of the case.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from strobe.algebra.bag import Bag, Row
from strobe.algebra.bounds import Bound, End, Listed, Range
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.data.arrow import from_arrow

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

UTC = timezone.utc
NUMBERS = [0, 1, 2, Decimal("0.0"), Decimal(1), Decimal("1.00"), Decimal("2.50"), Decimal("-2.5")]
WHOLE = [0, 1, 2, -1, 2**63 - 1, -(2**63)]
POOLS: tuple[list[Any], ...] = (
    NUMBERS,
    ["", " ", "a", "A", "é", "e\u0301", "日本", "ß", "\u0000", "🙂", "a "],
    [0.0, -0.0, 1.5, float("nan"), float("inf"), -float("inf"), 5e-324],
    [date(1, 1, 1), date(1582, 10, 15), date(2024, 2, 29), date(9999, 12, 31)],
    [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(2024, 3, 31, 2, 30, 0, 123456, tzinfo=UTC),
        datetime(2024, 3, 31, 4, 30, 0, 123456, tzinfo=timezone(timedelta(hours=2))),
        datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    ],
    [b"", b"\x00", b"a", b"\xff\xfe"],
    [True, False],
    [datetime(1, 1, 1), datetime(2024, 3, 31, 2, 30, 0, 123456), datetime(9999, 12, 31, 23, 59, 59, 999999)],
    [0.0, 0.10000000149011612, 16777216.0, float("inf"), float("nan")],
)
NUMBER_TYPES = ("bigint", "decimal(10,2)", "decimal(20,4)")
OTHER_TYPES = ("string", "double", "date", "timestamp", "binary", "boolean", "timestamp_ntz", "float")
TYPES = {f"r{k}c{j}": t for k in range(3) for j, t in enumerate((NUMBER_TYPES[k], *OTHER_TYPES))}


@dataclass(frozen=True)
class Case:
    """An expression: its attributes, and how to evaluate it given what becomes of a leaf (a bag, and where)."""

    attributes: tuple[str, ...]
    evaluate: Callable[[Callable[[Bag, str], Relation]], Relation]
    text: str

    def __repr__(self) -> str:
        return self.text


def pool(attribute: str) -> list[Any]:
    return WHOLE if TYPES[attribute] == "bigint" else POOLS[int(attribute[3:])]


@st.composite
def leaves(draw: st.DrawFn, attributes: Sequence[str]) -> Case:
    """A bag with few different values, so that rows meet and cancel: in Spark, or in memory with or without a limit to
    what joins make of it."""
    row = st.tuples(*(st.sampled_from([None, *pool(a)[:4], *pool(a)]) for a in attributes))
    bag = Bag(attributes)
    for rows in draw(st.lists(st.tuples(row, st.integers(-2, 2)), max_size=5)):
        bag = bag.add(Bag.of(attributes, [rows[0]], count=rows[1]))
    place = draw(st.sampled_from(["*", "!", ""]))
    return Case(bag.attributes, lambda leaf: leaf(bag, place), f"{bag!r}{place}")


def subset(draw: st.DrawFn, attributes: Sequence[str]) -> list[str]:
    return draw(st.lists(st.sampled_from(list(attributes)), max_size=3, unique=True))


@st.composite
def expressions(draw: st.DrawFn, relations: tuple[int, ...], depth: int) -> Case:
    """An expression over attributes of these relations (of all of them where it joins)."""
    if len(relations) > 1:
        return joined(draw, relations, depth)
    columns = draw(st.lists(st.integers(0, len(OTHER_TYPES)), min_size=1, max_size=3, unique=True))
    attributes = [f"r{relations[0]}c{j}" for j in columns]
    return grown(draw, draw(leaves(attributes)), depth)


def joined(draw: st.DrawFn, relations: tuple[int, ...], depth: int) -> Case:
    left = draw(expressions(relations[:-1], depth))
    right = draw(expressions(relations[-1:], depth))
    on = pairs(draw, left.attributes, right.attributes)
    case = Case(
        left.attributes + right.attributes,
        lambda leaf: left.evaluate(leaf).join(right.evaluate(leaf), on),
        f"({left} ⋈{on} {right})",
    )
    return grown(draw, case, depth)


def pairs(draw: st.DrawFn, left: Sequence[str], right: Sequence[str]) -> list[tuple[str, str]]:
    possible = [(a, b) for a in left for b in right if a[3:] == b[3:]]
    return draw(st.lists(st.sampled_from(possible), max_size=2, unique=True)) if possible else []


def grown(draw: st.DrawFn, case: Case, depth: int) -> Case:
    steps = (plus, negate, project, rename, keys, key_delete, outside, part)
    for step in draw(st.lists(st.sampled_from(steps), max_size=depth)):
        if case.attributes:
            case = step(draw, case)
    return case


def plus(draw: st.DrawFn, case: Case) -> Case:
    other = draw(leaves(draw(st.permutations(case.attributes))))
    return Case(case.attributes, lambda leaf: case.evaluate(leaf).plus(other.evaluate(leaf)), f"({case} + {other})")


def negate(draw: st.DrawFn, case: Case) -> Case:
    return Case(case.attributes, lambda leaf: case.evaluate(leaf).negate(), f"-{case}")


def project(draw: st.DrawFn, case: Case) -> Case:
    kept = subset(draw, case.attributes)
    return Case(tuple(kept), lambda leaf: case.evaluate(leaf).project(kept), f"π{kept}{case}")


def rename(draw: st.DrawFn, case: Case) -> Case:
    there = {case.attributes[0]: "Some `odd`.name"}
    back = {new: old for old, new in there.items()}
    return Case(
        case.attributes, lambda leaf: case.evaluate(leaf).rename(there).negate().rename(back), f"renamed -{case}"
    )


def keys(draw: st.DrawFn, case: Case) -> Case:
    kept = subset(draw, case.attributes)
    nulls = draw(st.booleans())
    return Case(tuple(kept), lambda leaf: case.evaluate(leaf).keys(kept, nulls=nulls), f"keys{kept}{nulls}{case}")


def key_delete(draw: st.DrawFn, case: Case) -> Case:
    own = subset(draw, case.attributes)
    gone = draw(leaves(own)) if own else draw(leaves(case.attributes))
    on = [(a, a) for a in own]
    return Case(
        case.attributes,
        lambda leaf: case.evaluate(leaf).key_delete(gone.evaluate(leaf), on),
        f"({case} without {own} {gone})",
    )


BOUNDED = {0: [0, 1, 2], **{j: POOLS[j] for j in (1, 3, 4, 6, 7)}}
"""By column, values that bounds may have."""


def outside(draw: st.DrawFn, case: Case) -> Case:
    able = [a for a in case.attributes if int(a[3:]) in BOUNDED]
    if not able:
        return case
    first = draw(st.sampled_from(able))
    values = st.sampled_from(BOUNDED[int(first[3:])])
    listed = Listed(first, tuple(draw(st.lists(values, max_size=2))), null=draw(st.booleans()))
    ends = [End(tuple(draw(st.lists(values, max_size=1))), draw(st.booleans())) for _ in range(2)]
    whole = [listed] if int(first[3:]) == 1 else [listed, Range((first,), *ends)]
    bound = Bound(tuple(draw(st.lists(st.sampled_from(whole), max_size=2))))
    return Case(case.attributes, lambda leaf: case.evaluate(leaf).outside(bound), f"({case} outside {bound})")


def part(draw: st.DrawFn, case: Case) -> Case:
    sign = draw(st.sampled_from([1, -1]))
    return Case(case.attributes, lambda leaf: case.evaluate(leaf).part(sign), f"part{sign:+d}{case}")


@pytest.fixture(scope="module", autouse=True)
def little_plans(spark: SparkSession) -> Iterator[None]:
    """For many plans over few rows, planning is what takes the time."""
    wanted = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
    before = {name: str(spark.conf.get(name)) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    yield
    for name, value in before.items():
        spark.conf.set(name, value)


CASES = st.lists(
    st.sampled_from([(0,), (1,), (0, 1), (2, 0), (0, 1, 2)]).flatmap(lambda r: expressions(r, 3)),
    min_size=6,
    max_size=10,
)


@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate])
@given(cases=CASES)
def test_bags_and_spark_relations_are_equal(spark: SparkSession, cases: list[Case]) -> None:
    """Whatever is computed from whatever mixture of the two, and wherever a join goes on in Spark because it does not
    fit into memory, the rows, their counts and their values are the same."""
    from strobe.spark.relation import SparkRelation

    def in_spark(bag: Bag) -> Relation:
        return SparkRelation.of_bag(spark, bag, TYPES)

    def placed(bag: Bag, place: str) -> Relation:
        return in_spark(bag) if place == "*" else bag.within(Room(2, in_spark)) if place == "!" else bag

    anchor = SparkRelation.of_bag(spark, Bag([]), TYPES)
    results = [anchor.lift(case.evaluate(placed)) for case in cases]
    rows: dict[int, dict[Row, int]] = defaultdict(dict)
    together = reduce(lambda a, b: a.union(b), map(wide, range(len(cases)), results))
    for number, *row, count in from_arrow(together.toArrow()):
        places = [list(TYPES).index(a) for a in cases[number].attributes]
        rows[number][tuple(row[i] for i in places)] = count
    for number, case in enumerate(cases):
        expected = case.evaluate(lambda bag, _: bag)
        assert results[number].attributes == expected.attributes == case.attributes
        assert Bag(case.attributes, rows[number]) == expected, case.text


def wide(number: int, relation: Any) -> DataFrame:
    """A result over all attributes there are, absent ones NULL, with the number of its case."""
    from pyspark.sql import functions as F  # noqa: N812

    frame: DataFrame = relation.net().dataframe()
    columns = [F.col(a) if a in relation.attributes else F.lit(None).cast(t) for a, t in TYPES.items()]
    return frame.select(F.lit(number), *(c.alias(a) for c, a in zip(columns, TYPES, strict=True)), "_count")


def test_collect_gives_the_bag_back(spark: SparkSession) -> None:
    """A bag that goes to Spark and comes back is the same bag, under names that Spark would not take."""
    from strobe.spark.relation import SparkRelation

    bag = Bag.of(["_count", "a.`b", "A.`B"], [(1, "x", None), (1, "x", None), (None, "y", 2.5)], count=-1)
    relation = SparkRelation.of_bag(spark, bag, {"_count": "bigint"})
    assert relation.collect() == bag
    assert relation.plus(bag.negate()).collect() == Bag(bag.attributes)
    assert relation.keys(["_count"]).collect() == Bag.of(["_count"], [(1,)])


def test_nan_is_a_key(spark: SparkSession) -> None:
    """NaN is a value and equals itself; only NULL is no key."""
    from strobe.spark.relation import SparkRelation

    bag = Bag.of(["a"], [(float("nan"),), (None,), (-0.0,)])
    assert SparkRelation.of_bag(spark, bag, {}).keys(["a"]).collect() == Bag.of(["a"], [(float("nan"),), (0.0,)])


def test_rows_of_a_frame_are_a_relation(spark: SparkSession) -> None:
    """Rows as Spark reads them count once each, and sum up."""
    from strobe.spark.relation import SparkRelation

    frame = spark.sql("SELECT * FROM VALUES (1, 'a'), (1, 'a'), (2, NULL) AS t(k, v)")
    relation = SparkRelation.of_rows(frame, {})
    assert relation.collect() == Bag.of(["k", "v"], [(1, "a"), (1, "a"), (2, None)])


def test_what_is_known_to_be_empty(spark: SparkSession) -> None:
    """Emptiness is claimed only where it is certain, and then costs no plan."""
    from strobe.spark.relation import SparkRelation

    full = SparkRelation.of_bag(spark, Bag.of(["a"], [(1,)]), {"a": "bigint", "b": "bigint"})
    empty = full.lift(Bag(["b"]))
    assert empty.known_empty and not full.known_empty
    assert full.join(empty, [("a", "b")]).known_empty
    assert not full.plus(full.negate()).known_empty
    assert full.plus(Bag(["a"])) is full
