"""What a run leaves on the machine is this user's alone, and holds no password."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import postgres_shop
import pytest
from leaks import forms
from paths import ROOT
from postgres_server import PostgresServer

from strobe.config.load import load_project
from strobe.planning.topology import assemble
from strobe.spark import session
from strobe.warehouse.inspect import last_header
from strobe.warehouse.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.live]

ACCOUNT = "lake-account-7c1"
SPARK = """
spark:
  spark.master: local[2]
  spark.driver.memory: 1g
  spark.sql.shuffle.partitions: 2
  spark.eventLog.enabled: true
  spark.eventLog.dir: file://{events}
  spark.eventLog.compress: false
  spark.hadoop.fs.lake.account: "${{LAKE_ACCOUNT}}"
"""


@pytest.fixture
def shop(tmp_path: Path, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A project over a PostgreSQL database, prepared; and the database's name."""
    folder, database = tmp_path / "shop", postgres.database(postgres_shop.TABLES)
    monkeypatch.setenv("SALES_DSN", postgres.dsn(database))
    monkeypatch.setenv("LAKE_ACCOUNT", ACCOUNT)
    for made in (folder, tmp_path / "events", tmp_path / "tmp"):
        made.mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    (folder / "strobe.yml").write_text(postgres_shop.PROJECT + SPARK.format(events=tmp_path / "events"))
    topology = assemble(load_project(folder))
    for name, source in topology.sources.items():
        relations = [relation.name for relation in topology.relations(name)]
        postgres.publish(database, source.prepare_script(relations))
        source.prepare(relations)
    topology.sources.close()
    yield folder, database
    postgres.drop(database)


def open_to_others(*among: Path) -> set[str]:
    """Files and folders, as far as they are still there, that somebody else may do anything with. (Spark makes copies
    of jars executable by everybody, in a folder that nobody may enter.)"""
    found = set()
    for folder, folders, files in (step for each in among for step in os.walk(each)):
        for path in (Path(folder, name) for name in (*folders, *files)):
            with suppress(FileNotFoundError):
                mode = path.lstat().st_mode
                if mode & 0o077 and not stat.S_ISLNK(mode) and path.suffix != ".jar":
                    found.add(f"{stat.filemode(mode)} {path}")
    return found


def run(project: Path, umask: int, **variables: str) -> None:
    """`strobe run` until all is idle, watched: whatever it writes, it writes for this user."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(project.parent / "tmp"), **variables}
    command = [sys.executable, "-m", "strobe", "run", "--until-idle", "--project", str(project)]
    found: set[str] = set()
    with (project.parent / "output").open("wb") as output:
        running = subprocess.Popen(command, env=environment, umask=umask, stdout=output, stderr=output)
        try:
            while running.poll() is None:
                found |= open_to_others(project / "warehouse", project.parent / "tmp")
        finally:
            running.kill()
    assert running.returncode == 0, (project.parent / "output").read_text()
    assert not found | open_to_others(project / "warehouse", project.parent / "tmp")
    assert stat.S_IMODE((project / "warehouse").stat().st_mode) == 0o700


def test_what_a_run_writes_is_closed_to_others_and_holds_no_password(
    shop: tuple[Path, str], postgres: PostgresServer, spark: SparkSession
) -> None:
    """Whatever the umask; Spark's log of events, which its users may be shown, included. The second run attaches to a
    JVM that was started with the usual umask."""
    project, database = shop
    run(project, 0)
    postgres.execute(database, "INSERT INTO orders SELECT n, 1, NULL FROM generate_series(100, 300) n")
    run(project, 0o022, STROBE_SPARK_GATEWAY=session.gateway())
    header = last_header(Layout(project / "warehouse"))
    assert header is not None and header.number >= 2
    kept = [path for path in project.parent.rglob("*") if path.is_file()]
    assert any(path.parent == project.parent / "events" or "events" in path.parts for path in kept)
    for secret in (postgres.password, ACCOUNT):
        assert not [path for path in kept for form in forms(secret) if form in path.read_bytes()]
