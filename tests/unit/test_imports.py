"""The architecture as a test: imports between the boxes point one way."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from paths import ROOT


@pytest.fixture(scope="module")
def checker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_imports", ROOT / "tools" / "check_imports.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_imports_point_one_way(checker: ModuleType) -> None:
    """No module of Strobe imports what its box must not know."""
    assert list(checker.check(ROOT / "src" / "strobe")) == []


@pytest.mark.parametrize(
    ("module", "code", "problem"),
    [
        ("managers.sweep", "import threading", "managers must not import threading"),
        ("managers.sweep", "def f():\n    from time import monotonic", "managers must not import time"),
        ("merge.painting", "from strobe.warehouse import log", "merge must not know warehouse"),
        ("merge.painting", "from strobe import pipeline", "merge must not know pipeline"),
        ("merge.painting", "from ..managers.sweep import Sweep", "merge must not know managers"),
        ("integrator.router", "import random as r", "integrator must not import random"),
        ("algebra.view", "import pyspark.sql", "algebra must not import pyspark"),
        ("auditor.check", "from strobe.managers import sweep", "auditor must not know managers"),
        (
            "sources.sqlite.source",
            "from pyspark.sql import SparkSession",
            "must not import pyspark",
        ),
        ("warehouse.log", "from pathlib import Path", "only storage, layout and control"),
        ("warehouse.control.store", "from pathlib import Path", None),
        ("spark.staging", "from pyspark.sql import SparkSession", None),
        ("spark.staging", "from strobe.sources.base import Reader", None),
        ("spark.staging", "from strobe.sources.sqlite.source import Sqlite", "spark must not know sources.sqlite"),
        ("sources.base", "from strobe.spark import relation", "sources.base must not know spark"),
        (
            "sources.sqlite.reader",
            "from strobe.sources.delta.log import Log",
            "sources.sqlite must not know sources.delta",
        ),
        ("sources.delta.reader", "from strobe.spark import relation", None),
        ("pipeline.live", "import threading\nfrom strobe.engine import engine", None),
        ("pipeline.live", "from strobe.merge import painting", "pipeline must not know merge"),
        ("pipeline.live", "from strobe.warehouse.warehouse import Warehouse", "pipeline must not know warehouse"),
        ("pipeline.live", "from strobe.spark import relation", "pipeline must not know spark"),
        ("pipeline.live", "from strobe.sources.sqlite import source", "pipeline must not know sources.sqlite"),
        ("algebra.bag", "from . import schema", None),
        ("managers", "from strobe import __version__", None),
        ("dashboard.page", "import json", "has no place"),
    ],
)
def test_the_check_finds_what_it_should(
    checker: ModuleType, tmp_path: Path, module: str, code: str, problem: str | None
) -> None:
    """A forbidden import is found in every spelling, with its line; an allowed one is not."""
    file = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(code)
    found = list(checker.check(tmp_path))
    assert bool(found) == bool(problem)
    assert problem is None or (problem in found[0] and f"{file.name}:{code.count(chr(10)) + 1}" in found[0])


def test_looking_starts_without_spark() -> None:
    """`import strobe` and reading a project load neither pyspark nor pandas: commands that only look stay quick."""
    code = "import sys, strobe, strobe.config; print([m for m in ('pyspark', 'pandas', 'pyarrow') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT / "src")
    assert shown.stdout.strip() == "[]"
