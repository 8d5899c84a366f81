"""Holds everything in the bill of materials against known vulnerabilities.

    python tools/audit.py [--strict] [--record]     # asks OSV; or: make audit
    python tools/audit.py --offline                 # against what was recorded; part of the tests

A vulnerability that is not in `tools/accepted_vulnerabilities.txt` ends with exit code 1. So does an entry there whose
date is past, but not offline: tests do not fail by the calendar. OSV out of reach is reported as "not checked", which
is no failure unless `--strict` asks for it.

`--record` writes what OSV knows, with the date, to `tools/known_vulnerabilities.json`, by package URL with its version.
Whoever learns of a vulnerability otherwise may add it there by hand. Offline it is said how old the record is, and what
is locked now and was not then.
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

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tools"))

from sbom import document  # noqa: E402  # a neighbour, which is no package

ACCEPTED = ROOT / "tools" / "accepted_vulnerabilities.txt"
RECORD = ROOT / "tools" / "known_vulnerabilities.json"


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
    parser.add_argument("--record", action="store_true", help="write down what the database knows")
    parser.add_argument("--offline", action="store_true", help="ask nobody: use what was written down")
    options = parser.parse_args(arguments)
    today = today or date.today()
    known = accepted(ACCEPTED.read_text(encoding="utf-8"))
    expired = [entry for entry in known if entry.until < today]
    for entry in expired:
        print(f"expired: {entry.id} of {entry.package} was accepted until {entry.until}: {entry.reason}")
    packages = [str(component["purl"]) for component in document()["components"]]
    if options.offline:
        return int(judged(recorded(packages), packages, known))
    try:
        found = vulnerabilities(packages)
    except (OSError, ValueError) as problem:
        print(f"not checked: the database of vulnerabilities cannot be read ({problem})")
        return int(bool(expired) or options.strict)
    if options.record:
        record(found, packages, today)
    return int(judged(found, packages, known) or bool(expired))


def judged(found: list[tuple[str, str]], packages: list[str], known: list[Accepted]) -> bool:
    """Whether there is one that nobody has accepted."""
    fine = {(entry.id, entry.package) for entry in known}
    new = [each for each in found if each not in fine]
    for each, package in new:
        print(f"vulnerable: {package}: {each}")
    for entry in known:
        if (entry.id, entry.package) not in found:
            print(f"no longer needed: {entry.id} of {entry.package}")
    print(
        f"{len(packages)} packages and jars: known are {len(new)} vulnerabilities, and {len(found) - len(new)} accepted"
    )
    return bool(new)


def recorded(packages: list[str]) -> list[tuple[str, str]]:
    """What was known of these when it was last asked for: (id, package URL)."""
    written = json.loads(RECORD.read_text(encoding="utf-8"))
    checked, known = written["checked"], written["packages"]
    missing = [package for package in packages if package not in known] if checked else packages
    print(f"not checked against a service since {checked}" if checked else "never checked against a service")
    if checked and missing:
        print(f"not checked at all, since they were locked later: {', '.join(missing)}")
    return [(each, package) for package in packages for each in known.get(package, ())]


def record(found: list[tuple[str, str]], packages: list[str], today: date) -> None:
    known: dict[str, list[str]] = {package: [] for package in sorted(packages)}
    for each, package in found:
        known[package].append(each)
    RECORD.write_text(json.dumps({"checked": today.isoformat(), "packages": known}, indent=1) + "\n", encoding="utf-8")


def accepted(text: str) -> list[Accepted]:
    """`ID | package URL | YYYY-MM-DD | reason`, one a line."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    found = [[part.strip() for part in line.split("|", 3)] for line in lines]
    return [Accepted(id_, package, date.fromisoformat(until), reason) for id_, package, until, reason in found]


def vulnerabilities(packages: list[str]) -> list[tuple[str, str]]:
    """What OSV knows: (id, package URL)."""
    address = os.environ.get("OSV_URL", "https://api.osv.dev/v1/querybatch")
    queries = [{"package": {"purl": package}} for package in packages]
    asked = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(address, data=asked, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        results = json.loads(answer.read())["results"]
    return [
        (vulnerability["id"], package)
        for package, result in zip(packages, results, strict=True)
        for vulnerability in result.get("vulns", ())
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
