"""One view's manager, with its inbox, in a thread and with a queue of its own: a slow view holds up no other.

What the loop posts is handled in its order. Questions go straight to the answerer; action lists go back to the loop,
which merges them.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping

from strobe.managers.base import Outbound
from strobe.managers.inbox import Inbox
from strobe.messages import Answer, Cut, Position, Update

Work = Callable[[], list[Outbound]]


class ViewWorker(threading.Thread):
    def __init__(
        self,
        inbox: Inbox,
        *,
        send: Callable[[Outbound], None],
        fail: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when it has come to rest or begun to work, or waits for a source to be read further."""
        super().__init__(name=f"view-{inbox.manager.view.name}", daemon=True)
        self._inbox = inbox
        self._send, self._fail, self._changed = send, fail, changed
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._cut_posted = self._cut_handled = 0
        self._stopped = False
        self.asking = False
        """Whether any question is open."""
        self.waits_for: tuple[str, ...] = ()
        """The sources with an open question."""
        self.early: dict[str, Position] = {}
        """For each source how far its stream must be read before an answer that is here already can be delivered."""

    @property
    def at_work(self) -> bool:
        """Whether what was posted before the last cut may still bring something by itself."""
        return self._cut_handled < self._cut_posted or self.asking

    @property
    def compensations(self) -> int:
        return getattr(self._inbox.manager, "compensations", 0)

    def update(self, update: Update) -> None:
        self._queue.put(lambda: self._inbox.update(update))

    def progress(self, source: str, position: Position) -> None:
        self._queue.put(lambda: self._inbox.progress(source, position))

    def answer(self, answer: Answer) -> None:
        self._queue.put(lambda: self._inbox.answer(answer))

    def cut(self, cut: Cut) -> None:
        self._cut_posted = cut.number
        self._queue.put(lambda: self._cut(cut))

    def committed(self, positions: Mapping[str, Position]) -> None:
        self._queue.put(lambda: self._committed(positions))

    def stop(self) -> None:
        """End; what is posted and not handled yet is forgotten, as in a crash."""
        self._stopped = True
        self._queue.put(None)

    def run(self) -> None:
        try:
            while (work := self._queue.get()) is not None and not self._stopped:
                before = self.at_work, self.early
                sent = work()
                inbox = self._inbox
                self.waits_for, self.early = inbox.waits_for, inbox.early
                self.asking = self.asking or bool(sent)  # until what was sent has arrived
                for message in sent:
                    self._send(message)
                self.asking = inbox.asking
                if (self.at_work, self.early) != before:
                    self._changed()
        except BaseException as error:  # a view must not die silently in its thread
            self._fail(error)

    def _cut(self, cut: Cut) -> list[Outbound]:
        sent = self._inbox.cut(cut)
        self.asking = self.asking or bool(sent)
        self._cut_handled = cut.number
        return sent

    def _committed(self, positions: Mapping[str, Position]) -> list[Outbound]:
        self._inbox.committed(positions)
        return []
