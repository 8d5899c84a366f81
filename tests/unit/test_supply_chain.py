"""What Strobe installs and loads is known by its hashes, listed, and can be held against known vulnerabilities."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest

from strobe.spark.jars import pinned

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import audit  # noqa: E402
import lock  # noqa: E402
import sbom  # noqa: E402

DAY = date(2026, 1, 5)


def test_every_package_is_locked_with_hashes() -> None:
    """pip installs nothing else: the Makefile asks for hashes, and builds what comes as source with locked tools."""
    for file in lock.LOCKS:
        blocks = re.split(r"\n(?=[^\s#])", file.read_text())[1:]
        assert blocks and all("--hash=sha256:" in block for block in blocks)
    locked = {
        re.sub(r"[-_.]+", "-", name).lower() for name, _, _ in lock.pinned(lock.LOCKS[0].read_text().splitlines())
    }
    project = (ROOT / "pyproject.toml").read_text()
    lists = "".join(re.findall(r"^(?:dependencies|dev) = \[(.*?)^\]", project, re.MULTILINE | re.DOTALL))
    wanted = set(re.findall(r'^    "([A-Za-z0-9_-]+)', lists, re.MULTILINE))
    assert wanted and {name.lower().replace("_", "-") for name in wanted} <= locked
    makefile = (ROOT / "Makefile").read_text()
    installs = [line for line in makefile.splitlines() if line.lstrip("\t@").startswith("$(PIP)")]
    assert len(installs) == 3
    assert all("--require-hashes" in line or "--no-deps --no-build-isolation" in line for line in installs)
    assert "pip install" not in makefile.replace("-m pip install --quiet --disable-pip-version-check\n", "")


@pytest.mark.parametrize(
    ("file", "used"),
    [
        ("pyarrow-25.0.1-cp313-cp313-manylinux_2_28_x86_64.whl", True),
        ("pyarrow-25.0.1-cp313-cp313t-manylinux_2_28_x86_64.whl", False),
        ("pyarrow-25.0.1-cp314-cp314-manylinux_2_28_x86_64.whl", False),
        ("pyarrow-25.0.1-cp313-cp313-win_amd64.whl", False),
        ("pyarrow-25.0.1-cp39-abi3-macosx_11_0_arm64.whl", True),
        ("pyarrow-25.0.1-py2.py3-none-any.whl", True),
        ("pyarrow-25.0.1.tar.gz", True),
        ("pyarrow-25.0.1rc1.tar.gz", False),
        ("pyarrow-25.0.1.exe", False),
    ],
)
def test_which_files_are_locked(file: str, used: bool) -> None:
    """Those that a supported Python on a supported system could be asked to install."""
    assert lock.usable(file, "25.0.1") is used


def test_the_jars_are_those_of_the_installed_delta() -> None:
    """A new Delta needs `python tools/jars.py`."""
    assert all(re.fullmatch("[0-9a-f]{64}", jar.sha256) for jar in pinned())
    spark = ".".join(version("pyspark").split(".")[:2])
    (delta,) = [jar for jar in pinned() if jar.artifact.startswith("delta-spark")]
    assert (delta.artifact, delta.version) == (f"delta-spark_{spark}_2.13", version("delta-spark"))


def test_the_bill_of_materials_has_everything() -> None:
    """Python packages, Delta's jars, and those that pyspark brings, each once and always in the same order."""
    found = sbom.document()
    purls = [component["purl"] for component in found["components"]]
    assert purls == sorted(set(purls)) and found == sbom.document()
    assert f"pkg:pypi/pyspark@{version('pyspark')}" in purls
    assert all(f"pkg:maven/{jar.group}/{jar.artifact}@{jar.version}" in purls for jar in pinned())
    assert any("/hadoop-client-runtime@" in purl for purl in purls)
    assert (found["bomFormat"], found["specVersion"]) == ("CycloneDX", "1.5")


# Known vulnerabilities.


