"""How applications name global transactions."""

from __future__ import annotations

import pytest

from strobe.errors import LostGuarantee
from strobe.sources.global_transactions import global_transaction


@pytest.mark.parametrize(
    "text",
    ["order-17 shop,billing", "  order-17   billing , shop ", '{"id": "order-17", "sources": ["shop", "billing"]}'],
)
def test_words_and_json_say_the_same(text: str) -> None:
    found = global_transaction(text, "shop")
    assert found is not None
    assert (found.id, found.participants) == ("order-17", {"shop", "billing"})


@pytest.mark.parametrize("text", ["", " \n"])
def test_an_empty_text_names_nothing(text: str) -> None:
    """Strobe's own messages, which only flush the log, are empty."""
    assert global_transaction(text, "shop") is None


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
    ],
)
def test_what_names_no_participants_stops_the_source(text: str) -> None:
    """Nobody could tell what belongs together; a source that does not name itself has another name in the project."""
    with pytest.raises(LostGuarantee, match="global transaction") as error:
        global_transaction(text, "shop")
    assert error.value.where == "source shop" and error.value.fix
