"""All algorithms: what each needs, guarantees and costs, and how its manager is made.

`reaches` is the table of the consistency spectrum (Strobe paper, Figure 7.2), as `strobe spectrum` finds it: by
scenario, the level that an algorithm reaches there. A level in brackets below is what it would do where it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from strobe.algebra.tree import Exists, Explode, Group, Join, JoinKind, Operator, Union, Window, operators
from strobe.algebra.view import Occurrence, View
from strobe.managers.base import ViewManager
from strobe.managers.conventional import Conventional
from strobe.managers.eca import Eca
from strobe.managers.nested_sweep import DEPTH, NestedSweep
from strobe.managers.rv import Rv
from strobe.managers.strobe import Strobe
from strobe.managers.sweep import Sweep
from strobe.managers.tree_sweep import TreeSweep

LEVELS = ("none", "convergent", "weak", "strong", "complete")
"""Consistency levels, each implying those before it."""

SCENARIOS = ("centralized", "single source", "transactions", "single updates", "source-local", "global")
"""The update scenarios of the Strobe paper (3.1), and transactions at a single source."""


@dataclass(frozen=True)
class Setting:
    """How a view is to be kept."""

    level: str
    every: int | None = None
    """`every` of the view's configuration."""
    alone: bool = True
    """Whether no other view shares its sources: then its action lists need not end where others' do."""

    @property
    def complete(self) -> bool:
        return self.level == "complete"


Make = Callable[[View, Setting], ViewManager]
Need = Callable[[View], str | None]
"""What a view lacks for an algorithm, and what to do about it; None if it lacks nothing."""


@dataclass(frozen=True)
class Algorithm:
    """An entry of the registry: what a user reads in `strobe algorithms`, and how a manager is made."""

    name: str
    level: str
    """What it guarantees in a live system, where sources report whole transactions."""
    table: tuple[str, ...]
    """The level it reaches in each of SCENARIOS."""
    needs: str
    costs: str
    origin: str
    make: Make
    lacks: tuple[Need, ...] = ()
    single: bool = False
    """Whether it knows only single updates: the laboratory reports the updates of a transaction to it one by one."""
    copies: bool = False
    """Whether it works on copies of all its relations at the warehouse."""

    waits: bool = False
    """Whether it takes up nothing, at strong, before a cut has come: then a block may end before the last update."""

    trees: bool = False
    """Whether it keeps views that have more than inner joins."""

    burdened: bool = False
    """Whether a backlog costs more than in proportion: what comes while a question is open compensates its answer."""

    @property
    def reaches(self) -> Mapping[str, str]:
        return dict(zip(SCENARIOS, self.table, strict=True))

    def refusal(self, view: View) -> str | None:
        """Why this algorithm cannot serve a view; None if it can."""
        if view.tree is not None and not self.trees:
            return f"it keeps inner joins only, and the view has {beyond_inner_joins(view.tree)}"
        return next((reason for lack in self.lacks if (reason := lack(view)) is not None), None)

    def manager(self, view: View, level: str = "complete", every: int | None = None) -> ViewManager:
        """A manager for a view that is alone."""
        return self.make(copied(view) if self.copies else view, Setting(level, every))


def beyond_inner_joins(tree: Operator) -> str:
    """What a tree has besides inner joins and what is selected and computed of their rows."""
    found = {name: None for operator in operators(tree) if (name := _name(operator))}
    return ", ".join(found) or "a subquery"


def _name(operator: Operator) -> str:
    if isinstance(operator, Join):
        return "" if operator.kind is JoinKind.INNER else f"{operator.kind.name} JOIN"
    if isinstance(operator, Exists):
        return "NOT EXISTS" if operator.negated else "EXISTS"
    if isinstance(operator, Group):
        return "aggregates" if operator.outputs else "DISTINCT"
    return _NAMES.get(type(operator), "")


_NAMES: dict[type[Operator], str] = {Union: "UNION", Explode: "LATERAL VIEW", Window: "window functions"}


def _sweep(view: View, setting: Setting) -> ViewManager:
    made = Sweep if view.tree is None else TreeSweep
    return made(view, complete=setting.complete)


