"""`${…}`: what an allow list lets a project name, which secret files are refused, and that no mistake shows one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from strobe.config.load import load_project
from strobe.errors import UserError
from strobe.redaction import redact

SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder of the test's own."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.delenv("STROBE_ALLOW", raising=False)
    monkeypatch.setenv("SHOP_KEY", SECRET)
    return tmp_path


def load(project: Path, reference: str) -> str:
    """What a reference becomes, in a setting of Spark's."""
    text = f"version: 1\nproject: p\nspark: {{spark.hadoop.key: '{reference}'}}\nsources:\n"
    (project / "strobe.yml").write_text(text + "  s: {type: sqlite, path: s.db}\nviews:\n  v: {sql: SELECT 1}\n")
    return load_project(project).spark["spark.hadoop.key"]


def refused(project: Path, reference: str) -> UserError:
    with pytest.raises(UserError) as caught:
        load(project, reference)
    assert caught.value.fix and caught.value.where.startswith("strobe.yml: line 3")
    assert SECRET not in str(caught.value)
    return caught.value


def secret_file(folder: Path, mode: int = 0o600, name: str = "key") -> Path:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(f"{SECRET}\n")
    file.chmod(mode)
    return file


# Secret files.


@pytest.mark.parametrize("mode", [0o600, 0o400])
def test_a_file_of_ones_own(project: Path, mode: int) -> None:
    """Nobody else can read it."""
    secret_file(project, mode)
    assert load(project, "${file:key}") == SECRET


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_file_that_others_can_read(project: Path, mode: int) -> None:
    """The message has the command that closes it."""
    file = secret_file(project, mode)
    error = refused(project, "${file:key}")
    assert f"(mode {mode:04o})" in error.message
    assert error.fix == f"Run: chmod 600 {file}"


def test_a_file_of_another_user(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns it can exchange it; root's are fine, and a group may read these."""
    file = secret_file(project)
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    if file.stat().st_uid != 0:
        assert "belongs to another user" in refused(project, "${file:key}").message
        return
    assert load(project, "${file:key}") == SECRET
    file.chmod(0o640)
    assert load(project, "${file:key}") == SECRET
    file.chmod(0o644)
    assert "open to other users" in refused(project, "${file:key}").message


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda place: place.symlink_to("/dev/zero")])
def test_what_is_no_plain_file(project: Path, make: object) -> None:
    """It would block, or never end."""
    make(project / "key")  # type: ignore[operator]
    assert "cannot be read: " in refused(project, "${file:key}").message


# The allow list.


def test_a_list_in_the_environment(project: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables by name or pattern, files by path; everything else is refused, and an empty list refuses all."""
    file = secret_file(home / "secrets")
    monkeypatch.setenv("STROBE_ALLOW", f"SHOP_* file:{home}/secrets/*")
    assert load(project, "${SHOP_KEY}") == SECRET
    assert load(project, f"${{file:{file}}}") == SECRET
    for other in ("${HOME}", "${file:/etc/passwd}", f"${{file:{home}/secrets/../other}}", "${file:key}"):
        error = refused(project, other)
        assert "is not on the allow list of the environment variable STROBE_ALLOW" in error.message
    monkeypatch.setenv("STROBE_ALLOW", "")
    refused(project, "${SHOP_KEY}")


def test_a_list_in_a_file(project: Path, home: Path) -> None:
    """One entry a line; a path that does not begin with / is in the project, and a link counts as what it leads to."""
    secret_file(project)
    secret_file(home, name="outside")
    allow = home / ".config" / "strobe" / "allow"
    allow.parent.mkdir(parents=True)
    allow.write_text("# trusted\nfile:*  # in the project\n")
    assert load(project, "${file:key}") == SECRET
    assert str(allow) in refused(project, "${SHOP_KEY}").fix
    (project / "link").symlink_to(home / "outside")
    assert "allow list" in refused(project, "${file:link}").message
    allow.chmod(0o666)
    assert "writable by other users" in refused(project, "${file:key}").message


# Mistakes.


@pytest.mark.parametrize(
    "source",
    [
        "{type: '${SHOP_KEY}', path: s.db}",
        "{type: sqlite, path: '${SHOP_KEY}', wrong: 1}",
        "{type: sqlite, '${SHOP_KEY}': 1}",
        "{type: files, path: 'x.${SHOP_KEY}', relation: r, key: [a]}",
        "{type: files, path: x.csv, format: '${SHOP_KEY}', relation: r, key: [a]}",
        "{type: files, path: x.csv, relation: r, key: ['${SHOP_KEY}', '${SHOP_KEY}']}",
        "{type: postgres, dsn: 'x', limits: {statement_timeout: '${SHOP_KEY}'}}",
        "{type: postgres, dsn: 'postgresql://u:${SHOP_KEY}@x@h/db'}",
        "{type: postgres, dsn: 'host=h password=${SHOP_KEY} x'}",
    ],
)
def test_a_mistake_does_not_show_what_a_reference_became(project: Path, source: str) -> None:
    """Wherever it stands."""
    text = f"version: 1\nproject: p\nsources:\n  s: {source}\nviews:\n  v: {{sql: SELECT 1}}\n"
    (project / "strobe.yml").write_text(text)
    with pytest.raises(UserError) as caught:
        load_project(project)
    assert SECRET not in str(caught.value) and "hunter" not in str(caught.value)


def test_a_password_with_reserved_characters(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what has to be encoded, and no part of the password is shown from then on."""
    monkeypatch.setenv("SHOP_DSN", "postgresql://app:topp@rtsecret@host/shop")
    text = "version: 1\nproject: p\nsources:\n  s: {type: postgres, dsn: '${SHOP_DSN}'}\nviews:\n  v: {sql: SELECT 1}\n"
    (project / "strobe.yml").write_text(text)
    with pytest.raises(UserError, match="the dsn of source s holds reserved characters") as caught:
        load_project(project)
    assert "percent-encoded" in caught.value.fix and "`@` is %40" in caught.value.fix
    assert redact("failed to resolve host 'rtsecret@host'") == "failed to resolve host '***@host'"
