"""Which algorithm keeps a view, and why; what cannot serve it is refused with the reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strobe.algebra.view import Equality, View
from strobe.errors import UserError
from strobe.managers.choice import choose
from strobe.managers.registry import ALGORITHMS
from strobe.simulator.plans import relation, view

R = relation("x", "r", "kb", "k")
S = relation("y", "s", "kb", "k")
T = relation("x", "t", "bc")


def joined(*relations: object) -> View:
    return view(relations, [Equality(i, "b", i + 1, "b") for i in range(len(relations) - 1)])  # type: ignore[arg-type]


def without_images(of: View) -> View:
    occurrences = tuple(replace(o, relation=replace(o.relation, images=False)) for o in of.occurrences)
    return replace(of, occurrences=occurrences)


def test_auto_takes_sweep_where_it_can() -> None:
    for level in ("convergent", "weak", "strong", "complete"):
        assert choose(joined(R, S), "auto", level).algorithm.name == "sweep"


def test_auto_takes_a_keyed_algorithm_where_only_keys_are_reported() -> None:
    choice = choose(without_images(joined(R, S)), "auto", "strong")
    assert choice.algorithm.name == "g-strobe"
    assert "report only their keys (PostgreSQL: ALTER TABLE r REPLICA IDENTITY FULL; ALTER TABLE s " in choice.because
    assert choice.higher.startswith("for complete, use sweep: it needs whole rows")


def test_auto_refuses_without_images_and_without_keys() -> None:
    """Recomputing needs whole old rows too: answers of several moments have to be brought to one."""
    with pytest.raises(UserError, match=r"sweep: it needs whole rows .* g-strobe: it needs keys, and x\.t has none"):
        choose(without_images(joined(T, R)), "auto", "strong")
    with pytest.raises(UserError, match="it needs whole rows"):
        choose(without_images(joined(R, S)), "rv", "strong")


@pytest.mark.parametrize("name", ["c-strobe", "c-tstrobe", "c-gstrobe"])
def test_compensating_for_deletions_needs_whole_rows(name: str) -> None:
    with pytest.raises(UserError, match="it needs whole rows"):
        choose(without_images(joined(R, S)), name, "strong")


def test_auto_refuses_a_level_that_nothing_reaches() -> None:
    """It advises the level that can be reached, if there is one, and never the one that was refused."""
    with pytest.raises(UserError, match="no algorithm keeps this view at complete") as refused:
        choose(without_images(joined(R, S)), "auto", "complete")
    assert refused.value.fix.endswith("Or ask for consistency: strong.")
    with pytest.raises(UserError, match="no algorithm keeps this view at strong") as refused:
        choose(without_images(joined(R, T)), "auto", "strong")
    assert "ask for consistency" not in refused.value.fix


@pytest.mark.parametrize("name", ["eca", "lca", "eca-local", "eca-key"])
def test_the_eca_family_over_two_sources_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="all relations at one source, and the view joins x, y"):
        choose(joined(R, S), name, "strong")


@pytest.mark.parametrize("name", ["strobe", "t-strobe", "g-strobe", "c-strobe", "c-tstrobe", "c-gstrobe", "eca-key"])
def test_the_strobe_family_without_keys_is_refused(name: str) -> None:
    with pytest.raises(UserError, match=r"x\.t has none"):
        choose(joined(R, T), name, "strong")


def test_a_key_that_the_view_does_not_show_is_named() -> None:
    hidden = joined(R, S)
    hidden = replace(hidden, outputs=hidden.outputs[1:])
    with pytest.raises(UserError, match=r"add o0\.k to the view's columns"):
        choose(hidden, "strobe", "strong")


def test_a_level_that_the_algorithm_does_not_reach_is_refused() -> None:
    with pytest.raises(UserError, match="nested-sweep reaches strong, not complete"):
        choose(joined(R, S), "nested-sweep", "complete")
    with pytest.raises(UserError, match="c-strobe reaches strong, not complete"):
        choose(joined(R, S), "c-strobe", "complete", every=5)
    assert choose(joined(R, S), "c-strobe", "complete").algorithm.name == "c-strobe"


def test_every_is_refused_where_it_means_nothing() -> None:
    with pytest.raises(UserError, match="`every` means nothing to nested-sweep"):
        choose(joined(R, S), "nested-sweep", "strong", every=2)


def test_an_unknown_algorithm_is_refused_with_those_there_are() -> None:
    with pytest.raises(UserError) as caught:
        choose(joined(R, S), "magic", "strong")
    assert all(name in caught.value.fix for name in ALGORITHMS)
