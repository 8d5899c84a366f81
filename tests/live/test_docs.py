"""Every example in the documentation is run, in order, as a reader would type it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from paths import ROOT

pytestmark = [pytest.mark.spark, pytest.mark.live]

SQLITE = """#!{python}
import sqlite3, sys
with sqlite3.connect(sys.argv[1], timeout=20) as connection:
    for row in connection.execute(sys.argv[2]):
        print(*row, sep="|")
"""


@dataclass
class Step:
    """A command of a console block, what is shown below it, and the exit code that it is to have."""

    command: str
    shown: list[str] = field(default_factory=list)
    code: int = 0


def steps(document: Path) -> list[Step]:
    """The commands of the `console` blocks, and the `python` blocks, in order."""
    found: list[Step] = []
    for kind, body in re.findall(r"^```(console|python)\n(.*?)^```", document.read_text(), re.M | re.S):
        if kind == "python":
            found.append(Step(f"python - <<'END'\n{body}END"))
            continue
        for line in body.splitlines():
            if line.startswith("$ "):
                found.append(Step(line[2:]))
            elif code := re.fullmatch(r"exit code (\d+)", line):
                found[-1].code = int(code[1])
            elif line.strip():
                found[-1].shown.append(line)
    return found


def run(document: Path, folder: Path, gateway: str) -> None:
    """Type everything into one shell; each command must end as it says, and print what is shown below it."""
    tools = folder / "tools"
    tools.mkdir()
    (tools / "sqlite3").write_text(SQLITE.format(python=sys.executable))
    (tools / "sqlite3").chmod(0o755)
    (tools / "strobe").write_text(f'#!/bin/sh\nexec {sys.executable} -m strobe "$@"\n')
    (tools / "strobe").chmod(0o755)
    (tools / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tools / "python").chmod(0o755)
    todo = steps(document)
    script = "set -m\n" + "".join(
        f"echo '@@begin {i}'\n{s.command}\necho \"@@end {i} $?\"\n" for i, s in enumerate(todo)
    )
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "src")}
    if gateway:
        environment["STROBE_SPARK_GATEWAY"] = gateway
    work = folder / "work"
    work.mkdir()
    done = subprocess.run(
        ["bash"], input=script, cwd=work, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    for index, step in enumerate(todo):
        match = re.search(rf"@@begin {index}\n(.*?)@@end {index} (\d+)\n", done.stdout, re.S)
        assert match, f"{step.command} did not end:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert int(match[2]) == step.code, f"$ {step.command}\n{match[1]}\n{done.stderr[-3000:]}"
        for line in step.shown:
            assert line in match[1], f"$ {step.command}\ndoes not print {line!r}:\n{match[1]}"


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("name", ["README.md", "docs/tutorial.md"])
def test_examples_run(name: str, tmp_path: Path, gateway: str) -> None:
    """From an empty folder, with nothing but what the text says."""
    run(ROOT / name, tmp_path, gateway)
