"""Everything worth telling a person, as data.

`str` of an event is the line in which it is told. A terminal prints it, a log puts the time before it; whoever wants
fields instead has them, and they are plain values. Nothing is hidden here: whoever shows an event takes the project's
secrets out of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal


class Event(ABC):
    severity: ClassVar[Literal["info", "warning", "error"]] = "info"
    """A warning is about something that is tried again or waited for; an error about views that have stopped."""

    @abstractmethod
    def __str__(self) -> str:
        """The line in which it is told."""


Listener = Callable[[Event], None]


def ignore(event: Event) -> None:
    """A listener that tells nobody."""


# A coordinator starts and stops.


@dataclass(frozen=True)
class SparkStarting(Event):
    def __str__(self) -> str:
        return "starting Spark"


@dataclass(frozen=True)
class SparkRestarting(Event):
    severity = "warning"

    problem: str

    def __str__(self) -> str:
        return f"{self.problem}: it is started again"


@dataclass(frozen=True)
class ProjectRefused(Event):
    """Something is wrong with strobe.yml, which keeps nobody from maintaining the views that are there."""

    severity = "warning"

    problem: str

    def __str__(self) -> str:
        return f"the views are kept as they were last applied: {self.problem}"


@dataclass(frozen=True)
class Maintaining(Event):
    views: Sequence[str]
    commit: int

    def __str__(self) -> str:
        return f"keeping {', '.join(self.views) or 'no view'} from commit {self.commit}"


@dataclass(frozen=True)
class CommitInDoubt(Event):
    """Whether an append has happened is not known: the coordinator goes on from the last commit in the log."""

    severity = "warning"

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True)
class MaintenancePutOff(Event):
    """Folding or discarding has failed, and is tried again later."""

    severity = "warning"

    problem: str

    def __str__(self) -> str:
        return f"put off: {self.problem}"


@dataclass(frozen=True)
class DocumentRefused(Event):
    """In the control folder, where others may be able to write."""

    severity = "warning"

    name: str
    why: str

    def __str__(self) -> str:
        return f"ignored _strobe/{self.name}: {self.why}"


@dataclass(frozen=True)
class Committed(Event):
    commit: int

    def __str__(self) -> str:
        return f"commit {self.commit}"


@dataclass(frozen=True)
class StopRequested(Event):
    def __str__(self) -> str:
        return "stopping: the commit at hand is finished first (once more to end at once)"


@dataclass(frozen=True)
class Stopping(Event):
    commit: int

    def __str__(self) -> str:
        return f"stopping at commit {self.commit}"


# Sources come and go, and their views with them.


@dataclass(frozen=True)
class SourceRetried(Event):
    severity = "warning"

    source: str
    problem: str

    def __str__(self) -> str:
        return f"source {self.source}: trying again: {self.problem}"


@dataclass(frozen=True)
class BacklogMeasured(Event):
    source: str
    how_far: str

    def __str__(self) -> str:
        return f"source {self.source}: backlog {self.how_far}"


@dataclass(frozen=True)
class SourceAnswers(Event):
    source: str

    def __str__(self) -> str:
        return f"source {self.source}: answers again"


@dataclass(frozen=True)
class SourceWarned(Event):
    """Something in a source's log is ignored."""

    severity = "warning"

    source: str
    warning: str

    def __str__(self) -> str:
        return f"source {self.source}: warning: {self.warning}"


@dataclass(frozen=True)
class SourceUnreachable(Event):
    """Noticed while sources were verified."""

    severity = "warning"

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True)
class Detached(Event):
    """Views stay at their last right state until their sources are back."""

    severity = "warning"

    sources: Sequence[str]
    views: Sequence[str]

    def __str__(self) -> str:
        return f"waiting for {', '.join(self.sources)}: {standing(self.views)}"


@dataclass(frozen=True)
class TableRefused(Event):
    """Views stay at their last right state until a table can be asked again; those that do not ask it go on."""

    severity = "warning"

    views: Sequence[str]
    problem: str

    def __str__(self) -> str:
        return f"{standing(self.views)} until it answers again: {self.problem}"


@dataclass(frozen=True)
class ViewWaits(Event):
    severity = "warning"

    view: str
    problem: str

    def __str__(self) -> str:
        return f"view {self.view} waits: {self.problem}"


@dataclass(frozen=True)
class ViewUnusable(Event):
    """It cannot be maintained as it was last applied."""

    severity = "error"

    view: str
    problem: str

    def __str__(self) -> str:
        return f"view {self.view} stands still: {self.problem}"


@dataclass(frozen=True)
class ViewsStopped(Event):
    """What they need of a source is lost."""

    severity = "error"

    views: Sequence[str]
    reason: str

    def __str__(self) -> str:
        return f"{standing(self.views)}: {self.reason}"


@dataclass(frozen=True)
class SourcesTied(Event):
    sources: Sequence[str]

    def __str__(self) -> str:
        return f"a transaction spans {', '.join(self.sources)}: their views share commits from now on"


