"""Which definition each view has or had, and which compiled views take part in commits.

A definition that no header names does not exist: it was written for a cutover that never took place.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from strobe.algebra.view import View
from strobe.errors import BrokenInvariant
from strobe.messages import Commit, CommitHeader
from strobe.warehouse.evaluation import Part
from strobe.warehouse.log import Batch
from strobe.warehouse.records import Definition, Generation


@dataclass(frozen=True)
class Generations:
    definitions: tuple[Definition, ...] = ()
    members: Mapping[str, Generation] = field(default_factory=dict)
    unguaranteed: frozenset[str] = frozenset()
    """Views without any guarantee, whose changes may take away rows that are not there."""

    @classmethod
    def named_by(cls, header: CommitHeader | None, stored: Iterable[Definition]) -> Generations:
        """What is true of the stored definitions: those that the last header names, and those that ended before it."""
        last = header.number if header else 0
        named = header.generations.items() if header else ()
        in_force = [replace(d, to_commit=None) if (d.view, d.generation) in named else d for d in stored]
        return cls(
            tuple(
                d
                for d in in_force
                if (d.view, d.generation) in named or (d.from_commit <= last and (d.to_commit or last) < last)
            )
        )

    @property
    def in_force(self) -> dict[str, Definition]:
        return {d.view: d for d in self.definitions if d.to_commit is None}

    def use(self, compiled: Iterable[View], unguaranteed: Collection[str]) -> Generations:
        """With these views, compiled from the stored definitions' own SQL, in commits."""
        members, in_force = dict(self.members), self.in_force
        for view in compiled:
            if view.name not in in_force:
                raise BrokenInvariant("this view was never loaded", where=f"view {view.name}")
            members[view.name] = in_force[view.name].compiled(view)
        return replace(self, members=members, unguaranteed=frozenset(unguaranteed))

    def proven(self, fingerprints: Mapping[str, Mapping[str, str]]) -> Generations:
        """With other fingerprints for the definitions in force of these views."""
        renewed = [
            replace(d, fingerprints={**d.fingerprints, **fingerprints[d.view]})
            if d.to_commit is None and d.view in fingerprints
            else d
            for d in self.definitions
        ]
        return replace(self, definitions=tuple(renewed))

    def found_wrong(self, view: str, wrong: str, right_to: int) -> Generations:
        """With a view whose changes contradict its rows; what was found first counts."""
        found = [
            replace(d, wrong=wrong, right_to=right_to) if d.view == view and d.to_commit is None and not d.wrong else d
            for d in self.definitions
        ]
        return replace(self, definitions=tuple(found))

    def cut_over(self, loaded: Sequence[Generation], dropped: Collection[str], commit: int) -> Generations:
        """From a commit on: loaded views take part, in the place of older generations, and others no more."""
        ending = {item.view.name for item in loaded} | set(dropped)
        ended = [
            replace(d, to_commit=commit - 1) if d.view in ending and d.to_commit is None else d
            for d in self.definitions
        ]
        staying = {name: member for name, member in self.members.items() if name not in dropped}
        return replace(
            self,
            definitions=(*ended, *(Definition.of(item, commit) for item in loaded)),
            members=staying | {item.view.name: item for item in loaded},
        )

    def batch(self, commits: Sequence[Commit], carried: Mapping[str, Part] | None = None) -> Batch:
        numbers = {name: definition.generation for name, definition in self.in_force.items()}
        return Batch(commits, self.members, numbers, carried or {})