def copied(view: View, relations: tuple[str, ...] | None = None) -> View:
    """The view with these relations (all, by default) answered from copies at the warehouse."""
    return replace(
        view,
        occurrences=tuple(
            replace(o, copied=True) if relations is None or o.relation.id in relations else o for o in view.occurrences
        ),
    )


def asking_itself(view: View) -> View:
    """The view with itself asked first for the relations of which it shows all that it uses."""
    return replace(view, occurrences=tuple(replace(o, shown=bool(view.shows(o))) for o in view.occurrences))


def one_source(view: View) -> str | None:
    if len(view.sources) == 1:
        return None
    return f"it needs all relations at one source, and the view joins {', '.join(view.sources)}"


def keys(view: View) -> str | None:
    for occurrence in view.occurrences:
        if not occurrence.relation.key:
            return f"it needs keys, and {occurrence.relation.id} has none"
        if not view.key_of(occurrence):
            return f"it needs keys: add {_key_columns(occurrence)} to the view's columns"
    return None


def _key_columns(occurrence: Occurrence) -> str:
    return " and ".join(f"{occurrence.alias}.{column}" for column in occurrence.relation.key)


def old_images(view: View) -> str | None:
    without = [relation for relation in view.relations if not relation.images]
    if not without:
        return None
    report = (
        f"{', '.join(relation.id for relation in without)} report{'s' if len(without) == 1 else ''} only their keys"
    )
    statements = "; ".join(f"ALTER TABLE {relation.name} REPLICA IDENTITY FULL" for relation in without)
    return f"it needs whole rows of what is deleted, and {report} (PostgreSQL: {statements})"


_X, _CV, _W, _S, _C = LEVELS
_IMAGES = "old row images in the change stream; no keys"
_KEYED = "a key of every relation among the view's columns"

