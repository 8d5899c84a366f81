"""Which rows are in a partition, in memory; `tests/spark/test_relation_differential.py` holds Spark to the same."""

from __future__ import annotations

import pytest

from strobe.algebra.bounds import Bound, End, Range


@pytest.mark.parametrize(
    ("lower", "upper", "inside"),
    [
        (End(), End((3,), False), [0, 1, 2]),
        (End((1,)), End(), [1, 2, 3, 4]),
        (End((1,), False), End((3,)), [2, 3]),
        (End((), False), End(), []),
        (End(), End((), False), []),
    ],
)
def test_ends_of_a_range(lower: End, upper: End, inside: list[int]) -> None:
    """An end without values is none, or where it is not included, lies beyond all values: to Spark too."""
    bound = Bound((Range(("a",), lower, upper),))
    test = bound.test(["a"])
    assert [n for n in range(5) if test((n,))] == inside
    assert not test((None,))
    assert ("false)" in bound.sql({"a": "a"}, {"a": "int"}).replace(", false)", "")) == (not inside)
