"""XA transactions in the binlog: how their two phases are told apart and together.

The rows come with the first phase, and count from the second. One whose identifier begins with the prefix that the
source's configuration names is a part of a global transaction, which the rest of the identifier names.
"""

from __future__ import annotations

import re

from strobe.data.byte_reader import ByteReader
from strobe.errors import Damaged

_XID = re.compile(r"X'((?:[0-9a-f]{2})*)'\s*,\s*X'((?:[0-9a-f]{2})*)'\s*,\s*(\d+)", re.IGNORECASE)


def prepared(body: bytes) -> tuple[bool, str]:
    """Whether an event of the first phase is the only phase, and the name of the transaction that it is about."""
    reader = ByteReader(body)
    only, form, first, second = reader.byte(), reader.number(4), reader.number(4), reader.number(4)
    identifier, branch = reader.take(first), reader.take(second)
    return bool(only), f"{identifier.hex()} {branch.hex()} {form}"


def decided(sql: str) -> str:
    """The same from the statement of the second phase."""
    found = _XID.search(sql)
    if found is None:
        raise Damaged("an XA statement names no transaction", 0)
    return f"{found[1].lower()} {found[2].lower()} {found[3]}"


def named(name: str, prefix: str | None) -> list[str]:
    """What the identifier says of a global transaction, if anything; without a prefix none does."""
    identifier = bytes.fromhex(name.partition(" ")[0]).decode("utf-8", "replace")
    return [identifier[len(prefix) :]] if prefix is not None and identifier.startswith(prefix) else []
