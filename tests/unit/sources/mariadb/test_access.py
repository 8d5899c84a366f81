"""To which servers a MariaDB or MySQL password goes, and in which form."""

from __future__ import annotations

import hashlib
import ssl

import pymysql
import pytest
from impostors import SALT, Impostor, mysql, switch

from strobe.errors import AccessRefused, SourceUnavailable, StrobeError
from strobe.sources.mariadb import connection as mariadb
from strobe.sources.mariadb.connection import Address, ConnectionSettings

PASSWORD = "s3cret-word"
KEY = b"\x01-----BEGIN PUBLIC KEY-----\nMFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAK\n-----END PUBLIC KEY-----\n"
FULL, OK = b"\x01\x04", b"\0\0\0\x02\0\0\0"


def settings(port: int, more: str = "") -> ConnectionSettings:
    dsn = f"mysql://strobe:{PASSWORD}@127.0.0.1:{port}/shop{more}"
    return ConnectionSettings("shop", Address.parse(dsn, "source shop"))


def away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mariadb, "is_local", lambda _host: False)


def in_the_clear(heard: bytes) -> bool:
    return PASSWORD.encode() in heard or PASSWORD[::-1].encode() in heard


@pytest.mark.parametrize("plugin", [b"mysql_clear_password", b"dialog", b"mysql_old_password", b"made_up"])
@pytest.mark.parametrize("remote", [False, True])
def test_an_impostor_does_not_get_the_password(plugin: bytes, remote: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It greets as the right server would, and then asks for another form; or names that one from the start."""
    if remote:
        away(monkeypatch)
    for first in (b"mysql_native_password", plugin):
        prompt = b"\x04Password: " if plugin == b"dialog" else b""
        asks = b"\xfe" + plugin + b"\0" + prompt if prompt else switch(plugin)
        with Impostor(mysql(first, asks, OK)) as impostor:
            with pytest.raises(AccessRefused, match=f"asks for the password by {plugin.decode()}") as error:
                settings(impostor.port, "?ssl=off" if remote else "").connect()
        assert not in_the_clear(bytes(impostor.heard)) and b"strobe" in impostor.heard
        assert "caching_sha2_password" in error.value.fix and PASSWORD not in str(error.value)


def test_away_from_this_machine_nothing_is_said_in_the_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that offers no TLS is told nothing at all, and one that does has to prove its name first."""
    away(monkeypatch)
    for more in ("", "?ssl_verify_identity=off"):
        with Impostor(mysql(b"mysql_native_password", switch(b"mysql_clear_password"))) as impostor:
            with pytest.raises(AccessRefused, match="does not offer TLS") as error:
                settings(impostor.port, more).connect()
        assert not impostor.heard and "ssl=off" in error.value.fix
    with Impostor(mysql(b"mysql_native_password", OK, tls=True)) as impostor:
        with pytest.raises(StrobeError):
            settings(impostor.port).connect()
    assert b"strobe" not in impostor.heard


@pytest.mark.parametrize("plugin", [b"caching_sha2_password", b"sha256_password"])
def test_a_key_that_anybody_could_send_is_not_used(plugin: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """An impostor would have the other half of it. On this machine it is, as MySQL's own client does on request."""
    answers = [FULL, KEY] if plugin == b"caching_sha2_password" else [KEY]
    used: list[bytes] = []

    def encrypt(_password: bytes, _salt: bytes, key: bytes) -> bytes:
        used.append(key)
        return b"encrypted"

    monkeypatch.setattr(pymysql.connections._auth, "sha2_rsa_encrypt", encrypt)
    with Impostor(mysql(plugin, *answers)) as impostor, pytest.raises(StrobeError):
        settings(impostor.port).connect()
    assert used == [KEY[1:]]
    away(monkeypatch)
    with Impostor(mysql(plugin, *answers)) as impostor:
        with pytest.raises(AccessRefused, match="by a key of its own"):
            settings(impostor.port, "?ssl=off").connect()
    assert used == [KEY[1:]] and not in_the_clear(bytes(impostor.heard))


def test_the_impostor_gets_an_answer_to_what_is_allowed() -> None:
    """So that the tests above can fail: the proof of the right password, which is not the password."""
    with Impostor(mysql(b"mysql_native_password", switch(b"mysql_native_password"))) as impostor:
        with pytest.raises(StrobeError):
            settings(impostor.port).connect()
    once = hashlib.sha1(PASSWORD.encode()).digest()
    mask = hashlib.sha1(SALT[0] + SALT[1] + hashlib.sha1(once).digest()).digest()
    assert bytes(a ^ b for a, b in zip(once, mask, strict=True)) in impostor.heard


def test_a_server_that_asks_for_a_file_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """As an answer to any statement, which is how it asks."""
    with Impostor(mysql(b"mysql_native_password", OK, OK, b"\xfb/etc/passwd", OK)) as impostor:
        with pytest.raises(SourceUnavailable, match="asked for a file"):
            settings(impostor.port).connect()
    assert b"root:" not in impostor.heard


@pytest.mark.parametrize(
    ("host", "options", "verified", "warned"),
    [
        ("localhost", "", None, []),
        ("127.9.9.9", "", None, []),
        ("[::1]", "", None, []),
        ("db", "?unix_socket=/run/mysqld.sock", None, []),
        ("localhost", "?ssl=on", True, []),
        ("db.example.org", "", True, []),
        ("db.example.org", "?ssl=off", None, ["ssl=off"]),
        ("db.example.org", "?ssl_verify_identity=off", False, ["ssl_verify_identity=off"]),
        ("localhost.example.org", "", True, []),
    ],
)
def test_tls_is_the_default_away_from_this_machine(
    host: str, options: str, verified: bool | None, warned: list[str]
) -> None:
    """With the name verified; less is a warning."""
    address = Address.parse(f"mysql://strobe:x@{host}/shop{options}", "source shop")
    tls = address.tls()
    assert (None if tls is None else tls.check_hostname) is verified
    assert tls is None or tls.verify_mode is ssl.CERT_REQUIRED
    found = list(address.warnings("source shop, dsn"))
    assert [finding.message.partition(": ")[0] for finding in found] == warned
