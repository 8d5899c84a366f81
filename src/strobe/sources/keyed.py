"""Look-ups by key, as all databases do them: each key in the form that the asked columns have, each row once.

A key comes from another source, whose column may have another type: an integer may be asked for with a decimal, 0.00
with 0E-10. `data.keys` makes of it what the asked column holds. A server's own equality may be wider than Spark's
(letter case, trailing blanks), and a statement may search by some of the columns only, so a row may match keys of
several statements; it is kept where its own key is one of those that were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TypeVar

from strobe.algebra.bag import Row
from strobe.data.keys import fitted
from strobe.messages import Lookup

Encoded = TypeVar("Encoded")


def look_up(
    lookup: Lookup,
    keys: Iterable[Row],
    types: Mapping[str, str],
    most: int,
    encode: Callable[[Row], Encoded | None],
    read: Callable[[Sequence[str], list[Encoded]], Iterable[Row]],
) -> Iterator[Row]:
    """The rows that have one of the keys, at most so many keys in one statement.

    `types` are the columns' in Spark. `encode` makes of a key what the server is asked for; None where no row
    can have it. `read` yields the rows with one of the encoded keys over the given columns, each once, and maybe more.
    """
    columns = tuple(dict.fromkeys((*lookup.columns, *lookup.on)))
    places = [columns.index(c) for c in lookup.on]
    width = len(lookup.columns)
    own = [types.get(c, "") for c in lookup.on]  # `read` refuses columns that are gone
    wanted = ((key, found) for key in fitted(keys, own) if (found := encode(key)) is not None)
    while batch := dict(islice(wanted, most)):
        for row in read(columns, list(dict.fromkeys(batch.values()))):
            if tuple([row[i] for i in places]) in batch:
                yield row[:width]
