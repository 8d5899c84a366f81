"""Starts Spark the way Strobe needs it: with Delta, in UTC, on a suitable Java, and silent on the user's terminal.

Everything the JVM prints (Ivy's report, Spark's start-up, warnings, a crash) goes to a log file, without secrets (see
`output`). The JVM runs in a
session of its own, so that Ctrl-C reaches Python alone, which then stops cleanly; it ends with Python all the same,
because it watches the pipe to its standard input. Settings, which may hold secrets, reach it through a private file
and not on the command line, which anybody on the machine can read. What it writes is closed to other users, whatever
the umask, and whoever connects to one of its ports has to know a secret (see `isolation`).

A process can also use a JVM that another one has started: where `STROBE_SPARK_GATEWAY` holds what `gateway()` returns
in that process, `start` attaches to its Spark within a second. SQL settings are then this process's own, all others the
JVM's; and the JVM stays when the process ends, however it ends. Tests that kill many coordinators do this.
"""

from __future__ import annotations

import fcntl
import os
import shlex
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import DataFrame as DataFrame  # both names are for others to annotate with
from pyspark.sql import SparkSession as SparkSession

from strobe.data.private import append_to, own_folder
from strobe.data.scratch import user_folder
from strobe.errors import SparkLost, UserError
from strobe.spark import isolation, jars
from strobe.spark.java import find_java_home
from strobe.spark.output import RedactedLog

_DELTA_EXTENSION = "io.delta.sql.DeltaSparkSessionExtension"
_DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_EXECUTORS = "spark.executor.extraJavaOptions"
_GATEWAY = "STROBE_SPARK_GATEWAY"
_ONE_JOB = {
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "100000",  # files are named: no job to look for them
    "spark.sql.maxSinglePartitionBytes": "1t",  # what was put into one partition stays there: sizes are guessed badly
}


def start(
    settings: Mapping[str, str],
    *,
    app: str = "strobe",
    log: Path | None = None,
    umask: int = 0o077,
) -> SparkSession:
    """The Spark session of this process, started with the user's settings; what the JVM prints is appended to `log`,
    and `umask` is taken away from the modes of all that it writes."""
    _use_this_python()
    merged = {**configuration(settings, app), isolation.UMASK: f"{umask:03o}"}
    merged[isolation.REDACTED] = isolation.redacted(merged)
    if lost() is not None:
        _forget()
    if SparkContext._gateway is None and _GATEWAY in os.environ:
        _attach(os.environ[_GATEWAY], merged)
    elif SparkContext._gateway is None:
        _launch(merged, log or default_log())
    conf = SparkConf(loadDefaults=False).setAll(list(merged.items()))
    try:
        session = SparkSession.builder.config(conf=conf).getOrCreate()
    except Exception as error:
        raise UserError(
            f"Spark did not start: {str(error).strip().splitlines()[0]}",
            where="strobe.yml: spark",
            fix=f"What Spark printed is in {log or default_log()}.",
        ) from error
    session.sparkContext.setLogLevel("ERROR")
    PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True  # prints stack traces of what is raised anyhow
    return session


def configuration(settings: Mapping[str, str], app: str = "strobe") -> dict[str, str]:
    """All Spark settings: defaults, over them the user's, over these what Strobe cannot do without."""
    master = settings.get("spark.master", "local[*]")
    merged = {"spark.master": master, "spark.app.name": app, **_defaults(master), **settings}
    merged["spark.sql.session.timeZone"] = "UTC"
    merged["spark.sql.extensions"] = _with(settings.get("spark.sql.extensions"), _DELTA_EXTENSION)
    merged["spark.sql.catalog.spark_catalog"] = _DELTA_CATALOG
    merged = isolation.authenticated(merged)
    merged[_JAVA_OPTIONS] = f"{merged.get(_JAVA_OPTIONS, '')} -XX:+ExitOnOutOfMemoryError".strip()
    folder = own_folder(user_folder() / "java")
    merged[_JAVA_OPTIONS] += f" -Djava.io.tmpdir={shlex.quote(str(folder))}"
    if "-XX:ErrorFile" not in merged[_JAVA_OPTIONS]:  # else in the folder that Strobe runs in
        merged[_JAVA_OPTIONS] += f" -XX:ErrorFile={shlex.quote(str(folder / 'crash-%p.log'))}"
    for options in (_JAVA_OPTIONS, _EXECUTORS):  # in any other zone Delta reads what it has written twice more, in jobs
        merged[options] = f"{merged.get(options, '')} -Duser.timezone=UTC".strip()
    return merged


