"""What is hidden in everything that is written, and how control characters are shown."""

from __future__ import annotations

import base64
import io
import json
import shlex
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import cast
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from strobe.cli.reporter import LogReporter
from strobe.cli.terminal import RedactedStream
from strobe.config import dsn
from strobe.errors import SourceUnavailable, UserError
from strobe.events import ApplyFailed
from strobe.redaction import forget, learn, printable, printable_json, redact, redacted
from strobe.warehouse.control import requests
from strobe.warehouse.control.store import ControlStore

FORMS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "repr": repr,
    "ascii": ascii,
    "repr of bytes": lambda s: repr(s.encode()),
    "repr in a list": lambda s: repr([s, "it's", '"']),
    "JSON": json.dumps,
    "JSON, not ASCII": lambda s: json.dumps(s, ensure_ascii=False),
    "JSON in JSON": lambda s: json.dumps(json.dumps(s)),
    "repr in JSON": lambda s: json.dumps(f"bad value {s!r}"),
    "SQL": lambda s: "'" + s.replace("'", "''") + "'",
    "shell": lambda s: s if "'" in s else shlex.quote(s),
    "percent": lambda s: quote(s, safe=""),
    "percent, but /": quote,
    "percent, lower case": lambda s: quote(s, safe="").replace("%2F", "%2f").replace("%3A", "%3a"),
    "plus": quote_plus,
    "form": lambda s: urlencode({"password": s}),
    "a dsn": lambda s: f"postgresql://app:{quote(s, safe='')}@host/shop",
    "keys": lambda s: "host=h password='" + s.replace("\\", "\\\\").replace("'", "\\'") + "'",
    "a terminal": printable,
}
SECRETS = (
    "hunter2hunter2",
    "p\"a'ss\\w/o:r@d",
    "pass word+%&=",
    "pässwört-☃",
    "line one\nline two of it",
    "tab\tand\x1b[31mred",
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_is_hidden_in_every_form(secret: str, form: str) -> None:
    """As programs write values into their messages."""
    learn([secret])
    written = f"before {FORMS[form](secret)} after"
    shown = redact(written)
    assert "***" in shown and shown.startswith("before ") and shown.endswith(" after"), shown
    assert len(shown) < len("before  after") + 40, shown


@given(before=st.binary(max_size=7), secret=st.text(min_size=8, max_size=30), after=st.binary(max_size=7))
def test_a_secret_is_hidden_in_base64(before: bytes, secret: str, after: bytes) -> None:
    """Wherever in what was encoded it stands: as in `Authorization: Basic`, which has the user before it."""
    forget()
    try:
        learn([secret.encode(errors="replace").decode()])
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            assert "***" in redact(encode(before + secret.encode(errors="replace") + after).decode())
    finally:
        forget()


def test_what_is_too_short_hides_nothing() -> None:
    """`2` as a secret would spoil every message that has a 2 in it."""
    learn(["2", "abc"])
    assert redact("2 of abc") == "2 of abc"


def test_a_short_secret_is_hidden_where_it_stands_alone() -> None:
    """Inside a word it would be given away by what is left of the word; an escape before it is no word."""
    learn(["word"])
    assert redact("password=word; 'word' %40word@h \\nword \\x1bword \\u202eword swordfish") == (
        "password=***; '***' %40***@h \\n*** \\x1b*** \\u202e*** swordfish"
    )


def test_documents_keep_names_and_positions() -> None:
    """Other processes rely on them: a short secret that is a part of one by chance changes nothing."""
    learn(["1234", "shop"], names=["shop"])
    document = {"shop": ["shop", "0-1-12345678", "5@ab1234cd"], "problem": "no shop at 1234", "dsn": "a://u:1234@h"}
    shown = redacted(document)
    assert shown["shop"] == ["shop", "0-1-12345678", "5@ab1234cd"]
    assert (shown["problem"], shown["dsn"]) == ("no *** at ***", "a://u:***@h")


def test_errors_are_made_without_secrets() -> None:
    """So that none is shown wherever they end: in a Python program's traceback, a table of the warehouse, a reply."""
    learn(["hunter2hunter2"])
    for error in (
        UserError("no 'hunter2hunter2'", where="hunter2hunter2", fix="Drop hunter2hunter2."),
        SourceUnavailable("hunter2hunter2"),
    ):
        shown = f"{error} {error!r} {error.args} {error.document()} {''.join(traceback.format_exception(error))}"
        assert "hunter2" not in shown


def test_control_files_hold_no_secret(tmp_path: Path) -> None:
    """Heartbeats, requests, replies, progress and notes are written by one function."""
    learn(["hunter2hunter2"])
    store = ControlStore(tmp_path)
    store.put(
        "heartbeat.json",
        {"pid": 1, "sources": {"shop": {"problem": "bad hunter2hunter2", "at": [("hunter2hunter2",)]}}},
    )
    requests.reply(store, "a", {"error": {"code": "user", "message": "'hunter2hunter2'"}})
    requests.tell(store, "a", "loading hunter2hunter2")
    store.put("path.json", {"path": Path("/tmp/hunter2hunter2")})
    files = [file for file in tmp_path.rglob("*") if file.is_file()]
    assert len(files) == 4
    assert not any("hunter2" in file.read_text() for file in files)


def test_libraries_write_no_secret_to_standard_error() -> None:
    """A warning, or the traceback of a thread, goes through the same function."""
    learn(["hunter2hunter2"])
    written = io.StringIO()
    stream = RedactedStream(written)
    try:
        raise ValueError("bad dsn: postgresql://app:hunter2hunter2@h")
    except ValueError:
        traceback.print_exc(file=stream)
    assert "Traceback" in written.getvalue() and "hunter2" not in written.getvalue()
    assert not stream.isatty()


# Parts of DSNs.


@pytest.mark.parametrize(
    "written",
    [
        "postgresql://app:{}@host/shop",
        "mysql://app:{}@host:3306/shop?ssl=on",
        "host=h user=app password={} dbname=shop",
        "host=h user=app password='{}' dbname=shop",
        "postgresql://host/shop?user=app&password={}",
    ],
)
def test_the_password_of_a_dsn_is_a_secret_by_itself(written: str) -> None:
    """A driver's message has it without the rest."""
    text = written.format("hunter2hunter2")
    assert dsn.ambiguity(text) is None
    learn(dsn.secrets(text))
    assert redact("no hunter2hunter2 on host shop of app") == "no *** on host shop of app"


@pytest.mark.parametrize(
    "password",
    [
        "topp@rtsecret",
        "topp/rtsecret",
        "topp?rtsecret",
        "topp#rtsecret",
        "topp[rtsecret",
        "topp%rtsecret",
        "12/34@rtsecret",
    ],
)
def test_a_password_that_would_be_cut_in_two_is_refused(password: str) -> None:
    """Of `u:pa@ss@host` libpq looks for a host `ss@host`, and says so. Each part of it is hidden."""
    text = f"postgresql://app:{password}@host:5432/shop"
    problem = dsn.ambiguity(text)
    assert problem and "percent-encoded" in " ".join(problem)
    learn(dsn.secrets(text))
    assert "rtsecret" not in redact("failed to resolve host 'rtsecret@host': rtsecret")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:p%40w@h/db?sslmode=verify-full",
        "postgresql:///db?host=/tmp&user=a@b",
        "postgresql://h1:1,h2:2/db",
        "postgresql://u@[::1]:5432/db",
        "postgresql://u:p:w!$*@h/db",
        "postgresql://%2Ftmp%2Fx:5432/db",
        "mysql://u@/db?unix_socket=/tmp/x.sock",
        "host=h dbname=x password='a b'",
        "dbname=x",
        "",
    ],
)
def test_dsns_that_are_clear(text: str) -> None:
    """What libpq and our own reader of addresses take as it is meant is not refused."""
    assert dsn.ambiguity(text) is None


