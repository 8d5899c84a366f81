"""Whoever has a set of sources closes each of them, once."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from memory_live import HEAD

from strobe.config.load import load_project
from strobe.config.model import Project
from strobe.errors import UserError
from strobe.planning import source_set
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import assemble


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "strobe.yml").write_text(HEAD + '  v: {sql: "SELECT o.id FROM sales.orders o"}\n')
    return load_project(tmp_path)


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were closed, by name, of stand-ins."""
    names: list[str] = []

    def open_source(name: str, *_: Any) -> Any:
        return SimpleNamespace(name=name, close=lambda: names.append(name), schemas=list)

    monkeypatch.setattr(source_set, "open_source", open_source)
    return names


def test_a_set_closes_each_source_once(project: Project, closed: list[str]) -> None:
    with SourceSet.open(project) as sources:
        assert set(sources) == set(project.sources) and not closed
    sources.close()
    assert sorted(closed) == sorted(project.sources)


def test_a_source_that_fails_to_close_keeps_no_other_open(closed: list[str]) -> None:
    def broken() -> None:
        raise OSError("gone")

    parts: Any = {
        "a": SimpleNamespace(close=lambda: closed.append("a")),
        "b": SimpleNamespace(close=broken),
        "c": SimpleNamespace(close=lambda: closed.append("c")),
    }
    with pytest.raises(OSError, match="gone"):
        SourceSet(parts).close()
    assert sorted(closed) == ["a", "c"]


def test_if_one_cannot_be_opened_none_is_left_open(
    project: Project, closed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, *_, last = project.sources
    opening = source_set.open_source

    def open_source(name: str, *rest: Any) -> Any:
        if name == last:
            raise UserError("no such type")
        return opening(name, *rest)

    monkeypatch.setattr(source_set, "open_source", open_source)
    with pytest.raises(UserError, match="no such type"):
        SourceSet.open(project)
    assert closed == [first]


def test_views_that_do_not_compile_leave_no_source_open(project: Project, closed: list[str]) -> None:
    with pytest.raises(UserError):
        assemble(project)
    assert sorted(closed) == sorted(project.sources)
