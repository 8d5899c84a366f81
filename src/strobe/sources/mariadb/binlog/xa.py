"""XA transactions in the binlog: how their two phases are told apart and together.

The rows come with the first phase, and count from the second. One whose identifier begins with the prefix that the
source's configuration names is a part of a global transaction, which the rest of the identifier names.
"""

from __future__ import annotations

import re

_XID = re.compile(r"X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)


def prepared(body: bytes) -> str:
    """The name of the transaction that an event of the first phase is about."""
    form, first, second = (int.from_bytes(body[i : i + 4], "little") for i in (1, 5, 9))
    identifier, branch = body[13 : 13 + first], body[13 + first : 13 + first + second]
    return f"{identifier.hex()} {branch.hex()} {form}"


def decided(sql: str) -> str:
    """The same from the statement of the second phase."""
    found = _XID.search(sql)
    return f"{found[1].lower()} {found[2].lower()} {found[3]}" if found else sql


def named(name: str, prefix: str | None) -> list[str]:
    """What the identifier says of a global transaction, if anything; without a prefix none does."""
    identifier = bytes.fromhex(name.partition(" ")[0]).decode("utf-8", "replace")
    return [identifier[len(prefix) :]] if prefix is not None and identifier.startswith(prefix) else []
