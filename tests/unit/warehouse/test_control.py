"""The control folder when others may write there: nothing they put into it ends, hangs or misleads a coordinator."""

from __future__ import annotations

import json
import os
import stat
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from patience import PATIENCE, eventually

from strobe.client.local import _tell_progress
from strobe.coordinator.requests import RequestHandler
from strobe.errors import UserError
from strobe.events import CoordinatorReplied, Event, RowsRead
from strobe.warehouse.control import requests, todo
from strobe.warehouse.control.heartbeat import hear, read_heartbeat, write_heartbeat
from strobe.warehouse.control.lock import CoordinatorLock
from strobe.warehouse.control.store import ControlStore, Once
from strobe.warehouse.layout import Layout

NOBODY = 65534
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make what belongs to another user")
HEARTBEAT = json.dumps({"epoch": 7, "pid": 1, "host": "here"})
FOLD = json.dumps({"kind": "fold"})


def said(text: str) -> Callable[[Path, str], None]:
    return lambda file, _good: file.write_text(text) and None


def linked(file: Path, good: str) -> None:
    (file.parent / "target").write_text(good)
    file.symlink_to("target")


def named_twice(file: Path, good: str) -> None:
    (file.parent / "target").write_text(good)
    file.hardlink_to(file.parent / "target")


def of_another_user(file: Path, good: str) -> None:
    file.write_text(good)
    os.chown(file, NOBODY, -1)


def too_large(file: Path, good: str) -> None:
    file.write_text(good + " " * 9_000_000)


BAD = {
    "a pipe": lambda file, _: os.mkfifo(file),
    "a folder": lambda file, _: file.mkdir(),
    "a link": linked,
    "a second name": named_twice,
    "too large": too_large,
    "not JSON": said("{"),
    "a list": said("[]"),
    "too deep": said("[" * 200_000),
    "not text": lambda file, _: file.write_bytes(b"\xff\xfe"),
}
every_bad = pytest.mark.parametrize("make", [*BAD.values(), pytest.param(of_another_user, marks=AS_ROOT)])


@pytest.fixture
def told() -> list[tuple[str, str]]:
    return []


@pytest.fixture
def store(tmp_path: Path, told: list[tuple[str, str]]) -> ControlStore:
    (tmp_path / "_strobe" / "requests").mkdir(parents=True)
    return ControlStore(tmp_path / "_strobe", Once(lambda name, why: told.append((name, why))))


def handler(store: ControlStore, taken: list[Any]) -> RequestHandler:
    layout = SimpleNamespace(control=store, root=store.folder.parent)
    pipeline = SimpleNamespace(operation_open=False, start_operation=taken.append)
    return RequestHandler(SimpleNamespace(layout=layout), SimpleNamespace(ready=False), pipeline)  # type: ignore[arg-type]


@every_bad
def test_what_is_no_heartbeat_is_none(
    store: ControlStore, told: list[tuple[str, str]], make: Callable[[Path, str], None]
) -> None:
    """It is reported once, and the next heartbeat takes its place."""
    make(store.folder / "heartbeat.json", HEARTBEAT)
    for _ in range(2):
        assert read_heartbeat(store) is None
        assert not hear(store).alive
    ((name, why),) = told
    assert name == "heartbeat.json" and why
    write_heartbeat(store, {"epoch": 3})
    assert (read_heartbeat(store) or {})["epoch"] == 3
    target = store.folder / "target"
    assert not target.exists() or target.read_text() == HEARTBEAT


@pytest.mark.parametrize(
    "document",
    [{"epoch": "seven"}, {"pid": True}, {"sources": []}, {"sources": {"a": None}}, {"views": {"v": {"queue": "x"}}}],
)
def test_a_heartbeat_has_a_schema(store: ControlStore, told: list[Any], document: dict[str, Any]) -> None:
    """What a newer Strobe adds to it is kept; what has the wrong type makes it none, and nobody stumbles over it."""
    write_heartbeat(store, {"epoch": 3, "more": [1]})
    assert (read_heartbeat(store) or {})["more"] == [1] and not told
    write_heartbeat(store, document)
    assert read_heartbeat(store) is None and len(told) == 1