def gateway() -> str:
    """Where other processes of this user can attach to the JVM of this one, with the secret that they need."""
    parameters = SparkContext._gateway.gateway_parameters  # type: ignore[union-attr]
    return f"{parameters.port}:{parameters.auth_token}"


def lost(patience: float = 0.0) -> SparkLost | None:
    """What became of the JVM, if it has ended, or does within so many seconds."""
    jvm: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)
    if jvm is None:
        return _lost_contact(patience) if SparkContext._gateway is not None and _GATEWAY in os.environ else None
    with suppress(subprocess.TimeoutExpired):
        jvm.wait(patience)
    code = jvm.poll()
    if code is None:
        return None
    how = _ENDS.get(code, f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")
    return SparkLost(
        f"Spark's Java process {how}",
        where="strobe.yml: spark",
        fix="Nothing is lost: `strobe run` goes on from the last commit. If it happens again, give Spark more memory "
        f"(spark.driver.memory). What it printed is in {default_log()}.",
    )


def _lost_contact(patience: float) -> SparkLost | None:
    """The same of a JVM that another process started: nothing listens at its port any more."""
    port, end = int(gateway().partition(":")[0]), time.monotonic() + patience
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            return SparkLost(
                "the Java process that Spark was attached to has ended",
                where=_GATEWAY,
                fix="Start it again, or unset the variable: `strobe run` goes on from the last commit.",
            )
        if time.monotonic() >= end:
            return None
        time.sleep(0.1)


_OUT_OF_MEMORY = "ran out of memory"
_ENDS = {
    3: _OUT_OF_MEMORY,  # -XX:+ExitOnOutOfMemoryError: what a JVM does afterwards is not to be relied upon
    52: _OUT_OF_MEMORY,  # the same, noticed by Spark
    -9: "was killed (signal 9), by somebody or by a system that is short of memory",
}


def _forget() -> None:
    """Let pyspark start anew in this process, after its JVM has ended."""
    with suppress(Exception):  # its sockets lead nowhere
        SparkContext._gateway.shutdown()  # type: ignore[union-attr]
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = SparkSession._activeSession = None


@contextmanager
def in_background(spark: SparkSession) -> Iterator[None]:
    """Let the jobs of this thread share Spark with all others together: a load of many tasks holds up no commit."""
    context, pool = spark.sparkContext, "spark.scheduler.pool"
    before = context.getLocalProperty(pool)
    context.setLocalProperty(pool, "background")
    try:
        yield
    finally:
        with suppress(Exception):  # Spark may have ended meanwhile
            context.setLocalProperty(pool, before)  # type: ignore[arg-type]  # None takes it away


def own_session(spark: SparkSession) -> SparkSession:
    """Another session of the same application; both write timestamps as every engine reads them."""
    spark.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    session = spark.newSession()
    session.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    for each in (spark, session):
        for name, value in _ONE_JOB.items():
            each.conf.set(name, value)
    for name in ("spark.sql.session.timeZone", "spark.sql.ansi.enabled", "spark.sql.shuffle.partitions"):
        session.conf.set(name, str(spark.conf.get(name)))
    return session


def default_log() -> Path:
    """Where the JVM's output goes unless the caller says otherwise."""
    return user_folder() / f"spark-{os.getpid()}.log"


def _defaults(master: str) -> dict[str, str]:
    everywhere = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",  # so that `in_background` means something
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",  # other readers do not take INT96 for every year
        "spark.sql.warehouse.dir": str(user_folder() / "spark-warehouse"),
        "spark.sql.codegen.cache.maxEntries": "2000",  # a plan of many views has more stages than the default of 100
    }
    if not master.startswith("local"):
        return everywhere
    few = str(min(os.cpu_count() or 1, 8))
    return {
        **everywhere,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        # Half the CPU of a run that lasts minutes. Spark compiles on and on, and fills the 48 MB of code that come with
        # it; then the JVM only interprets, or fails.
        _JAVA_OPTIONS: "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m",
        "spark.sql.shuffle.partitions": few,
        "spark.databricks.delta.snapshotPartitions": few,
    }


def _with(listed: str | None, needed: str) -> str:
    """A comma-separated setting of the user's with what Strobe needs in it."""
    entries = [entry.strip() for entry in (listed or "").split(",") if entry.strip()]
    return ",".join([needed, *(entry for entry in entries if entry != needed)])


def _use_this_python() -> None:
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        os.environ[name] = sys.executable


