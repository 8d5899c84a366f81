"""Views that are more than inner joins, kept by real processes that are killed with -9 under load."""

from __future__ import annotations

from pathlib import Path

import pytest
from shopfloor import Shop
from tree_views import DATABASES, PORTABLE, project, writing

pytestmark = [pytest.mark.spark, pytest.mark.live]


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_killed_under_load(tmp_path: Path, gateway: str) -> None:
    """At complete: no update is lost, none counts twice, in no operator."""
    shop = Shop(tmp_path, project(PORTABLE, "complete"), PORTABLE, DATABASES, gateway)
    shop.archive.start()
    with writing(tmp_path, seed=3):
        shop.kill_after(6)
        shop.kill_after(12)
        shop.strobe("run", "--for", "5")
    shop.strobe("run", "--until-idle")
    shop.archive.stop()
    for view, verdict in shop.judge().items():
        assert verdict.wrong == 0, (view, verdict.wrong, verdict.states, verdict.first)
        assert verdict.states > 12
