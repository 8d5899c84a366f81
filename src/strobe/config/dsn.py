"""The passwords in DSNs, and DSNs in which a password cannot be told from the rest.

A driver that takes a DSN apart otherwise than its author meant shows the parts in its errors: of `u:pa@ss@host`
libpq looks for a host `ss@host`. So such a DSN is refused before a driver sees it, and what might be a password in it
is a secret.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

_IN_KEYS = re.compile(r"\b(?:password|passwd|sslpassword|pwd)\s*=\s*(?:'((?:[^'\\]|\\.)*)'|((?:[^\s\\]|\\.)+))")
_IN_QUERY = re.compile(r"[?&](?:password|passwd|sslpassword|pwd)=([^&]*)")
_KEYS_AND_VALUES = re.compile(r"\s*(?:\w+\s*=\s*(?:'(?:[^'\\]|\\.)*'|(?!')(?:[^\s\\]|\\.)*)(?:\s+|\Z))*")
_RESERVED = "@ : / ? # [ ] %"

_ENCODE = (
    f"In a URL these have to be percent-encoded in a password: {_RESERVED} and spaces (`@` is %40, `/` is %2F). "
    "For PostgreSQL keys and values do without: host=… user=… password='…'."
)


def passwords(dsn: str) -> list[str]:
    """What is a password by the rules of URLs or of libpq's keys and values, and as the server knows it."""
    if "://" in dsn:
        in_url = re.findall(r"://[^/?#]*?:([^/?#]*)@", dsn) + _IN_QUERY.findall(dsn)
        found = [text for text in in_url if text]
        return [*found, *(unquote(text) for text in found)]
    found = [quoted or plain for quoted, plain in _IN_KEYS.findall(dsn)]
    return [text for each in found if each for text in (each, re.sub(r"\\(.)", r"\1", each))]


def secrets(text: str) -> Iterator[str]:
    """The passwords in a text that came in through `${…}`; if it is a DSN that cannot be taken apart with certainty,
    also each part that a driver might make of them."""
    yield from passwords(text)
    if "://" in text:
        if "@" in text and _unclear(text):
            between = text.partition("://")[2].rpartition("@")[0].partition(":")[2]
            for whole in (between, unquote(between)):
                yield whole
                yield from re.split(r"[@/?#:&=%\[\]\s]+", whole)
    elif "password" in text and not _KEYS_AND_VALUES.fullmatch(text):
        for after in re.split(r"password\s*=\s*", text)[1:]:
            yield from re.split(r"\s\w+\s*=", after)[0].split()


def ambiguity(dsn: str) -> tuple[str, str] | None:
    """Why a DSN cannot be taken apart with certainty, and what to do; None if it can."""
    if "://" in dsn:
        return ("holds reserved characters that are not percent-encoded", _ENCODE) if _unclear(dsn) else None
    if not _KEYS_AND_VALUES.fullmatch(dsn):
        fix = "Write a URL, postgresql://user@host:port/database, or keys and values: host=… dbname=… password='…'."
        return "is neither a URL nor keys and values", fix
    return None


def _unclear(dsn: str) -> bool:
    rest = dsn.partition("://")[2]
    if re.search(r"%(?![0-9A-Fa-f]{2})", rest) or re.search(r"\s", rest.strip()):
        return True
    authority, *after = re.split(r"[/?#]", rest, maxsplit=1)
    path, query = re.match(r"([^?#]*)(.*)", after[0] if after else "", re.DOTALL).groups()  # type: ignore[union-attr]
    login, at, hosts = authority.rpartition("@")
    if "@" in login or "@" in path or "#" in rest:
        return True
    if at and re.search(r"[\[\]]", login):
        return True
    # Without a user there may be hosts and ports alone: `u:pa/ss@host` begins like a host `u` with a port `pa`.
    bare = re.sub(r"\[[^\]]*\]", "", hosts)
    if any(not re.fullmatch(r"[^:]*(:\d*)?", host) for host in bare.split(",")):
        return True
    began = rest[len(authority) : len(authority) + 1] == "?"
    options = (after[0] if after else "") if began else query.removeprefix("?")
    return any("=" not in option for option in options.split("&") if option) if options else False
