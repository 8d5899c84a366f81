"""Every error Strobe raises on purpose, under one root.

The classes differ in what has to happen next: the user changes something (`UserError`), the same step is tried again
later (`SourceUnavailable`), the command is tried again later (`NotNow`), the process must end because another
coordinator took over (`Fenced`), the process must recover as after a crash because it cannot know whether its append
happened (`CommitUnknown`), Spark has to be started anew (`SparkLost`), or Strobe itself is broken (`BrokenInvariant`).

`Unfit` is outside that root: it never leaves the code that knows which column the value is of.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from strobe.redaction import said


class StrobeError(Exception):
    """What happened, where (source, table, column, view, file, line), and what to do about it."""

    exit_code = 1
    code = "error"

    def __init__(self, message: str, *, where: str = "", fix: str = "") -> None:
        """Texts of databases, drivers and files are in these: secrets and control characters never are."""
        self.message, self.where, self.fix = said(message), said(where), said(fix)
        super().__init__(self.message)

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.fix}" if self.fix else text

    @property
    def each(self) -> tuple[StrobeError, ...]:
        """The errors that this one consists of."""
        return (self,)

    def document(self) -> dict[str, dict[str, str]]:
        """The error as the public JSON document."""
        body = {"code": self.code, "message": self.message, "where": self.where, "fix": self.fix}
        return {"error": body}


class UserError(StrobeError):
    """A mistake that the user can mend: configuration, SQL, an unprepared source, bad data."""

    exit_code = 2
    code = "user"


class UserErrors(UserError):
    """Several mistakes at once, told as the first of them and then the others."""

    def __init__(self, errors: Sequence[UserError]) -> None:
        """There is at least one."""
        first = errors[0]
        super().__init__(first.message, where=first.where, fix=first.fix)
        self._each = tuple(errors)

    @property
    def each(self) -> tuple[StrobeError, ...]:
        return self._each

    def __str__(self) -> str:
        return "\n".join(map(str, self._each))


class LostGuarantee(UserError):
    """A promise can no longer be kept (a source was replaced, its log does not reach back): stop, say what to do."""

    code = "lost_guarantee"


class SourceLost(LostGuarantee):
    """The same for the views that use a source; the others can be kept."""

    def __init__(
        self, message: str, *, source: str = "", rebuild: bool = False, where: str = "", fix: str = ""
    ) -> None:
        """With `rebuild` the views are to be rebuilt without anybody's asking. An error that comes from another process
        is made of its message alone, and then given the rest."""
        super().__init__(message, where=where, fix=fix)
        self.source = source
        self.rebuild = rebuild


class RelationLost(SourceLost):
    """The same for the views that use some relations of a source."""

    def __init__(
        self, message: str, *, source: str = "", relations: Collection[str] = (), where: str = "", fix: str = ""
    ) -> None:
        super().__init__(message, source=source, where=where, fix=fix)
        self.relations = frozenset(relations)


UNREADABLE = object()


@dataclass(frozen=True)
class RowOf:
    """A row of a relation, as a view has seen it."""

    source: str
    relation: str
    key: tuple[str, ...]
    columns: tuple[str, ...]
    """Those that the view uses, the key's among them."""
    values: tuple[Any, ...] = field(repr=False)
    """`UNREADABLE` where a value could not be read."""

    @classmethod
    def named(
        cls, source: str, relation: str, key: Sequence[str], columns: Sequence[str], values: Sequence[Any]
    ) -> RowOf | None:
        """The row, if its key is among the values and can be read."""
        found = dict(zip(columns, values, strict=True))
        if not key or any(found.get(column) is None or found[column] is UNREADABLE for column in key):
            return None
        return cls(source, relation, tuple(key), tuple(columns), tuple(values))

    def __str__(self) -> str:
        """By its key."""
        parts = (f"{name}={self.values[self.columns.index(name)]!r}" for name in self.key)
        return f"{self.source}.{self.relation} ({', '.join(parts)})"


