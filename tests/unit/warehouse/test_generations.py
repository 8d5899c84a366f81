"""Which generations of views are in force: from load to cutover, and after a crash in between."""

from __future__ import annotations

from dataclasses import replace

from committing import V

from strobe.algebra.view import View
from strobe.messages import Commit, CommitHeader
from strobe.warehouse.generations import Generations
from strobe.warehouse.records import Generation

W = replace(V, name="w", sql="SELECT 1")


def loaded(view: View, number: int) -> Generation:
    return Generation(view, number, "`a` bigint", 10 * number)


def numbers(generations: Generations) -> dict[str, int]:
    return {name: definition.generation for name, definition in generations.in_force.items()}


def test_a_cutover_ends_what_it_replaces_and_what_it_drops() -> None:
    """From its commit on headers name what has come; what has left keeps its definition for the commits before."""
    first = Generations().cut_over([loaded(V, 1), loaded(W, 1)], [], 1)
    after = first.cut_over([loaded(V, 2)], ["w"], 5)
    assert numbers(first) == {"v": 1, "w": 1} and numbers(after) == {"v": 2}
    assert [(d.view, d.from_commit, d.to_commit) for d in after.definitions] == [
        ("v", 1, 4),
        ("w", 1, 4),
        ("v", 5, None),
    ]
    batch = after.batch([Commit(CommitHeader(5))])
    assert batch.generations == {"v": 2} and batch.members == {"v": loaded(V, 2)}
    assert batch.headers(3)[0].generations == {"v": 2} and batch.headers(3)[0].epoch == 3


def test_a_definition_that_no_header_names_does_not_exist() -> None:
    """A crash before the commit of a cutover leaves its definitions behind; one after it does not."""
    before = Generations().cut_over([loaded(V, 1)], [], 1)
    after = before.cut_over([loaded(V, 2)], [], 5)
    interrupted = Generations.named_by(CommitHeader(4, generations={"v": 1}), after.definitions)
    done = Generations.named_by(CommitHeader(5, generations={"v": 2}), after.definitions)
    assert interrupted.definitions == before.definitions and numbers(done) == {"v": 2}
    assert not Generations.named_by(None, before.definitions).definitions
    assert done.use([V], ["v"]).members == {"v": loaded(V, 2)}