@pytest.fixture
def osv(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, list[str]]]:
    """A database of vulnerabilities: ids by package URL."""
    known: dict[str, list[str]] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            results = [{"vulns": [{"id": i} for i in known.get(query["package"]["purl"], [])]} for query in asked]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"results": results}).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("OSV_URL", f"http://127.0.0.1:{server.server_port}/")
    monkeypatch.setattr(
        audit, "document", lambda: {"components": [{"purl": "pkg:pypi/a@1"}, {"purl": "pkg:maven/b/c@2"}]}
    )
    yield known
    server.shutdown()
    server.server_close()
    thread.join()


def accept(monkeypatch: pytest.MonkeyPatch, folder: Path, text: str) -> None:
    (folder / "accepted").write_text(f"# A list\n{text}\n")
    monkeypatch.setattr(audit, "ACCEPTED", folder / "accepted")


def test_a_known_vulnerability_fails_unless_it_is_accepted(
    osv: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a reason, for one package, until a day."""
    assert audit.main([], DAY) == 0
    osv["pkg:maven/b/c@2"] = ["CVE-1"]
    assert audit.main([], DAY) == 1
    assert "vulnerable: pkg:maven/b/c@2: CVE-1" in capsys.readouterr().out
    accept(monkeypatch, tmp_path, "CVE-1 | pkg:maven/b/c@2 | 2026-01-05 | it is about | a server that we do not run")
    assert audit.main([], DAY) == 0
    accept(monkeypatch, tmp_path, "CVE-1 | pkg:maven/b/c@2 | 2026-01-04 | it is about a server that we do not run")
    assert audit.main([], DAY) == 1
    assert "expired: CVE-1" in capsys.readouterr().out


def test_a_database_out_of_reach_is_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is no failure of the build, unless somebody asks for certainty."""
    monkeypatch.setenv("OSV_URL", "http://127.0.0.1:1/")
    monkeypatch.setattr(audit, "document", lambda: {"components": []})
    assert (audit.main([], DAY), audit.main(["--strict"], DAY)) == (0, 1)
    assert capsys.readouterr().out.startswith("not checked: ")


def test_what_was_recorded_is_held_against_what_is_locked(
    osv: dict[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nobody is asked, and the calendar does not count; how old the record is, and what it does not know, is said."""
    monkeypatch.setattr(audit, "RECORD", tmp_path / "known.json")
    osv["pkg:maven/b/c@2"] = ["CVE-1"]
    accept(monkeypatch, tmp_path, "CVE-1 | pkg:maven/b/c@2 | 2026-01-05 | it is about a server that we do not run")
    assert audit.main(["--record"], DAY) == 0
    monkeypatch.setenv("OSV_URL", "http://127.0.0.1:1/")
    assert audit.main(["--offline"], date(2027, 1, 1)) == 0
    assert "not checked against a service since 2026-01-05" in capsys.readouterr().out
    accept(monkeypatch, tmp_path, "")
    assert audit.main(["--offline"], DAY) == 1
    assert "vulnerable: pkg:maven/b/c@2: CVE-1" in capsys.readouterr().out
    monkeypatch.setattr(audit, "document", lambda: {"components": [{"purl": "pkg:pypi/a@2"}]})
    assert audit.main(["--offline"], DAY) == 0
    assert "not checked at all, since they were locked later: pkg:pypi/a@2" in capsys.readouterr().out
    (tmp_path / "known.json").write_text('{"checked": null, "packages": {"pkg:pypi/a@2": ["CVE-2"]}}')
    assert audit.main(["--offline"], DAY) == 1
    assert "never checked against a service" in capsys.readouterr().out


def test_nothing_that_is_installed_is_known_to_be_vulnerable() -> None:
    """As far as the record says."""
    assert audit.main(["--offline"], DAY) == 0


def test_the_list_of_accepted_vulnerabilities_can_be_read() -> None:
    """Each has a date and a reason. That a date is past is for `make audit` to say: no test fails by the calendar."""
    assert all(entry.reason for entry in audit.accepted(audit.ACCEPTED.read_text()))
