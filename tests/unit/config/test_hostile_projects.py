"""A project that somebody hands over cannot do harm before it is trusted: `check --offline` ends soon, in little
memory, with a message and exit code 2."""

from __future__ import annotations

import json
import os
import resource
import socket
import sys
from pathlib import Path

import pytest
from hostile_projects import HEAD, HOSTILE, VIEWS

from strobe.cli.main import main
from strobe.config.spark_code import that_load_code

SECONDS = 10
MEGABYTES = 500
_LOOK = ("/etc/", "root:", "Traceback", "bug in Strobe")


def _checked(folder: Path, file: Path) -> int:
    """Runs in a process of its own, with the limits that a hostile project is held to: the exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        with file.open("w") as out:
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            sys.stdout = sys.stderr = out
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            most = pages * resource.getpagesize() + (MEGABYTES << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
            code = main(["check", "--offline", "--project", str(folder)])
            out.flush()
        os._exit(code)
    except BaseException:
        os._exit(70)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # the child does not use the parent's threads
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_project_ends_with_a_message(name: str, project: Path, tmp_path: Path) -> None:
    """Within the limits, without a traceback, and without anything of a file outside the folder or a control character.

    The time is the processor's: how busy the machine is does not matter."""
    HOSTILE[name](project)
    shown = tmp_path / "shown"
    code = _checked(project, shown)
    text = shown.read_text()
    assert code == 2, text[-2000:]
    assert "error: " in text or "Not ready" in text
    assert not any(part in text.replace("${file:/etc/passwd}", "").replace("/etc/passwd leads", "") for part in _LOOK)
    assert all(sign.isprintable() or sign == "\n" for sign in text)
    assert len(text) < 10_000_000


@pytest.mark.parametrize(
    "name",
    [
        "outside as strobe.yml",
        "outside as a view",
        "/dev/zero as a view",
        "views elsewhere",
        "a view by ..",
        "a view by an absolute path",
    ],
)
def test_what_leads_out_of_the_folder_is_not_opened(
    name: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is refused by its place, whatever is there."""
    HOSTILE[name](project)
    assert main(["check", "--offline", "--project", str(project)]) == 2
    assert "leads out of the project's folder" in capsys.readouterr().err


def test_offline_connects_to_nothing_and_looks_nothing_up(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources, variables and secret files need not be there; what a project's own files say wrong is found."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is connected to")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(socket.socket, name, refuse)
    monkeypatch.delenv("NO_SUCH", raising=False)
    text = (
        "version: 1\nproject: p\nspark: {spark.master: 'local[2]', spark.driver.memory: 1g, spark.jars: /tmp/x.jar}\n"
        "sources:\n  pg: {type: postgres, dsn: 'postgresql://u:${NO_SUCH}@host/db'}\n"
        "  my: {type: mariadb, dsn: '${file:/no/such}'}\n  s: {type: sqlite, path: /dev/zero}\n"
    )
    (project / "strobe.yml").write_text(text + "views:\n  v: {sql: SELECT t.a FROM pg.t t JOIN my.u u ON t.a = u.a}\n")
    assert main(["check", "--offline", "--project", str(project), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f["message"] for f in found["findings"]] == ["these settings can load code: spark.jars"]
    (project / "views").mkdir()
    (project / "views" / "w.sql").write_text("SELECT t.a + FROM nowhere.t t")
    (project / "views" / "x.sql").write_text("SELECT t.a FROM nowhere.t t")
    assert main(["check", "--offline", "--project", str(project), "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    assert [f["message"] for f in found["findings"]][1:] == [
        "this expression cannot be read",
        "there is no source nowhere",
    ]


def test_the_project_that_is_not_hostile_passes(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the hostile ones are made from is in order."""
    (project / "strobe.yml").write_text(HEAD + VIEWS)
    assert main(["check", "--offline", "--project", str(project)]) == 0
    assert capsys.readouterr().out == "Everything is ready.\n"


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("spark.master", "local[*]", False),
        ("spark.master", "spark://host:7077", True),
        ("spark.driver.memory", "2g", False),
        ("spark.sql.shuffle.partitions", "010", False),
        ("spark.ui.enabled", "true", False),
        ("spark.network.timeout", "120 s", False),
        ("spark.app.name", "shop", False),
        ("spark.jars", "x.jar", True),
        ("spark.jars.packages", "org:name:1", True),
        ("spark.driver.extraJavaOptions", "-javaagent:x.jar", True),
        ("spark.plugins", "Plugin", True),
        ("spark.sql.extensions", "Extension", True),
        ("spark.submit.pyFiles", "x.py", True),
        ("spark.driver.extraClassPath", "/tmp", True),
        ("spark.hadoop.hadoop.security.credential.provider.path", "jceks://x", True),
        ("spark.executorEnv.LD_PRELOAD", "x.so", True),
        ("spark.pyspark.python", "x", True),
        ("spark.worker.resource.gpu.discoveryScript", "x", True),
        ("spark.a.setting.of.the.next.version", "Class", True),
    ],
)
def test_settings_that_can_load_code(name: str, value: str, code: bool) -> None:
    """Those whose value is a number, a size, a duration or a truth value cannot, whatever they are called."""
    assert that_load_code({name: value}) == ([name] if code else [])
