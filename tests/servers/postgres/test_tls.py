"""PostgreSQL: a server that is taken for one on another machine has to prove its name by TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from postgres_server import PostgresServer, running

from strobe.errors import AccessRefused
from strobe.sources.postgres import access
from strobe.sources.postgres.connection import ConnectionSettings

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates with")


def certificate(folder: Path, name: str) -> None:
    """A certificate for this name that is its own authority."""
    more = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{name}", "-out", f"{name}.pem", "-keyout", "key"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *more]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def secured(server: PostgresServer, name: str) -> str:
    """Let the server use a certificate for this name; the path of its authority."""
    certificate(server.folder, name)
    for file in ("key", f"{name}.pem"):
        shutil.copy(server.folder / file, server.data)
        shutil.chown(server.data / file, server.data.owner())
    (server.data / "key").chmod(0o600)
    for variable, value in (("ssl_cert_file", f"{name}.pem"), ("ssl_key_file", "key"), ("ssl", "on")):
        server.execute("postgres", f"ALTER SYSTEM SET {variable} = '{value}'")
    server.stop()
    server.start()
    return str(server.folder / f"{name}.pem")


def test_the_name_is_verified_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By the authority that the dsn names, and otherwise by those of the system; for the stream, too."""
    monkeypatch.setattr(access, "is_local", lambda _host: False)
    monkeypatch.setattr(access, "OWN_AUTHORITIES", tmp_path / "root.crt")
    with running() as server:
        name = server.database()

        def settings(more: str = "", host: str = "localhost") -> ConnectionSettings:
            dsn = f"{server.dsn(name)}?hostaddr=127.0.0.1{more}".replace("@127.0.0.1", f"@{host}")
            return ConnectionSettings("shop", dsn, "public", "strobe_test_shop", 1, 5.0)

        with pytest.raises(AccessRefused, match="does not support SSL"):
            settings().connect()
        authority = secured(server, "localhost")
        for replication in (False, True):
            settings(f"&sslrootcert={authority}").connect(replication=replication).close()
        with pytest.raises(AccessRefused, match="verify failed") as error:
            settings().connect()
        assert "sslrootcert" in error.value.fix
        with pytest.raises(AccessRefused, match="does not match host name"):
            settings(f"&sslrootcert={authority}", "db.example.org").connect()
        for less in ("require", "disable"):
            settings(f"&sslmode={less}", "db.example.org").connect().close()
