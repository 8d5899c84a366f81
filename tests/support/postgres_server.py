"""A throw-away PostgreSQL server on loopback, from the binaries of the system's packages."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ports
import psycopg
import pytest
from patience import PATIENCE, eventually
from psycopg import sql

USER = "postgres"
"""Under whose account the server runs where the tests run as root, whom it refuses."""

SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "wal_level": "logical",
    "max_replication_slots": "40",
    "max_wal_senders": "20",
    "max_prepared_transactions": "5",
    "shared_buffers": "32MB",
    "max_connections": "60",
    "autovacuum": "off",
    "fsync": "off",
}


def without_server(missing: str) -> None:
    """Skip what needs a server that is missing; fail where somebody relies on it."""
    if missing and os.environ.get("STROBE_NEED_SERVERS"):
        pytest.fail(missing)
    elif missing:
        pytest.skip(missing)


def _binaries() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda p: int(p.parts[-3]))
    if found:
        return found[-1].parent
    elsewhere = shutil.which("postgres")
    return Path(elsewhere).parent if elsewhere else None


class PostgresServer:
    role = "strobe_reader"
    """A role with the least privileges that Strobe needs; see docs/sources/postgres.md."""
    password = "least-privilege"

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="strobe-pg-"))
        self.data = self.folder / "data"
        self.port = ports.claim()
        self._made = 0
        self._server: subprocess.Popen[bytes] | None = None

    @staticmethod
    def missing() -> str:
        """Why there can be no server here; empty if there can."""
        if _binaries() is None:
            return "no PostgreSQL server is installed (Debian: apt install postgresql)"
        if os.geteuid() == 0 and (shutil.which("runuser") is None or not _account()):
            return "PostgreSQL does not run as root, and there is no account postgres to run it under"
        return ""

    def start(self) -> None:
        if os.geteuid() == 0:
            shutil.chown(self.folder, USER)
        if not self.data.exists():
            self._run("initdb", "-D", str(self.data), "-U", "admin", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
            (self.data / "pg_hba.conf").write_text(
                f"local all all trust\nhost all {self.role} 127.0.0.1/32 scram-sha-256\n"
                "host all admin 127.0.0.1/32 trust\n"
            )
        options = [f"-c{name}={value}" for name, value in SETTINGS.items()]
        command = [str(self.binary("postgres")), "-D", str(self.data), "-p", str(self.port)]
        log = (self.folder / "log").open("ab")
        self._server = subprocess.Popen(
            [*self._as_user(), *command, "-k", str(self.folder), *options], stdout=log, stderr=log
        )
        log.close()
        self._wait()
        if not self.execute("postgres", "SELECT 1 FROM pg_roles WHERE rolname = %s", self.role):
            role, password = sql.Identifier(self.role), sql.Literal(self.password)
            self.execute("postgres", sql.SQL("CREATE ROLE {} LOGIN REPLICATION PASSWORD {}").format(role, password))

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                psycopg.connect(self.admin_dsn("postgres")).close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline or (self._server and self._server.poll() is not None):
                    log = (self.folder / "log").read_text()[-2000:]
                    raise RuntimeError(f"the PostgreSQL server did not start:\n{log}") from error
                time.sleep(0.05)

    def stop(self, mode: str = "fast") -> None:
        if self._server is not None:
            self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "stop")
            self._server.wait(PATIENCE)
            self._server = None

    @property
    def process(self) -> int:
        """The process that was started, which may be the one that runs the server under another account."""
        assert self._server is not None
        return self._server.pid

    def gone(self) -> None:
        """The server was killed: wait until nothing is left of it."""
        if self._server is not None:
            self._server.wait(PATIENCE)
            self._server = None

    def remove(self) -> None:
        try:
            if self.data.exists():
                self.stop("immediate")
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def binary(name: str) -> Path:
        found = _binaries()
        assert found is not None
        return found / name

    @staticmethod
    def _as_user() -> list[str]:
        return ["runuser", "-u", USER, "--"] if os.geteuid() == 0 else []

    def _run(self, name: str, *arguments: str) -> None:
        command = [*self._as_user(), str(self.binary(name)), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def admin_dsn(self, database: str) -> str:
        return f"host=127.0.0.1 port={self.port} user=admin dbname={database}"

    def dsn(self, database: str) -> str:
        """For Strobe, with the least privileges."""
        return f"postgresql://{self.role}:{self.password}@127.0.0.1:{self.port}/{database}"

    def execute(self, database: str, statement: Any, *parameters: Any) -> list[tuple[Any, ...]]:
        """One statement by the owner of everything, committed by itself."""
        with psycopg.connect(self.admin_dsn(database), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def database(self, script: str = "", encoding: str = "UTF8") -> str:
        """A new database with these tables, which Strobe's role may read; returns its name."""
        self._made += 1
        name = f"db{self._made}"
        other = "" if encoding == "UTF8" else f" ENCODING '{encoding}' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0"
        self.execute("postgres", sql.SQL("CREATE DATABASE {}" + other).format(sql.Identifier(name)))
        role = sql.Identifier(self.role)
        grants = (
            "GRANT USAGE ON SCHEMA public TO {}; ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT SELECT ON TABLES TO {}"
        )
        self.execute(name, sql.SQL(grants).format(role, role))
        if script:
            self.execute(name, script)
        return name

    def publish(self, database: str, statements: list[str]) -> None:
        """What the DBA does with the output of `strobe prepare --dry-run`: the publication, which needs ownership."""
        for statement in statements:
            if "PUBLICATION" in statement:
                self.execute(database, statement)

    def drop(self, database: str) -> None:
        self.execute("postgres", "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", database)
        active = "SELECT 1 FROM pg_replication_slots WHERE database = %s AND active"
        eventually(lambda: not self.execute("postgres", active, database))
        self.execute(
            "postgres",
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s",
            database,
        )
        self.execute("postgres", sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(database)))


@contextlib.contextmanager
def running() -> Iterator[PostgresServer]:
    """A server that is gone afterwards."""
    without_server(PostgresServer.missing())
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.remove()


def _account() -> bool:
    import pwd

    try:
        pwd.getpwnam(USER)
    except KeyError:
        return False
    return True
