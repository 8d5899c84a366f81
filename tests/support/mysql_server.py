"""A throw-away MySQL server on loopback, for tests: one that is installed, or what tools/mysql.sh fetched; and an old
one, which tools/mysql8.sh fetched.

Strobe itself connects as `strobe`, who has exactly the rights that docs/sources/mariadb.md asks for, over TLS, since a
password of MySQL's default kind (caching_sha2_password) is given to the server over TLS only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import ClassVar

import mariadb_server
import pytest
from mariadb_server import Server, own_folder

USER = ["--user=root"] if os.geteuid() == 0 else []
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "strobe"


@cache
def newest() -> list[str]:
    """How MySQL is started, without its options."""
    installed = shutil.which("mysqld", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if installed and b"MariaDB" not in subprocess.run([installed, "--version"], capture_output=True).stdout:
        return [installed, "--no-defaults", *USER]
    return fetched("mysql")


def fetched(name: str) -> list[str]:
    """One that a script of tools/ has fetched."""
    if not (CACHE / name / "run").exists():
        pytest.skip(f"there is no {name} server: tools/servers.sh fetches it")  # no stable release has it
    return [str(CACHE / name / "run"), "mysqld", *USER]


class MysqlServer(Server):
    mysql = True
    rights: ClassVar[Sequence[str]] = ["PROCESS, REPLICATION SLAVE, REPLICATION CLIENT ON *.*"]
    defaults: ClassVar[Mapping[str, str]] = {
        **{n: v for n, v in mariadb_server.SETTINGS.items() if n not in ("binlog-format", "innodb-log-file-size")},
        "gtid-mode": "ON",
        "enforce-gtid-consistency": "ON",
        "loose-innodb-redo-log-capacity": "8M",
        "cte-max-recursion-depth": "1000000",
        "mysqlx": "OFF",
        "secure-file-priv": "NULL",
    }

    def program(self) -> list[str]:
        return newest()

    def dsn(self, database: str) -> str:
        return f"{super().dsn(database)}?ssl_ca={self.data / 'ca.pem'}&ssl_verify_identity=off"


class Mysql8Server(MysqlServer):
    """An early 8.0, as the oldest that Strobe serves."""

    def program(self) -> list[str]:
        return fetched("mysql-8.0")


@contextlib.contextmanager
def new_template(program: list[str]) -> Iterator[Path]:
    """An empty data folder, from which servers start in a second."""
    folder = own_folder()
    try:
        users = folder / "users.sql"
        users.write_text("CREATE USER root@'127.0.0.1';\nGRANT ALL ON *.* TO root@'127.0.0.1' WITH GRANT OPTION;\n")
        options = [f"--datadir={folder / 'data'}", f"--init-file={users}", "--loose-innodb-redo-log-capacity=8M"]
        options += [f"--tmpdir={folder}"]
        done = subprocess.run([*program, "--initialize-insecure", *options], capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (folder / "data" / "auto.cnf").unlink()  # each server gives itself an identity of its own
        yield folder / "data"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
