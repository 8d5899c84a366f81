"""Laws of the signed bag, which the Spark relations are held to as well."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable, Sequence
from decimal import Decimal

import pytest
from bags import expanded
from hypothesis import given
from hypothesis import strategies as st

from strobe.algebra.bag import NAN, Bag, Row, canonical, total
from strobe.algebra.index import Index
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room

VALUES = st.sampled_from([None, 0, 1, 2, "", "a", Decimal("1.0"), float("nan"), -0.0, b"x"])


def bags(*attributes: str) -> st.SearchStrategy[Bag]:
    row = st.tuples(*(VALUES.map(canonical) for _ in attributes))
    return st.dictionaries(row, st.integers(-3, 3), max_size=6).map(lambda rows: Bag(attributes, rows))


AB = bags("a", "b")
CD = bags("c", "d")


@given(AB)
def test_negation_is_the_inverse_of_plus(bag: Bag) -> None:
    """What comes and goes in the same number leaves nothing behind."""
    assert bag.add(bag.negate()).known_empty
    assert bag.negate().negate() == bag


@given(AB, AB, AB)
def test_plus_is_commutative_and_associative(x: Bag, y: Bag, z: Bag) -> None:
    """Changes may be summed in any order."""
    assert x.add(y) == y.add(x)
    assert x.add(y).add(z) == x.add(y.add(z))


@given(AB, AB)
def test_plus_goes_by_name(x: Bag, y: Bag) -> None:
    """The order in which the other's attributes are listed does not matter."""
    assert x.add(y.project(["b", "a"])) == x.add(y)


@given(AB, AB, CD)
def test_join_distributes_over_plus(x: Bag, y: Bag, z: Bag) -> None:
    """The law that incremental maintenance rests on."""
    on = [("a", "c")]
    assert x.add(y).join(z, on) == x.join(z, on).plus(y.join(z, on))
    assert x.negate().join(z, on) == Bag(["a", "b", "c", "d"]).plus(x.join(z, on)).negate()


@given(AB, CD)
def test_join_is_symmetric_and_multiplies(x: Bag, z: Bag) -> None:
    """Own attributes come first, counts multiply, NULL joins with nothing."""
    joined = x.join(z, [("a", "c")])
    assert joined.attributes == ("a", "b", "c", "d")
    assert joined == z.join(x, [("c", "a")])
    expected: dict[Row, int] = {}
    for (a, b), n in x.items():
        for (c, d), m in z.items():
            if (a is not None and a == c) or (a is c and a is NAN):
                expected[(a, b, c, d)] = n * m
    assert joined == Bag(["a", "b", "c", "d"], expected)


@given(AB, AB)
def test_project_is_linear_and_keeps_the_sum(x: Bag, y: Bag) -> None:
    """Rows that become equal are summed; projecting a sum is summing projections."""
    assert x.add(y).project(["b"]) == x.project(["b"]).add(y.project(["b"]))
    assert sum(n for _, n in x.project([]).items()) == sum(n for _, n in x.items())


@given(AB)
def test_rename_changes_names_only(x: Bag) -> None:
    """Renaming there and back is nothing."""
    renamed = x.rename({"a": "z"})
    assert renamed.attributes == ("z", "b")
    assert renamed.rename({"z": "a"}) == x


@given(AB)
def test_keys_are_distinct_without_null_whatever_the_sign(x: Bag) -> None:
    """A row that goes has a key too; NULL is none."""
    keys = x.keys(["b"])
    assert {row for row, _ in keys.items()} == {(b,) for (_, b), _ in x.items() if b is not None}
    assert all(n == 1 for _, n in keys.items())


@given(AB, CD)
def test_key_delete_removes_exactly_the_rows_with_these_keys(x: Bag, z: Bag) -> None:
    """Also where the key is NULL: a row as a whole may serve as a key."""
    left = x.key_delete(z, [("a", "c")])
    gone = {row[z.attributes.index("c")] for row, _ in z.items()}
    at = x.attributes.index("a")
    assert left == Bag(x.attributes, {row: n for row, n in x.items() if row[at] not in gone})


@given(AB)
def test_of_sums_equal_rows(x: Bag) -> None:
    """A bag from rows with repetitions holds each once, with its count."""
    plain = Bag(x.attributes, {row: abs(n) for row, n in x.items()})
    assert Bag.of(["a", "b"], expanded(plain)) == plain
    assert Bag.of(["a", "b"], expanded(plain), count=-1) == plain.negate()


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (float("nan"), -float("nan")),
        (0.0, -0.0),
        (Decimal("1.5"), Decimal("1.500")),
        (Decimal("-0.0"), Decimal(0)),
        (Decimal(2), 2),
        (bytearray(b"ab"), memoryview(b"ab")),
    ],
)
def test_canonical_values_hash_and_cancel(one: object, other: object) -> None:
    """Values that Spark calls equal are one value on the driver, so that a row coming and going cancels."""
    assert Bag.of(["a"], [(one,)]).add(Bag.of(["a"], [(other,)], count=-1)).known_empty


