"""Counting what a computation does, in a way that no machine's speed changes: the instructions that Python carries out,
and the rows that are put into bags (which a single instruction copies, however many there are)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest

from strobe.algebra.bag import Bag, Row


class Operations:
    """How many were counted, but for those in functions named `apart`."""

    def __init__(self, apart: Sequence[str] = ()) -> None:
        self.count = 0
        self._apart = frozenset(apart)

    def of(self, work: Callable[[], object]) -> int:
        """Those of this work."""
        before, self.count = sys.gettrace(), 0
        with pytest.MonkeyPatch.context() as patch, _rows_counted(self, patch):
            sys.settrace(self._enter)
            try:
                work()
            finally:
                sys.settrace(before)
        return self.count

    def _enter(self, frame: FrameType, _event: str, _argument: object) -> Any:
        if frame.f_code.co_name in self._apart:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, _frame: FrameType, event: str, _argument: object) -> Any:
        self.count += event == "opcode"
        return self._step


@contextmanager
def _rows_counted(operations: Operations, patch: pytest.MonkeyPatch) -> Iterator[None]:
    made = Bag.__init__

    def counted(self: Bag, attributes: Sequence[str], rows: Mapping[Row, int] | None = None, room: Any = None) -> None:
        operations.count += len(rows) if rows else 0
        made(self, attributes, rows, room)

    patch.setattr(Bag, "__init__", counted)
    yield
