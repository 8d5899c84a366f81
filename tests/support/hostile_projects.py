"""Projects that somebody might hand over to do harm: each a function that fills a folder."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path

Make = Callable[[Path], None]

HEAD = "version: 1\nproject: p\nsources:\n  s: {type: sqlite, path: s.db}\n"
VIEWS = "views:\n  v: {sql: 'SELECT t.a FROM s.t t'}\n"


def _write(folder: Path, text: str | bytes, name: str = "strobe.yml") -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True, parents=True)
    if isinstance(text, bytes):
        file.write_bytes(text)
    else:
        file.write_text(text)


def _yml(text: str | bytes) -> Make:
    return lambda folder: _write(folder, text)


def _sql(text: str | bytes, name: str = "views/v.sql") -> Make:
    """A project in order, but for a view's file."""

    def make(folder: Path) -> None:
        _write(folder, HEAD)
        _write(folder, text, name)

    return make


def _in_place_of(name: str, put: Callable[[Path], None]) -> Make:
    """Something that is no plain file, in the place of one."""

    def make(folder: Path) -> None:
        if name != "strobe.yml":
            _write(folder, HEAD)
        (folder / name).parent.mkdir(exist_ok=True)
        put(folder / name)

    return make


def _link(to: str) -> Callable[[Path], None]:
    return lambda place: place.symlink_to(to)


def _sparse(place: Path) -> None:
    with place.open("wb") as file:
        file.truncate(20 << 30)


def _many_views(folder: Path) -> None:
    _write(folder, HEAD)
    for number in range(150):
        _write(folder, f"SELECT {', '.join(f't.c{i}' for i in range(480))} FROM s.t t LIMIT", f"views/v{number}.sql")


def _bomb(levels: int = 30) -> str:
    lines = ["a0: &a0 [x, x]", *(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, levels))]
    return HEAD + VIEWS + "\n".join(lines) + "\n"


def _select(items: str, rest: str = "") -> Make:
    return _sql(f"SELECT {items} FROM s.t t {rest}")


SPECIAL: dict[str, Callable[[Path], None]] = {
    "a fifo": os.mkfifo,
    "a folder": lambda place: place.mkdir(),
    "/dev/zero": _link("/dev/zero"),
    "/dev/stdin": _link("/dev/stdin"),
    "a loop of links": lambda place: place.symlink_to(place.name),
    "20 GB": _sparse,
    "outside": _link("/etc/passwd"),
}

