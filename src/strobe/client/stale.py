"""Views that make no progress until somebody rebuilds them, though strobe.yml says of them what it said. No JVM."""

from __future__ import annotations

from collections.abc import Mapping

from strobe.apply import plan
from strobe.client.wait import hear, last_header
from strobe.config.model import Project
from strobe.coordinator.verify import verify_source
from strobe.errors import SourceLost, StrobeError
from strobe.planning.source_set import SourceSet
from strobe.planning.topology import source_names
from strobe.warehouse.records import Definition


def stale_views(project: Project) -> dict[str, str]:
    """By view, why: as the coordinator says, or last said. Where none is running, the sources are looked at too."""
    applied = {name: d for name, d in plan.applied(project.warehouse).items() if name in project.views}
    heard = hear(project.warehouse)
    said = heard.document.get("views", {})
    found = {name: str(said[name].get("problem")) for name in applied if said.get(name, {}).get("rebuild")}
    found |= {name: definition.wrong for name, definition in applied.items() if definition.wrong}
    if not heard.alive:
        found = {**{name: str(error) for name, error in _lost(project, applied).items()}, **found}
    return {name: found[name] for name in applied if name in found}


def _lost(project: Project, applied: Mapping[str, Definition]) -> dict[str, SourceLost]:
    """The views whose source is another one, or whose log does not reach back to them. One that cannot be reached may
    be well."""
    found: dict[str, SourceLost] = {}
    used = {name: source_names(definition.sql) for name, definition in applied.items()}
    if (header := last_header(project.warehouse)) is None:
        return found
    with SourceSet.open(project) as sources:
        for source in sources:
            users = [name for name in applied if source in used[name]]
            try:
                found |= verify_source(sources[source], header, users) if users else {}
            except SourceLost as error:
                found |= dict.fromkeys(users, error)
            except StrobeError:
                continue
    return found
