"""What a coordinator has counted since its process began, over all runs.

So no counter goes back when a run ends, and of a source that no run reads any more the last numbers stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from strobe.pipeline.answerer import QueryCounts
from strobe.pipeline.pipeline import Pipeline


@dataclass(frozen=True)
class Tally:
    asked: Mapping[str, QueryCounts] = field(default_factory=dict)
    """By source."""
    dropped: Mapping[str, int] = field(default_factory=dict)
    """By view, transactions found irrelevant."""
    compensations: Mapping[str, int] = field(default_factory=dict)
    appends: int = 0
    append_seconds: float = 0.0
    retained: dict[str, int] = field(default_factory=dict)
    """By source, the bytes of log that it keeps for Strobe, as it last said; shared by all runs."""

    def plus(self, pipeline: Pipeline) -> Tally:
        """With what this run has counted."""
        views = pipeline.topology.views
        return Tally(
            {**self.asked, **{name: _sum(self.asked.get(name), new) for name, new in pipeline.answerer.asked.items()}},
            Counter(self.dropped) + Counter({name: pipeline.engine.dropped[name] for name in views}),
            Counter(self.compensations) + Counter({name: pipeline.workers[name].compensations for name in views}),
            self.appends + pipeline.committer.appends,
            self.append_seconds + pipeline.committer.append_seconds,
            self.retained,
        )


def _sum(before: QueryCounts | None, new: QueryCounts) -> QueryCounts:
    old = asdict(before or QueryCounts())
    return QueryCounts(**{what: round(old[what] + n) for what, n in asdict(new).items()})
