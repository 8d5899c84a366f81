"""What a view manager is: a pure state machine for one view.

Messages in, messages out; no clock, no thread, no randomness, no Spark. The live runtime and the simulator drive the
very same objects. A manager is handed everything that is there for it at once, in order, and then decides what to do,
so that it never starts a batch before it has seen all that arrived together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from strobe.algebra.view import View
from strobe.messages import ActionList, Answer, Cut, Query, Update

Inbound = Update | Cut | Answer
Outbound = Query | ActionList


class ViewManager(Protocol):
    view: View

    def receive(self, messages: Sequence[Inbound]) -> list[Outbound]: ...