@every_bad
def test_what_is_no_request_harms_nothing(
    store: ControlStore, told: list[tuple[str, str]], make: Callable[[Path, str], None]
) -> None:
    """It is put out of the way and reported once; the request behind it is taken up."""
    make(store.folder / "requests" / "0.request.json", FOLD)
    good, taken = requests.post(store, {"kind": "fold"}), list[Any]()
    for _ in range(2):
        look = handler(store, taken)
        look.look()
    assert len(taken) == 1 and len(told) == 1
    assert store.list("requests", ".request.json") == []
    assert good


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"kind": 7},
        {"kind": "drop everything"},
        {"kind": "rebuild"},
        {"kind": "rebuild", "views": "v"},
        {"kind": "bring", "freeze": "x", "positions": ["p"]},
        {"kind": "bring", "freeze": None, "positions": {}},
        {"kind": "renew"},
        {"kind": "apply", "drop_tables": "yes"},
    ],
)
def test_a_request_that_cannot_be_understood_is_answered(
    store: ControlStore, told: list[Any], document: dict[str, Any]
) -> None:
    """Whoever asked is told at once, and need not wait until time is up."""
    number, taken = requests.post(store, document), list[Any]()
    handler(store, taken).look()
    assert not taken and len(told) == 1
    reply = json.loads((store.folder / "requests" / f"{number}.reply.json").read_text())
    assert reply["error"]["code"] == "user" and "this is no request" in reply["error"]["message"]


def test_a_coordinator_goes_on_where_it_cannot_answer(store: ControlStore) -> None:
    """Because somebody has put a link in the place of the folder for requests."""
    number = requests.post(store, {"kind": "fold"})
    (store.folder / "requests").rename(store.folder / "away")
    (store.folder / "requests").symlink_to("away")
    taken = list[Any]()
    handler(store, taken).look()
    requests.reply(store, number, {"commit": 1})
    requests.clear(store)
    assert not taken
    assert len(list((store.folder / "away").iterdir())) == 1


def test_notes_have_a_schema(store: ControlStore, told: list[Any]) -> None:
    todo.add(store, todo.EMPTY, {"v": 3})
    assert todo.read(store, todo.EMPTY) == {"v": 3} and not told
    (store.folder / "empty.json").write_text('{"v": "three"}')
    assert todo.read(store, todo.EMPTY) == {}
    todo.note_failure(store, {"message": "no column", "where": "view v", "fix": "", "code": "user"})
    assert todo.failure(store)["message"] == "no column"
    (store.folder / "apply.json").write_text('{"message": ["no column"]}')
    assert todo.failure(store) == {} and len(told) == 2


def test_the_lock_follows_no_link(store: ControlStore) -> None:
    """What it leads to is not overwritten; the refusal names the file, and is the user's to act on."""
    victim = store.folder.parent / "victim"
    victim.write_text("precious")
    for put in (Path.symlink_to, Path.hardlink_to):
        put(store.folder / "lock", victim)
        with pytest.raises(UserError, match="_strobe/lock: the lock is no file of Strobe's"):
            CoordinatorLock(store).acquire()
        (store.folder / "lock").unlink()
    os.mkfifo(store.folder / "lock")
    with pytest.raises(UserError, match="not a plain file"):
        CoordinatorLock(store).acquire()
    assert victim.read_text() == "precious"


