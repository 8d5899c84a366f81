"""The real process, killed with -9 under load, again and again: no update lost, none twice, no state that never was."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from shopfloor import Shop

from strobe.failpoints import NAMES
from strobe.warehouse import inspect
from strobe.warehouse.layout import Layout

pytestmark = [pytest.mark.spark, pytest.mark.live]

KILLED = -signal.SIGKILL
OWN_JVM = ("load.table", "append.before", "fold.before_publish")
"""Where the coordinator takes its JVM along in every test run."""


def judged(shop: Shop) -> int:
    """Come to rest and judge every state; returns how many there were."""
    shop.kill_at_the_end(shop.start("run"))
    verdicts = shop.judge()
    for view, verdict in verdicts.items():
        assert verdict.wrong == 0, (
            f"{view}: {verdict.wrong} of {verdict.states} states are wrong, first {verdict.first}"
        )
    warehouse = shop.folder / "warehouse"
    numbers = [past.header.number for past in inspect.history(Layout(warehouse), 1_000_000)]
    assert numbers == list(range(max(numbers), 0, -1)), "commit numbers have gaps or repeat"
    return verdicts["paid"].states


@pytest.mark.timeout(1500)
def test_killed_at_every_failpoint(tmp_path: Path, gateway: str) -> None:
    """Between receiving a transaction and publishing, at every named instant, a few times in. A coordinator that is
    killed leaves the JVM that it was attached to, which may still commit."""
    shop = Shop(tmp_path, gateway=gateway)
    shop.archive.start()
    with shop.load():
        for name in sorted(NAMES, key=lambda n: not n.startswith("load.")):
            shop.gateway = "" if name in OWN_JVM else gateway
            nth = 1 if name.startswith(("load.", "fold.")) else 3
            seconds = "2" if name.startswith("fold.") else "300"
            shop.strobe("run", "--for", seconds, code=KILLED, failpoint=f"{name}:{nth}")
    assert judged(shop) > len(NAMES)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_at_random_moments(tmp_path: Path) -> None:
    """Fifty times, at whatever it was doing, from the start of the process to some seconds of work."""
    shop = Shop(tmp_path)
    shop.archive.start()
    rng = random.Random(20)
    with shop.load():
        for _ in range(50):
            process = shop.start("run")
            time.sleep(rng.uniform(2, 25))
            process.kill()
            process.communicate()
    assert judged(shop) > 20
