"""The rows of a query, as documents have them."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any

from strobe.client.query import Result
from strobe.report.document import Document


def columns(result: Result) -> list[Document]:
    return [{"name": column.name, "type": column.type} for column in result.columns]


def rows(result: Result) -> Iterator[list[Any]]:
    """The rows as the public document has them, as they come."""
    wide = [column.type.startswith(("bigint", "decimal")) for column in result.columns]
    for batch in result.batches:
        pairs = zip(batch.columns, wide, strict=True)
        yield from map(
            list, zip(*([_value(v, text) for v in column.to_pylist()] for column, text in pairs), strict=True)
        )


def _value(value: Any, wide: bool) -> Any:
    """A value for JSON: what JSON numbers cannot hold exactly is text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, int):
        return str(value) if wide else value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(str(value), "NaN")
    if isinstance(value, Decimal):
        return format(value, "f")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat() if value.tzinfo else value.isoformat()
    if isinstance(value, (date, time)):
        return value.isoformat()
    if isinstance(value, dict):
        return {str(key): _value(item, True) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(item, True) for item in value]
    return str(value)
