"""Rule 8: whether a source is the one that the views were loaded from, and its log reaches back to where they stand."""

from __future__ import annotations

from strobe.errors import RelationLost, SourceLost, UserError
from strobe.messages import CommitHeader
from strobe.sources.base import Source, contained


def verify_source(source: Source, last: CommitHeader, users: list[str]) -> dict[str, SourceLost]:
    """Returns the views that the source's log does not reach back to any more, and why; raises what all have lost."""
    same_source(source, last, users)
    stand: dict[str, list[str]] = {}
    for view in users:
        stand.setdefault(last.positions[view][source.name], []).append(view)
    lost: dict[str, SourceLost] = {}
    for text, views in stand.items():
        try:
            with contained(source.name):
                source.verify(source.position(text))
        except RelationLost:
            raise
        except UserError as error:
            lost |= dict.fromkeys(views, _lost(source, error))
    if lost.keys() == set(users):
        raise lost[users[0]]
    return lost


def same_source(source: Source, last: CommitHeader, users: list[str]) -> None:
    """Raise `SourceLost` if it is another one than when the views were loaded, or cannot tell."""
    known = last.identity.get(source.name)
    try:
        with contained(source.name):
            identity = source.identity()
    except UserError as error:
        raise _lost(source, error) from error
    if known is not None and identity != known:
        raise SourceLost(
            f"this is another database than before (it was {known}, it is {identity})",
            source=source.name,
            where=f"source {source.name}",
            fix=f"Put the old one back, or rebuild the views that use it: {', '.join(users)}.",
        )


def _lost(source: Source, error: UserError) -> SourceLost:
    """What keeps a source from being verified: it is not prepared any more, or it does not know the position."""
    if isinstance(error, SourceLost):
        return error
    fix = f"{error.fix} Then rebuild the views that use this source: `strobe rebuild VIEW`.".strip()
    return SourceLost(error.message, source=source.name, where=error.where or f"source {source.name}", fix=fix)
