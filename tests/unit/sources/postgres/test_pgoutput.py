"""`pgoutput` decoded: whatever the server can write comes out as it went in."""

from __future__ import annotations

import struct
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strobe.errors import Damaged
from strobe.sources.postgres import pgoutput
from strobe.sources.postgres.pgoutput import EPOCH, UNCHANGED, lsn_text, parse_lsn, widen

lsns = st.integers(0, 2**64 - 1)
oids = st.integers(0, 2**32 - 1)
names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20)
moments = st.integers(0, 10**17).map(lambda us: EPOCH + timedelta(microseconds=us))
tuples = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=30)), max_size=6).map(tuple)

messages = st.one_of(
    st.builds(pgoutput.Begin, lsns, moments, oids),
    st.builds(pgoutput.Commit, lsns, lsns, moments),
    st.builds(pgoutput.Origin, lsns, names),
    st.builds(
        pgoutput.RelationInfo,
        oids,
        names,
        names,
        st.sampled_from("dnfi"),
        st.lists(
            st.builds(pgoutput.ColumnInfo, st.booleans(), names, oids, st.integers(-1, 2**31 - 1)), max_size=4
        ).map(tuple),
    ),
    st.builds(pgoutput.TypeInfo, oids, names, names),
    st.builds(pgoutput.Insert, oids, tuples),
    st.builds(pgoutput.Update, oids, tuples, st.none(), tuples),
    st.builds(pgoutput.Update, oids, st.none(), tuples, tuples),
    st.builds(pgoutput.Update, oids, st.none(), st.none(), tuples),
    st.builds(pgoutput.Delete, oids, tuples, st.none()),
    st.builds(pgoutput.Delete, oids, st.none(), tuples),
    st.builds(pgoutput.Truncate, st.lists(oids, min_size=1, max_size=4).map(tuple)),
    st.builds(pgoutput.Emitted, st.booleans(), lsns, names, st.binary(max_size=20)),
)


def text(value: str) -> bytes:
    return value.encode() + b"\0"


def written_tuple(values: tuple[Any, ...]) -> bytes:
    found = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            found += b"n"
        elif value is UNCHANGED:
            found += b"u"
        else:
            found += b"t" + struct.pack(">i", len(value)) + value
    return found


def microseconds(moment: Any) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def written(message: pgoutput.Message) -> bytes:
    """As the protocol's documentation says that the server writes it."""
    match message:
        case pgoutput.Begin(lsn, at, xid):
            return b"B" + struct.pack(">QqI", lsn, microseconds(at), xid)
        case pgoutput.Commit(lsn, end, at):
            return b"C" + struct.pack(">BQQq", 0, lsn, end, microseconds(at))
        case pgoutput.Origin(lsn, name):
            return b"O" + struct.pack(">Q", lsn) + text(name)
        case pgoutput.RelationInfo(number, schema, name, identity, columns):
            found = b"R" + struct.pack(">I", number) + text(schema) + text(name) + identity.encode()
            found += struct.pack(">H", len(columns))
            for c in columns:
                found += struct.pack(">B", c.key) + text(c.name) + struct.pack(">Ii", c.type, c.modifier)
            return found
        case pgoutput.TypeInfo(number, schema, name):
            return b"Y" + struct.pack(">I", number) + text(schema) + text(name)
        case pgoutput.Insert(relation, new):
            return b"I" + struct.pack(">I", relation) + b"N" + written_tuple(new)
        case pgoutput.Update(relation, key, old, new):
            before = b"K" + written_tuple(key) if key is not None else b""
            before += b"O" + written_tuple(old) if old is not None else b""
            return b"U" + struct.pack(">I", relation) + before + b"N" + written_tuple(new)
        case pgoutput.Delete(relation, key, old):
            row = b"K" + written_tuple(key) if key is not None else b"O" + written_tuple(old or ())
            return b"D" + struct.pack(">I", relation) + row
        case pgoutput.Truncate(relations):
            return b"T" + struct.pack(f">IB{len(relations)}I", len(relations), 0, *relations)
        case pgoutput.Emitted(transactional, lsn, prefix, content):
            body = text(prefix) + struct.pack(">i", len(content)) + content
            return b"M" + struct.pack(">BQ", transactional, lsn) + body
    raise AssertionError(message)


@given(messages)
def test_every_message_comes_out_as_it_was_written(message: pgoutput.Message) -> None:
    assert pgoutput.decode(written(message)) == message


@given(messages)
def test_a_message_with_bytes_left_over_is_refused(message: pgoutput.Message) -> None:
    """A version of the protocol that says more than is understood here is noticed."""
    with pytest.raises(Damaged):
        pgoutput.decode(written(message) + b"\1\2\3")


def test_unknown_kinds_are_refused() -> None:
    for attempt in (lambda: pgoutput.decode(b"S123"), lambda: pgoutput.frame(b"x" + bytes(30))):
        with pytest.raises(Damaged, match="unknown kind"):
            attempt()


def test_frames() -> None:
    """Data with its place, keep-alives with the request for an answer, and what is answered."""
    assert pgoutput.frame(b"w" + struct.pack(">QQq", 7, 7, 5) + b"Bx") == pgoutput.Data(7, 5, b"Bx")
    assert pgoutput.frame(b"k" + struct.pack(">QqB", 9, 5, 1)) == pgoutput.KeepAlive(9, 5, True)
    told = pgoutput.feedback(9, 7, EPOCH + timedelta(seconds=1), reply=True)
    assert told == b"r" + struct.pack(">QQQqB", 9, 7, 7, 1_000_000, 1)


@given(lsns)
def test_positions_read_back(lsn: int) -> None:
    assert parse_lsn(lsn_text(lsn)) == lsn


def test_a_position_is_written_as_postgresql_does() -> None:
    assert lsn_text(0x16B374D848) == "16/B374D848" and lsn_text(0x1000000A0) == "1/A0"


@given(st.integers(3, 2**50), st.integers(-(2**31) + 2, 2**29))
def test_transaction_ids_are_widened(near: int, distance: int) -> None:
    """The 32 bits of the log become the 64 of snapshots, also across the end of an epoch."""
    xid = max(near + distance, 3)
    assert widen(xid % 2**32, near) == xid
