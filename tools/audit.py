"""Asks OSV for known vulnerabilities of everything in the bill of materials.

    python tools/audit.py [--strict]        # or: make audit

One that is not in `tools/accepted_vulnerabilities.txt` ends with exit code 1, and so does an entry there whose date is
past. A database that cannot be reached is reported as "not checked", which is no failure unless `--strict` asks for it.
This is no part of `.ci/run`: what is known changes without a change of the code, so it runs on a schedule and before a
release.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import urllib.request
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from sbom import document  # noqa: E402  # a neighbour, which is no package

ACCEPTED = ROOT / "tools" / "accepted_vulnerabilities.txt"


@dataclass(frozen=True)
class Accepted:
    """A vulnerability that is known, does not concern Strobe for a reason, and is to be looked at again on a day."""

    id: str
    package: str
    until: date
    reason: str


def main(arguments: list[str], today: date | None = None) -> int:
    parser = argparse.ArgumentParser(description="Known vulnerabilities of what Strobe installs and loads.")
    parser.add_argument("--strict", action="store_true", help="fail if the database cannot be reached")
    strict = parser.parse_args(arguments).strict
    today = today or date.today()
    known = accepted(ACCEPTED.read_text(encoding="utf-8"))
    expired = [entry for entry in known if entry.until < today]
    for entry in expired:
        print(f"expired: {entry.id} of {entry.package} was accepted until {entry.until}: {entry.reason}")
    components = document()["components"]
    try:
        found = vulnerabilities(components)
    except (OSError, ValueError) as problem:
        print(f"not checked: the database of vulnerabilities cannot be read ({problem})")
        return int(bool(expired) or strict)
    fine = {(entry.id, entry.package) for entry in known}
    new = [(each, package) for each, package in found if (each, package) not in fine]
    for each, package in new:
        print(f"vulnerable: {package}: {each}")
    for entry in known:
        if (entry.id, entry.package) not in found:
            print(f"no longer needed: {entry.id} of {entry.package}")
    print(f"checked {len(components)} packages and jars: {len(new)} vulnerable, {len(found) - len(new)} accepted")
    return int(bool(new or expired))


def accepted(text: str) -> list[Accepted]:
    """`ID | package URL | YYYY-MM-DD | reason`, one a line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [[part.strip() for part in line.split("|", 3)] for line in lines]
    return [Accepted(id_, package, date.fromisoformat(until), reason) for id_, package, until, reason in found]


def vulnerabilities(components: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """What OSV knows: (id, package URL)."""
    address = os.environ.get("OSV_URL", "https://api.osv.dev/v1/querybatch")
    queries = [{"package": {"purl": component["purl"]}} for component in components]
    asked = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(address, data=asked, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        results = json.loads(answer.read())["results"]
    return [
        (vulnerability["id"], component["purl"])
        for component, result in zip(components, results, strict=True)
        for vulnerability in result.get("vulns", ())
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
