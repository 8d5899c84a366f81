"""Which Spark settings can load code, or lead elsewhere.

Spark makes objects of classes that settings name, passes others to the command line of Java, and fetches files and
packages that a third kind lists; every version has more of them. So it is the other way around here: a setting is
harmless if its value can only be a number, a size, a duration or a truth value, or if it is one of a few whose text is
no more than text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_PLAIN = re.compile(r"\s*(true|false|[+-]?\d+(\.\d+)?\s*([kmgtp]b?|b|us|ms|s|m|min|h|d)?)\s*", re.IGNORECASE)
_TEXT = {
    "spark.app.name",
    "spark.log.level",
    "spark.scheduler.mode",
    "spark.sql.session.timeZone",
    "spark.sql.parquet.compression.codec",
}
_HERE = re.compile(r"local(\[[\d*, ]+\])?")


def that_load_code(settings: Mapping[str, str]) -> list[str]:
    """The names of the settings that are to be trusted like a program, in the order of the file."""
    return [name for name, value in settings.items() if not _harmless(name, value)]


def _harmless(name: str, value: str) -> bool:
    if name == "spark.master":
        return _HERE.fullmatch(value) is not None
    return name in _TEXT or _PLAIN.fullmatch(value) is not None