# Control characters.


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mb", "a\\x1b[31mb"),
        ("a\x00\x07\x7f\x9bb", "a\\x00\\x07\\x7f\\x9bb"),
        ("a\nb\r\tc", "a\\nb\\r\\tc"),
        ("user\u202etxt.exe\u2066", "user\\u202etxt.exe\\u2066"),
        ("half \ud800", "half \\ud800"),
        ("naïve ☃ 日本 👩\u200d🔬", "naïve ☃ 日本 👩\u200d🔬"),
        ("where: what\n  what to do", "where: what\n  what to do"),
    ],
)
def test_control_characters_are_shown_escaped(text: str, shown: str) -> None:
    """They would steer the terminal, turn the text around, or forge a line; an indented line is none."""
    assert printable(text) == shown
    assert UserError(text).message == shown
    file = io.StringIO()
    LogReporter(Console(file=file, width=200)).tell(ApplyFailed(text))
    assert file.getvalue().split("Z ", 1)[1] == shown + "\n"


def test_texts_of_several_lines_keep_them() -> None:
    """A statement that is printed for a DBA."""
    assert printable("BEGIN\n\tx;\nEND\x1b", lines=True) == "BEGIN\n\tx;\nEND\\x1b"


@given(text=st.text())
def test_json_stays_what_it_was(text: str) -> None:
    """Only how it is written changes."""
    written = printable_json(json.dumps(text, ensure_ascii=False))
    assert json.loads(written) == text
    assert cast(str, json.loads(written)).isprintable() or not any(0x7F <= ord(sign) <= 0x9F for sign in written)
