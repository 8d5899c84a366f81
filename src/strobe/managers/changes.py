"""What an update does to an occurrence: its rows, its insertions, its deletions, and the keys of these."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.algebra.bag import total
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import substitute
from strobe.algebra.view import Occurrence, View
from strobe.messages import KeyDelete, Update


def touches(update: Update, occurrence: Occurrence) -> bool:
    return update.source == occurrence.source and update.transaction.touched(occurrence.relation.name)


def change(occurrence: Occurrence, updates: Iterable[Update]) -> Relation:
    """ΔR over these updates, under the occurrence's attributes."""
    name, source = occurrence.relation.name, occurrence.source
    changed = (u.transaction.changes.get(name) for u in updates if u.transaction.source == source)
    return total(occurrence.attributes, (substitute(occurrence, rows) for rows in changed if rows is not None))


def deletions(occurrence: Occurrence, update: Update) -> list[KeyDelete]:
    """What an update takes out of the view, by the keys of what it deletes; old rows may be known by their keys
    only."""
    found = []
    deleted = change(occurrence, [update]).part(-1)
    if not deleted.known_empty:
        found.append(key_delete(occurrence, deleted))
    gone = update.transaction.gone.get(occurrence.relation.name) if update.source == occurrence.source else None
    if gone is not None and not gone.known_empty:
        key = occurrence.relation.key
        named = gone.project(key).rename({column: occurrence.attribute(column) for column in key})
        found.append(KeyDelete(occurrence.index, named))
    return found


def key_delete(occurrence: Occurrence, deleted: Relation) -> KeyDelete:
    """The action that takes every row out of the view that was derived from a deleted one."""
    return KeyDelete(occurrence.index, deleted.keys([occurrence.attribute(c) for c in occurrence.relation.key]))


def together(first: KeyDelete, second: KeyDelete) -> KeyDelete:
    return KeyDelete(first.occurrence, first.keys.plus(second.keys).keys(first.keys.attributes))


def delete(rows: Relation, action: KeyDelete) -> Relation:
    """*key_delete* applied to rows over the attributes of the view."""
    return rows.key_delete(action.keys, [(a, a) for a in action.keys.attributes])


def keyed(view: View) -> bool:
    """Whether the view shows a key of every occurrence, so that deletions can be found in the view itself."""
    return all(view.key_of(occurrence) for occurrence in view.occurrences)
