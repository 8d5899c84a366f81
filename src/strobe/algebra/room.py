"""How much a view's manager may hold in memory of what it joins, and where more goes.

An answer of a few rows may join with a change of a few rows to millions. They are counted before they are made, row by
row of the change; beyond the room that is left, the same join is carried out elsewhere (in Spark), where its rows are
made when the commit needs them. Bags that are derived from one with a room have the same room, so no manager has to
ask.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strobe.algebra.bag import Bag
    from strobe.algebra.relation import Relation


class Room:
    """One view's, used by one thread at a time."""

    __slots__ = ("left", "lift", "rows")

    def __init__(self, rows: int, lift: Callable[[Bag], Relation]) -> None:
        """So many rows may be made by joins between two calls of `renew`."""
        self.rows = self.left = rows
        self.lift = lift

    def renew(self) -> None:
        """The manager is given something new."""
        self.left = self.rows
