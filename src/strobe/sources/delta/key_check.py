"""A declared key of a Delta table, which Delta itself does not enforce: held against every version.

If a key held before a commit, it holds after it unless a key that the commit brought is there twice. So only those are
looked for, in the files that the table then has, which are followed from commit to commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow.dataset as ds

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.data.arrow import from_arrow, matching
from strobe.sources.delta.data_files import dataset_over, fragment_of, schema_of
from strobe.sources.delta.log import Commit, DeltaLog, Shape
from strobe.sources.delta.reader import opened, reading


def repeated(dataset: ds.Dataset, key: Sequence[str], condition: ds.Expression | None = None) -> Iterator[Row]:
    """Keys that are NULL or come more than once."""
    found = dataset.to_table(columns=list(key), filter=condition).group_by(list(key)).aggregate([([], "count_all")])
    for *values, count in from_arrow(found.select([*key, "count_all"])):
        if count > 1 or None in values:
            yield tuple(values)


def repeated_key(key: Sequence[str], row: Row) -> str:
    values = ", ".join(f"{column}={value!r}" for column, value in zip(key, row, strict=True))
    return f"a key is NULL or comes more than once: {values}"


class KeyWatch:
    """Follows a table from a version at which its key holds."""

    def __init__(self, log: DeltaLog, key: Sequence[str], commit: Commit) -> None:
        self._log, self._key = log, tuple(key)
        data, _ = opened(log, commit.position)
        self._fragments = {fragment.path: fragment for fragment in data.get_fragments()}

    def follow(self, commit: Commit, shape: Shape, change: Relation | None) -> None:
        """Raise if the key does not hold after a commit."""
        types = {column: shape.types[column] for column in self._key}
        for file in (file for file in commit.moved if file.sign < 0):
            self._fragments.pop(file.path, None)
        for file in (file for file in commit.moved if file.sign > 0):
            self._fragments[file.path] = fragment_of(file.partitioned_by(shape.partitioned), types)
        if change is None or change.known_empty:
            return
        suspects = {row for row, n in change.project(self._key).items() if n > 0} if isinstance(change, Bag) else None
        if suspects is not None and not suspects:
            return
        data = dataset_over(self._fragments.values(), schema_of(types))
        plain = suspects is not None and not any(None in row for row in suspects)
        with reading(self._log):
            condition = matching(data, self._key, suspects) if suspects is not None and plain else None
            for row in repeated(data, self._key, condition):
                if suspects is None or row in suspects:
                    fix = "Mend the rows, or take `key` out of strobe.yml; then rebuild the views that use this source."
                    raise self._log.lost(f"since version {commit.version} {repeated_key(self._key, row)}", fix)
