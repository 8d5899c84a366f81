"""Look-ups by key, as all databases do them: each key in the form that the asked columns have, each row once.

A key comes from another source, whose column may have another type: an integer may be asked for with a decimal, 0.00
with 0E-10. `data.keys` makes of it what the asked column holds. A server's own equality may be wider than Spark's
(letter case, trailing blanks), and a statement may search by some of the columns only, so a row may match keys of
several statements; it is kept where its own key is one of those that were asked for.

A NULL in a key finds NULL. Keys that have NULL in the same columns share statements, which ask for the values of the
other columns among the rows that have NULL there: `a IN (…) AND b IS NULL`, for which an index serves.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice
from typing import Any, TypeVar

from strobe.algebra.bag import Row
from strobe.data.keys import fitted
from strobe.messages import Lookup


class KeySearch:
    """Finding a table's rows that have NULL in some columns and certain values in others."""

    def __init__(self, on: Sequence[str], nulls: Sequence[str], encoders: Mapping[str, Callable[[Any], Any]]) -> None:
        """`encoders` makes of a value what the server is asked for, or None where no row can have it. A column without
        one narrows nothing."""
        self._places = [i for i, c in enumerate(on) if c in encoders]
        self.columns = [on[i] for i in self._places]
        self.nulls = nulls
        self._encoders = [encoders[c] for c in self.columns]

    @property
    def narrows(self) -> bool:
        return bool(self.columns or self.nulls)

    def encode(self, key: Row) -> tuple[Any, ...] | None:
        values = tuple([encode(key[i]) for i, encode in zip(self._places, self._encoders, strict=True)])
        return None if None in values else values


Search = TypeVar("Search", bound=KeySearch)


def look_up(
    lookup: Lookup,
    keys: Iterable[Row] | None,
    types: Mapping[str, str],
    most: int,
    search: Callable[[Sequence[str], Sequence[str]], Search],
    read: Callable[[Search, Sequence[str], list[tuple[Any, ...]]], Iterable[Row]],
    scan: Callable[[], Iterable[Row]],
) -> Iterator[Row]:
    """The rows that have one of the keys, at most so many keys in one statement; all rows where there are no keys, or
    some narrow nothing.

    `types` are the columns' in Spark. `search` is given the columns that have values, and those that are NULL. `read`
    yields the rows with one of the encoded keys over the given columns, each once, and maybe more.
    """
    alike: dict[tuple[bool, ...], list[Row]] = defaultdict(list)
    for key in keys or ():
        alike[tuple([value is not None for value in key])].append(key)
    groups = [(known, search(*_split(lookup.on, known))) for known in alike]
    if keys is None or not all(found.narrows for _, found in groups):
        yield from scan()
        return
    columns = tuple(dict.fromkeys((*lookup.columns, *lookup.on)))
    width = len(lookup.columns)
    for known, found in groups:
        on, nulls = ([columns.index(c) for c in some] for some in _split(lookup.on, known))
        own = [types.get(columns[i], "") for i in on]  # `read` refuses columns that are gone
        values = fitted((tuple(compress(key, known)) for key in alike[known]), own)
        wanted = ((key, encoded) for key in values if (encoded := found.encode(key)) is not None)
        while batch := dict(islice(wanted, most)):
            for row in read(found, columns, list(dict.fromkeys(batch.values()))):
                if tuple([row[i] for i in on]) in batch and all(row[i] is None for i in nulls):
                    yield row[:width]


def _split(columns: Sequence[str], known: Sequence[bool]) -> tuple[list[str], list[str]]:
    """The columns that have values in a key, and those that are NULL."""
    return list(compress(columns, known)), [c for c, there in zip(columns, known, strict=True) if not there]
