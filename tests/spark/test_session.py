"""The Spark session that Strobe starts."""

from __future__ import annotations

import io
import logging
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import committing
import ports
import pytest
from pyspark.errors import AnalysisException

from strobe.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_delta_in_utc(spark: SparkSession, tmp_path: Path) -> None:
    """The session writes and reads Delta tables, and its time zone is UTC."""
    table = str(tmp_path / "t")
    spark.range(3).write.format("delta").save(table)
    assert spark.read.format("delta").load(table).count() == 3
    assert spark.sql("SELECT current_timezone()").collect()[0][0] == "UTC"


def test_room_for_compiled_code(spark: SparkSession) -> None:
    """Spark makes code as long as it runs: with the 48 MB of the first compiler alone the JVM was at an end in a minute
    of the demo."""
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    assert sum(pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code")) > 200 * 2**20


def test_workers_run_this_python(spark: SparkSession) -> None:
    """Python code on executors runs on the interpreter that runs Strobe."""
    from pyspark.sql.functions import udf

    executable = udf(lambda _: __import__("sys").executable, "string")
    assert {row[0] for row in spark.range(2).select(executable("id")).collect()} == {sys.executable}


def test_a_second_start_gives_the_same_session(spark: SparkSession) -> None:
    """A process has one Spark; starting again is free."""
    assert session.start({"spark.master": "local[2]"}) is spark


def test_what_the_user_may_set_and_what_not() -> None:
    """The user's settings go before the defaults, except for the time zone and Delta; lists are joined."""
    mine = {
        "spark.ui.enabled": "true",
        "spark.sql.session.timeZone": "CET",
        "spark.sql.extensions": "a.B",
        "spark.sql.catalog.spark_catalog": "c.D",
        "spark.jars.packages": "e:f:1",
    }
    found = session.configuration(mine, "app")
    assert (found["spark.app.name"], found["spark.ui.enabled"], found["spark.master"]) == ("app", "true", "local[*]")
    assert found["spark.sql.session.timeZone"] == "UTC"
    assert found["spark.sql.extensions"] == "io.delta.sql.DeltaSparkSessionExtension,a.B"
    assert found["spark.sql.catalog.spark_catalog"].endswith("DeltaCatalog")
    assert found["spark.jars.packages"] == "e:f:1"


def test_a_cluster_keeps_its_own_sizes() -> None:
    """What suits one machine (few partitions, the loopback address) is not forced on a cluster."""
    safe = {"spark.authenticate": "true", "spark.network.crypto.enabled": "true"}
    found = session.configuration({"spark.master": "spark://head:7077", **safe})
    assert "spark.sql.shuffle.partitions" not in found
    assert "spark.driver.host" not in found


CTRL_C = """
import os, signal, sys, time
from pathlib import Path
from strobe import redaction
from strobe.spark import session
SECRET = "planted-secret-1"
settings = {"spark.master": "local[1]", "spark.driver.memory": "513m"}
settings |= {"spark.hadoop.key": r"hun ter:2=\\ \u00fc\U0001d11e#"}
redaction.learn([settings["spark.hadoop.key"], SECRET])
spark = session.start(settings, log=Path(sys.argv[1]))
process = spark._jvm.java.lang.ProcessHandle.current()
print("jvm", process.pid(), "ter:2" in Path(f"/proc/{process.pid()}/cmdline").read_text(), flush=True)
launched = spark._jvm.System.getProperty("spark.hadoop.key") == settings["spark.hadoop.key"]
spark._jvm.System.err.println("\x1b[31mopened postgresql://strobe:hun%20ter%3A2%3D%5C%20%C3%BC%F0%9D%84%9E%23@db/shop")
spark._jvm.System.out.println(settings["spark.hadoop.key"])
for failing in (
    lambda: spark.range(1).selectExpr("raise_error(concat('of the query: ', '" + SECRET + "'))").collect(),
    lambda: spark.sparkContext.parallelize([1]).foreach(lambda _: open("of the worker: " + SECRET)),
):
    try:
        failing()
    except Exception:
        pass
print("key", launched, "-Xmx513m" in Path(f"/proc/{process.pid()}/cmdline").read_text(), flush=True)
try:
    os.killpg(0, signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    print("count", spark.range(7).count(), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.live
def test_silent_offline_discreet_and_deaf_to_ctrl_c(spark: SparkSession, tmp_path: Path) -> None:
    """With cached jars Spark starts offline and prints into its log, where no secret is, whoever prints; Ctrl-C lets it
    finish, and it ends with Python."""
    nowhere = " ".join(f"-D{scheme}.proxyHost=127.0.0.1 -D{scheme}.proxyPort=9" for scheme in ("http", "https"))
    log = tmp_path / "spark.log"
    ran = subprocess.run(
        [sys.executable, "-c", CTRL_C, str(log)],
        capture_output=True,
        text=True,
        timeout=300,
        start_new_session=True,
        env={**os.environ, "JAVA_TOOL_OPTIONS": nowhere},
    )
    assert ran.stderr == ""
    first, second, third = ran.stdout.splitlines()
    assert first.endswith("False"), "a secret stands on the command line"
    assert second == "key True True"
    assert third == "count 7"
    logged = log.read_text()
    assert "opened postgresql://strobe:***@db/shop" in logged and "\n***\n" in logged
    assert "of the query: ***" in logged and "of the worker: ***" in logged
    assert not any(part in logged for part in ("ter:2", "ter%3A2", "planted", "\x1b"))
    jvm = Path("/proc") / first.split()[1]
    deadline = time.monotonic() + 120
    while jvm.exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not jvm.exists()


@pytest.mark.live
def test_a_failed_start_says_where_to_look(tmp_path: Path) -> None:
    """Settings that Spark cannot start with are the user's mistake, in one message that names the log."""
    code = (
        "import sys; from pathlib import Path; from strobe.spark import session\n"
        "from strobe.errors import UserError; from strobe import redaction; redaction.learn(['planted-secret-2'])\n"
        "try: session.start({'spark.driver.memory': 'planted-secret-2'}, log=Path(sys.argv[1]))\n"
        "except UserError as error: print(error)"
    )
    log = tmp_path / "spark.log"
    ran = subprocess.run([sys.executable, "-c", code, str(log)], capture_output=True, text=True, timeout=300)
    assert ran.stderr == ""
    assert str(log) in ran.stdout
    assert "***" in log.read_text() and "planted" not in log.read_text() + ran.stdout


def test_what_fails_is_raised_and_not_printed(spark: SparkSession) -> None:
    """The terminal is the user's: errors are told once, by whoever catches them, without stack traces."""
    logger, printed = logging.getLogger("SQLQueryContextLogger"), io.StringIO()
    handler = logging.StreamHandler(printed)
    logger.addHandler(handler)
    try:
        with pytest.raises(AnalysisException, match="TABLE_OR_VIEW_NOT_FOUND"):
            spark.sql("SELECT * FROM nowhere")
    finally:
        logger.removeHandler(handler)
    assert not printed.getvalue()


ATTACHED = """
import os, signal, sys
from strobe.spark import session
spark = session.start({"spark.sql.shuffle.partitions": "7", "spark.master": "local[1]"})
print(spark.conf.get("spark.sql.shuffle.partitions"), spark._jvm.java.lang.ProcessHandle.current().pid(), flush=True)
spark.range(2).write.format("delta").mode("append").save(sys.argv[1])
assert session.start({}) is spark and session.lost() is None
spark.stop()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_another_process_attaches_to_a_running_spark(spark: SparkSession, tmp_path: Path) -> None:
    """With a session of its own; the JVM, its Spark and its default session outlive it, though it stops Spark and is
    killed."""
    jvm, table = spark._jvm.java.lang.ProcessHandle.current().pid(), str(tmp_path / "t")
    for count in (2, 4):
        environment = {**os.environ, "STROBE_SPARK_GATEWAY": session.gateway()}
        command = [sys.executable, "-c", ATTACHED, table]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
        assert (ran.stderr, ran.stdout, ran.returncode) == ("", f"7 {jvm}\n", -signal.SIGKILL)
        assert spark.read.format("delta").load(table).count() == count
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"
    assert spark._jvm.SparkSession.getDefaultSession().get().equals(spark._jsparkSession)


def test_attaching_where_there_is_nothing(tmp_path: Path) -> None:
    """The message names the variable that asks for it."""
    code = "from strobe.spark import session; session.start({})"
    environment = {**os.environ, "STROBE_SPARK_GATEWAY": f"{ports.claim()}:secret"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, env=environment)
    assert "UserError: STROBE_SPARK_GATEWAY: there is no Spark to attach to" in ran.stderr


BOTH = """
import os, signal, subprocess, sys
from strobe.spark import session
if "STROBE_SPARK_GATEWAY" not in os.environ:
    session.start({"spark.master": "local[1]", "spark.driver.memory": "513m"})
    environment = {**os.environ, "STROBE_SPARK_GATEWAY": session.gateway(), "STARTED": str(os.getpid())}
    sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1], sys.argv[1]], env=environment).returncode)
