"""Writes the software bill of materials: everything that Strobe installs or loads, as a CycloneDX document.

    python tools/sbom.py > sbom.json        # or: make sbom

Python packages come from the lock files, Delta's jars from `jars.sha256`, and Spark's own jars from the installed
pyspark, each with its SHA-256. The same inputs give the same document.
"""

from __future__ import annotations

import json
import re
import sys
import zipfile
from collections.abc import Iterator
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from lock import LOCKS, pinned  # noqa: E402  # a neighbour, which is no package

JARS = ROOT / "src" / "strobe" / "spark" / "jars.sha256"


def main() -> int:
    print(json.dumps(document(), indent=2))
    return 0


def document() -> dict[str, Any]:
    found = {component["bom-ref"]: component for component in components()}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {"type": "application", "name": "strobe-warehouse", "version": _own_version()}},
        "components": [found[reference] for reference in sorted(found)],
    }


def components() -> Iterator[dict[str, Any]]:
    """Everything by its package URL."""
    for lock in LOCKS:
        for name, number, hashes in _locked(lock):
            yield _component("pypi", "", re.sub(r"[-_.]+", "-", name).lower(), number, hashes)
    for line in JARS.read_text(encoding="ascii").splitlines():
        if line and not line.startswith("#"):
            digest, coordinates = line.split()
            yield _component("maven", *coordinates.split(":"), [digest])
    yield from bundled()


def bundled() -> Iterator[dict[str, Any]]:
    """The jars inside pyspark, if it is installed; most say themselves what they are."""
    spec = find_spec("pyspark")
    folder = Path(spec.origin).parent / "jars" if spec and spec.origin else Path("nowhere")
    for jar in sorted(folder.glob("*.jar")):
        group, artifact, number = _described(jar)
        component = _component("maven", group, artifact, number, [sha256(jar.read_bytes()).hexdigest()])
        yield {**component, "properties": [{"name": "strobe:bundled-in", "value": f"pyspark {version('pyspark')}"}]}


def _described(jar: Path) -> tuple[str, str, str]:
    named = re.fullmatch(r"(.+?)-(\d.*)", jar.stem)
    artifact, number = (named[1], named[2]) if named else (jar.stem, "")
    with zipfile.ZipFile(jar) as file:
        for name in file.namelist():
            if name.startswith("META-INF/maven/") and name.endswith(f"/{artifact}/pom.properties"):
                return name.split("/")[2], artifact, number
    return "", artifact, number


def _component(kind: str, group: str, name: str, number: str, hashes: list[str]) -> dict[str, Any]:
    purl = f"pkg:{kind}/{f'{group}/' if group else ''}{name}@{number}"
    found: dict[str, Any] = {"type": "library", "bom-ref": purl, "name": name, "version": number, "purl": purl}
    if group:
        found["group"] = group
    if len(hashes) == 1:
        found["hashes"] = [{"alg": "SHA-256", "content": hashes[0]}]
    else:  # one package, a file for each platform
        found["properties"] = [{"name": "strobe:sha256-of-a-file", "value": digest} for digest in hashes]
    return found


def _locked(lock: Path) -> Iterator[tuple[str, str, list[str]]]:
    blocks = re.split(r"\n(?=\S)", lock.read_text(encoding="utf-8"))
    for block in blocks:
        for name, number, _ in pinned(block.splitlines()[:1]):
            yield name, number, re.findall(r"--hash=sha256:([0-9a-f]{64})", block)


def _own_version() -> str:
    found = re.search(r'^version = "([^"]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else ""


if __name__ == "__main__":
    sys.exit(main())
