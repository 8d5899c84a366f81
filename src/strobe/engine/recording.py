"""Messages written down, one JSON document a line, and read back.

Because managers, inboxes, integrator and merge are pure, a recording of what went in is enough to run them again and
see everything that came out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import Any, TextIO

from strobe import messages
from strobe.algebra import bounds
from strobe.algebra.bag import Bag, canonical
from strobe.algebra.relation import Relation
from strobe.messages import Message

_CLASSES = {
    cls.__name__: cls
    for cls in (
        messages.Position,
        messages.Seen,
        messages.SeenByXid,
        messages.BroughtBack,
        messages.Lookup,
        messages.GlobalTransaction,
        messages.TransactionInfo,
        messages.Transaction,
        messages.Update,
        messages.Cut,
        messages.Rel,
        messages.Query,
        messages.Answer,
        messages.KeyDelete,
        messages.BoundDelete,
        messages.Departed,
        bounds.End,
        bounds.Range,
        bounds.Listed,
        bounds.Bound,
        messages.Covered,
        messages.Fragment,
        messages.ActionList,
        messages.WarehouseTransaction,
    )
}


def encode(value: Any) -> Any:
    """A message, or a part of one, as JSON values; whatever JSON does not know carries its type in a one-key object."""
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, datetime):
        return {"timestamp": value.isoformat()}
    if isinstance(value, date):
        return {"date": value.isoformat()}
    if isinstance(value, bytes):
        return {"binary": value.hex()}
    if isinstance(value, Relation):
        bag = value.collect()
        rows = [[encode(list(row)), count] for row, count in bag.items()]
        return {"bag": {"attributes": list(bag.attributes), "rows": rows}}
    if isinstance(value, Mapping):
        return {"map": [[encode(k), encode(v)] for k, v in value.items()]}
    if isinstance(value, frozenset):
        return {"set": sorted(value)}
    if isinstance(value, (list, tuple)):
        return [encode(item) for item in value]
    if is_dataclass(value) and type(value).__name__ in _CLASSES:
        return {type(value).__name__: {f.name: encode(getattr(value, f.name)) for f in fields(value)}}
    raise TypeError(f"{type(value).__name__} cannot be recorded")


def decode(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(decode(item) for item in value)
    if not isinstance(value, dict):
        return value
    ((kind, body),) = value.items()
    if kind in _CLASSES:
        return _CLASSES[kind](**{name: decode(part) for name, part in body.items()})
    simple: dict[str, Callable[[Any], Any]] = {
        "float": float.fromhex,
        "decimal": Decimal,
        "timestamp": datetime.fromisoformat,
        "date": date.fromisoformat,
        "binary": bytes.fromhex,
        "set": frozenset,
    }
    if kind in simple:
        return canonical(simple[kind](body))
    if kind == "map":
        return {decode(k): decode(v) for k, v in body}
    return Bag(body["attributes"], {decode(row): count for row, count in body["rows"]})


def write(message: Message, file: TextIO) -> None:
    file.write(json.dumps(encode(message), ensure_ascii=False) + "\n")


def read(lines: Iterable[str]) -> Iterator[Message]:
    for line in lines:
        yield decode(json.loads(line))
