"""What the conformance suite needs of a kind of source to try it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from strobe.algebra.bag import Bag, Row
from strobe.sources.base import Source

Table = tuple[dict[str, str], tuple[str, ...]]
"""A relation to make: columns with Spark types, and the key, whose columns are never NULL."""

Change = tuple[str, Row | None, Row | None]
"""In this relation, the first row goes and the second comes; None where there is no such row."""


TEXTS = ("", " ", "x", "X", "x ", "Ünïcødé", "日本語", "🦆", "e\u0301", "\u00e9")
"""What is easily taken for something else."""


class SourceUnderTest(ABC):
    """One kind of source, as the suite handles it. All but `open` goes past Strobe, by the source's own means."""

    kind: ClassVar[str]
    marks: ClassVar[tuple[pytest.MarkDecorator, ...]] = ()
    lacks: ClassVar[dict[str, str]] = {}
    """Capabilities it does not have, each with the reason: `several relations`, `duplicates`, `without key`, `restore`,
    `prune`, `outage`, `prepare`, `many transactions`."""
    values: ClassVar[dict[str, list[Any]]]
    """For every Spark type it offers: canonical values that must survive."""
    columns: ClassVar[dict[str, str]] = {}
    """Kinds of columns as they are declared, with their Spark types; where there are none, `values` names them."""

    def __init__(self, folder: Path, request: pytest.FixtureRequest) -> None:
        self.folder = folder

    def holds(self, declared: str, value: Any) -> bool:
        """Whether a column of this kind can hold a value."""
        return True

    def indexable(self, declared: str) -> bool:
        """Whether a column of this kind can be part of a key."""
        return True

    @abstractmethod
    def create(self, tables: Mapping[str, Table]) -> None:
        """A fresh source with these relations, empty, not prepared."""

    @abstractmethod
    def open(self) -> Source:
        """As a new process would open it."""

    @abstractmethod
    def apply(self, changes: Sequence[Change]) -> None:
        """One transaction."""

    @abstractmethod
    def contents(self, relation: str) -> Bag: ...

    def backup(self) -> None:
        """Remember the whole state of the source."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to the backup, as an operator would."""
        raise NotImplementedError

    def prune(self) -> None:
        """Take away the log behind Strobe's back."""
        raise NotImplementedError

    def outage(self) -> None:
        """From now on the source does not answer."""
        raise NotImplementedError

    def prepared(self, tables: Mapping[str, Table]) -> Source:
        self.create(tables)
        source = self.open()
        source.prepare(list(tables))
        return source
