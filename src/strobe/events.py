"""Who tells a person what is going on."""

from __future__ import annotations

from typing import Protocol


class Reporter(Protocol):
    """Who tells a person what is going on."""

    def say(self, text: str) -> None: ...

    def loading(self, source: str, rows: int) -> None: ...
