"""To which servers a PostgreSQL password goes, and in which form."""

from __future__ import annotations

from hashlib import md5
from pathlib import Path

import pytest
from impostors import CLEAR, LET_IN, MD5, Impostor, postgres

from strobe.errors import AccessRefused
from strobe.sources.postgres import access
from strobe.sources.postgres.connection import ConnectionSettings

PASSWORD = "s3cret-word"


@pytest.fixture(autouse=True)
def nothing_around(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variables of libpq's, and no files in the user's home."""
    for name in ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGSSLMODE", "PGREQUIREAUTH", "PGSSLROOTCERT", "PGPASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(access, "OWN_AUTHORITIES", tmp_path / "root.crt")


def settings(port: int, more: str = "") -> ConnectionSettings:
    dsn = f"host=127.0.0.1 port={port} user=strobe password={PASSWORD} dbname=shop {more}"
    return ConnectionSettings("shop", dsn, "public", "strobe_test_shop", 1, 5.0)


def in_any_form(heard: bytes) -> bool:
    inner = md5((PASSWORD + "strobe").encode()).hexdigest()
    return PASSWORD.encode() in heard or md5(inner.encode() + b"salt").hexdigest().encode() in heard


@pytest.mark.parametrize("asked", [CLEAR, MD5])
@pytest.mark.parametrize("remote", [False, True])
def test_an_impostor_does_not_get_the_password(asked: bytes, remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on this machine, where it may be another user's server, nor elsewhere if TLS was given up in the dsn."""
    monkeypatch.setattr(access, "is_local", lambda _host: not remote)
    with Impostor(postgres(asked, LET_IN)) as impostor:
        with pytest.raises(AccessRefused, match="authentication method requirement") as error:
            settings(impostor.port, "sslmode=prefer" if remote else "").connect()
    assert not in_any_form(bytes(impostor.heard)) and b"strobe" in impostor.heard
    assert "scram-sha-256" in error.value.fix and "require_auth" in error.value.fix
    assert PASSWORD not in str(error.value)


def test_the_impostor_gets_what_the_dsn_allows() -> None:
    """So that the test above can fail."""
    for asked, form in ((CLEAR, "password"), (MD5, "md5")):
        with Impostor(postgres(asked)) as impostor, pytest.raises(Exception, match="closed the connection"):
            settings(impostor.port, f"require_auth={form}").connect()
        assert in_any_form(bytes(impostor.heard))


def test_away_from_this_machine_nothing_is_said_in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even who wants to log in; a server that lets everybody in has not proven that it knows the user."""
    monkeypatch.setattr(access, "is_local", lambda _host: False)
    monkeypatch.setenv("PGSSLMODE", "disable")
    monkeypatch.setenv("PGREQUIREAUTH", "none")
    with Impostor(postgres(LET_IN)) as impostor:
        with pytest.raises(AccessRefused, match="does not support SSL") as error:
            settings(impostor.port).connect()
        assert b"strobe" not in impostor.heard and "sslmode" in error.value.fix
        with pytest.raises(AccessRefused, match="authentication method requirement"):
            settings(impostor.port, "sslmode=disable").connect()


@pytest.mark.parametrize(
    ("dsn", "variables", "here"),
    [
        ({}, {}, True),
        ({"host": "localhost"}, {}, True),
        ({"host": "LOCALHOST"}, {}, True),
        ({"host": "127.8.9.1"}, {}, True),
        ({"host": "::1"}, {}, True),
        ({"host": "/run/postgresql"}, {}, True),
        ({"host": "@abstract"}, {}, True),
        ({"host": "db.example.org", "hostaddr": "127.0.0.1"}, {}, True),
        ({"host": "localhost", "hostaddr": "192.0.2.1"}, {}, False),
        ({"host": "localhost,db.example.org"}, {}, False),
        ({"host": "localhost,/run"}, {}, True),
        ({"host": "localhost.example.org"}, {}, False),
        ({"host": "127.0.0.1.example.org"}, {}, False),
        ({"host": "0.0.0.0"}, {}, False),
        ({"host": "2130706433"}, {}, False),
        ({}, {"PGHOST": "db.example.org"}, False),
        ({"host": "localhost"}, {"PGHOST": "db.example.org"}, True),
        ({"host": "localhost"}, {"PGHOSTADDR": "192.0.2.1"}, False),
        ({"host": "localhost", "service": "shop"}, {}, False),
        ({"host": "localhost"}, {"PGSERVICE": "shop"}, False),
    ],
)
def test_every_host_counts(
    dsn: dict[str, str], variables: dict[str, str], here: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As libpq finds them: in the dsn, and in the environment where the dsn says nothing."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert access.stays_here(dsn) is here
    assert access.defaults(dsn).get("sslmode") == (None if here else "verify-full")


def test_the_system_s_authorities_are_trusted_where_no_others_are_named(tmp_path: Path) -> None:
    away = {"host": "db.example.org"}
    found = access.defaults(away)
    assert found["sslmode"] == "verify-full" and found["require_auth"] == "scram-sha-256"
    assert found["sslrootcert"] == "system" or Path(found["sslrootcert"]).exists()
    assert "sslrootcert" not in access.defaults({**away, "sslrootcert": "ca.pem"})
    assert access.defaults({**away, "sslcert": "me.pem"})["require_auth"] == "scram-sha-256,none"
    (tmp_path / "root.crt").touch()
    assert "sslrootcert" not in access.defaults(away)


@pytest.mark.parametrize(
    ("dsn", "warned"),
    [
        ({"host": "db"}, []),
        ({"host": "db", "sslmode": "verify-full", "require_auth": "password"}, []),
        ({"host": "localhost", "sslmode": "disable"}, []),
        ({"host": "db", "sslmode": "verify-ca"}, ["sslmode=verify-ca"]),
        ({"host": "db", "sslmode": "prefer"}, ["sslmode=prefer"]),
        (
            {"host": "db", "sslmode": "require", "require_auth": "password"},
            ["sslmode=require", "require_auth=password"],
        ),
        ({"host": "localhost", "require_auth": "md5,scram-sha-256"}, ["require_auth=md5,scram-sha-256"]),
        ({"host": "localhost", "require_auth": "!none"}, ["require_auth=!none"]),
        ({"host": "localhost", "require_auth": ""}, ["require_auth="]),
    ],
)
def test_less_is_a_warning(dsn: dict[str, str], warned: list[str]) -> None:
    found = list(access.warnings(dsn, "source shop, dsn"))
    assert [finding.message.partition(": ")[0] for finding in found] == warned
    assert all(finding.severity == "warning" and finding.fix for finding in found)


@pytest.mark.parametrize(
    ("text", "tried_again"),
    [
        ("SSL SYSCALL error: EOF detected", True),
        ("SSL connection has been closed unexpectedly", True),
        ("server does not support SSL, but SSL was required", False),
        ("SSL error: certificate verify failed", False),
        ('server certificate for "db" does not match host name "shop"', False),
        ("host name must be specified for a verified SSL connection", False),
    ],
)
def test_a_lost_connection_is_not_taken_for_an_impostor(text: str, tried_again: bool) -> None:
    assert (access.refused(text) == "") is tried_again
