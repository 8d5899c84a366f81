"""A coordinator that was down meets what was written meanwhile, and is killed while it works that off."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from benchmarks.load.oracle import Oracle
from benchmarks.load.shop import LoadedShop, became
from postgres_server import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.live]

ORDERS = 1_000
PATIENCE = 1_200


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("level", "transactions"),
    [
        ("complete", 3_000),
        pytest.param("strong", 50_000, marks=pytest.mark.slow),
        pytest.param("complete", 50_000, marks=pytest.mark.slow),
    ],
)
def test_a_backlog_is_worked_off_through_kills(
    postgres: PostgresServer, tmp_path: Path, gateway: str, level: str, transactions: int
) -> None:
    """Killed twice, with -9, while much is left: nothing is lost, nothing comes twice, and every committed state is one
    of the database's, at complete each of them."""
    shop = LoadedShop(postgres, tmp_path / "shop", level, ORDERS, gateway)
    oracle = Oracle(shop.admin)
    coordinator = shop.start()
    assert became(lambda: shop.shown() > 0, coordinator, PATIENCE), "the view was not loaded"
    coordinator.kill()
    end = shop.write(transactions)
    for part in (3, 6):
        killed = shop.start(failpoint=f"received:{transactions // part}")
        assert killed.process.wait(PATIENCE) == -signal.SIGKILL
        assert shop.shown() < end
    coordinator = shop.start()
    assert became(lambda: shop.shown() > end, coordinator, PATIENCE), "the backlog was not worked off"
    coordinator.kill()
    judged = oracle.judge(shop.layout.root)
    assert judged.wrong == []
    assert judged.transactions > 0.9 * transactions  # some delete what is not there
    if level == "complete":
        assert judged.most_together == 1 and judged.states > len(judged.shown)
    shop.remove()
