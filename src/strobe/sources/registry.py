"""Which class serves which type of source."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from strobe.errors import UserError
from strobe.sources.base import Source, SourceContext, SparkStarter

KINDS = {
    "sqlite": "strobe.sources.sqlite.source:SqliteSource",
    "files": "strobe.sources.files.source:FilesSource",
    "postgres": "strobe.sources.postgres.source:PostgresSource",
    "mariadb": "strobe.sources.mariadb.source:MariadbSource",
    "mysql": "strobe.sources.mariadb.source:MariadbSource",
    "delta": "strobe.sources.delta.source:DeltaSource",
}
"""By type, the module and the class. Imported when it is needed: each brings its driver."""


def open_source(name: str, config: Any, warehouse: Path, spark: SparkStarter | None, project: str = "strobe") -> Source:
    """The source that `strobe.yml` describes under this name."""
    if config.type not in KINDS:
        raise UserError(
            f"there is no source type {config.type}", where=f"source {name}", fix=f"Known types: {', '.join(KINDS)}."
        )
    module, _, class_name = KINDS[config.type].partition(":")
    kind: type[Source] = getattr(import_module(module), class_name)
    return kind.from_config(name, config, SourceContext(project, warehouse, spark))
