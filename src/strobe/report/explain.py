"""What `strobe explain` reports: a view's plan, and what a change will cost: for each occurrence that changes, the
fragments in the order in which they are asked. No JVM."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from strobe.algebra import asking
from strobe.algebra.connected import connected
from strobe.algebra.substitution import Step, next_fragment
from strobe.algebra.view import Occurrence, View
from strobe.config.model import Project
from strobe.errors import UserError, suggestion
from strobe.managers.registry import keys, one_source
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import ViewPlan, known_sources, plan_view, schemas, source_names
from strobe.report import tree
from strobe.report.document import Document

FOUND = ("key", "index", "scan", "all rows")
"""How a look-up finds its rows, by `Step.cost`."""


@dataclass(frozen=True)
class LookupStep:
    """A look-up that a change of one occurrence leads to."""

    changed: Occurrence
    step: Step
    occurrence: Occurrence

    @property
    def found_by(self) -> str:
        return FOUND[self.step.cost]

    @property
    def columns(self) -> list[str]:
        """The columns by which its rows are found."""
        return [own for own, _, _ in self.step.on]


def fragments(view: View, changed: Occurrence, *, whole: bool = False) -> Iterator[tuple[Step, ...]]:
    """The queries that a change of an occurrence leads to."""
    if view.tree is not None:
        yield from ((step,) for step in asking.asked(view, changed))
        return
    term = [changed.index]
    while steps := next_fragment(view, term, whole=whole):
        yield steps
        term += [step.occurrence for step in steps]


def asked(view: View) -> Iterator[LookupStep]:
    """Every look-up that any change leads to."""
    for changed in view.occurrences:
        for steps in fragments(view, changed):
            for step in steps:
                yield LookupStep(changed, step, view.occurrences[step.occurrence])


def explain(project: Project, name: str) -> Document:
    """The public document: the view's plan, and the views that it shares commits with."""
    if name not in project.views:
        raise UserError(f"there is no view {name!r}", fix=suggestion(name, project.views))
    config = project.views[name]
    where = f"{config.origin}: view {name}"
    with SourceSet.open(project) as sources:
        relations = schemas(sources, known_sources(config.sql, sources, where))
        planned = plan_view(name, config.sql, config, relations, where)
    used = {}
    for other, view in project.views.items():
        with suppress(UserError):  # one that is refused keeps nobody from being explained
            used[other] = source_names(view.sql)
    groups = connected(used)
    return {**_plan(planned), "group": sorted(next(group for group in groups if name in group))}


def _plan(planned: ViewPlan) -> Document:
    view = planned.view
    return {
        "view": view.name,
        "algorithm": planned.algorithm.name,
        "level": planned.level,
        "because": planned.because,
        "higher": planned.higher or None,
        "freshness": planned.freshness,
        "key": list(view.key),
        "rows_can_repeat": not view.key,
        "columns": [{"name": output.name, "expression": _named(view, output.expression)} for output in view.outputs],
        "occurrences": [
            {"alias": o.alias, "relation": o.relation.id, "source": o.source, "columns": list(o.columns)}
            for o in view.occurrences
        ],
        "equalities": [
            f"{_column(view, e.left, e.left_column)} = {_column(view, e.right, e.right_column)}"
            for e in view.equalities
        ],
        "condition": _named(view, view.condition) if view.condition else None,
        "tree": list(tree.lines(view.tree, partial(_named, view))) if view.tree is not None else None,
        "changes": [_change(planned, changed) for changed in view.occurrences],
    }


def _change(planned: ViewPlan, changed: Occurrence) -> Document:
    view, lacks = planned.view, planned.algorithm.lacks
    if planned.algorithm.name == "rv":
        everything = [tuple(Step(o.index, (), 3) for o in view.occurrences if o.source == s) for s in view.sources]
        asked_for = [_fragment(view, steps) for steps in everything]
    else:
        whole = one_source in lacks and keys not in lacks
        asked_for = [_fragment(view, steps) for steps in fragments(view, changed, whole=whole)]
    deletions = "a deletion asks no source: what goes is found in the view, by key" if keys in lacks else ""
    return {
        "deletions": deletions,
        "relation": changed.relation.id,
        "alias": changed.alias,
        "messages": 2 * sum(fragment["source"] != "warehouse" for fragment in asked_for),
        "fragments": asked_for,
        "cost": _cost([lookup for fragment in asked_for for lookup in fragment["lookups"]]),
    }


def _fragment(view: View, steps: tuple[Step, ...]) -> Document:
    lookups = [_lookup(view, step) for step in steps]
    first = view.occurrences[steps[0].occurrence]
    return {"source": "warehouse" if first.copied else first.source, "lookups": lookups}


def _lookup(view: View, step: Step) -> Document:
    occurrence = view.occurrences[step.occurrence]
    return {
        "alias": occurrence.alias,
        "relation": occurrence.relation.id,
        "columns": list(occurrence.columns),
        "by": [f"{own} = {_column(view, other, column)}" for own, other, column in step.on],
        "found_by": FOUND[step.cost],
    }


def _cost(lookups: list[Document]) -> str:
    """What a change costs the sources, in words."""
    if not lookups:
        return "no look-up: the change alone is enough"
    number = {kind: sum(lookup["found_by"] == kind for lookup in lookups) for kind in FOUND}
    words = {"key": "by key", "index": "by index", "scan": "by a scan", "all rows": "of all rows"}
    parts = [f"{count} {words[kind]}" for kind, count in number.items() if count]
    return f"look-ups: {', '.join(parts)}"


def _column(view: View, occurrence: int, column: str) -> str:
    return f"{view.occurrences[occurrence].alias}.{column}"


def _named(view: View, expression: str) -> str:
    """An expression over attributes, with the names that the user gave instead."""
    names = {o.attribute(c): f"{o.alias}.{c}" for o in view.occurrences for c in o.columns}
    for attribute in sorted(names, key=len, reverse=True):
        expression = _replace(expression, attribute, names[attribute])
    return expression


def _replace(text: str, word: str, replacement: str) -> str:
    return re.sub(rf"\b{word}\b", lambda _: replacement, text)
