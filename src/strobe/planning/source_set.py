"""The sources of a project: opened together, and closed by whoever has the set.

A run hands its set on: after an apply it keeps the views with another one, and closes the one that it has left.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import TracebackType

from strobe.config.model import Project
from strobe.data.scratch import STAGING, Scratch
from strobe.sources.base import Source, SparkStarter, Spill
from strobe.sources.registry import open_source


class SourceSet(Mapping[str, Source]):
    """Sources by name. Closes each once, also if that is asked for twice."""

    def __init__(self, sources: Mapping[str, Source], scratch: Scratch | None = None) -> None:
        """`scratch` is where the sources put large transactions."""
        self._sources = dict(sources)
        self._to_close = ExitStack()
        if scratch is not None:
            self._to_close.callback(scratch.close)
        for source in self._sources.values():
            self._to_close.callback(source.close)

    @classmethod
    def open(cls, project: Project, spark: SparkStarter | None = None) -> SourceSet:
        """The sources that strobe.yml describes; if one cannot be opened, none is left open. Without `spark` they never
        start it."""
        project.missing.demand(project.missing.sources)
        scratch = Scratch(project.warehouse / STAGING)
        with ExitStack() as opened:
            sources: dict[str, Source] = {}
            for name, config in project.sources.items():
                sources[name] = source = open_source(name, config, project.warehouse, spark, project.name)
                opened.callback(source.close)
                if project.evaluate != "driver":
                    source.spill = Spill(scratch)
            opened.pop_all()
        return cls(sources, scratch)

    def close(self) -> None:
        self._to_close.close()

    @contextmanager
    def closed_on_error(self) -> Iterator[SourceSet]:
        """Close them if the body fails; if not, they are the caller's to close."""
        try:
            yield self
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> SourceSet:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def __getitem__(self, name: str) -> Source:
        return self._sources[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sources)

    def __len__(self) -> int:
        return len(self._sources)
