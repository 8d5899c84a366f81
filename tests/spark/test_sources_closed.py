"""Whatever a process does, every source that it opens is closed, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from service_shop import DOWN, Shop

from strobe.client.audit import audit
from strobe.config.load import load_project
from strobe.coordinator import coordinator as module
from strobe.errors import NotNow
from strobe.planning import source_set
from strobe.sources.base import Source
from strobe.sources.registry import open_source

pytestmark = [pytest.mark.spark, pytest.mark.live]


class Ledger:
    """The sources that were opened, and how often each was closed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[Source] = []
        self.closed: Counter[int] = Counter()
        monkeypatch.setattr(source_set, "open_source", self._open)

    def _open(self, *arguments: Any) -> Source:
        source = open_source(*arguments)
        place, close = len(self.opened), source.close
        self.opened.append(source)

        def counted() -> None:
            self.closed[place] += 1
            close()

        source.close = counted  # type: ignore[method-assign]
        return source

    def settled(self) -> bool:
        """Whether all were closed, and none twice; forgets them."""
        found = bool(self.opened) and [self.closed[place] for place in range(len(self.opened))] == [1] * len(
            self.opened
        )
        self.opened, self.closed = [], Counter()
        return found


def test_every_source_is_closed_once(tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a run, a run with an apply, a start that fails, and an audit."""
    shop = Shop(tmp_path, spark, DOWN)
    ledger = Ledger(monkeypatch)
    shop.coordinator().run(until_idle=True)
    assert ledger.settled(), "a run"

    more = '  more: {sql: "SELECT p.id, p.cents FROM billing.payments p", freshness: 100ms}\n'
    (tmp_path / "strobe.yml").write_text(DOWN + more)
    assert shop.ask("apply")["add"] == ["more"]
    assert ledger.settled(), "a run with an apply"

    assert audit(load_project(tmp_path), ())["verdict"] == "valid"
    assert ledger.settled(), "an audit"

    def refused(*_: Any) -> None:
        raise NotNow("somebody else runs")

    monkeypatch.setattr(module.tables, "check_before_use", refused)
    with pytest.raises(NotNow, match="somebody else runs"):
        shop.coordinator().run(until_idle=True)
    assert ledger.settled(), "a start that failed"
