"""What Spark's classes look like once loaded, kept in a file, so that the many JVMs of the tests start in two thirds of
the time. A JVM whose Java or class path is another one ignores the file.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

OPTIONS = "-Xlog:disable -XX:SharedArchiveFile="
"""Silently: what Java says of a file that does not fit would come between the lines that Spark's launcher prints."""


@cache
def use() -> None:
    """Let JVMs that are started from here on use the archive, which is made if there is none."""
    from strobe.spark.java import find_java_home

    installed = f"{find_java_home()} {sys.prefix} {sys.version}"
    name = f"classes-{hashlib.sha256(installed.encode()).hexdigest()[:12]}.jsa"
    archive = Path(tempfile.gettempdir()) / f"strobe-tests-{os.getuid()}" / name
    archive.parent.mkdir(mode=0o700, exist_ok=True)
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            _make(archive)
    if archive.exists():
        os.environ["JDK_JAVA_OPTIONS"] = f"{os.environ.get('JDK_JAVA_OPTIONS', '')} {OPTIONS}{archive}".strip()


def _make(archive: Path) -> None:
    """By a process of its own that keeps a small project; without an archive everything works, only slower."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, folder, str(archive)], capture_output=True, timeout=300, check=False)


def main(folder: Path, archive: Path) -> None:
    from pyspark import SparkContext
    from rich.console import Console
    from shopfloor import PROJECT, Shop

    from strobe.cli.reporter import LogReporter
    from strobe.config.load import load_project
    from strobe.coordinator.coordinator import Coordinator
    from strobe.spark.session import configuration

    draft = archive.with_suffix(f".{os.getpid()}")
    options = f"{configuration({})['spark.driver.extraJavaOptions']} -XX:ArchiveClassesAtExit={draft}"
    Shop(folder, f'{PROJECT}spark: {{spark.driver.extraJavaOptions: "{options}"}}\n')
    Coordinator(load_project(folder), LogReporter(Console())).run(until_idle=True)
    jvm = SparkContext._gateway.proc  # type: ignore[union-attr]
    jvm.stdin.close()
    jvm.wait()
    draft.rename(archive)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
