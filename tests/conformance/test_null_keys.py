"""Look-ups in which NULL finds NULL, over every source: of one column and of several, alone and among other keys."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from strobe.algebra.bag import Bag, Row
from strobe.messages import Lookup, Query
from strobe.simulator.world import MemorySource
from strobe.sources.base import Source
from strobe.sources.lookups import answer_on_driver

if TYPE_CHECKING:
    from conftest import SourceUnderTest

ROWS, QUESTIONS = 60, 60


class Filled:
    """A relation with a column of each type, NULL in many places, in a source and in memory."""

    def __init__(self, under_test: SourceUnderTest, seed: int) -> None:
        rng = random.Random(seed)
        types = {f"c{n}": type_ for n, type_ in enumerate(under_test.values)}
        self.types = {"id": "bigint", "n": "bigint", "m": "bigint"} | types
        self.pools = [list(range(ROWS)), [0, 1, 2], [0, 1, 2], *(v[:3] for v in under_test.values.values())]
        rows = [(n, *(rng.choice([None, None, *pool]) for pool in self.pools[1:])) for n in range(ROWS)]
        self.source = under_test.prepared({"wide": (self.types, ("id",))})
        under_test.apply([("wide", None, row) for row in rows])
        self.rows = Bag.of(tuple(self.types), rows)
        self.memory = MemorySource(self.source.name, {"wide": self.rows})

    def lookup(self, on: Sequence[str], keys: Sequence[Row] = (), *, null_safe: bool = True) -> Lookup:
        attributes = tuple(f"key{n}" for n in range(len(on)))
        return Lookup(0, "wide", tuple(self.types), tuple(on), Bag.of(attributes, set(keys)), null_safe=null_safe)

    def check(self, *lookups: Lookup) -> list[Bag]:
        """Every row that memory finds is found, as often; and nothing that is not there."""
        found = ask(self.source, *lookups)
        for lookup, rows in zip(lookups, found, strict=True):
            if lookup.keys_from is not None:
                index, columns = lookup.keys_from
                keys = found[index].keys(columns, nulls=True)
                lookup = replace(lookup, keys=keys, keys_from=None)
            (expected,) = self.memory.answer(Query("v", 1, self.source.name, (lookup,))).relations
            assert isinstance(expected, Bag)
            assert set(expected.items()) <= set(rows.items()) <= set(self.rows.items()), lookup
        return found


def ask(source: Source, *lookups: Lookup) -> list[Bag]:
    found, _ = answer_on_driver(source.reader(), Query("v", 1, source.name, lookups), 10**6)
    return list(found)


@pytest.fixture
def filled(under_test: SourceUnderTest) -> Filled:
    return Filled(under_test, 19)


def test_null_finds_null(filled: Filled) -> None:
    """In a column of every type; beside a value, and beside another NULL; and by itself it narrows what is read."""
    for column in [c for c in filled.types if c != "id"]:
        (alone,) = filled.check(filled.lookup((column,), [(None,)]))
        place = alone.attributes.index(column)
        assert not alone.known_empty and all(row[place] is None for row, _ in alone.items())
        value = filled.pools[place][0]
        filled.check(filled.lookup((column,), [(None,), (value,)]))
        for keys in (
            [(None, 1)],
            [(None, None)],
            [(value, None)],
            [(value, None), (None, 1), (None, None), (value, 1)],
        ):
            filled.check(filled.lookup((column, "n"), keys))
    filled.check(filled.lookup(("n", "n"), [(None, 1), (None, None)]))


def test_any_keys_find_what_they_find_in_memory(filled: Filled) -> None:
    """By up to three columns, many keys or none, given or found by another look-up, with `null_safe` and without."""
    rng, names = random.Random(7), list(filled.types)
    for _ in range(QUESTIONS):
        on = rng.sample(names, rng.randint(1, 3))
        pools = [[None, *filled.pools[names.index(c)]] for c in on]
        keys = [tuple(map(rng.choice, pools)) for _ in range(rng.choice([0, 1, 2, 9, 200]))]
        first = filled.lookup(on, keys, null_safe=rng.random() < 0.7)
        there, here = rng.sample(["n", "m"], 2)
        others = tuple(rng.sample([c for c in names if c not in ("n", "m")], rng.randint(0, 2)))
        second = replace(filled.lookup((here, *others)), keys=None, keys_from=(0, (there, *others)))
        filled.check(first, replace(second, null_safe=rng.random() < 0.7))
