"""Several merges (multiple view consistency, 6.1): views that share no source need not wait for each other.

Views are partitioned by the sources that they share, directly or through others, and each group has a view-update
table of its own. The paper partitions by relations; but with `order: source` every commit is one prefix of a source
for all its views, and a transaction may change several relations of one source, so a source is what must stay whole.
Sources that take part in global transactions together belong together too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from strobe.algebra.connected import connected
from strobe.algebra.view import View


def partition(views: Mapping[str, View], together: Iterable[Collection[str]] = ()) -> list[frozenset[str]]:
    """The names of the views, in groups that share no source; `together` are sources that must be in one group."""
    return connected({name: view.sources for name, view in views.items()}, together)
