"""Tables of views that leave and are to be emptied: a note in the control folder, until that has been done.

It is written before the commit with which the views leave. If that never comes, the views are still there, and the note
means nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from strobe.warehouse.layout import Layout


def note(layout: Layout, views: Mapping[str, int]) -> None:
    """Note these views with their generations, beside those that are noted already."""
    file = _file(layout)
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps({**read(layout), **views}))
    draft.replace(file)


def done(layout: Layout) -> None:
    """Nothing is left to be emptied."""
    _file(layout).unlink(missing_ok=True)


def read(layout: Layout) -> dict[str, int]:
    """The views whose tables are to be emptied, and the generations that these hold."""
    with suppress(OSError, ValueError):
        return {str(view): int(generation) for view, generation in json.loads(_file(layout).read_text()).items()}
    return {}


def _file(layout: Layout) -> Path:
    return layout.control / "empty.json"
