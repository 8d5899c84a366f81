"""SQLite stores anything anywhere: a value that does not fit its column only matters where a view uses the column."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from strobe.algebra.bag import Bag
from strobe.errors import UserError
from strobe.sources.sqlite.source import SqliteSource


def test_only_used_columns_are_decoded(tmp_path: Path) -> None:
    """The same log stops a source that must decode the bad column, and not one that need not."""
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, placed DATE, state TEXT)")
    source = SqliteSource("shop", path)
    source.prepare(["orders"])
    start = source.now()
    connection.execute("INSERT INTO orders VALUES (1, 'yesterday', 'open')")
    connection.commit()
    with pytest.raises(UserError, match=r"(?s)column placed: a value of 9 characters.*shop.orders \(id=1\)"):
        next(source.transactions(start, [], lambda: False))
    source.focus({"orders": {"id", "state"}})
    transaction = next(source.transactions(start, [], lambda: False))
    assert transaction.changes == {"orders": Bag.of(["id", "state"], [(1, "open")])}
    connection.close()
