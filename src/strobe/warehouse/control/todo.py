"""What is still to be done with some views, and why the last edit failed: notes that outlive a crash.

A note names a view and the generation that it has. It is written before anything is done that depends on it, and means
nothing any more, or not yet, where the view's generation is another one.
"""

from __future__ import annotations

from collections.abc import Mapping

from strobe.warehouse.control.documents import FAILURE, GENERATIONS
from strobe.warehouse.control.store import ControlStore

EMPTY = "empty"
"""Tables of views that leave are to be emptied when they have left."""

REBUILD = "rebuild"
"""Views are to be rebuilt, because log that they needed was let go."""

_FAILED = "apply.json"


def add(store: ControlStore, what: str, views: Mapping[str, int]) -> None:
    """Note these views with their generations, beside those that are noted already."""
    store.put(f"{what}.json", {**read(store, what), **views})


def clear(store: ControlStore, what: str) -> None:
    """Nothing of the kind is left to be done."""
    store.delete(f"{what}.json")


def read(store: ControlStore, what: str) -> dict[str, int]:
    return store.get(f"{what}.json", GENERATIONS) or {}


def note_failure(store: ControlStore, error: Mapping[str, str] | None) -> None:
    """Remember why the last `strobe apply` failed, or that it did not."""
    if error is None:
        store.delete(_FAILED)
    else:
        store.put(_FAILED, error)


def failure(store: ControlStore) -> dict[str, str]:
    """Why the last `strobe apply` failed; empty if it did not."""
    return store.get(_FAILED, FAILURE) or {}
