"""What the log says of a view, as it is read for look-ups."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strobe.algebra.bag import Bag
from strobe.warehouse.layout import field
from strobe.warehouse.lookups import logged
from strobe.warehouse.storage import Location


def test_changes_come_in_the_order_of_commits_however_a_file_holds_them(tmp_path: Path) -> None:
    """Spark writes the rows of several commits in any order; read out of order, a row would go before it came."""
    rows = field("v", 1)
    table = pa.table(
        {
            "commit": [3, 2, 3],
            "view": ["v", "v", "other"],
            "count": [-1, 1, 1],
            "rows": [{rows: {"id": 7}}, {rows: {"id": 7}}, {rows: None}],
        }
    )
    pq.write_table(table, tmp_path / "part.parquet")
    found = logged(Location(str(tmp_path / "part.parquet")), "v", 1, 1, 3, ("id",))
    assert list(found.items()) == [(2, Bag(("id",), {(7,): 1})), (3, Bag(("id",), {(7,): -1}))]
