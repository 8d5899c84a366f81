"""What the documentation names is there."""

from __future__ import annotations

import re

from paths import ROOT

DOCUMENTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "tests").rglob("*.md")]
PATH = r"`((?:tests|tools|benchmarks|docs|examples|src)/[\w./-]*\w)"
CODE_PATH = r"\b((?:tests|tools|benchmarks|docs)/[\w./-]*\w\.(?:py|md))\b"


def test_paths_exist() -> None:
    """Every file and folder of this repository that a document names is there."""
    named = [(document, path) for document in DOCUMENTS for path in re.findall(PATH, document.read_text())]
    assert len(named) > 50
    assert [f"{document.name}: {path}" for document, path in named if not (ROOT / path).exists()] == []


def test_paths_in_the_code_exist() -> None:
    """So is every one that a comment or a message in the code names."""
    files = [file for folder in ("src", "tests", "tools", "benchmarks") for file in (ROOT / folder).rglob("*.py")]
    named = [(file, path) for file in files for path in re.findall(CODE_PATH, file.read_text(encoding="utf-8"))]
    assert len(named) > 10
    assert [f"{file.name}: {path}" for file, path in named if not (ROOT / path).exists()] == []


def test_links_lead_somewhere() -> None:
    """Every relative link in the documentation names a file that is there."""
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name}: {target}"


def test_the_catalogue_names_tests_that_exist() -> None:
    """Every test that docs/faults.md names is there, and every test of faults is named."""
    text = (ROOT / "docs" / "faults.md").read_text()
    named = set(re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", text))
    assert len(named) > 20
    for file, test in named:
        assert f"def {test}(" in (ROOT / file).read_text(), f"{file}::{test}"
    for path in (ROOT / "tests").rglob("test_*fault*.py"):
        there = set(re.findall(r"^def (test_\w+)\(", path.read_text(), re.MULTILINE))
        of_this = {test for file, test in named if ROOT / file == path}
        assert there <= of_this, path
