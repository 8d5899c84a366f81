"""One view's manager, with its inbox, in a thread and with a queue of its own: a slow view holds up no other.

What the loop posts is handled in its order. Questions go straight to the answerer; action lists go back to the loop,
which merges them. Where there is room for so many rows only, what the manager joins beyond them is joined elsewhere.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.room import Room
from strobe.managers.base import Outbound
from strobe.managers.inbox import Inbox
from strobe.messages import Answer, Cut, Position, Update

Work = Callable[[], list[Outbound]]


class ViewWorker(threading.Thread):
    def __init__(
        self,
        inbox: Inbox,
        room: Room | None = None,
        *,
        send: Callable[[Outbound], None],
        fail: Callable[[BaseException], None],
        changed: Callable[[], None],
    ) -> None:
        """`changed` is called when it has come to rest or begun to work."""
        super().__init__(name=f"view-{inbox.manager.view.name}", daemon=True)
        self._inbox, self._room = inbox, room
        self._send, self._fail, self._changed = send, fail, changed
        self._queue: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._cut_posted = self._cut_handled = 0
        self._stopped = False
        self.asking = False
        """Whether any question is open."""
        self.waits_for: tuple[str, ...] = ()
        """The sources with an open question."""

    @property
    def at_work(self) -> bool:
        """Whether what was posted before the last cut may still bring something by itself."""
        return self._cut_handled < self._cut_posted or self.asking

    @property
    def compensations(self) -> int:
        return getattr(self._inbox.manager, "compensations", 0)

    def update(self, update: Update) -> None:
        self._queue.put(lambda: self._inbox.update(self._with_room(update)))

    def progress(self, source: str, position: Position) -> None:
        self._queue.put(lambda: self._inbox.progress(source, position))

    def answer(self, answer: Answer) -> None:
        self._queue.put(lambda: self._inbox.answer(self._answer_with_room(answer)))

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
                before = self.at_work
                if self._room is not None:
                    self._room.renew()
                sent = work()
                inbox = self._inbox
                self.waits_for = inbox.waits_for
                self.asking = self.asking or bool(sent)  # until what was sent has arrived
                for message in sent:
                    self._send(message)
                self.asking = inbox.asking
                if self.at_work != before:
                    self._changed()
        except BaseException as error:  # a view must not die silently in its thread
            self._fail(error)

    def _with_room(self, update: Update) -> Update:
        if self._room is None:
            return update
        transaction = update.transaction
        changes = {name: _within(rows, self._room) for name, rows in transaction.changes.items()}
        return Update(update.number, replace(transaction, changes=changes))

    def _answer_with_room(self, answer: Answer) -> Answer:
        if self._room is None:
            return answer
        return replace(answer, relations=tuple(_within(rows, self._room) for rows in answer.relations))

    def _cut(self, cut: Cut) -> list[Outbound]:
        sent = self._inbox.cut(cut)
        self.asking = self.asking or bool(sent)
        self._cut_handled = cut.number
        return sent

    def _committed(self, positions: Mapping[str, Position]) -> list[Outbound]:
        self._inbox.committed(positions)
        return []


def _within(rows: Relation, room: Room) -> Relation:
    return rows.within(room) if isinstance(rows, Bag) else rows
