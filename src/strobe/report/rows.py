"""The rows of a query, as a document."""

from __future__ import annotations

import base64
import math
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from strobe.report.document import Document

if TYPE_CHECKING:
    from strobe.spark.session import DataFrame


def rows(frame: DataFrame) -> Document:
    """A result as the public document has it. Through Arrow: timestamps keep their instant, whatever the local zone."""
    columns = [{"name": field.name, "type": field.dataType.simpleString()} for field in frame.schema]
    table = frame.toDF(*(f"c{i}" for i in range(len(columns)))).toArrow()
    types = [column["type"] for column in columns]
    wide = [type_.startswith(("bigint", "decimal")) for type_ in types]
    values = [[_value(v, text) for v in column.to_pylist()] for column, text in zip(table.columns, wide, strict=True)]
    return {"columns": columns, "rows": [list(row) for row in zip(*values, strict=True)]}


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
