"""What is known of a transaction while it is read from the binlog."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from strobe.algebra.bag import Row
from strobe.sources.mariadb.position import LogFingerprint
from strobe.sources.net_changes import NetChanges, Saved


@dataclass
class EventGroup:
    """A transaction that is being read."""

    standalone: bool
    prepared: bool = False
    mysql: bool = False
    net: NetChanges = field(default_factory=NetChanges)
    named: list[str] = field(default_factory=list)
    """What the application calls the global transactions that this is a part of."""
    began: tuple[str, int] = ("", 0)
    """The place in the log before its first event."""
    fingerprint: LogFingerprint | None = None
    savepoints: dict[str, tuple[Saved, list[str]]] = field(default_factory=dict)

    def add(self, table: str, types: Mapping[str, str], row: Row, sign: int, size: int) -> None:
        self.net.of(table, types).change(*((None, row) if sign > 0 else (row, None)))
        self.net.grew(size)

    def save(self, name: str) -> None:
        self.savepoints[name] = self.net.save(), list(self.named)

    def back_to(self, name: str) -> None:
        saved, named = self.savepoints.get(name, ({}, []))
        self.net.back_to(saved)
        self.named = list(named)
