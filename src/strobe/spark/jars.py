"""Delta's jars: fetched once, and known by their SHA-256 before Java may load any of them.

`jars.sha256`, beside this module, lists the jars that Delta needs and Spark does not bring: Spark's own classes win
wherever both have them, so the others that Delta's description asks for would never be loaded. The list is of one
version of Delta, the one that `pyproject.toml` pins.

They are fetched by Ivy, which Spark brings, in a process of its own that loads nothing else: so mirrors
(`spark.jars.ivySettings`, `spark.jars.repositories`), Ivy's cache (`spark.jars.ivy`) and proxies
(`-Dhttps.proxyHost=…` in `spark.driver.extraJavaOptions`) work as they do for packages of the user's own, which Spark
fetches by itself.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pyspark

from strobe.data.private import own_folder
from strobe.errors import UserError

_CENTRAL = "https://repo1.maven.org/maven2/"
_PATIENCE = 600
"""Seconds for all jars together."""
_OF_JAVA = ("-Dhttp", "-Djava.net.", "-Djavax.net.", "-Djdk.http", "-Dsocks")
"""Options of the driver's Java that say how to reach other machines."""


@dataclass(frozen=True)
class Jar:
    sha256: str
    group: str
    artifact: str
    version: str

    @property
    def name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@cache
def pinned() -> tuple[Jar, ...]:
    """The jars that Delta needs, with their hashes."""
    text = (files("strobe.spark") / "jars.sha256").read_text(encoding="ascii")
    lines = (line.split() for line in text.splitlines() if line and not line.startswith("#"))
    return tuple(Jar(digest, *coordinates.split(":")) for digest, coordinates in lines)


def fetched(settings: Mapping[str, str], java_home: Path) -> list[Path]:
    """The jars as files, each of which has the bytes that are expected; fetched if they are not there yet."""
    _check_version()
    folder = _folder()
    missing = [jar for jar in pinned() if _digest(folder / jar.name) != jar.sha256]
    if missing:
        with tempfile.TemporaryDirectory(dir=folder) as draft:
            _fetch(missing, settings, java_home, Path(draft))
            for jar in missing:
                _take(Path(draft) / jar.name, jar, folder)
    return [folder / jar.name for jar in pinned()]


def _check_version() -> None:
    known = {jar.version for jar in pinned() if jar.artifact.startswith("delta-spark_")}
    if version("delta-spark") not in known:
        raise UserError(
            f"the hashes of the jars of Delta {version('delta-spark')} are not known",
            where="delta-spark",
            fix=f"Install delta-spark {', '.join(sorted(known))}, with which this Strobe was tested.",
        )


def _folder() -> Path:
    """Where the jars are kept: this user's cache, where nobody else can exchange them after they were checked."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strobe" / "jars"
    folder.parent.mkdir(parents=True, exist_ok=True)
    return own_folder(folder, "Name another cache in XDG_CACHE_HOME, or move this folder away.")


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except OSError:
        return None


def _take(draft: Path, jar: Jar, folder: Path) -> None:
    """Keep a jar that was fetched, if it is the one that is meant."""
    found = _digest(draft)
    if found != jar.sha256:
        raise UserError(
            f"{jar.name} is not the file that is expected: its SHA-256 is {found}, not {jar.sha256}",
            where=f"{jar.group}:{jar.artifact}:{jar.version}",
            fix="Remove it from Ivy's cache, and check the mirror that it came from (spark.jars.ivySettings, "
            "spark.jars.repositories): somebody may have exchanged it.",
        )
    os.replace(draft, folder / jar.name)


def _fetch(jars: Sequence[Jar], settings: Mapping[str, str], java_home: Path, into: Path) -> None:
    """Let Ivy put jars into a folder, from wherever it gets them."""
    wanted, sources = into / "ivy.xml", into / "settings.xml"
    wanted.write_text(_wanted(jars), encoding="utf-8")
    sources.write_text(_resolvers(settings.get("spark.jars.repositories", "")), encoding="utf-8")
    given = settings.get("spark.jars.ivySettings", "")
    ivy = next((Path(pyspark.__file__).parent / "jars").glob("ivy-*.jar"))
    cache = Path(settings.get("spark.jars.ivy") or "~/.ivy2.5.2").expanduser() / "cache"
    command = [str(java_home / "bin" / "java"), *_reaching(settings), "-cp", str(ivy), "org.apache.ivy.Main"]
    command += ["-warn", "-settings", given or str(sources), "-cache", str(cache), "-ivy", str(wanted)]
    command += ["-retrieve", str(into / "[artifact]-[revision].[ext]"), "-types", "jar", "bundle"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=_PATIENCE
        )
    except subprocess.TimeoutExpired:
        raise _unfetched(f"it took longer than {_PATIENCE} s") from None
    if done.returncode or not all((into / jar.name).is_file() for jar in jars):
        lines = [line.strip() for line in (done.stdout + done.stderr).splitlines()]
        said = [line for line in lines if re.search("not found|xception|rror|refused|denied", line)]
        raise _unfetched(said[0] if said else "Ivy did not say why")


def _unfetched(why: str) -> UserError:
    return UserError(
        f"Delta's jars could not be fetched: {why}",
        where="strobe.yml: spark",
        fix="The first start needs Maven Central, or a mirror (spark.jars.ivySettings or spark.jars.repositories).",
    )


def _wanted(jars: Sequence[Jar]) -> str:
    """What Ivy is to resolve: these, and nothing that they ask for."""
    lines = (
        f'<dependency org="{jar.group}" name="{jar.artifact}" rev="{jar.version}" transitive="false" '
        'conf="default->master"/>'
        for jar in jars
    )
    return (
        '<ivy-module version="2.0"><info organisation="strobe" module="jars"/>'
        '<configurations><conf name="default"/></configurations>'
        f"<dependencies>{''.join(lines)}</dependencies></ivy-module>"
    )


def _resolvers(repositories: str) -> str:
    """Where Ivy looks: the user's repositories, and then Maven Central."""
    roots = [*(each.strip() for each in repositories.split(",") if each.strip()), _CENTRAL]
    chain = (
        f'<ibiblio name="{"central" if root == _CENTRAL else f"mirror-{number}"}" m2compatible="true" '
        f"root={quoteattr(root)}/>"
        for number, root in enumerate(roots)
    )
    return (
        '<ivysettings><settings defaultResolver="all"/><resolvers><chain name="all" returnFirst="true">'
        f"{''.join(chain)}</chain></resolvers></ivysettings>"
    )


def _reaching(settings: Mapping[str, str]) -> list[str]:
    """The user's options of Java that say how to reach other machines."""
    options = settings.get("spark.driver.extraJavaOptions", "")
    return [option for option in shlex.split(options) if option.startswith(_OF_JAVA)]