def _launch(settings: Mapping[str, str], log: Path) -> None:
    """Start the JVM with its output in a file and hand it to pyspark."""
    log.parent.mkdir(parents=True, exist_ok=True)
    home = find_java_home()
    with starting_alone():
        delta = ",".join(map(str, jars.fetched(settings, home)))
    settings = {**settings, "spark.jars": _with(settings.get("spark.jars"), delta)}
    output = RedactedLog(log)
    with closing(output), _properties(settings) as file:
        submit = f"--properties-file {shlex.quote(file)} --load-spark-defaults "
        submit += os.environ.get("PYSPARK_SUBMIT_ARGS", "pyspark-shell")
        quietly = {"stdout": output.stream, "stderr": output.stream, "start_new_session": True}
        quietly["umask"] = int(settings[isolation.UMASK], 8)
        inherited = {"JAVA_HOME": str(home), "PYSPARK_SUBMIT_ARGS": submit, **isolation.environment(settings)}
        with _environment(**inherited), starting_alone():
            try:
                gateway = launch_gateway(popen_kwargs=quietly)  # type: ignore[no-untyped-call]
            except PySparkRuntimeError:
                output.close()
                output.join(5)
                raise _failed_start(log, output.begin) from None
    SparkContext._ensure_initialized(gateway=gateway)


@contextmanager
def starting_alone() -> Iterator[None]:
    """While no other process of this user starts a JVM: two that fetch packages at a time spoil Ivy's cache for each
    other."""
    with os.fdopen(append_to(user_folder() / "starting.lock"), "a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class _AttachedSession(SparkSession):
    """A session in the JVM of another process."""

    def stop(self) -> None:
        """Leave the JVM's Spark running: it is not this process's to stop."""
        SparkSession._instantiatedSession = SparkSession._activeSession = None


def _attach(address: str, settings: Mapping[str, str]) -> None:
    """Use the Spark of another process's JVM in this process, with a session of its own."""
    port, _, secret = address.partition(":")
    try:
        with _environment(PYSPARK_GATEWAY_PORT=port, PYSPARK_GATEWAY_SECRET=secret):
            gateway = launch_gateway()  # type: ignore[no-untyped-call]
        default = gateway.jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    except Exception as error:
        raise UserError(
            f"there is no Spark to attach to: {str(error).strip().splitlines()[0]}",
            where=_GATEWAY,
            fix="Start the process whose Spark this one is to use, or unset the variable.",
        ) from error
    SparkContext._ensure_initialized(gateway=gateway)
    java = gateway.jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(default.sparkContext())
    context = SparkContext(gateway=gateway, jsc=java, conf=SparkConf(_jconf=java.getConf()))
    _AttachedSession(context, default.newSession(), dict(settings))
    default.setDefaultSession(default)  # pyspark has made the new one the default of the whole JVM


def _failed_start(log: Path, begin: int) -> UserError:
    """Why the JVM ended, as far as what it printed since `begin` tells."""
    lines = log.read_bytes()[begin:].decode(errors="replace").splitlines()
    if any("unresolved dependency" in line for line in lines):
        return UserError(
            "Spark could not fetch a package of spark.jars.packages",
            where="strobe.yml: spark",
            fix=f"It needs Maven Central, or a mirror (spark.jars.ivySettings). Details are in {log}.",
        )
    telling = [line.strip() for line in lines if any(sign in line for sign in ("Exception", "Invalid", "Error: "))]
    return UserError(
        f"Spark's Java process ended while it started{': ' + telling[0] if telling else ''}",
        where="strobe.yml: spark",
        fix=f"Check the settings of Spark. All it printed is in {log}.",
    )


@contextmanager
def _properties(settings: Mapping[str, str]) -> Iterator[str]:
    """A Java properties file with these settings, readable by this user alone, while the JVM starts."""
    handle, name = tempfile.mkstemp(suffix=".conf", dir=user_folder())
    try:
        with os.fdopen(handle, "w", encoding="ascii") as file:
            file.writelines(f"{_escaped(key)}={_escaped(value)}\n" for key, value in settings.items())
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


def _escaped(text: str) -> str:
    """Text as Java reads it from a properties file: all but the plainest characters by their UTF-16 code."""
    units = struct.iter_unpack(">H", text.encode("utf-16-be"))
    return "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else f"\\u{unit:04x}" for (unit,) in units)


@contextmanager
def _environment(**changes: str) -> Iterator[None]:
    """Environment variables for a child process only."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
