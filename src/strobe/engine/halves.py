"""Global transactions of which views were loaded with one part and without another.

Each source is read in a snapshot of its own. So the log of one source may have a part before its snapshot, and that of
another participant none. Nobody may see such views before the other part has come.

How far back a log goes differs from source to source, so a part that is not in it may have happened before it begins. A
global transaction is taken to need less than a certain time from its first part to its last. So a part is certain to
be missing where the log goes back for more than that before the part that is there; where it does not, and more than
that has passed since, it was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from strobe.messages import Immutable, Parts


@dataclass(frozen=True)
class Half(Immutable):
    """A part that is missing, of a global transaction that has a part in what was loaded."""

    id: str
    source: str
    """Where it is missing."""
    certain: bool
    """Whether it has not happened there yet; else it may have been before the log begins."""


def halves(loaded: Mapping[str, Parts], now: datetime, within: float) -> Iterator[Half]:
    """`loaded` is what the log of each source has up to where it was loaded; `within` is how many seconds a global
    transaction may take."""
    longest = timedelta(seconds=within)
    there: dict[str, dict[str, datetime]] = {}
    participants: dict[str, frozenset[str]] = {}
    for source, parts in loaded.items():
        for part, committed_at in parts.committed.items():
            there.setdefault(part.id, {})[source] = committed_at
            participants[part.id] = participants.get(part.id, frozenset()) | part.participants
    for name, seen in there.items():
        began = min(seen.values())
        for source in sorted(participants[name] & loaded.keys() - seen.keys()):
            since = loaded[source].since
            certain = since is not None and since + longest < began
            if certain or now < began + longest:
                yield Half(name, source, certain)
