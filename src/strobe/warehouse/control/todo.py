"""What is still to be done with some views: notes in the control folder, which outlive a crash.

A note names a view and the generation that it has. It is written before anything is done that depends on it, and means
nothing any more, or not yet, where the view's generation is another one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from strobe.warehouse.layout import Layout

EMPTY = "empty"
"""Tables of views that leave are to be emptied when they have left."""

REBUILD = "rebuild"
"""Views are to be rebuilt, because log that they needed was let go."""


def add(layout: Layout, what: str, views: Mapping[str, int]) -> None:
    """Note these views with their generations, beside those that are noted already."""
    file = layout.control / f"{what}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({**read(layout, what), **views}))
    draft.replace(file)


def clear(layout: Layout, what: str) -> None:
    """Nothing of the kind is left to be done."""
    (layout.control / f"{what}.json").unlink(missing_ok=True)


def read(layout: Layout, what: str) -> dict[str, int]:
    with suppress(OSError, ValueError):
        found = json.loads((layout.control / f"{what}.json").read_text())
        return {str(view): int(generation) for view, generation in found.items()}
    return {}