def test_a_lock_that_is_removed_alone_is_put_back(store: ControlStore) -> None:
    """The warehouse is still there: the coordinator goes on, and others are refused again."""
    lock = CoordinatorLock(store)
    lock.acquire()
    (store.folder / "lock").unlink()
    assert not lock.lost
    lock.keep()
    assert json.loads((store.folder / "lock").read_text())["pid"] == os.getpid()
    second = CoordinatorLock(store)
    second.acquire(take_over=True)
    assert not second.held
    lock.release()


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
@pytest.mark.parametrize(("closed", "folder", "document"), [(0o077, 0o700, 0o600), (0o027, 0o750, 0o640)])
def test_the_folders_of_a_warehouse_have_the_modes_that_strobe_yml_says(
    tmp_path: Path, umask: int, closed: int, folder: int, document: int
) -> None:
    """Whatever the umask; staging is nobody else's business."""
    before = os.umask(umask)
    try:
        layout = Layout(tmp_path / "w")
        layout.own_folders(closed, tmp_path)
        layout.own_folders(closed, tmp_path)
        requests.post(layout.control, {"kind": "fold"})
        lock = CoordinatorLock(layout.control)
        lock.acquire()
        lock.release()
    finally:
        os.umask(before)
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    (request,) = (name for name in modes if name.endswith(".request.json"))
    assert modes == {
        **dict.fromkeys(["w", "w/_strobe", "w/_strobe/requests"], folder),
        "w/staging": 0o700,
        request: document,
        "w/_strobe/lock": 0o600,
    }
    assert list(layout.unlike(closed)) == []


def test_a_warehouse_that_is_open_to_others_is_found(tmp_path: Path) -> None:
    """It works as before: `strobe check` warns."""
    layout = Layout(tmp_path / "w")
    for place in (layout.root, layout.control.folder, layout.staging):
        place.mkdir()
        place.chmod(0o755)
    layout.own_folders(0o077, tmp_path)
    assert [mode for _, mode, _ in layout.unlike(0o077)] == [0o755] * 3
    assert [place for place, _, _ in layout.unlike(0o022)] == [layout.staging]


@AS_ROOT
@pytest.mark.parametrize("part", ["", "_strobe", "staging"])
def test_a_warehouse_of_another_user_is_refused(tmp_path: Path, part: str) -> None:
    """Unless that user's is the project too: then whoever could change the warehouse has written strobe.yml."""
    layout = Layout(tmp_path / "w")
    layout.own_folders(0o077, tmp_path)
    os.chown(layout.root / part, NOBODY, -1)
    with pytest.raises(UserError, match="this folder belongs to user "):
        layout.own_folders(0o077, tmp_path)
    os.chown(tmp_path, NOBODY, -1)
    layout.own_folders(0o077, tmp_path)


def test_links_in_a_warehouse_are_refused(tmp_path: Path) -> None:
    """The warehouse itself may be a link: its place is what strobe.yml says."""
    (tmp_path / "real").mkdir()
    (tmp_path / "w").symlink_to("real")
    layout = Layout(tmp_path / "w")
    layout.own_folders(0o077, tmp_path)
    (tmp_path / "real" / "staging").rmdir()
    (tmp_path / "real" / "staging").symlink_to(tmp_path)
    with pytest.raises(UserError, match="staging: this is a link"):
        layout.own_folders(0o077, tmp_path)


def test_whoever_waits_for_a_load_hears_how_far_it_is(store: ControlStore) -> None:
    """Rows by source, with about how many there are where that is known, as the events of a load in this process."""
    heard: list[Event] = []

    def coordinator() -> None:
        eventually(lambda: store.list("requests", ".request.json"))
        ((number, _),) = requests.requests(store)
        requests.tell(store, number, "loading a")
        eventually(lambda: len(heard) == 1)
        requests.tell_rows(store, number, {"shop": (20_000, 50_000), "catalog": (7, None)})
        eventually(lambda: len(heard) == 3)
        requests.reply(store, number, {"commit": 7})

    answering = threading.Thread(target=coordinator)
    answering.start()
    write_heartbeat(store, {"epoch": 1})
    wanted = {"kind": "rebuild", "views": ["a"]}
    assert requests.request(store, wanted, PATIENCE, say=partial(_tell_progress, heard.append)) == {"commit": 7}
    answering.join(PATIENCE)
    assert heard == [CoordinatorReplied("loading a"), RowsRead("shop", 20_000, 50_000), RowsRead("catalog", 7, None)]
