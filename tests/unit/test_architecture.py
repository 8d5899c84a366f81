"""docs/architecture.md says what the code says."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys

import pytest
from paths import ROOT
from tracing import PAGE, code_of, steps

PATHS = ("One PostgreSQL update, from the log to a reader", "A restart after a kill")


def test_the_generated_parts_are_up_to_date() -> None:
    """The tree, the import table and the state tables are those of the code."""
    command = [sys.executable, str(ROOT / "tools" / "architecture.py"), "--check"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stdout + shown.stderr


@pytest.mark.parametrize("heading", PATHS)
def test_the_steps_of_a_path_exist(heading: str) -> None:
    """Every function that a path names is there; `tests/spark/test_traces.py` shows their order."""
    for name in steps(heading):
        code_of(name)


def test_the_places_to_look_exist() -> None:
    """Every module, class and function that the table of questions names is there."""
    table = PAGE.read_text(encoding="utf-8").partition("## Where do I find")[2].partition("\n## ")[0]
    named = [name for name in re.findall(r"`([a-z_]+(?:\.\w+)*)`", table) if not name.startswith("tests")]
    assert len(named) > 10
    for name in named:
        exists(name)


def exists(name: str) -> None:
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(("strobe", *parts[:length])))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            found = getattr(found, part)
        return
    raise AssertionError(f"strobe has no {name}")
