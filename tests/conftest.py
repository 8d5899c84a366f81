"""Fixtures for all tests. Whatever needs Spark shares one session; nothing else starts a JVM."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import postgres_server
import pytest
from hypothesis import HealthCheck, settings
from postgres_server import PostgresServer
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from mariadb_server import Server
    from pyspark.sql import SparkSession

# Shared machines are slow now and then: a test is not wrong because one example took long.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SPARK_SETTINGS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    # For many plans over few rows compiling takes a fifth of the time. Processes that tests start compile as usual.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


GROUPS = ("service", "spark", "live", "warehouse", "faults", "postgres", "mariadb", "conformance", "pipeline")
"""Tests of one group share a JVM or servers and so run in one process. Those that take longest begin first."""


def group_of(test: str) -> str | None:
    """Which group a test belongs to, by its id; None if it may run anywhere."""
    _, tier, below, *_ = test.partition("::")[0].split("/")
    if tier == "servers":
        return {"postgres": "postgres", "mariadb": "mariadb", "mysql": "mariadb"}.get(below, "faults")
    if tier == "conformance" and "[files" in test:
        return "spark"
    if tier == "spark":  # four JVMs, which take about as long
        if "service" in below or below in ("test_demo.py", "test_traces.py", "test_queries.py"):
            return "service"
        return "warehouse" if below.startswith(("test_warehouse", "test_contradictions", "test_pin")) else "spark"
    return tier if tier in GROUPS else None


class Groups(LoadScopeScheduling):
    """Gives a worker a whole group at a time. (pytest-xdist has groups of its own, which it writes into the ids of
    tests; pytest 9.2 does not let it do so any more.)"""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid) or nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What may run anywhere fills the gaps in the end."""
    order = {group: number for number, group in enumerate(GROUPS)}
    items.sort(key=lambda item: order.get(group_of(item.nodeid) or "", len(order)))


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Where many JVMs are started, let them start faster."""
    if item.get_closest_marker("live") and item.get_closest_marker("slow"):
        import class_archive

        class_archive.use()


_status = pytest.StashKey[int]()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    session.config.stash[_status] = int(exitstatus)


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """End without Python's finalization, in which threads of `pyarrow` over `deltalake` may abort the process."""
    if _status in config.stash:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(config.stash[_status])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """The one Spark session of the test run, with Delta, as Strobe itself starts it."""
    from strobe.spark import session

    started = session.start(SPARK_SETTINGS, app="strobe-tests", log=tmp_path_factory.mktemp("spark") / "spark.log")
    yield started
    started.stop()


@pytest.fixture(params=["attached", pytest.param("own JVM", marks=pytest.mark.slow)])
def gateway(request: pytest.FixtureRequest) -> str:
    """Where processes that a test starts find a Spark: the test run's own, and in the slow variant each starts one."""
    if request.param != "attached":
        return ""
    request.getfixturevalue("spark")
    from strobe.spark import session

    return session.gateway()


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A PostgreSQL server of the test run's own, on loopback."""
    with postgres_server.running() as server:
        yield server


@pytest.fixture(scope="session")
def mariadb_template() -> Iterator[Path]:
    """The data folder that throw-away MariaDB servers start from."""
    from mariadb_server import new_template

    with new_template() as folder:
        yield folder


@pytest.fixture(scope="session")
def mariadb(mariadb_template: Path) -> Iterator[Server]:
    """A MariaDB server that many tests share, each with databases of its own."""
    from mariadb_server import running

    with running(mariadb_template) as server:
        yield server


@pytest.fixture(scope="session")
def mysql_template() -> Iterator[Path]:
    """The data folder that throw-away MySQL servers start from."""
    from mysql_server import new_template, newest

    with new_template(newest()) as folder:
        yield folder


@pytest.fixture(scope="session")
def mysql(mysql_template: Path) -> Iterator[Server]:
    """A MySQL server that many tests share, each with databases of its own."""
    from mysql_server import MysqlServer

    with closing(MysqlServer(mysql_template)) as server:
        yield server


@pytest.fixture(scope="session")
def mysql8_template() -> Iterator[Path]:
    """The same for MySQL 8.0."""
    from mysql_server import fetched, new_template

    with new_template(fetched("mysql-8.0")) as folder:
        yield folder


@pytest.fixture(scope="session")
def mysql8(mysql8_template: Path) -> Iterator[Server]:
    """An early MySQL 8.0 that many tests share."""
    from mysql_server import Mysql8Server

    with closing(Mysql8Server(mysql8_template)) as server:
        yield server


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    """What one test's project has as secrets is not hidden in the next."""
    yield
    from strobe import redaction

    redaction.forget()
    redaction.show_values(False)


@pytest.fixture
def own_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for temporary files, for one test alone; other accounts may pass, and names of sockets fit in."""
    with tempfile.TemporaryDirectory(prefix="strobe-tmp-") as folder:
        os.chmod(folder, 0o755)
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty project folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    return folder