session.start({})
assert session.lost() is None
os.kill(int(os.environ["STARTED"]), signal.SIGKILL)
print(session.lost(120), flush=True)
"""


@pytest.mark.live
def test_the_end_of_a_spark_that_was_attached_to_is_noticed() -> None:
    """Its JVM ends with the process that started it."""
    ran = subprocess.run([sys.executable, "-c", BOTH, BOTH], capture_output=True, text=True, timeout=300)
    assert "the Java process that Spark was attached to has ended" in ran.stdout, ran.stderr


APPEND = """
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from committing import V
from strobe.algebra.bag import Bag
from strobe.messages import Commit, CommitHeader
from strobe.spark import session
from strobe.warehouse.appender import APPENDS
from strobe.warehouse.layout import Layout
from strobe.warehouse.warehouse import Warehouse
spark = session.start({"spark.master": "local[1]", "spark.sql.shuffle.partitions": "1"}, log=Path(sys.argv[1]) / "log")
warehouse = Warehouse.create_or_open(spark, Layout(Path(sys.argv[1]) / "w"), timedelta(days=7), "zones")
warehouse.fence()
rows = spark.range(0).selectExpr(*(f"id AS {output.name}" for output in V.outputs))
at = datetime.now(timezone.utc)
warehouse.cut_over([warehouse.load(V, rows)], Commit(CommitHeader(1, at, {"v": {"x": "1"}})))
tracker = spark.sparkContext.statusTracker()
before = len(tracker.getJobIdsForGroup(APPENDS))
change = Bag.of(V.attributes, [(1, 2, 3, 4, 2)])
warehouse.append([Commit(CommitHeader(2, at, {"v": {"x": "2"}}), {"v": change})])
zone = spark._jvm.java.time.ZoneId.systemDefault().getId()
print(zone, len(tracker.getJobIdsForGroup(APPENDS)) - before, flush=True)
spark.stop()
"""


@pytest.mark.live
def test_an_append_is_one_job_in_any_time_zone(tmp_path: Path) -> None:
    """Where the JVM is not in UTC, Delta reads small tables again after every commit, in two jobs more."""
    environment = {**os.environ, "TZ": "Asia/Kolkata", "PYTHONPATH": str(Path(committing.__file__).parent)}
    command = [sys.executable, "-c", APPEND, str(tmp_path)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert ran.stdout == "UTC 1\n", ran.stderr
