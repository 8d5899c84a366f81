"""The gate between looks at the log and snapshots."""

from __future__ import annotations

from strobe.sources.sqlite.gate import Gate
from strobe.sources.sqlite.position import position_at


def test_a_snapshot_ends_what_the_next_look_reports() -> None:
    """Those that were passed are forgotten; but a stream that is to stop leaves them to the one that comes after it."""
    gate = Gate()
    for seq in (3, 7):
        with gate.snapshot() as taken:
            taken(position_at(seq, 0))
    with gate.look(position_at(5, 0), lambda: True) as ends:
        assert ends == {7}
    with gate.look(position_at(1, 0), lambda: False) as ends:
        assert ends == {3, 7}
    with gate.look(position_at(3, 0), lambda: False) as ends:
        assert ends == {7}
    with gate.look(position_at(1, 0), lambda: False) as ends:
        assert ends == {7}