HOSTILE: dict[str, Make] = {
    **{f"{what} as strobe.yml": _in_place_of("strobe.yml", put) for what, put in SPECIAL.items()},
    **{f"{what} as a view": _in_place_of("views/v.sql", put) for what, put in SPECIAL.items()},
    "no file": lambda folder: None,
    "an empty file": _yml(""),
    "views elsewhere": _in_place_of("views", _link("/etc")),
    "views in a loop": _in_place_of("views", _link("views")),
    "a view by ..": _yml(HEAD + "views:\n  v: {file: ../../../../etc/passwd}\n"),
    "a view by an absolute path": _yml(HEAD + "views:\n  v: {file: /etc/passwd}\n"),
    "a view in nobody's home": _yml(HEAD + "views:\n  v: {file: ~nobody-at-all/v.sql}\n"),
    "a view with a NUL in its name": _yml(HEAD + 'views:\n  v: {file: "a\\0b"}\n'),
    "a view with half a character in its name": _yml(HEAD + 'views:\n  v: {file: "a\\ud800b"}\n'),
    "a path with a NUL": _yml(HEAD.replace("s.db", '"a\\0b"') + VIEWS),
    "a path in nobody's home": _yml(HEAD.replace("s.db", "~nobody-at-all/s.db") + VIEWS),
    "a path of a megabyte": _yml(HEAD.replace("s.db", "x" * 400_000) + VIEWS + "wrong: 1\n"),
    "an alias bomb": _yml(_bomb()),
    "an alias bomb of mappings": _yml(
        _bomb().replace("[x, x]", "{x: x}").replace("[*", "{k: [*").replace("]\n", "]}\n")
    ),
    "an alias in itself": _yml(HEAD + VIEWS + "loop: &loop [*loop]\n"),
    "merge keys in a chain": _yml(
        HEAD
        + VIEWS
        + "".join(f"m{i}: &m{i} {{<<: [*m{i - 1}, *m{i - 1}]}}\n" for i in range(1, 40)).replace("*m0", "{}")
    ),
    "deep lists": _yml(HEAD + VIEWS + "x: " + "[" * 50_000),
    "deep mappings": _yml(HEAD + VIEWS + "x: " + "{a: " * 50_000),
    "deep blocks": _yml(HEAD + VIEWS + "x:\n" + "".join(f"{' ' * i}a:\n" for i in range(1, 900))),
    "many keys": _yml(HEAD + VIEWS + "".join(f"k{i}: 1\n" for i in range(40_000))),
    "many sources": _yml(HEAD + "".join(f"  s{i}: {{type: sqlite, path: s.db}}\n" for i in range(9_000)) + VIEWS),
    "a long list": _yml(HEAD + VIEWS + "x: [" + "1," * 200_000 + "]"),
    "a long key": _yml(HEAD + VIEWS + "? " + "k" * 400_000 + "\n: 1\n"),
    "a long name": _yml(HEAD + "views:\n  v" + "v" * 900 + ": {sql: SELECT}\n"),
    "a long value": _yml(HEAD + VIEWS + "order: " + "k" * 400_000 + "\n"),
    "a long number": _yml(HEAD + VIEWS + "retention: " + "9" * 400_000 + "\n"),
    "a long number to the base of 60": _yml(HEAD + VIEWS + "retention: 1" + ":59" * 100_000 + "\n"),
    "a long duration": _yml(HEAD + VIEWS + "retention: 999999999d\n"),
    "a number that is none": _yml(HEAD + VIEWS + "retention: !!int ''\n"),
    "a float that is none": _yml(HEAD + VIEWS + "retention: !!float ''\n"),
    "a truth that is none": _yml(HEAD + VIEWS + "retention: !!bool x\n"),
    "a date that is none": _yml(HEAD + VIEWS + "retention: !!timestamp x\n"),
    "a date of no year": _yml(HEAD + VIEWS + "retention: 9999-99-99\n"),
    "binary": _yml(HEAD + VIEWS + "retention: !!binary '*'\n"),
    "a set": _yml(HEAD + VIEWS + "retention: !!set {a, b}\n"),
    "an object": _yml(HEAD + VIEWS + "retention: !!python/object/apply:os.system ['true']\n"),
    "a tag of one's own": _yml(HEAD + VIEWS + "retention: !strobe x\n"),
    "a number as key": _yml(HEAD + VIEWS + "1: 2\n"),
    "a list as key": _yml(HEAD + VIEWS + "? [1, 2]\n: 2\n"),
    "an empty key": _yml(HEAD + VIEWS + "'': 2\n"),
    "control characters in a key": _yml(HEAD + VIEWS + '"\\e[2J\\u202e\\n": 2\n'),
    "a secret file in every place": _yml(
        "version: 1\nproject: '${file:/etc/passwd}'\nsources:\n  s: {type: '${file:/etc/passwd}', path: s.db}\n" + VIEWS
    ),
    "an endless secret file": _yml(HEAD.replace("s.db", "'${file:/dev/zero}'") + VIEWS + "x: 1\n"),
    "two documents": _yml(HEAD + VIEWS + "---\n" + HEAD),
    "a directive": _yml("%YAML 9.9\n%TAG ! tag:x,1:\n---\n" + HEAD + "wrong: 1\n"),
    "a list": _yml("- 1\n"),
    "a scalar": _yml("x" * 400_000),
    "not UTF-8": _yml(b"\xff\xfe" + HEAD.encode("utf-16-le")),
    "NUL bytes": _yml(HEAD.encode() + b"\0" * 1000),
    "noise": _yml(random.Random(1).randbytes(100_000)),
    "many spaces": _yml(HEAD + VIEWS + "x: " + " " * 500_000),
    "many lines": _yml(HEAD + VIEWS + "x: " + "\n" * 500_000 + "y"),
    "many quotes": _yml(HEAD + VIEWS + "x: " + "'" * 400_001),
    "many questions": _yml(HEAD + VIEWS + "? " * 100_000),
    "many views": _many_views,
    "a view with a weird name": _sql("SELECT 1", "views/\x1b[2J\n.sql"),
    "a view of noise": _sql(random.Random(2).randbytes(100_000)),
    "a view with NUL bytes": _sql(b"SELECT \0 FROM s.t t"),
    "a view of 1 MB": _select("t." + "x" * 1_000_000),
    "a view with a long name": _select("t." + "x" * 200_000, "WHERE"),
    "a view of 100,000 columns": _select(", ".join(f"t.c{i}" for i in range(100_000))),
    "a view of many columns": _select(", ".join(f"t.c{i}" for i in range(9_000)) + ","),
    "a long sum": _select(" + ".join(["t.a"] * 4_900) + " AS x", "LIMIT 1"),
    "a long sum of many columns": _select(" + ".join(f"t.c{i}" for i in range(3_000)) + " + ? AS x"),
    "deep parentheses": _select("(" * 5_000 + "t.a" + ")" * 5_000 + " AS x"),
    "parentheses as deep as can be": _select("(" * 59 + "t.a" + ")" * 59 + " AS x", "LIMIT 1"),
    "deep brackets": _select("t.a" + "[t.a" * 5_000 + "]" * 5_000 + " AS x"),
    "deep calls": _select("abs(" * 5_000 + "t.a" + ")" * 5_000 + " AS x"),
    "deep cases": _select("CASE WHEN t.a THEN " * 3_000 + "1" + " END" * 3_000 + " AS x"),
    "deep types": _select("CAST(t.a AS " + "ARRAY<" * 3_000 + "INT" + ">" * 3_000 + ") AS x"),
    "deep subqueries": _sql("SELECT t.a FROM " + "(SELECT t.a FROM " * 3_000 + "s.t t" + ") t" * 3_000),
    "deep WITH": _sql("WITH a AS (" * 3_000 + "SELECT 1 FROM s.t" + ") SELECT 1 FROM a" * 3_000),
    "many NOT": _select("t.a", "WHERE " + "NOT " * 9_000 + "t.a"),
    "many minus signs": _select("- " * 9_000 + "t.a AS x"),
    "many AND": _select("t.a", "WHERE " + " AND ".join(["t.a"] * 9_000) + " LIMIT 1"),
    "many OR": _select("t.a", "WHERE " + " OR ".join(["t.a"] * 9_000) + " LIMIT 1"),
    "many joins": _sql("SELECT t.a FROM s.t t " + "JOIN s.t u ON t.a = u.a " * 1_500 + "LIMIT 1"),
    "many commas": _sql("SELECT t.a FROM s.t t" + ", s.t u" * 4_000 + " LIMIT 1"),
    "a quote that does not end": _select("'" + "\\" * 200_000),
    "many comments": _sql("/*" * 100_000),
    "many colons": _select(":" * 15_000),
    "a parameter of Spark's": _select("'${HOME}' AS x"),
}
"""By name. None of them is a project that can be used."""
