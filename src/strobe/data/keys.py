"""The one form of a key: the value that a column of the asked type holds where Spark calls the two equal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from strobe.algebra.bag import Row, canonical
from strobe.errors import Unfit

_INTEGERS = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31, "bigint": 2**63}


def key_form(type_: str) -> Callable[[Any], Any]:
    """A key (never None) to the equal value of this type, or to None where there is none."""
    if type_ in _INTEGERS:
        bound = _INTEGERS[type_]
        return lambda key: int(key) if -bound <= key < bound and key == int(key) else None
    if type_.startswith("decimal"):
        exact = exactly(type_)
        return lambda key: _or_none(exact, Decimal(key))
    return canonical  # only equal types are joined


def fitted(keys: Iterable[Row], types: Sequence[str]) -> Iterator[Row]:
    """The keys as values of columns with these types, without those that no row can have."""
    forms = [key_form(type_) for type_ in types]
    for key in keys:
        found = tuple([form(value) for form, value in zip(forms, key, strict=True)])
        if None not in found:
            yield found


def exactly(type_: str) -> Callable[[Decimal], Decimal]:
    """A number to the equal one with the digits of a decimal type, and to 0 without a sign; raises `Unfit`."""
    precision, scale = map(int, type_[len("decimal(") : -1].split(","))
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])
    unit = Decimal((0, (1,), -scale))

    def fit(number: Decimal) -> Decimal:
        try:
            found = context.quantize(number, unit)
        except Inexact:
            raise Unfit(f"it has more than {scale} digits after the point") from None
        except InvalidOperation:
            raise Unfit(f"it has more than {precision - scale} digits before the point") from None
        return found if found else abs(found)

    return fit


def _or_none(exact: Callable[[Decimal], Decimal], number: Decimal) -> Decimal | None:
    try:
        return exact(number)
    except Unfit:
        return None
