"""What a transaction does, net, relation by relation: in memory as long as it is small, beyond that in files.

A source's log has changes one after another; what is reported is what they come to. A row that comes and goes again is
no change. Beyond a number of rows, or of bytes, what has come so far is written as another *piece* (see
`data.spilled`), and forgotten here: so a transaction of any size is read in the memory of a small one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strobe.algebra.bag import Bag, Row
from strobe.algebra.relation import Relation
from strobe.data.arrow import arrow_schema, to_arrow
from strobe.data.scratch import SPILLED, Lease, Scratch
from strobe.data.spilled import Spilled, file_columns
from strobe.errors import UserError
from strobe.sources.base import Spill

BATCH = 20_000
"""Rows that are written at a time."""
FEW = 10
"""A relation with less than a tenth of the rows that are held stays in memory."""

Changes = Mapping[str, Relation]
Saved = Mapping[str, "NetChange"]


class NetChange:
    """What a transaction did to one relation."""

    key: tuple[str, ...] = ()

    def __init__(self, columns: Mapping[str, str], folder: str = "") -> None:
        """`columns` with their Spark types; pieces go into a `folder` of that name."""
        self.columns = dict(columns)
        self.folder = folder
        self.pieces = 0
        self._counts: dict[Row, int] = {}

    def __len__(self) -> int:
        """The rows that are held here."""
        return len(self._counts)

    def change(self, old: Row | None, new: Row | None) -> None:
        for row, sign in ((old, -1), (new, 1)):
            if row is not None:
                count = self._counts.get(row, 0) + sign
                if count:
                    self._counts[row] = count
                else:
                    del self._counts[row]

    def changes(self) -> Bag:
        return Bag(tuple(self.columns), self._counts)

    def gone(self) -> Bag:
        return Bag(())

    def piece(self) -> Iterator[Row]:
        """What is held, as it is written."""
        return ((*row, count) for row, count in self._counts.items())

    def forget(self) -> None:
        self._counts = {}

    def copy(self) -> NetChange:
        same = copy.copy(self)
        for name, value in vars(self).items():
            if isinstance(value, dict):
                setattr(same, name, dict(value))
        return same


class KeyedNetChange(NetChange):
    """The same, where old rows are known by their keys: which of them were there before, and what is there after."""

    def __init__(self, columns: Mapping[str, str], key: tuple[str, ...], folder: str = "") -> None:
        super().__init__(columns, folder)
        self.key = key
        self._places = [list(columns).index(c) for c in key]
        self._before: dict[Row, bool] = {}
        self._after: dict[Row, Row | None] = {}

    def __len__(self) -> int:
        return len(self._before)

    def change(self, old: Row | None, new: Row | None) -> None:
        """`old` is a key."""
        if old is not None:
            self._before.setdefault(old, True)
            self._after[old] = None
        if new is not None:
            key = tuple(new[i] for i in self._places)
            self._before.setdefault(key, False)
            self._after[key] = new

    def changes(self) -> Bag:
        return Bag(tuple(self.columns), {row: 1 for row in self._after.values() if row is not None})

    def gone(self) -> Bag:
        return Bag(self.key, {key: 1 for key, there in self._before.items() if there})

    def piece(self) -> Iterator[Row]:
        nothing = (None,) * len(self.columns)
        for key, before in self._before.items():
            row = self._after[key]
            yield (*(nothing if row is None else row), int(row is not None), self.pieces, before, *key)

    def forget(self) -> None:
        self._before, self._after = {}, {}


class NetChanges:
    """All relations of one transaction after another."""

    def __init__(self, spill: Spill | None = None) -> None:
        """Pieces go into files there; without it everything is held in memory."""
        self.spill = spill
        self._own: Lease | None = None
        self._nets: dict[str, NetChange] = {}
        self._changes = self._bytes = 0

    def of(self, relation: str, columns: Mapping[str, str], key: tuple[str, ...] = ()) -> NetChange:
        """The net of one relation; with a key, old rows are known by it."""
        found = self._nets.get(relation)
        if found is None:
            folder = str(len(self._nets))  # a table may have any name
            found = self._nets[relation] = KeyedNetChange(columns, key, folder) if key else NetChange(columns, folder)
        return found

    def touched(self, relation: str) -> bool:
        """Whether anything has been done to a relation."""
        return relation in self._nets

    def grew(self, size: int) -> None:
        """Another change has been made to one of them, which had so many bytes in the log."""
        self._changes += 1
        self._bytes += size
        limits = self.spill
        if limits is not None and (self._changes > limits.rows or self._bytes > limits.bytes):
            self._make_room(limits.scratch)

    def take(self) -> tuple[dict[str, Relation], dict[str, Relation]]:
        """The transaction has ended: its changes, and the keys that went. Files now belong to whoever takes them."""
        own = self._own
        changes: dict[str, Relation] = {}
        gone: dict[str, Relation] = {}
        for relation, net in self._nets.items():
            if own is not None and net.pieces:
                self._spill(own.folder, net)
                changes[relation] = spilled = Spilled(own, net.folder, net.pieces, net.columns, net.key)
                if net.key:
                    gone[relation] = replace(spilled, gone=True)
                continue
            if len(rows := net.changes()):
                changes[relation] = rows
            if len(keys := net.gone()):
                gone[relation] = keys
        self._own = own if not any(net.pieces for net in self._nets.values()) else None
        self.forget()
        return changes, gone

    def forget(self) -> None:
        """Begin anew: what was not taken is not wanted."""
        if self._own is not None:
            self._own.release()
        self._own, self._nets, self._changes, self._bytes = None, {}, 0, 0

    def save(self) -> Saved:
        """What has been done so far, to come back to."""
        return {relation: net.copy() for relation, net in self._nets.items()}

    def back_to(self, saved: Saved) -> None:
        """Undo what has been done since."""
        self._nets = {relation: net.copy() for relation, net in saved.items()}
        pieces = {net.folder: net.pieces for net in self._nets.values()}
        for file in self._own.folder.glob("*/*") if self._own is not None else ():
            if int(file.stem) >= pieces.get(file.parent.name, 0):
                file.unlink()

    def _make_room(self, scratch: Scratch) -> None:
        """Write down what is held, unless the changes so far came to much fewer rows."""
        held = sum(map(len, self._nets.values()))
        if 2 * held < self._changes:
            self._bytes = self._bytes * held // self._changes
            self._changes = held
            return
        self._own = self._own or scratch.lease(SPILLED)
        for net in self._nets.values():
            if max(FEW, len(self._nets)) * len(net) >= held:
                self._spill(self._own.folder, net)
        self._changes, self._bytes = sum(map(len, self._nets.values())), 0

    def _spill(self, own: Path, net: NetChange) -> None:
        if not len(net):
            return
        try:
            (own / net.folder).mkdir(parents=True, exist_ok=True)
            _write(own / net.folder / f"{net.pieces:08}.parquet", net)
        except (OSError, pa.ArrowException) as error:
            fix = "Make room there. Strobe tries again."
            raise UserError(f"a large transaction could not be written: {error}", where=str(own), fix=fix) from error
        net.pieces += 1
        net.forget()


def _write(file: Path, net: NetChange) -> None:
    schema = file_columns(net.columns, net.key)
    names, types = list(schema), list(schema.values())
    rows = net.piece()
    with pq.ParquetWriter(file, arrow_schema(names, types)) as writer:
        while batch := list(islice(rows, BATCH)):
            writer.write_table(to_arrow(names, types, batch))
