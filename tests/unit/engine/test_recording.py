"""Messages survive being written down, and a recording replays the boxes exactly."""

from __future__ import annotations

import io
from datetime import date, datetime, timezone
from decimal import Decimal

from worlds import VIEWS, random_world, run

from strobe.algebra.bag import NAN, Bag
from strobe.engine import recording
from strobe.managers.sweep import Sweep
from strobe.messages import (
    Answer,
    Cut,
    Lookup,
    Message,
    Position,
    Query,
    Rel,
    Seen,
    Transaction,
    TransactionInfo,
    Update,
)
from strobe.simulator.world import World

AT = Position("7:x", (7,))
ROW = (
    1,
    2**62,
    Decimal("1.50"),
    "ж'\n",
    date(2024, 2, 29),
    datetime(2024, 1, 1, 1, 2, 3, 4, timezone.utc),
    True,
    b"\x00",
    NAN,
    None,
)


def test_every_message_survives() -> None:
    """All types of values, in all kinds of messages."""
    bag = Bag.of([f"c{i}" for i in range(len(ROW))], [ROW, ROW])
    examples: list[Message] = [
        Transaction("s", AT, changes={"t": bag}, committed_at=datetime(2024, 1, 1, tzinfo=timezone.utc)),
        Update(3, Transaction("s", AT)),
        Cut(9, frozenset({"chain"})),
        Rel(3, TransactionInfo("s", AT), frozenset({"v", "w"})),
        Query(
            "v",
            1,
            "s",
            (Lookup(0, "t", ("a",), ("a",), Bag.of(["k"], [(1,)])), Lookup(1, "u", ("b",), ("b",), None, (0, ("a",)))),
        ),
        Answer("v", 1, "s", (bag,), Seen(AT)),
    ]
    file = io.StringIO()
    for message in examples:
        recording.write(message, file)
    assert list(recording.read(file.getvalue().splitlines())) == examples


def test_a_recording_replays_the_boxes() -> None:
    """The same transactions, answers and cuts, read back from text, lead to the same warehouse transactions."""
    for seed in range(20):
        world = random_world(seed, sorted(VIEWS), lambda view: Sweep(view, complete=False))
        file = io.StringIO()
        _record(world, file)
        run(world, seed)
        copy = random_world(seed, sorted(VIEWS), lambda view: Sweep(view, complete=False))
        for message in recording.read(file.getvalue().splitlines()):
            copy.replay(message)
        assert [(s.numbers, s.vector) for s in copy.history] == [(s.numbers, s.vector) for s in world.history]
        assert all(a.views == b.views for a, b in zip(copy.history, world.history, strict=True))


def _record(world: World, file: io.StringIO) -> None:
    world.record = lambda message: recording.write(message, file)
