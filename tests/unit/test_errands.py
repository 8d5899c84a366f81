"""Requests to a running coordinator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from strobe.runtime import mailbox
from strobe.runtime.errands import Errands


def test_an_edit_survives_a_coordinator_that_starts_anew(tmp_path: Path) -> None:
    """When some views can no longer be kept, the others go on in a new loop: a rebuild that was under way is taken up
    there, under its number, and whoever asked for it does not hear of it."""
    taken: list[Any] = []

    def rebuild(_: object, number: str, view: str) -> Any:
        taken.append((number, view))
        yield

    def errands() -> Errands:
        coordinator = SimpleNamespace(errand_open=False, start_errand=next)
        return Errands(tmp_path, SimpleNamespace(rebuild=rebuild, ready=False), coordinator)  # type: ignore[arg-type]

    asked = mailbox.post(tmp_path, {"kind": "rebuild", "view": "v"})
    for _ in range(2):
        first = errands()
        first.look()
        first.put_back()
        first.abandon()
    errands().look()
    assert taken == [(asked, "v")] * 3
    assert not list(tmp_path.rglob("*.reply.json"))