ALGORITHMS = {
    algorithm.name: algorithm
    for algorithm in (
        Algorithm(
            "sweep",
            _C,
            (_C, _C, _C, _C, _C, _C),
            needs=_IMAGES,
            costs="one look-up for each other relation of the view (fewer where several live at one source), per "
            "batch and changed relation; at complete a batch is many updates, each with a state of its own",
            origin="beyond the papers; the telescoping sum over occurrences",
            make=_sweep,
            lacks=(old_images,),
            waits=True,
            trees=True,
        ),
        Algorithm(
            "nested-sweep",
            _S,
            (_C, _S, _S, _S, _S, _S),
            needs=_IMAGES,
            costs="as sweep, and less under load: what happened meanwhile joins the batch (where no other view shares "
            "the sources)",
            origin="beyond the papers; SWEEP that recurses, to a depth limit",
            make=lambda view, setting: NestedSweep(view, depth=DEPTH if setting.alone else 0),
            lacks=(old_images,),
            waits=True,
        ),
        Algorithm(
            "conventional",
            _X,
            (_C, _X, _X, _X, _X, _X),
            needs="nothing; it believes every answer",
            costs="one look-up for each other relation, per update",
            origin="ECA paper, 5.1",
            make=lambda view, _: Conventional(view),
        ),
        Algorithm(
            "rv",
            _S,
            (_C, _C, _C, _C, _C, _S),
            needs="old row images in the change stream",
            costs="all rows of all relations, for every batch (or every `every` updates)",
            origin="ECA paper, 1.2 and D.1; brought to one target vector for several sources",
            make=lambda view, setting: Rv(view, every=setting.every or 1),
            lacks=(old_images,),
        ),
        Algorithm(
            "sc",
            _C,
            (_C, _C, _C, _C, _C, _C),
            needs=_IMAGES + "; room for copies of all relations in the warehouse",
            costs="nothing is asked of the sources; a look-up in the warehouse for each other relation, and every "
            "relation is stored and kept there",
            origin="ECA paper, 1.2",
            make=_sweep,
            lacks=(old_images,),
            waits=True,
            trees=True,
            copies=True,
        ),
        Algorithm(
            "eca",
            _S,
            (_C, _S, _S, _X, _X, _X),
            needs="one source",
            costs="one query per update, with a term for every query that is still open",
            origin="ECA paper, 5.2",
            make=lambda view, _: Eca(view),
            lacks=(one_source, old_images),
            burdened=True,
        ),
        Algorithm(
            "lca",
            _C,
            (_C, _C, _C, _X, _X, _X),
            needs="one source",
            costs="as eca",
            origin="ECA paper, 5.2 (sketched there); in an eager form",
            make=lambda view, _: Eca(view, complete=True),
            lacks=(one_source, old_images),
            burdened=True,
        ),
        Algorithm(
            "eca-local",
            _C,
            (_C, _C, _C, _X, _X, _X),
            needs="one source; deletions are local where the view shows the relation's key",
            costs="as eca; nothing for a local deletion while no query is open",
            origin="ECA paper, 5.5 (left open there)",
            make=lambda view, _: Eca(view, complete=True, local=True),
            lacks=(one_source, old_images),
            burdened=True,
        ),
        Algorithm(
            "eca-key",
            _S,
            (_C, _S, _S, _S, _S, _W),
            needs=f"one source; {_KEYED}",
            costs="one query per insertion, nothing for a deletion",
            origin="ECA paper, 5.4, corrected as in the Strobe paper, 5.2",
            make=lambda view, _: Strobe(view),
            lacks=(one_source, keys),
            burdened=True,
        ),
        Algorithm(
            "strobe",
            _S,
            (_C, _S, _CV, _S, _CV, _CV),
            needs=_KEYED,
            costs="for an insertion one look-up for each other relation; nothing for a deletion. Waits for a quiet "
            "moment, the next cut, or `every` updates",
            origin="Strobe paper, 5.2",
            make=lambda view, setting: Strobe(view, bound=setting.every),
            lacks=(keys,),
            burdened=True,
            single=True,
        ),
        Algorithm(
            "t-strobe",
            _S,
            (_C, _S, _S, _S, _S, _W),
            needs=_KEYED,
            costs="as strobe, once for a whole transaction",
            origin="Strobe paper, 5.3",
            make=lambda view, setting: Strobe(view, bound=setting.every),
            lacks=(keys,),
            burdened=True,
        ),
        Algorithm(
            "g-strobe",
            _S,
            (_C, _S, _S, _S, _S, _S),
            needs=f"{_KEYED}; identifiers of global transactions, where there are any",
            costs="as t-strobe; waits for all parts of a global transaction",
            origin="Strobe paper, 5.4; parts are processed as they come, the install waits",
            make=lambda view, setting: Strobe(view, bound=setting.every, whole=True),
            lacks=(keys,),
            burdened=True,
        ),
        Algorithm(
            "c-strobe",
            _C,
            (_C, _C, _CV, _C, _CV, _CV),
            needs=_KEYED,
            costs="as strobe, and up to (n-1)! queries more where deletions meet an open one; with `every: k` an "
            "install after k updates, at strong",
            origin="Strobe paper, 6, with queries grouped by relation",
            make=lambda view, setting: Strobe(view, bound=setting.every or 1),
            lacks=(keys, old_images),
            burdened=True,
            single=True,
        ),
        Algorithm(
            "c-tstrobe",
            _C,
            (_C, _C, _C, _C, _C, _W),
            needs=_KEYED,
            costs="as c-strobe, once for a whole transaction",
            origin="Strobe paper, 6 (sketched there)",
            make=lambda view, setting: Strobe(view, bound=setting.every or 1),
            lacks=(keys, old_images),
            burdened=True,
        ),
        Algorithm(
            "c-gstrobe",
            _C,
            (_C, _C, _C, _C, _C, _C),
            needs=f"{_KEYED}; identifiers of global transactions, where there are any",
            costs="as c-tstrobe; takes up a global transaction when all its parts are there",
            origin="Strobe paper, 5.4 and 6 together",
            make=lambda view, setting: Strobe(view, bound=setting.every or 1, whole=True),
            lacks=(keys, old_images),
            burdened=True,
        ),
    )
}
