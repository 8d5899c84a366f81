"""Transactions built from the log's messages, without a server."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from strobe.algebra.bag import Bag
from strobe.algebra.bounds import Bound
from strobe.errors import UNREADABLE, Damaged, RelationLost, RowUnfit
from strobe.messages import Departed, GlobalTransaction, Transaction
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.connection import ConnectionSettings
from strobe.sources.postgres.pgoutput import EPOCH, UNCHANGED, ColumnInfo, Message, RelationInfo
from strobe.sources.postgres.transaction_builder import TransactionBuilder, Watched, misplaced
from strobe.sources.postgres.values import PgType

INT, TEXT = PgType("int4", -1, 23), PgType("text", -1, 25)
TYPES = {(23, -1): INT, (25, -1): TEXT}
COLUMNS = ("id", "note")
WHOLE, KEYED, OTHER = 1, 2, 3
MOMENT = EPOCH + timedelta(microseconds=7)


def watched(name: str, images: bool) -> Watched:
    types, numbers = {"id": INT, "note": TEXT}, {"id": 1, "note": 2}
    return Watched(name, types, () if images else ("id",), images, name, ("public", name), numbers, False, ("id",))


class FixedCatalog:
    """The catalog that all tables are described by."""

    def __init__(self, *names: str) -> None:
        self._names = names or COLUMNS

    def types(self, _wanted: set[tuple[int, int]]) -> dict[tuple[int, int], PgType]:
        return TYPES

    def numbers(self, _table: int) -> list[tuple[int, str]]:
        return list(enumerate(self._names, 1))


def described(number: int, name: str, identity: str) -> RelationInfo:
    columns = (ColumnInfo(True, "id", 23, -1), ColumnInfo(identity == "f", "note", 25, -1))
    return RelationInfo(number, "public", name, identity, columns)


DESCRIBED = (described(WHOLE, "whole", "f"), described(KEYED, "keyed", "d"), described(OTHER, "other", "d"))


def builder(prefix: str | None = "strobe") -> TransactionBuilder:
    settings = ConnectionSettings("shop", "", "public", "strobe_test_shop", global_transactions=prefix)
    tables = {WHOLE: watched("whole", True), KEYED: watched("keyed", False)}
    return TransactionBuilder(settings, tables, FixedCatalog(), lambda xid: xid + 2**32)


def built(*messages: Message, prefix: str | None = "strobe") -> Transaction:
    """The transaction that these are the changes of."""
    made = builder(prefix)
    for message in (*DESCRIBED, pgoutput.Begin(90, MOMENT, 5), *messages):
        assert made.receive(message) is None
    found = made.receive(pgoutput.Commit(90, 100, MOMENT))
    assert found is not None
    return found


def test_a_transaction_is_what_its_changes_come_to() -> None:
    """Rows that come and go are no change; it has its position with the fingerprint, its whole id and its time."""
    found = built(
        pgoutput.Insert(WHOLE, (b"1", b"a")),
        pgoutput.Insert(WHOLE, (b"2", None)),
        pgoutput.Update(WHOLE, None, (b"1", b"a"), (b"1", b"b")),
        pgoutput.Delete(WHOLE, None, (b"3", b"c")),
        pgoutput.Delete(WHOLE, None, (b"2", None)),
    )
    assert found.changes == {"whole": Bag(COLUMNS, {(1, "b"): 1, (3, "c"): -1})}
    assert (found.gone, found.part_of, found.xid, found.committed_at) == ({}, (), 2**32 + 5, MOMENT)
    assert (found.source, found.position.text, found.position.order) == ("shop", "0/64@0/64:7", (100,))


def test_without_old_rows_keys_go() -> None:
    """A key that changed is named by the log; one that did not is in the new row."""
    found = built(
        pgoutput.Update(KEYED, None, None, (b"1", b"a")),
        pgoutput.Update(KEYED, (b"2", None), None, (b"3", b"b")),
        pgoutput.Delete(KEYED, (b"4", None), None),
        pgoutput.Insert(KEYED, (b"5", b"c")),
        pgoutput.Delete(KEYED, (b"5", None), None),
    )
    assert found.changes == {"keyed": Bag.of(COLUMNS, [(1, "a"), (3, "b")])}
    assert found.gone == {"keyed": Bag.of(("id",), [(1,), (2,), (4,)])}


def test_a_long_value_left_alone_is_taken_from_the_old_row() -> None:
    """Where the log has no old row, it cannot be known."""
    found = built(pgoutput.Update(WHOLE, None, (b"1", b"long"), (b"2", UNCHANGED)))
    assert found.changes == {"whole": Bag(COLUMNS, {(1, "long"): -1, (2, "long"): 1})}
    with pytest.raises(RelationLost, match="not in the log") as lost:
        built(pgoutput.Update(KEYED, None, None, (b"1", UNCHANGED)))
    assert lost.value.relations == {"keyed"}


def test_what_nobody_watches_is_nothing() -> None:
    """Not even if the table is emptied; messages with another prefix, or outside the transaction, name nothing."""
    found = built(
        pgoutput.Insert(OTHER, (b"1", b"a")),
        pgoutput.Truncate((OTHER,)),
        pgoutput.Emitted(True, 50, "nobody", b"t shop"),
        pgoutput.Emitted(False, 50, "strobe", b"t shop"),
    )
    assert (found.changes, found.gone, found.part_of) == ({}, {}, ())


def test_parts_of_global_transactions_are_named_once() -> None:
    named = [pgoutput.Emitted(True, 50, "strobe", b"t-1 shop,billing")] * 2
    assert built(*named).part_of == (GlobalTransaction("t-1", frozenset({"shop", "billing"})),)
    assert built(*named, prefix=None).part_of == () == built(*named, prefix="orders").part_of


def test_a_table_that_is_emptied_loses_its_rows_at_that_place() -> None:
    """All that it had before; what the transaction did to it before that, too."""
    found = built(pgoutput.Truncate((OTHER, WHOLE)))
    assert found.departed == {"whole": (Departed("table whole was emptied by TRUNCATE", Bound()),)}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        (described(WHOLE, "renamed", "f"), "it was renamed"),
        (described(WHOLE, "whole", "d"), "no longer FULL"),
        (RelationInfo(KEYED, "public", "keyed", "d", DESCRIBED[1].columns[1:]), "column id was dropped"),
        (
            RelationInfo(KEYED, "public", "keyed", "i", (ColumnInfo(False, "id", 23, -1), *DESCRIBED[1].columns[1:])),
            "key",
        ),
    ],
)
def test_what_cannot_be_followed_is_said(message: Message, why: str) -> None:
    """A watched table that is emptied or altered loses its views, and no others."""
    with pytest.raises(RelationLost, match=why) as lost:
        built(message)
    assert len(lost.value.relations) == 1


def test_a_commit_needs_a_beginning() -> None:
    with pytest.raises(Damaged, match="without its beginning"):
        builder().receive(pgoutput.Commit(90, 100, MOMENT))


@pytest.mark.parametrize(
    ("names", "known", "wrong"),
    [
        (("id", "net"), ((1, "id"), (2, "net")), False),
        (("id", "net", "more"), ((1, "id"), (2, "net")), False),
        (("net", "id"), ((1, "id"), (2, "net")), True),
        (("id", "was", "net"), ((1, "id"), (2, ""), (3, "net")), False),
        (("id", "net"), ((1, "id"), (2, ""), (3, "net")), False),
        (("id", "net", "other"), ((1, "id"), (2, "other"), (3, "net")), True),
        (("id", "net", "held"), ((1, "id"), (2, "other"), (3, "net")), True),
        (("id", "was", "net", "held"), ((1, "id"), (2, ""), (3, "other"), (4, "net")), True),
        (("id", "renamed", "net"), ((1, "id"), (2, "other"), (3, "net")), False),
    ],
)
def test_a_column_is_known_by_its_place(
    names: tuple[str, ...], known: tuple[tuple[int, str], ...], wrong: bool
) -> None:
    """Others may have been added behind it, renamed or dropped before it, but not have traded names with it."""
    number = next(n for n, name in known if name == "net")
    assert misplaced(names, known, "net", number) is wrong


def test_rows_that_come_as_those_of_another_table() -> None:
    """The description of a table is followed by its rows, or else it is published as a part of another table."""
    with pytest.raises(RelationLost, match="published as those of another"):
        built(DESCRIBED[2], DESCRIBED[0], pgoutput.Insert(OTHER, (b"1", b"a")))


def test_a_value_that_spark_cannot_hold_is_named_by_the_key_of_its_row() -> None:
    """The value itself is not shown; a row without a key that can be read is not named."""
    made = builder()
    dates = {**TYPES, (25, -1): PgType("date", -1, 1082)}
    made._catalog = FixedCatalog()
    made._watched = {WHOLE: replace(watched("whole", True), types={"id": INT, "note": dates[25, -1]})}
    made._catalog.types = lambda _wanted: dates  # type: ignore[method-assign]
    made.receive(DESCRIBED[0])
    made.receive(pgoutput.Begin(90, MOMENT, 5))
    with pytest.raises(RowUnfit, match=r"shop.whole \(id=7\)") as caught:
        made.receive(pgoutput.Insert(WHOLE, (b"7", b"infinity")))
    (row,) = caught.value.rows
    assert (row.columns, row.values) == (("id", "note"), (7, UNREADABLE))
    assert "infinity" not in str(caught.value) and caught.value.relations == {"whole"}
    with pytest.raises(RowUnfit, match="cannot be read") as unnamed:
        made.receive(pgoutput.Insert(WHOLE, (None, b"infinity")))
    assert unnamed.value.rows == () and not unnamed.value.complete
