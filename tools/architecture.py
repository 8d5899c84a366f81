"""Writes the parts of docs/architecture.md that the code itself says: the tree, the import table and the state tables.

    python tools/architecture.py [--check]

Each part stands between `<!-- name -->` and `<!-- /name -->`. With `--check` nothing is written, and the exit
code is 1 if the page is not what the code says.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tools")]
PACKAGE = ROOT / "src" / "strobe"
PAGE = ROOT / "docs" / "architecture.md"

ORDER = (
    *("config", "algebra", "integrator", "managers", "merge", "engine", "data", "sources", "spark", "warehouse"),
    *("planning", "pipeline", "apply", "coordinator", "client", "report", "auditor", "simulator", "demo", "cli"),
)
"""The folders, from what knows least to what knows most."""

TOGETHER = {"basics": ("errors", "algebra", "messages"), "helpers": ("retry", "failpoints", "events")}
"""Boxes that the import table names together where all of them may be imported."""


def main(arguments: list[str]) -> int:
    page = PAGE.read_text(encoding="utf-8")
    written = rendered(page)
    if "--check" in arguments:
        if written != page:
            print(f"{PAGE.relative_to(ROOT)} is not what the code says: run `python tools/architecture.py`")
        return int(written != page)
    PAGE.write_text(written, encoding="utf-8")
    return 0


def rendered(page: str) -> str:
    """The page with every generated part as the code says it now."""
    for name, lines in PARTS.items():
        text = "\n".join(lines())
        page, found = re.subn(
            rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", lambda m, t=text: f"{m[1]}{t}\n{m[2]}", page, flags=re.DOTALL
        )
        if not found:
            raise SystemExit(f"{PAGE.relative_to(ROOT)} has no part {name!r}")
    return page


def tree() -> Iterator[str]:
    """Every folder and module with the first sentence of what it says of itself."""
    yield "```"
    for module in sorted(PACKAGE.glob("*.py")):
        if module.stem != "__init__":
            yield _line(module, 0)
    folders = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    if folders != set(ORDER):
        raise SystemExit(f"tools/architecture.py does not know where these stand: {sorted(folders ^ set(ORDER))}")
    for name in ORDER:
        yield from _folder(PACKAGE / name, 0)
    yield "```"


def _folder(folder: Path, depth: int) -> Iterator[str]:
    yield _line(folder / "__init__.py", depth)
    for module in sorted(folder.glob("*.py")):
        if not module.stem.startswith("__"):
            yield _line(module, depth + 1)
    for inner in sorted(path for path in folder.iterdir() if (path / "__init__.py").exists()):
        yield from _folder(inner, depth + 1)


def _line(module: Path, depth: int) -> str:
    name = f"{module.parent.name}/" if module.stem == "__init__" else module.name
    return f"{'  ' * depth + name:<28} {_first_sentence(module)}".rstrip()


def _first_sentence(module: Path) -> str:
    said = ast.get_docstring(ast.parse(module.read_text(encoding="utf-8"))) or ""
    paragraph = " ".join(said.split("\n\n")[0].split())
    return re.split(r"(?<=[.])\s", paragraph)[0].rstrip(".:")


def imports() -> Iterator[str]:
    """Who may know whom, as tools/check_imports.py has it."""
    import check_imports

    rows = check_imports.MAY_IMPORT
    yield from (f"The {what} are {_listed(group)}." for what, group in TOGETHER.items())
    yield ""
    yield "| box | may import |"
    yield "|---|---|"
    for box, others in rows.items():
        if not box.startswith("__"):
            whole = [what for what, group in TOGETHER.items() if others >= set(group)]
            known = {other for what in whole for other in TOGETHER[what]}
            rest = sorted(sorted(others - known), key=lambda o: [*rows].index(o if o in rows else o.partition(".")[0]))
            named = [*(f"the {what}" for what in whole), *([_listed(rest)] if rest else [])]
            yield f"| `{box}` | {', '.join(named) or 'nothing'} |"


def _listed(boxes: Iterable[str]) -> str:
    return ", ".join(f"`{box}`" for box in boxes)


def states() -> Iterator[str]:
    """The machines, with what each state means."""
    from strobe.apply.states import VIEW
    from strobe.coordinator.states import PHASES, SOURCE
    from strobe.pipeline.states import COMMITTER, MONITOR

    machines = {"PHASES": PHASES, "SOURCE": SOURCE, "VIEW": VIEW, "COMMITTER": COMMITTER, "MONITOR": MONITOR}
    for name, machine in machines.items():
        yield f"### {machine.name[0].upper()}{machine.name[1:]}"
        yield ""
        yield f"`{type(machine.begins).__module__.removeprefix('strobe.')}.{name}`, from {machine.begins.name}."
        yield ""
        yield from (f"- {state.name}: {state.value}" for state in type(machine.begins))
        yield ""
        yield from machine.markdown().splitlines()
        yield ""


PARTS: dict[str, Callable[[], Iterator[str]]] = {"tree": tree, "imports": imports, "states": states}

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