# strobe.yml is not what was last applied.


@dataclass(frozen=True)
class ViewRemoved(Event):
    view: str

    def __str__(self) -> str:
        return f"view {self.view} is no longer in strobe.yml: it is kept until `strobe apply`"


@dataclass(frozen=True)
class ViewEdited(Event):
    view: str

    def __str__(self) -> str:
        return f"view {self.view} was edited: `strobe apply` loads the new definition"


@dataclass(frozen=True)
class ViewAdded(Event):
    view: str

    def __str__(self) -> str:
        return f"view {self.view} is new: `strobe apply` loads it"


# Views are loaded.


@dataclass(frozen=True)
class Loading(Event):
    views: Sequence[str]

    def __str__(self) -> str:
        return f"loading {', '.join(self.views)}"


@dataclass(frozen=True)
class RowsRead(Event):
    """So far, while views are being loaded. There are many of these."""

    source: str
    rows: int
    total: int | None = None
    """About how many there are, if that is known."""

    def __str__(self) -> str:
        of = "" if self.total is None else f" of about {self.total:,}"
        return f"loading {self.source}: {self.rows:,}{of} rows read"


@dataclass(frozen=True)
class ViewsWritten(Event):
    """So far, of those that are being loaded. There are many of these."""

    written: int
    views: int

    def __str__(self) -> str:
        return f"loading views: {self.written} of {self.views} written"


@dataclass(frozen=True)
class Loaded(Event):
    views: Sequence[str]
    commit: int

    def __str__(self) -> str:
        return f"loaded {', '.join(self.views)} at commit {self.commit}"


@dataclass(frozen=True)
class CatchingUp(Event):
    views: Sequence[str]

    def __str__(self) -> str:
        return f"{', '.join(self.views)}: catching up"


@dataclass(frozen=True)
class CuttingOver(Event):
    views: Sequence[str]

    def __str__(self) -> str:
        return f"{', '.join(self.views)}: joining"


@dataclass(frozen=True)
class Planned(Event):
    """What `strobe apply` is about to do."""

    add: Sequence[str]
    rebuild: Sequence[str]
    drop: Sequence[str]

    def __str__(self) -> str:
        return _changes(self.add, self.rebuild, self.drop)


@dataclass(frozen=True)
class Applied(Event):
    commit: int
    add: Sequence[str]
    rebuild: Sequence[str]
    drop: Sequence[str]

    def __str__(self) -> str:
        return f"applied at commit {self.commit}: {_changes(self.add, self.rebuild, self.drop)}"


@dataclass(frozen=True)
class ApplyFailed(Event):
    severity = "error"

    problem: str

    def __str__(self) -> str:
        return self.problem


@dataclass(frozen=True)
class RebuildPutOff(Event):
    """Views that were to be rebuilt without being asked for."""

    severity = "warning"

    views: Sequence[str]
    problem: str

    def __str__(self) -> str:
        return f"{', '.join(self.views)} could not be rebuilt yet: {self.problem}"


# A command waits for something.


@dataclass(frozen=True)
class AskingCoordinator(Event):
    def __str__(self) -> str:
        return "asking the running coordinator"


@dataclass(frozen=True)
class CoordinatorAwaited(Event):
    """Nobody is at work; one that was started a moment ago may appear."""

    what: str
    seconds: float

    def __str__(self) -> str:
        return f"{self.what}: waiting {self.seconds:g} s for one to start"


@dataclass(frozen=True)
class NobodyAnswersQueries(Event):
    """A query takes a Spark of its own."""

    def __str__(self) -> str:
        return "no running coordinator answers here: starting Spark for this query, which takes a while"


@dataclass(frozen=True)
class CoordinatorReplied(Event):
    """How far the running coordinator is, in its own words."""

    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class MaintainingHere(Event):
    def __str__(self) -> str:
        return "no coordinator is running: keeping the views here meanwhile"


@dataclass(frozen=True)
class BringingToVector(Event):
    """An audit has read the sources."""

    def __str__(self) -> str:
        return "bringing the views to the vector that was read"


@dataclass(frozen=True)
class Comparing(Event):
    commit: int

    def __str__(self) -> str:
        return f"comparing at commit {self.commit}"


@dataclass(frozen=True)
class LevelFound(Event):
    """One cell of `strobe spectrum`."""

    algorithm: str
    scenario: str
    level: str
    schedules: int

    def __str__(self) -> str:
        return f"{self.algorithm}, {self.scenario}: {self.level} after {self.schedules} schedules"


def standing(views: Iterable[str]) -> str:
    """That these views stand still."""
    names = sorted(views)
    return f"{', '.join(names)} {'stands' if len(names) == 1 else 'stand'} still"


def _changes(add: Sequence[str], rebuild: Sequence[str], drop: Sequence[str]) -> str:
    named = {"add": add, "rebuild": rebuild, "drop": drop}
    return "; ".join(f"{what} {', '.join(views)}" for what, views in named.items() if views) or "nothing to do"
