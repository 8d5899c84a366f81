"""A throw-away MariaDB server on loopback, for tests.

Strobe itself connects as `strobe`, who has exactly the rights that docs/sources/mariadb.md asks for.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import ports
import pymysql
from patience import PATIENCE
from postgres_server import without_server

PASSWORD = "s3cret/pass:word"
RIGHTS = ["PROCESS, REPLICATION SLAVE, BINLOG MONITOR ON *.*"]
USER = ["--user=mysql"] if os.geteuid() == 0 else []
SETTINGS = {
    "log-bin": "binlog",
    "server-id": "7",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "binlog-expire-logs-seconds": "604800",
    "character-set-server": "utf8mb4",
    "innodb-log-file-size": "4M",
    "innodb-buffer-pool-size": "32M",
    "sync-binlog": "1",
    "skip-name-resolve": "ON",
    "performance-schema": "OFF",
    "bind-address": "127.0.0.1",
}


def missing() -> str | None:
    """Why there can be no server here, or None."""
    for program in ("mariadbd", "mariadb-install-db"):
        if _find(program) is None:
            return f"there is no {program}: install Debian's mariadb-server"
    return None


def _find(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


class Server:
    """One server with its own folder, port and log."""

    mysql = False
    rights: ClassVar[Sequence[str]] = RIGHTS
    defaults: ClassVar[Mapping[str, str]] = SETTINGS

    def __init__(self, template: Path, settings: Mapping[str, str] = {}, without: Sequence[str] = ()) -> None:
        self.folder = own_folder()
        self.settings = {name: value for name, value in {**self.defaults, **settings}.items() if name not in without}
        shutil.copytree(template, self.data)
        self.temporary.mkdir()
        self.port = ports.claim()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self.run(f"CREATE USER strobe@'127.0.0.1' IDENTIFIED BY '{PASSWORD}'")
        for right in self.rights:
            self.run(f"GRANT {right} TO strobe@'127.0.0.1'")

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def temporary(self) -> Path:
        """Of its own: a server that starts removes the temporary tables of all others that use the same folder."""
        return self.folder / "tmp"

    @property
    def process(self) -> int:
        assert self._process is not None
        return self._process.pid

    def program(self) -> list[str]:
        belongs_to_mysql(self.folder)
        program = _find("mariadbd")
        assert program
        return [program, "--no-defaults", *USER]

    def start(self) -> None:
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        here = [f"--datadir={self.data}", f"--port={self.port}", "--socket=s.sock", "--pid-file=pid"]
        here += [f"--tmpdir={self.temporary}"]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen([*self.program(), *here, *options], stdout=log, stderr=log)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self.connect().close()
                return
            except pymysql.err.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.05)

    def stop(self, kill: bool = False) -> None:
        if self._process is not None:
            (self._process.kill if kill else self._process.terminate)()
            self._process.wait(PATIENCE)
            self._process = None

    def close(self) -> None:
        self.stop(kill=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self, database: str | None = None, **more: Any) -> Any:
        return pymysql.connect(
            host="127.0.0.1", port=self.port, user="root", password="", database=database, charset="utf8mb4", **more
        )

    def run(self, *statements: str, database: str | None = None) -> None:
        """Statements on a connection of their own, each committed."""
        with contextlib.closing(self.connect(database, autocommit=True)) as connection:
            with connection.cursor() as cursor:
                for statement in statements:
                    cursor.execute(statement)

    def version(self) -> tuple[int, ...]:
        ((text,),) = self.rows("SELECT version()")
        return tuple(int(part) for part in text.split("-")[0].split("."))

    def reset(self) -> None:
        """Begin the binlog anew."""
        self.run("RESET BINARY LOGS AND GTIDS" if self.mysql and self.version() >= (8, 2) else "RESET MASTER")

    def rows(self, statement: str, parameters: Sequence[Any] = (), database: str | None = None) -> list[Any]:
        with contextlib.closing(self.connect(database, autocommit=True)) as connection:
            with connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return list(cursor.fetchall())

    def database(self, name: str) -> str:
        """A new database that `strobe` may read, and its address."""
        self.run(f"CREATE DATABASE `{name}`", f"GRANT SELECT ON `{name}`.* TO strobe@'127.0.0.1'")
        return self.dsn(name)

    def dsn(self, database: str) -> str:
        return f"mysql://strobe:s3cret%2Fpass%3Aword@127.0.0.1:{self.port}/{database}"


def own_folder() -> Path:
    """Not among pytest's folders: each start of pytest closes those to other users, as whom a server runs."""
    return Path(tempfile.mkdtemp(prefix="strobe-mariadb-"))


def belongs_to_mysql(folder: Path) -> None:
    """Files that do already stay as they are: a new owner is a new time of change, which MariaDB shows as the time at
    which a table was made."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            if path.owner() != "mysql":
                shutil.chown(path, "mysql", "mysql")


@contextlib.contextmanager
def new_template() -> Iterator[Path]:
    """An empty data folder, from which servers start in a second."""
    without_server(missing())
    program = _find("mariadb-install-db")
    assert program
    folder = own_folder()
    try:
        belongs_to_mysql(folder)
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", "--innodb-log-file-size=4M"]
        options += ["--skip-name-resolve", f"--tmpdir={folder}"]  # see Server.temporary
        command = [program, "--no-defaults", f"--datadir={folder / 'data'}", *USER, *options]
        done = subprocess.run(command, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        yield folder / "data"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def running(template: Path, settings: Mapping[str, str] = {}, without: Sequence[str] = ()) -> Iterator[Server]:
    server = Server(template, settings, without)
    try:
        yield server
    finally:
        server.close()
