"""What a walsender sends is held against what it has sent before: a place that is damaged is never believed."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import pytest

from strobe.errors import Damaged
from strobe.sources.postgres.walsender import DAY, Incoming

NOW = 848_436_090_494_083
"""By the server's clock."""


def incoming(after: int = 1000) -> Incoming:
    return Incoming(after, lambda: NOW)


def alive(end: int, at: int = NOW, reply: int = 0) -> bytes:
    return b"k" + struct.pack(">QqB", end, at, reply)


def message(place: int, payload: bytes) -> bytes:
    return b"w" + struct.pack(">QQq", place, place, NOW) + payload


def begin(lsn: int, moment: int = NOW) -> bytes:
    return message(lsn - 50, b"B" + struct.pack(">QqI", lsn, moment, 7))


def commit(lsn: int, end: int, moment: int = NOW) -> bytes:
    return message(end, b"C\0" + struct.pack(">QQq", lsn, end, moment))


def reached(*frames: bytes) -> Sequence[int]:
    """How far the log has come after each."""
    made, found = incoming(), list[int]()
    for frame in frames:
        made.read(frame)
        found.append(made.reached)
    return found


def test_a_place_is_believed_when_another_keep_alive_confirms_it() -> None:
    """Of two in a row, the smaller place: whichever of them is damaged."""
    made = incoming()
    made.read(alive(1100))
    assert (made.reached, made.unconfirmed) == (1000, True)
    made.read(alive(1100))
    assert (made.reached, made.unconfirmed) == (1100, False)
    assert reached(alive(0x55A0_0000_0000), alive(1100), alive(1100)) == [1000, 1100, 1100]
    assert reached(alive(1100), alive(0x55A0_0000_0000), alive(1200)) == [1000, 1100, 1200]
    assert reached(alive(1100), alive(3), alive(1200), alive(1200)) == [1000, 1000, 1000, 1200]


def test_a_place_in_a_transaction_says_nothing() -> None:
    """Before a commit the server names places that lie before it, and a place behind it cannot be right."""
    assert reached(begin(1200), alive(1300), alive(1300), commit(1200, 1250)) == [1000, 1000, 1000, 1250]
    made = incoming()
    for frame in (begin(1200), commit(1200, 1250), alive(1199)):
        made.read(frame)
    assert (made.reached, made.unconfirmed) == (1250, False)


@pytest.mark.parametrize(
    "frames",
    [
        [begin(1200), commit(1200, 1250)[:9] + b"\1" + commit(1200, 1250)[10:]],
        [begin(1200), commit(1201, 1250)],
        [begin(1200), commit(1200, 1250, NOW + 1)],
        [begin(1200), commit(1200, 1200)],
        [begin(900), commit(900, 950)],
        [alive(1300), alive(1300), begin(1200), commit(1200, 1250)],
        [commit(1200, 1250)],
        [begin(1200), begin(1300)],
        [alive(1100, reply=2)],
        [alive(1100)[:-1]],
        [alive(1100) + b"\0"],
        [alive(1100, NOW + 2 * DAY)],
        [alive(1100, NOW << 8)],
        [b"w" + struct.pack(">QQq", 1150, 1150, NOW >> 8) + begin(1200)[25:]],
        [b"w" + struct.pack(">QQq", 1150, 1151, NOW) + begin(1200)[25:]],
    ],
)
def test_what_cannot_be_is_damaged(frames: Sequence[bytes]) -> None:
    """A commit that is not at its place, or not of its beginning, or before what has come; a flag that is none; a clock
    that jumps; a frame that is too short or too long."""
    made = incoming()
    for frame in frames[:-1]:
        made.read(frame)
    before = made.reached
    with pytest.raises(Damaged):
        made.read(frames[-1])
    assert made.reached == before


@pytest.mark.parametrize("size", range(1, 10))
def test_a_keep_alive_of_which_bytes_are_lost_or_doubled(size: int) -> None:
    """It takes bytes of what follows, or loses its end: what it names then is not believed."""
    sent = alive(1100) + b"d\0\0\0\x16" + alive(1200)
    for at in range(len(alive(0))):
        for damaged in (sent[:at] + sent[at + size :], sent[:at] + sent[at : at + size] + sent[at:]):
            made = incoming()
            try:
                made.read(damaged[: len(alive(0))])
            except Damaged:
                continue
            made.read(alive(1100))
            assert made.reached <= 1100
