"""Every special value of every kind of column is found by every key that Spark calls equal, and comes once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from special_values import TYPES, equal_in_spark, special

from strobe.algebra.bag import Bag, Row, canonical
from strobe.algebra.schema import joinable
from strobe.messages import Lookup
from strobe.sources.base import Source

if TYPE_CHECKING:
    from conftest import SourceUnderTest

COLUMNS = ("id", "c", "d")
FILLER = [f"filler {n}" for n in range(5001)]
"""More keys than any source asks for in one statement."""


def test_every_key_finds_every_row_that_spark_calls_equal(under_test: SourceUnderTest) -> None:
    """For all pairs of types that may be joined: by an indexed column, by one without an index, by both, one key at a
    time and all at once."""
    for source, name, type_ in filled(under_test):
        rows = scanned(source, name)
        assert len(rows) >= 2, f"{name} holds too little to show anything"
        assert not (type_.startswith("decimal") or type_ in ("int", "double")) or any(row[1] == 0 for row in rows)
        for asking in TYPES:
            if joinable(asking, type_):
                spelled = [row[1] for row in rows] if asking == type_ else []
                keys = list(Bag.of(("k",), [(k,) for k in (*special(asking), *spelled)]).project(("k",)).items())
                check(source, name, rows, [key for (key,), _ in keys], f"{name} by {asking}")


def test_no_row_comes_twice(under_test: SourceUnderTest) -> None:
    """Neither where keys in different statements are equal to the server alone, nor where one of two columns cannot be
    searched or both are searched on their own."""
    for source, name, type_ in filled(under_test):
        rows = scanned(source, name)
        values = list(dict.fromkeys([row[1] for row in rows] + [canonical(v) for v in special(type_)]))
        groups = dict[str, list[Any]]()
        for value in values:
            groups.setdefault(str(value).casefold().strip(), []).append(value)
        first = [group[0] for group in groups.values()]
        filler = FILLER if type_ == "string" else []
        keys = [*first, *filler, *(value for value in values if value not in first)]
        twice(source, name, ("c",), [(key,) for key in keys])
        ids = [row[0] for row in rows]
        spread = [(n, key) for n in ids for key in values[:20]]
        if type_ == "string":
            spread = [*((ids[0], key) for key in first), *((-1, key) for key in filler), *spread]
        twice(source, name, ("id", "d"), list(dict.fromkeys(spread)))


def twice(source: Source, name: str, on: tuple[str, ...], keys: list[Row]) -> None:
    reader = source.reader()
    reader.open()
    try:
        found = Counter(reader.lookup(Lookup(0, name, COLUMNS, on), keys))
    finally:
        reader.close()
    assert found and set(found.values()) == {1}, f"{name} on {on}: {found.most_common(3)}"


def filled(under_test: SourceUnderTest) -> Iterator[tuple[Source, str, str]]:
    """Relations with the values that each kind of column can hold, in a column with an index and in one without."""
    natives = under_test.columns or {type_: type_ for type_ in under_test.values if type_ in TYPES}
    tables = {
        name: ({"id": "bigint", "c": native, "d": native}, ("c", "id") if under_test.indexable(native) else ("id",))
        for name, native in zip((f"of {n}" for n in range(len(natives))), natives, strict=True)
    }
    together = None if "several relations" in under_test.lacks else under_test.prepared(tables)
    for (name, table), (native, type_) in zip(tables.items(), natives.items(), strict=True):
        source = together or under_test.prepared({name: table})
        values = [v for v in special(type_) if under_test.holds(native, v)]
        under_test.apply([(name, None, (n, value, value)) for n, value in enumerate(values)])
        yield source, name, type_


def scanned(source: Source, name: str) -> list[Row]:
    reader = source.reader()
    reader.open()
    try:
        return list(reader.scan(name, COLUMNS))
    finally:
        reader.close()


def check(source: Source, name: str, rows: list[Row], keys: list[Any], what: str) -> None:
    reader = source.reader()
    reader.open()
    try:
        for chosen in [[key] for key in keys] + [keys]:
            wanted = {row for row in rows if any(equal_in_spark(row[1], key) for key in chosen)}
            for on in (("c",), ("d",), ("c", "d")):
                asked = [(key,) * len(on) for key in chosen]
                found = Counter(reader.lookup(Lookup(0, name, COLUMNS, on), asked))
                missed = wanted - {tuple(map(canonical, row)) for row in found}
                assert not missed, f"{what}: {chosen[:3]!r} on {on} misses {missed}"
                assert set(found.values()) <= {1}, f"{what}: {chosen[:3]!r} on {on} finds a row twice"
    finally:
        reader.close()