def test_canonical_leaves_other_values_alone() -> None:
    """Nothing but the form of a value ever changes."""
    for value in (None, 1, "é", "e\u0301", b"", 1.5, math.inf, Decimal("1.10"), True):
        assert canonical(value) == value
    assert math.copysign(1, canonical(-0.0)) == 1
    assert canonical("é") != canonical("e\u0301")


class Boundless(Bag):
    """Has no limit, whatever it is joined with."""

    def join(self, other: Relation, on: Sequence[tuple[str, str]]) -> Relation:
        return super().join(Bag(other.attributes, dict(other.collect().items())), on)


class Elsewhere:
    """Stands for the place where there is room: remembers what was brought there, and goes on without a limit."""

    def __init__(self, rows: int) -> None:
        self.room = Room(rows, self.lift)
        self.lifted: list[Bag] = []

    def lift(self, bag: Bag) -> Relation:
        self.lifted.append(bag)
        return Boundless(bag.attributes, dict(bag.items()))


@given(AB, CD, st.integers(0, 6))
def test_a_join_that_does_not_fit_is_carried_out_elsewhere(x: Bag, z: Bag, rows: int) -> None:
    """It is the product that counts, before it is made; and the result is the same."""
    place = Elsewhere(rows)
    expected = x.join(z, [("a", "c")])
    assert isinstance(expected, Bag)
    assert x.within(place.room).join(z, [("a", "c")]) == expected
    assert place.lifted == ([x] if len(expected) > rows else [])
    assert place.room.left == rows - (0 if place.lifted else len(expected))


@given(AB, CD, st.integers(0, 6))
def test_a_join_by_an_index_that_does_not_fit_is_carried_out_elsewhere(x: Bag, z: Bag, rows: int) -> None:
    """Whichever of the two has a room."""
    expected = x.join(z, [("a", "c")])
    assert isinstance(expected, Bag)
    for of_index in (True, False):
        place = Elsewhere(rows)
        index = Index(z.attributes, ["c"], [z.within(place.room) if of_index else z])
        assert index.join(x if of_index else x.within(place.room), ["a"]) == expected
        assert place.lifted == ([x] if len(expected) > rows else [])


DERIVED: list[Callable[[Bag, Bag], Relation]] = [
    lambda x, y: x.plus(y),
    lambda x, y: y.plus(x),
    lambda x, y: Bag(["a", "b"]).plus(x).plus(y),
    lambda x, y: total(["a", "b"], [y, x]),
    lambda x, _: x.negate(),
    lambda x, _: x.project(["b"]).rename({"b": "a"}),
    lambda x, _: x.rename({"b": "other"}),
    lambda x, _: x.keys(["a"]),
    lambda x, y: x.key_delete(y, [("a", "a")]),
    lambda x, _: x.part(-1),
    lambda x, _: x.join(Bag.of(["z"], [(1,)]), []),
    lambda x, _: Bag.of(["z"], [(1,)]).join(x, []),
]


@pytest.mark.parametrize("derive", DERIVED)
def test_what_is_derived_from_a_bag_has_its_room(derive: Callable[[Bag, Bag], Relation]) -> None:
    """Whatever a manager computes on the way to a join: a term has the room of what it grew from."""
    place = Elsewhere(6)
    x = Bag.of(["a", "b"], [(n, n) for n in range(6)], -1).within(place.room)
    derived = derive(x, Bag.of(["a", "b"], [(7, 7)]))
    derived.join(Bag.of(["y"], [(n,) for n in range(7)]), [])
    assert place.lifted


def test_a_room_is_for_all_joins_until_it_is_renewed() -> None:
    """Many joins that fit each may not fit together."""
    place = Elsewhere(6)
    x, y = Bag.of(["a"], [(1,), (2,)]).within(place.room), Bag.of(["b"], [(1,), (2,)])
    x.join(y, [])
    assert not place.lifted
    x.join(y, [])
    assert place.lifted == [x]
    place.room.renew()
    x.join(y, [])
    assert place.lifted == [x]


def test_a_room_stays_in_its_process() -> None:
    """A bag that is sent to another one has its rows, and no limit that would mean nothing there."""
    place = Elsewhere(1)
    x = Bag.of(["a"], [(1,), (2,)], 3).within(place.room)
    sent = pickle.loads(pickle.dumps(x))
    assert sent == x and copy.copy(x) == x
    sent.join(Bag.of(["b"], [(1,)]), [])
    assert not place.lifted
