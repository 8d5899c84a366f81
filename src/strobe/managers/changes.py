"""What an update does to an occurrence: its rows, its insertions, its deletions, and the keys of these."""

from __future__ import annotations

from collections.abc import Iterable

from strobe.algebra.bag import Bag
from strobe.algebra.relation import Relation
from strobe.algebra.substitution import substitute
from strobe.algebra.view import Occurrence, View
from strobe.messages import KeyDelete, Update


def touches(update: Update, occurrence: Occurrence) -> bool:
    return update.source == occurrence.source and occurrence.relation.name in update.transaction.changes


def change(occurrence: Occurrence, updates: Iterable[Update]) -> Relation:
    """ΔR over these updates, under the occurrence's attributes."""
    total: Relation = Bag(occurrence.attributes)
    for update in updates:
        if touches(update, occurrence):
            total = total.plus(substitute(occurrence, update.transaction.changes[occurrence.relation.name]))
    return total


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
