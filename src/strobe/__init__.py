"""Joined views of several live databases, kept fresh and never wrong, in Delta tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from strobe.api import SparkSession, Warehouse

__version__ = "0.1.0"
__all__ = ["__version__", "open"]


def open(  # noqa: A001  # as in strobe.open
    directory: str | Path = ".", spark: SparkSession | None = None, *, warehouse: str | Path | None = None
) -> Warehouse:
    """Open a project's views for reading, or with `warehouse` those in that folder, wherever their project is. Spark is
    started at the first read, unless a session with Delta is given."""
    from strobe.api import Warehouse

    return Warehouse(directory, spark, warehouse=warehouse)
