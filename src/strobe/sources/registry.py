"""Which class serves which type of source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strobe.errors import UserError

if TYPE_CHECKING:
    from strobe.sources.base import Source

SparkStarter = Callable[[], Any]
"""Returns the Spark session, which it starts when it is first called."""


def open_source(name: str, config: Any, warehouse: Path, spark: SparkStarter | None, project: str = "strobe") -> Source:
    """The source that `strobe.yml` describes under this name. Only sources that read through Spark call `spark`.

    What is put into a database carries the name of the project."""
    if config.type == "sqlite":
        from strobe.sources.sqlite.source import SqliteSource

        return SqliteSource(name, config.path)
    if config.type == "files":
        from strobe.sources.files.source import FilesSource

        return FilesSource(name, config, warehouse, spark)
    if config.type == "postgres":
        from strobe.sources.postgres.connection import Keep, Place, object_name
        from strobe.sources.postgres.source import PostgresSource

        place = Place(
            name,
            config.dsn,
            config.schema_name,
            object_name(project, name),
            config.limits.connections,
            config.limits.statement_timeout.total_seconds(),
            Keep(config.slot.warn, config.slot.limit, config.slot.beyond == "rebuild"),
        )
        return PostgresSource(place)
    if config.type == "mariadb":
        from strobe.sources.mariadb.source import MariadbSource

        return MariadbSource(name, config)
    if config.type == "delta":
        from strobe.sources.delta.source import DeltaSource

        return DeltaSource(name, config, spark)
    raise UserError(
        f"there is no source type {config.type}",
        where=f"source {name}",
        fix="Known types: sqlite, files, postgres, mariadb, delta.",
    )
