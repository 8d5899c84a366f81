"""MariaDB and MySQL: what others put into a database does nothing with the rights of Strobe's user."""

from __future__ import annotations

import pytest
from mariadb_shop import Shop, find, read, rows_of

from strobe.errors import StrobeError

BUILT_IN = ("version", "database", "current_user", "abs", "concat", "coalesce", "convert_tz", "hex", "json_extract")


def springs(name: str) -> str:
    """A function that leaves a row behind, with the rights of whoever calls it."""
    return (
        f"CREATE FUNCTION {name}() RETURNS INT DETERMINISTIC SQL SECURITY INVOKER MODIFIES SQL DATA"
        f" BEGIN INSERT INTO sprung VALUES ('{name.replace('`', '')}'); RETURN 1; END"
    )


def test_nothing_writes_with_the_rights_of_the_user(either: Shop) -> None:
    """Even a user that may do everything: functions of the names of built-in ones in its database are not called, and
    a view in a table's place, whose function would be, is in a transaction that only reads."""
    either.run(
        "CREATE TABLE sprung (what TEXT)",
        "CREATE TABLE t (id INT PRIMARY KEY, n VARCHAR(9))",
        "INSERT INTO t VALUES (1, 'one')",
        springs("trap"),
        *[springs(f"`{name}`") for name in BUILT_IN],
        f"GRANT ALL ON `{either.name}`.* TO strobe@'127.0.0.1'",
    )
    source = either.source()
    assert [finding for finding in source.check(["t"]) if finding.severity == "error"] == []
    start = source.now()
    source.verify(start)
    source.fingerprints(["t"])
    assert source.identity()
    assert len(rows_of(source, "t", ["id", "n"])) == 1 and find(source, "t", ["n"], ["id"], [(1,)]) == [("one",)]
    either.run("INSERT INTO t VALUES (2, 'two')")
    source.focus({"t": {"id"}})
    assert len(read(source, start)) == 1
    either.run("RENAME TABLE t TO hidden", "CREATE SQL SECURITY INVOKER VIEW t AS SELECT id, trap() AS n FROM hidden")
    with pytest.raises(StrobeError):
        rows_of(source, "t", ["id", "n"])
    with source.settings.connect() as connection, connection.cursor() as cursor:
        with pytest.raises(Exception, match="READ ONLY"):
            cursor.execute("SELECT n FROM t")
        with pytest.raises(Exception, match="READ ONLY"):
            cursor.execute("DELETE FROM hidden")
    assert either.server.rows("SELECT count(*) FROM sprung", database=either.name) == [(0,)]
