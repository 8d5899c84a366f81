"""Requests to a running coordinator."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from strobe.coordinator import requests as module
from strobe.coordinator.requests import RequestHandler
from strobe.warehouse.control import requests
from strobe.warehouse.control.store import ControlStore
from strobe.warehouse.layout import Layout


def at(folder: Path) -> Any:
    """A warehouse that nobody asks for more than where it is."""
    return SimpleNamespace(layout=Layout(folder))


def test_an_edit_survives_a_coordinator_that_starts_anew(tmp_path: Path) -> None:
    """When some views can no longer be kept, the others go on in a new loop: a rebuild that was under way is taken up
    there, under its number, and whoever asked for it does not hear of it."""
    taken: list[Any] = []

    def rebuild(_warehouse: object, _pipeline: object, number: str, views: list[str]) -> Any:
        taken.append((number, views))
        yield

    def handler() -> RequestHandler:
        pipeline = SimpleNamespace(operation_open=False, start_operation=next)
        return RequestHandler(at(tmp_path), SimpleNamespace(rebuild=rebuild, ready=False, asked_by=None), pipeline)  # type: ignore[arg-type]

    asked = requests.post(Layout(tmp_path).control, {"kind": "rebuild", "views": ["v"]})
    for _ in range(2):
        first = handler()
        first.look()
        first.put_back()
        first.abandon()
    handler().look()
    assert taken == [(asked, ["v"])] * 3
    assert not list(tmp_path.rglob("*.reply.json"))


def test_a_request_that_cannot_be_taken_up_ends_nothing(tmp_path: Path) -> None:
    """Whoever asked made the folder, and does not let the coordinator write to it."""

    class ReadOnly(ControlStore):
        def delete(self, name: str) -> bool:
            raise PermissionError(name)

    requests.post(Layout(tmp_path).control, {"kind": "fold"})
    assert list(requests.requests(ReadOnly(Layout(tmp_path).control.folder))) == []


def test_whoever_asks_while_views_join_is_answered(tmp_path: Path) -> None:
    """The loop ends because of somebody else's views: the request that was taken up last is refused, not forgotten."""
    pipeline = SimpleNamespace(operation_open=False, start_operation=lambda _: None)
    cutover = SimpleNamespace(ready=True, asked_by="somebody else")
    handler = RequestHandler(at(tmp_path), cutover, pipeline)  # type: ignore[arg-type]
    requests.post(Layout(tmp_path).control, {"kind": "fold"})
    handler.look()
    handler.abandon()
    (reply,) = tmp_path.rglob("*.reply.json")
    assert "interrupted" in reply.read_text()


def test_rebuilding_unasked_leaves_room_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long an attempt takes, the next one does not begin at once."""
    handler = list[Any]()
    pipeline = SimpleNamespace(operation_open=False, start_operation=handler.append)
    monkeypatch.setattr(module, "rebuild_lost", lambda *_: iter(()))
    taken = RequestHandler(at(tmp_path), None, pipeline)  # type: ignore[arg-type]
    absent: Any = SimpleNamespace(to_rebuild=["v"])
    taken.rebuild(SimpleNamespace(to_rebuild=[]))  # type: ignore[arg-type]
    assert not handler
    taken.rebuild(absent)
    (first,) = handler
    assert list(first) == []
    taken.rebuild(absent)
    assert handler == [first]