class RowUnfit(RelationLost):
    """The same for the views that use a relation, one of whose rows has a value that Spark cannot hold. They are loaded
    again when the row can be read; where nobody knows it by its key, now and then."""

    def __init__(
        self,
        message: str,
        *,
        row: RowOf | None = None,
        source: str = "",
        relations: Collection[str] = (),
        where: str = "",
    ) -> None:
        fix = "Change the value: the views are then loaded again by themselves. Or leave the column out of them."
        text = f"{message}, in {row}" if row is not None else message
        super().__init__(text, source=source, relations=relations, where=where, fix=fix)
        self.rows = (row,) if row is not None else ()
        self.complete = row is not None


class DefinitionChanged(RelationLost):
    """The same for views that rest on what a relation was before it was changed in a way that its log does not report;
    views that were loaded since are kept."""

    def __init__(
        self,
        message: str,
        *,
        source: str = "",
        relations: Collection[str] = (),
        views: Collection[str] = (),
        where: str = "",
        fix: str = "",
    ) -> None:
        super().__init__(message, source=source, relations=relations, where=where, fix=fix)
        self.views = frozenset(views)


class ViewWrong(SourceLost):
    """The same for one view, whose rows contradict its changes, whatever the source is like."""

    def __init__(self, message: str, *, view: str = "", where: str = "", fix: str = "") -> None:
        super().__init__(message, where=where, fix=fix)
        self.view = view


class RowFailed(SourceLost):
    """The same for one view, which cannot hold a row that a change brings, or compute with it. The view is loaded again
    when the row is another one."""

    def __init__(
        self,
        message: str,
        *,
        view: str = "",
        rows: Collection[RowOf] = (),
        complete: bool = False,
        where: str = "",
        fix: str = "",
    ) -> None:
        """`rows` of relations are what the row was joined from, as far as they are known by a key: all, if
        `complete`."""
        super().__init__(message, where=where, fix=fix)
        self.view, self.rows, self.complete = view, tuple(rows), complete


class NotNow(StrobeError):
    """Not now: a wait that timed out, another coordinator alive."""

    exit_code = 3
    code = "not_now"


class Fenced(StrobeError):
    """Another coordinator has taken over this warehouse."""

    exit_code = 4
    code = "fenced"


class SourceUnavailable(StrobeError):
    """A source did not answer; the same step is tried again with back-off."""

    code = "source_unavailable"


class AccessRefused(SourceUnavailable):
    """A source does not let Strobe in: the user has to mend it, perhaps at the source, so it is tried again too."""

    exit_code = 2
    code = "access_refused"


class Damaged(SourceUnavailable):
    """Bytes of a source that cannot be what it wrote: read again, they may be whole. Decoders raise it with the byte;
    whoever knows the source and the event adds both with `of`."""

    def __init__(self, reason: str, at: int, *, event: str = "what it sent", where: str = "") -> None:
        fix = "It is read again. If it stays so, the log at the server is damaged: see the server's own log."
        super().__init__(f"damaged at byte {at} of {event}: {reason}", where=where, fix=fix)
        self.reason, self.at = reason, at

    def of(self, event: str, where: str) -> Damaged:
        return Damaged(self.reason, self.at, event=event, where=where)


class CommitUnknown(StrobeError):
    """An append whose outcome cannot be known: treated as a crash, never retried blindly."""

    code = "commit_unknown"


class SparkLost(StrobeError):
    """Spark's process ended: it is started again, and everything goes on from the last commit."""

    exit_code = 3
    code = "spark_lost"


class BrokenInvariant(StrobeError):
    """Strobe is wrong about itself. Nothing that depends on this may be committed."""

    code = "broken_invariant"


class Unfit(Exception):
    """A value that its type cannot hold exactly, and why. Whoever knows the column makes an error for people of it."""


def suggestion(written: str, known: Iterable[str], listed: str = "There are") -> str:
    """What to write instead of a name that is not known: the one that looks like it, and all that there are."""
    names = list(known)
    close = difflib.get_close_matches(written, names, n=1)
    instead = f"Did you mean {close[0]}? " if close else ""
    return f"{instead}{listed} {', '.join(names) or 'none'}."


def raised(document: Mapping[str, str]) -> StrobeError:
    """The error that another process reports by its document."""
    kinds: dict[str, type[StrobeError]] = {kind.code: kind for kind in (UserError, LostGuarantee, NotNow)}
    kind = kinds.get(document["code"], StrobeError)
    return kind(document["message"], where=document["where"], fix=document["fix"])
