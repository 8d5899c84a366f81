"""Bags as lists of rows."""

from __future__ import annotations

from strobe.algebra.bag import Bag, Row


def expanded(bag: Bag) -> list[Row]:
    """The rows, each as often as it is there. Only for bags without negative counts."""
    return [row for row, n in bag.items() for _ in range(n)]
