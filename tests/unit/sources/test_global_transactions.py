"""How applications name global transactions, and what becomes of texts that name none."""

from __future__ import annotations

import pytest

from strobe.messages import GlobalTransaction
from strobe.sources.global_transactions import LONGEST, MOST, NamedParts, gathered

ORDER_17 = GlobalTransaction("order-17", frozenset({"shop", "billing"}))


@pytest.mark.parametrize(
    "text",
    ["order-17 shop,billing", "  order-17   billing , shop ", '{"id": "order-17", "sources": ["shop", "billing"]}'],
)
def test_words_and_json_say_the_same(text: str) -> None:
    parts = NamedParts("shop")
    assert parts.of([text]) == (ORDER_17,) and not parts.warning


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_names_nothing(text: str) -> None:
    """Strobe's own messages, which only flush the log, are empty."""
    parts = NamedParts("shop")
    assert parts.of([text]) == () and not parts.warning


@pytest.mark.parametrize(
    "text",
    [
        "order-17",
        "order-17 shop,,billing",
        "order-17 billing",
        "{order-17}",
        '{"id": 17, "sources": ["shop"]}',
        '{"id": "", "sources": ["shop"]}',
        '{"id": "order-17", "sources": "shop"}',
        '{"id": "order-17", "sources": []}',
        '{"id": "order-17", "sources": [["shop"]]}',
        '{"id": ' + "[" * (LONGEST - 10),
        f"order-17 {'shop,' * LONGEST}billing",
    ],
)
def test_a_text_that_cannot_be_used_is_a_warning(text: str) -> None:
    """Anybody who may write into the log may write it: the transaction is what its other texts make it, and the first
    such text is reported."""
    parts = NamedParts("shop")
    assert parts.of(["order-17 shop,billing", text]) == (ORDER_17,)
    assert parts.warning.startswith("the name of a global transaction in the log cannot be used: ")
    assert len(parts.warning) < 400
    before = parts.warning
    assert parts.of(["something else"]) == () and parts.warning == before


def test_a_transaction_names_a_bounded_number_of_global_ones() -> None:
    """The same one may be named as often as there are rows; more different ones than MOST make it an ordinary one."""
    texts: list[str] = []
    gathered(texts, ["order-17 shop,billing"] * 5 * MOST)
    parts = NamedParts("shop")
    assert parts.of(texts) == (ORDER_17,)
    gathered(texts, (f"order-{n} shop,billing" for n in range(100 * MOST)))
    assert len(texts) == MOST + 1 and parts.of(texts) == () and "more than" in parts.warning
