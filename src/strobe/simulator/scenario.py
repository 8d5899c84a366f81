"""A scenario: a few lines that say what is at the sources, what they execute, and what should come of it.

    # ECA paper, Example 2
    source x
      r1(W, X): [1,2]
      r2(X, Y)
    view: Π W (r1 ⋈ r2)
    algorithm: conventional
    U1 = insert(r2, [2,3])
    U2 = insert(r1, [4,2])
    schedule
      receives U1
        sends Q1 = Π_W(r1 ⋈ [2,3])
      receives U2
      receives A1 = ([1], [4])
        view = ([1], [4])
    level: inconsistent

What a source has to do before the warehouse can receive something is done just before, unless the schedule says that it
happened earlier. `docs/scenarios.md` is the manual. `scenario_reader` reads scenarios, `scenario_text` writes them, and
`trial` carries them out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from strobe.algebra.view import Occurrence, Output, View, attribute
from strobe.simulator.algorithms import Chosen
from strobe.simulator.judging import Order, Shown
from strobe.simulator.lab import Plan
from strobe.simulator.notation import Scanner


@dataclass(frozen=True)
class Line:
    """A line of the file, without comment, and where it stands."""

    text: str
    where: str
    indented: bool = False

    def scan(self) -> Scanner:
        return Scanner(self.text, self.where)


@dataclass(frozen=True)
class Happening:
    """A line of the schedule, and what is expected of it."""

    line: Line
    verb: str
    """execute, evaluate or receive."""
    what: str
    """The name of an update, a transaction, a query or an answer; empty for whatever comes next."""
    source: str
    """Where; empty if the name says it."""
    expected: tuple[Line, ...] = ()


@dataclass(frozen=True)
class Schedule:
    kind: str = "in order"
    """in order, listed, random or all."""
    happenings: tuple[Happening, ...] = ()
    number: int = 0
    """The seed of a random one; how many, at the most, of all."""

    def __str__(self) -> str:
        return {"random": f"random {self.number}", "all": f"all up to {self.number}"}.get(self.kind, self.kind)


@dataclass(frozen=True)
class Scenario:
    title: str
    plan: Plan
    labels: Mapping[str, tuple[tuple[str, ...], ...]]
    """By source and transaction: what its updates are called."""
    order: Order
    algorithm: Chosen
    schedule: Schedule
    initially: Line | None = None
    finally_: Line | None = None
    levels: tuple[str, ...] = ()
    """What is wanted: `strong` is strong or better, `inconsistent` just that, `not weak` anything but weak or better.
    """
    level_where: str = ""
    where: str = ""

    @cached_property
    def shown(self) -> Shown:
        return Shown(self.plan.view, self.where)


# Views.


def natural_sql(joined: Sequence[tuple[str, Sequence[str]]], shown: Sequence[str]) -> str:
    """A natural join of relations, by id and columns, that shows these columns; or all, if it names none."""
    (text, first), *others = joined
    known = list(first)
    for relation, columns in others:
        shared = ", ".join(c for c in columns if c in known)
        text += f" JOIN {relation} USING ({shared})" if shared else f" CROSS JOIN {relation}"
        known += [c for c in columns if c not in known]
    return f"SELECT {', '.join(shown or known)} FROM {text}"


_ATTRIBUTE = re.compile(r"'(?:[^'\\]|\\.|'')*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`|\br(\d+)c(\d+)\b")


def whole(view: View) -> View:
    """The view with all columns of its relations, so that tuples are shown as the papers show them."""
    occurrences = tuple(
        Occurrence(o.index, o.alias, o.relation, tuple(c.name for c in o.relation.columns)) for o in view.occurrences
    )

    def renamed(text: str) -> str:
        def one(match: re.Match[str]) -> str:
            if match[1] is None:
                return match[0]
            index = int(match[1])
            column = view.occurrences[index].columns[int(match[2])]
            return attribute(index, occurrences[index].columns.index(column))

        return _ATTRIBUTE.sub(one, text)

    return replace(
        view,
        occurrences=occurrences,
        outputs=tuple(Output(output.name, renamed(output.expression)) for output in view.outputs),
        condition=None if view.condition is None else renamed(view.condition),
    )
