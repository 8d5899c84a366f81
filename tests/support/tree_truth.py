"""What a view changes by: by its fragments, evaluated in Spark, and by the user's own SQL, computed from scratch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from bags import expanded

from strobe.algebra.bag import Bag
from strobe.algebra.substitution import substitute
from strobe.algebra.view import View, snapshot_name
from strobe.data.arrow import to_arrow
from strobe.managers.fragments import Collector, Known, Wanted
from strobe.messages import Fragment
from strobe.warehouse.fragments import net_change

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

State = Mapping[str, Bag]
"""The rows of relations by their ids."""


def _fragments(view: View, states: Sequence[State]) -> list[Fragment]:
    """Of all units, with every question answered as things were before the first."""
    occupied = [{o.index: substitute(o, s[o.relation.id]).collect() for o in view.occurrences} for s in states]
    changes = [{i: b[i].add(a[i].negate()) for i in a} for a, b in pairwise(occupied)]
    known = Known(view, [{i: rows for i, rows in unit.items() if not rows.known_empty} for unit in changes])
    collector, found = Collector(view), list[Fragment]()
    while len(found) < len(changes):
        wanted: Wanted = {}
        fragment = collector.fragment(known, len(found), wanted)
        if fragment is not None:
            found.append(fragment)
        for (index, columns), keys in wanted.items():
            rows = occupied[0][index]
            places = [rows.attributes.index(column) for column in columns]
            matching = {row: n for row, n in rows.items() if tuple(row[i] for i in places) in keys}
            known.learn((index, columns), keys, Bag(rows.attributes, matching))
    return found


def _recomputed(spark: SparkSession, view: View, state: State) -> Counter[str]:
    for relation in view.relations:
        names, types = [c.name for c in relation.columns], [c.type for c in relation.columns]
        table = to_arrow(names, types, expanded(state[relation.id]))
        spark.createDataFrame(table).coalesce(1).createOrReplaceTempView(snapshot_name(relation))
    return Counter(_written(row) for row in spark.sql(view.recompute_sql).collect())


def _written(row: Sequence[Any]) -> str:
    return repr(tuple(row)).replace("-0.0", "0.0")


def check(spark: SparkSession, view: View, states: Sequence[State]) -> None:
    """After each of these states the view has changed by what Spark makes of the fragment that leads there."""
    truth = [_recomputed(spark, view, state) for state in states]
    found: list[Counter[str]] = [Counter() for _ in truth[1:]]
    frame, _ = net_change(spark, view, list(enumerate(_fragments(view, states))))
    for number, *row, count in frame.collect():
        found[number][_written(row)] += count
    for number in range(len(found)):
        wanted = Counter(truth[number + 1])
        wanted.subtract(truth[number])
        assert _net(found[number]) == _net(wanted), (number, view.sql)


def _net(counts: Counter[str]) -> dict[str, int]:
    return {row: n for row, n in counts.items() if n}
