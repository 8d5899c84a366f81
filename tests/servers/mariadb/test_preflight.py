"""MariaDB: preflight, rights, addresses and TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from mariadb_server import running
from mariadb_shop import Shop, read, rows_of

from strobe.config.model import MariadbSource as Config
from strobe.errors import AccessRefused, SourceUnavailable, UserError
from strobe.sources.mariadb.source import MariadbSource

if TYPE_CHECKING:
    from mariadb_server import Server

IMAGES = ("binlog_row_image", "binlog_row_metadata")


def test_what_is_missing_is_found_with_what_mends_it(shop: Shop) -> None:
    """Each setting, right and kind of table."""
    shop.run(
        "CREATE TABLE good (id INT PRIMARY KEY)",
        "CREATE TABLE old (id INT PRIMARY KEY) ENGINE = MyISAM",
        "CREATE VIEW seen AS SELECT * FROM good",
        "CREATE TABLE versioned (id INT PRIMARY KEY) WITH SYSTEM VERSIONING",
        "CREATE TABLE child (id INT PRIMARY KEY, g INT COMMENT 'FOREIGN KEY ON DELETE CASCADE',"
        " CONSTRAINT `c``1` FOREIGN KEY (g) REFERENCES good (id) ON UPDATE CASCADE,"
        " CONSTRAINT c2 FOREIGN KEY (g) REFERENCES good (id))",
        "CREATE TABLE sound (id INT PRIMARY KEY, g INT COMMENT 'FOREIGN KEY ON DELETE CASCADE',"
        " FOREIGN KEY (g) REFERENCES good (id))",
    )
    source = shop.source()
    assert source.check(["good", "sound"]) == []

    def one(relation: str) -> tuple[str, str]:
        (finding,) = source.check([relation])
        assert finding.severity == "error" and relation in finding.where
        return finding.message, finding.fix

    assert "MyISAM" in one("old")[0] and "ENGINE = InnoDB" in one("old")[1]
    assert "view" in one("seen")[0] and "versioned" in one("versioned")[0].lower()
    message, fix = one("child")
    assert "c`1" in message and "not in the binlog" in message and "DROP FOREIGN KEY `c``1`" in fix
    assert "GRANT SELECT ON" in one("nowhere")[1]
    assert {s.name for s in source.schemas()} == {"good", "child", "sound"}


@pytest.mark.parametrize(
    ("setting", "bad", "good"),
    [
        ("binlog_format", "MIXED", "ROW"),
        ("binlog_row_image", "MINIMAL", "FULL"),
        ("binlog_row_metadata", "NO_LOG", "FULL"),
        ("binlog_expire_logs_seconds", "3600", "604800"),
        ("sync_binlog", "0", "1"),
        ("binlog_checksum", "NONE", "CRC32"),
        ("innodb_flush_log_at_trx_commit", "2", "1"),
    ],
)
def test_settings_are_checked(shop: Shop, setting: str, bad: str, good: str) -> None:
    source = shop.source()
    shop.run(f"SET GLOBAL {setting} = {bad}")
    try:
        (finding,) = source.check([])
        assert f"SET GLOBAL {setting} = " in finding.fix
        assert finding.severity == ("error" if setting in ("binlog_format", *IMAGES) else "warning")
    finally:
        shop.run(f"SET GLOBAL {setting} = {good}")
    assert source.check([]) == []


def test_a_replica_that_keeps_changes_to_itself_is_refused(mariadb_template: Path) -> None:
    """What a server takes in from another is in its own binlog only with log_slave_updates."""
    with running(mariadb_template, {"log-slave-updates": "OFF"}) as server:
        source = Shop(server).source()
        assert source.check([]) == []
        server.run("SET GLOBAL gtid_slave_pos = '0-99-1'")
        (finding,) = source.check([])
        assert finding.severity == "error" and "log_slave_updates = ON" in finding.fix


def test_a_server_without_a_binlog_is_refused(mariadb_template: Path) -> None:
    """`check` says so, and nothing else goes on as if there were one."""
    with running(mariadb_template, {"skip-log-bin": "ON"}, without=["log-bin"]) as server:
        source = Shop(server).source()
        (finding,) = source.check([])
        assert finding.severity == "error" and "log_bin" in finding.fix
        with pytest.raises(UserError, match="binlog"):
            source.now()


def test_each_right_is_needed_and_named(mariadb: Server) -> None:
    """Without one of the documented rights, preflight names the statement that gives it."""
    shop = Shop(mariadb)
    shop.run("CREATE TABLE t (id INT PRIMARY KEY)")
    user = f"u{shop.name}"
    mariadb.run(
        f"CREATE USER {user}@'127.0.0.1' IDENTIFIED BY 'x'", f"GRANT SELECT ON {shop.name}.* TO {user}@'127.0.0.1'"
    )
    dsn = f"mysql://{user}:x@127.0.0.1:{mariadb.port}/{shop.name}"
    source = MariadbSource("billing", Config(type="mariadb", dsn=dsn))
    (finding,) = source.check(["t"])
    assert finding.fix == f"GRANT BINLOG MONITOR ON *.* TO '{user}'@'127.0.0.1';"
    mariadb.run(finding.fix)
    fixes = [finding.fix for finding in source.check(["t"])]
    rights = ("REPLICATION SLAVE", "PROCESS")
    assert fixes == [f"GRANT {right} ON *.* TO '{user}'@'127.0.0.1';" for right in rights]
    mariadb.run(*fixes)
    assert source.check(["t"]) == []
    mariadb.run(f"REVOKE SELECT ON {shop.name}.* FROM {user}@'127.0.0.1'")
    mariadb.run(f"GRANT SELECT (id) ON {shop.name}.t TO {user}@'127.0.0.1'")
    (finding,) = source.check(["t"])
    assert finding.fix == f"GRANT SELECT ON `{shop.name}`.`t` TO '{user}'@'127.0.0.1';"


def test_a_wrong_password_is_not_shown(shop: Shop) -> None:
    """Neither in the error nor in what objects print of themselves."""
    config = Config(type="mariadb", dsn=shop.dsn.replace("s3cret", "wr0ng"))
    source = MariadbSource("billing", config)
    with pytest.raises(AccessRefused) as caught:
        source.now()
    shown = [str(caught.value), repr(config), repr(source.settings), str(source.check(["t"]))]
    assert not any("wr0ng" in text or "pass:word" in text for text in shown)


def test_addresses(shop: Shop) -> None:
    """What is not an address is refused, without showing it; TLS that is asked for is not left out silently."""
    for dsn in (
        "x",
        "postgres://u:p@h/d",
        "mysql://h/d",
        "mysql://u:p4ss@h",
        "mysql://u:p4ss@h/d?what=1",
        "mysql://u@h:x/d",
    ):
        with pytest.raises(UserError) as caught:
            MariadbSource("billing", Config(type="mariadb", dsn=dsn))
        assert "p4ss" not in str(caught.value)
    tls = MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?ssl=true"))
    with pytest.raises((UserError, SourceUnavailable), match=r"(?i)tls|ssl"):
        tls.now()
    missing = MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?ssl_ca=/nowhere.pem"))
    with pytest.raises(UserError, match="TLS files"):
        missing.now()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl to make certificates with")
def test_tls_is_verified_when_asked_for(mariadb_template: Path) -> None:
    """Stream and answers go over it; another authority, or a certificate for another name, is refused."""
    with running(mariadb_template) as server:
        keys = server.folder / "keys"
        keys.mkdir()

        def certify(name: str, address: str) -> None:
            subject = ["-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{address}"]
            files = ["-keyout", str(keys / f"{name}.key"), "-out", str(keys / f"{name}.pem")]
            command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject, *files]
            subprocess.run(command, check=True, capture_output=True)

        certify("good", "127.0.0.1")
        certify("other", "127.0.0.1")
        certify("elsewhere", "10.0.0.1")
        shop = Shop(server)
        shop.run("CREATE TABLE t (id INT PRIMARY KEY)")

        def source(**options: str) -> MariadbSource:
            query = "&".join(f"{name}={value}" for name, value in options.items())
            return MariadbSource("billing", Config(type="mariadb", dsn=f"{shop.dsn}?{query}"))

        with pytest.raises((UserError, SourceUnavailable), match=r"(?i)tls|ssl"):
            source(ssl_ca=str(keys / "good.pem")).now()
        for name in ("good", "elsewhere"):
            server.stop()
            server.settings |= {"ssl-cert": str(keys / f"{name}.pem"), "ssl-key": str(keys / f"{name}.key")}
            server.start()
            ca = str(keys / f"{name}.pem")
            if name == "elsewhere":
                with pytest.raises(SourceUnavailable, match=r"(?i)certificate"):
                    source(ssl_ca=ca).now()
                source(ssl_ca=ca, ssl_verify_identity="off").now()
                continue
            for bad in (source(ssl_ca=str(keys / "other.pem")), source(ssl="on")):
                with pytest.raises(SourceUnavailable, match=r"(?i)certificate"):
                    bad.now()
            good = source(ssl_ca=ca)
            start = good.now()
            server.run("ALTER USER strobe@'127.0.0.1' REQUIRE SSL")
            shop.run("INSERT INTO t SELECT seq FROM seq_1_to_30000")
            (transaction,) = read(good, start)
            assert transaction.changes["t"] == rows_of(good, "t", ["id"]) and len(rows_of(good, "t", ["id"])) == 30000
            with pytest.raises(AccessRefused, match="denied"):
                shop.source().now()
