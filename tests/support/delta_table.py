"""A Delta table that tests write without Spark, and what its source says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from strobe.algebra.bag import Bag, Row
from strobe.config import model as config_model
from strobe.data.arrow import arrow_schema, from_arrow, to_arrow
from strobe.messages import Lookup, Position, Query, Transaction
from strobe.sources.delta.source import DeltaSource
from strobe.sources.lookups import answer_on_driver

FEED = {"delta.enableChangeDataFeed": "true"}


class Table:
    """A table of its own and the source that watches it."""

    def __init__(self, folder: Path, **types: str) -> None:
        self.path = folder / "stock"
        self.types = types or {"id": "bigint", "place": "string", "x": "double"}

    def create(self, partitioned: list[str] | None = None, properties: dict[str, str] | None = None) -> Table:
        schema = arrow_schema(list(self.types), list(self.types.values()))
        properties = FEED if properties is None else properties
        DeltaTable.create(str(self.path), schema, partition_by=partitioned, configuration=properties)
        return self

    def rows(self, *rows: Row) -> pa.Table:
        return to_arrow(list(self.types), list(self.types.values()), rows)

    def append(self, *rows: Row) -> None:
        write_deltalake(str(self.path), self.rows(*rows), mode="append")

    def open(self, *key: str) -> DeltaSource:
        return DeltaSource("depot", config_model.DeltaSource(type="delta", path=str(self.path), key=list(key)), None)

    @property
    def delta(self) -> DeltaTable:
        return DeltaTable(str(self.path))

    def log(self, version: int) -> Path:
        return self.path / "_delta_log" / f"{version:020}.json"

    def commit(self, *actions: dict[str, Any]) -> None:
        """A commit as any writer could have made it."""
        lines = [json.dumps(action) for action in ({"commitInfo": {"timestamp": 1700000000000}}, *actions)]
        self.log(self.delta.version() + 1).write_text("\n".join(lines))

    def by_spark(self, *versions: int) -> None:
        """Let it have been Spark that wrote these versions."""
        for version in versions:
            actions = [json.loads(line) for line in self.log(version).read_text().splitlines()]
            for action in actions:
                if "commitInfo" in action:
                    action["commitInfo"]["engineInfo"] = "Apache-Spark/4.1.4 Delta-Lake/4.4.0"
            self.log(version).write_text("\n".join(map(json.dumps, actions)))

    def metadata(self) -> dict[str, Any]:
        """The table's metadata, as the log has it."""
        for version in range(self.delta.version(), -1, -1):
            for action in map(json.loads, self.log(version).read_text().splitlines()):
                if "metaData" in action:
                    return action
        raise AssertionError

    def contents(self, version: int, columns: list[str]) -> Bag:
        table = DeltaTable(str(self.path), version=version).to_pyarrow_table()
        return Bag.of(columns, from_arrow(table.select(columns)))


def read(source: DeltaSource, after: Position | None = None) -> list[Transaction]:
    """Everything from a position, or from version 0, until now."""
    after = source.log.position(0) if after is None else after
    end, found = source.now(), list[Transaction]()
    for transaction in source.transactions(after, [], lambda: bool(found) and end <= found[-1].position):
        found.append(transaction)
    return found


def ask(source: DeltaSource, columns: list[str], on: list[str] | None = None, keys: list[Row] | None = None) -> Bag:
    wanted = Bag.of(tuple(on or ()), keys) if keys is not None else None
    lookup = Lookup(0, "stock", tuple(columns), tuple(on or ()), wanted)
    (found,), _ = answer_on_driver(source.reader(), Query("v", 1, "depot", (lookup,)), 10**6)
    return found


def hold(table: Table, source: DeltaSource, columns: list[str]) -> list[Transaction]:
    """At every version the sum of the stream is what the table was."""
    state, found = Bag(tuple(columns)), read(source)
    assert [t.position.order[0] for t in found] == list(range(1, table.delta.version() + 1))
    for transaction in found:
        change = transaction.changes.get("stock", Bag(tuple(columns)))
        assert isinstance(change, Bag)
        state = state.add(change)
        version = transaction.position.order[0]
        assert state == table.contents(version, columns), f"version {version}"
    return found
