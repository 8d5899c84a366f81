"""Checks that imports between Strobe's boxes point one way, and that only the outer boxes touch the outer world.

    python tools/check_imports.py [FOLDER]

A box is a folder or a module directly under `src/strobe`; an interface that others may know without knowing the rest of
its box stands in the tables as `box.module`. The tables are the architecture; a box that is missing from them is an
error, so that a new one has to be placed. Imports inside functions count as well.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = "strobe"

_BASICS = {"redaction", "errors", "algebra", "messages"}
_SMALL = {"retry", "failpoints", "events"}
_RUN = {"pipeline", "planning", "warehouse", "spark", "data", "sources.base", "auditor", "config"}
_KINDS = {f"sources.{kind}" for kind in ("postgres", "mariadb", "sqlite", "files", "delta")}
_OF_A_KIND = (
    _BASICS
    | _SMALL
    | {"data"}
    | {f"sources.{name}" for name in ("base", "keyed", "net_changes", "global_transactions", "hosts")}
)

MAY_IMPORT: dict[str, set[str]] = {
    "redaction": set(),
    "errors": {"redaction"},
    "retry": {"errors"},
    "failpoints": {"errors"},
    "events": {"errors"},
    "config": {"errors", "redaction"},
    "algebra": {"errors"},
    "messages": {"errors", "algebra"},
    "integrator": _BASICS,
    "managers": _BASICS,
    "merge": _BASICS,
    "engine": _BASICS | {"integrator", "merge"},
    "data": _BASICS,
    "sources.base": _BASICS | {"data"},
    "spark": _BASICS | {"data", "sources.base"},
    "sources.lookups": _BASICS | {"sources.base"},
    "sources.keyed": _BASICS | {"data"},
    "sources.net_changes": _BASICS | {"data", "sources.base"},
    "sources.global_transactions": _BASICS,
    "sources.hosts": set(),
    "sources.postgres": _OF_A_KIND,
    "sources.mariadb": _OF_A_KIND,
    "sources.sqlite": _OF_A_KIND,
    "sources.files": _OF_A_KIND | {"spark"},
    "sources.delta": _OF_A_KIND | {"spark"},
    "sources": _BASICS | _KINDS | {"sources.base"},  # the registry
    "warehouse": _BASICS | _SMALL | {"data", "spark", "merge.removals"},
    "planning": _BASICS | _SMALL | {"config", "data", "managers", "sources"},
    "pipeline": _BASICS | _SMALL | {"managers", "engine", "data", "planning", "sources.base", "sources.lookups"},
    "auditor": {"errors", "algebra"},  # nothing of what keeps views: it must not share their mistakes
    "simulator": _BASICS | {"engine", "managers", "auditor"},
    "apply": _BASICS | _SMALL | _RUN | {"engine.halves"},
    "coordinator": _BASICS | _SMALL | _RUN | {"apply"},
    "client": _BASICS | _SMALL | _RUN | {"apply", "coordinator"},
    "report": _BASICS | _SMALL | _RUN | {"apply", "coordinator", "client", "managers"},
    "api": _BASICS | {"events", "config", "warehouse", "spark", "planning", "apply", "coordinator", "client", "report"},
    "demo": _BASICS
    | _SMALL
    | {"config", "planning", "apply", "coordinator", "client", "report", "auditor", "sources.base"},
    "cli": _BASICS
    | _SMALL
    | {
        "managers",
        "engine",
        "config",
        "data.private",
        "data.scratch",
        "planning",
        "apply",
        "coordinator",
        "client",
        "report",
        "simulator",
        "auditor",
        "sources.base",
        "demo",
        "api",
    },
    "__main__": {"cli"},
    "__init__": {"api"},
}
"""Which boxes a box may know, besides itself, the lowest first."""

PURE = {"redaction", "errors", "algebra", "messages", "managers", "merge", "integrator", "engine"}
"""A message in, messages out: no clock, no thread, no randomness, no I/O."""

FORBIDDEN_IN_PURE = {
    *("threading", "multiprocessing", "concurrent", "asyncio", "queue", "signal"),
    *("time", "random", "secrets", "socket", "subprocess", "sqlite3", "os", "pathlib", "tempfile"),
    *("pyspark", "delta", "deltalake"),
}

FILES = {"pathlib", "os", "shutil", "glob", "tempfile", "fcntl"}

MAY_KNOW_FILES = {"warehouse.storage", "warehouse.layout", "warehouse.control"}
"""Modules of the warehouse that may know that it lies in a file system."""

MAY_USE_SPARK = {"spark", "warehouse", "api", "auditor.compare"}
"""Boxes, or single modules of a box, that may import pyspark."""


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).parent.parent / "src" / PACKAGE
    problems = list(check(root))
    print("\n".join(problems) if problems else "Imports between the boxes point one way.")
    return 1 if problems else 0


def check(root: Path) -> Iterator[str]:
    """Every import under the package folder `root` that the tables do not allow, as `file:line: what is wrong`."""
    for file in sorted(root.rglob("*.py")):
        module = ".".join(file.relative_to(root).with_suffix("").parts)
        if _box(module) not in MAY_IMPORT:
            yield f"{file}:1: box {_box(module)} has no place in tools/check_imports.py yet"
            continue
        for line, imported in imports(ast.parse(file.read_text(encoding="utf-8")), module):
            problem = judge(module, imported)
            if problem:
                yield f"{file}:{line}: {problem}"


def judge(module: str, imported: str) -> str | None:
    """What is wrong with a module of the package (`merge.painting`) importing something, or None."""
    box, part = _box(module), _part(module)
    top, _, rest = imported.partition(".")
    if top == PACKAGE:
        other = _box(rest)
        allowed = {part} if part in MAY_IMPORT else {box}
        allowed |= MAY_IMPORT.get(part, MAY_IMPORT[box])
        known = _part(rest) if _part(rest) in MAY_IMPORT else other
        if {other, known, _part(rest)} & allowed or other not in MAY_IMPORT:
            return None
        return f"{part if part in MAY_IMPORT else box} must not know {known}"
    if box in PURE and top in FORBIDDEN_IN_PURE:
        return f"{box} must not import {top}: it is driven from outside, without clocks, threads or I/O"
    if box == "warehouse" and top in FILES and part not in MAY_KNOW_FILES:
        return f"{module} must not import {top}: only storage, layout and control know that there is a file system"
    if top == "pyspark" and not {box, part} & MAY_USE_SPARK:
        return f"{module} must not import pyspark: only the data plane does"
    return None


def _box(module: str) -> str:
    return module.partition(".")[0]


def _part(module: str) -> str:
    """The box with the module in it: `sources.base`."""
    return ".".join(module.split(".")[:2])


def imports(tree: ast.AST, module: str) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a module, relative ones made absolute."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(node, module)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def _absolute(node: ast.ImportFrom, module: str) -> str:
    if not node.level:
        return node.module or ""
    here = [PACKAGE, *module.split(".")]
    return ".".join([*here[: -node.level], *([node.module] if node.module else [])])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
