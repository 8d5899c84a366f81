"""The benchmarks can be run, and their judge finds a state that is wrong."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.load import oracle as judging
from benchmarks.load.oracle import Judged, Model, Net, Oracle, Past, decoded, waits
from paths import ROOT

MODULES = sorted(
    ".".join(file.relative_to(ROOT).with_suffix("").parts)
    for file in (ROOT / "benchmarks").rglob("*.py")
    if file.name != "__main__.py" or file.parent.name == "benchmarks"
)


@pytest.mark.parametrize("name", MODULES)
def test_every_module_of_the_benchmarks_can_be_imported(name: str) -> None:
    """What `make bench` uses of Strobe is still there."""
    importlib.import_module(name)


def test_rows_of_the_servers_log_are_read() -> None:
    """As `test_decoding` writes them, with quotes, and of an update the new row."""
    text = "old-key: id[integer]:7 name[text]:'a' new-tuple: id[integer]:7 name[text]:'it''s [x]:''1'' new'"
    assert decoded(text) == {"id": "7", "name": "it's [x]:'1' new"}
    assert decoded("id[integer]:-7 name[character varying]:''") == {"id": "-7", "name": ""}


def order(number: int, customer: int = 1, quantity: int = 5) -> tuple[str, dict[str, str], bool]:
    row = {"id": number, "customer": customer, "product": 1, "quantity": quantity}
    return "orders", {name: str(value) for name, value in row.items()}, False


def changes(number: int) -> tuple[tuple[str, dict[str, str], bool], ...]:
    """Of a small past: an order, its customer's name, and its quantity."""
    name = "customers", {"id": "1", "name": "Bob"}, False
    return ((order(1),), (name,), (order(1, quantity=6),))[number]


START: Net = {(9, 5, "Ada", 3): 1}
FIRST: Net = {(1, 5, "Ada", 3): 1}
NAMED: Net = {(9, 5, "Ada", 3): -1, (9, 5, "Bob", 3): 1, (1, 5, "Ada", 3): -1, (1, 5, "Bob", 3): 1}
MORE: Net = {(1, 5, "Bob", 3): -1, (1, 6, "Bob", 3): 1}
BOTH: Net = {(9, 5, "Ada", 3): -1, (9, 5, "Bob", 3): 1, (1, 5, "Ada", 3): -1, (1, 6, "Bob", 3): 1}


class Recorded(Oracle):
    def __init__(self) -> None:
        self._model = Model()
        self._model.apply("customers", {"id": "1", "name": "Ada"}, gone=False)
        self._model.apply("products", {"id": "1", "price": "3"}, gone=False)
        self._model.apply(*order(9))

    def past(self) -> Iterator[Past]:
        return iter([Past(10 * (n + 1), 100.0 + n, changes(n)) for n in range(3)])


def judged(monkeypatch: pytest.MonkeyPatch, *commits: tuple[int, int, Net]) -> Judged:
    monkeypatch.setattr(judging, "commits", lambda *_: iter(commits))
    return Recorded().judge(Path())


@pytest.mark.parametrize(
    ("commits", "wrong"),
    [
        ([(1, 0, START), (2, 10, FIRST), (3, 20, NAMED), (4, 30, MORE)], []),
        ([(1, 5, START), (2, 10, FIRST), (3, 35, BOTH)], []),
        ([(1, 10, {**START, **FIRST}), (2, 30, BOTH)], []),
        ([(1, 0, {}), (2, 10, FIRST)], [1]),
        ([(1, 0, START), (2, 20, FIRST), (3, 30, MORE)], [2]),
        ([(1, 0, START), (2, 10, FIRST), (3, 10, FIRST), (4, 30, BOTH)], [3]),
        ([(1, 0, START), (2, 10, {}), (3, 20, NAMED)], [2]),
    ],
)
def test_the_judge_finds_the_commits_that_are_wrong(
    monkeypatch: pytest.MonkeyPatch, commits: Any, wrong: list[int]
) -> None:
    """A commit may bring several transactions, but all that they do, nothing twice and nothing else."""
    found = judged(monkeypatch, *commits)
    assert [int(text.split(":")[0].split()[1]) for text in found.wrong] == wrong
    assert found.states == len(commits)


def test_waits_end_with_the_version_that_shows_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several commits may be in one version of the log; what is not shown yet has no wait."""
    found = judged(monkeypatch, (4, 0, START), (5, 10, FIRST), (6, 20, NAMED))
    assert waits(found, [(99.0, 4), (103.5, 6)]) == [(100.0, 3.5), (101.0, 2.5)]
    assert found.most_together == 1
