"""What strobe.yml may say, and the project that comes of it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema
from pydantic_core import PydanticCustomError

from strobe.config.yamlfile import FILE
from strobe.errors import UserError

NAME_PATTERN = "[a-z][a-z0-9_]*"
LONGEST_NAME = 128
_DURATION = r"(\d{1,9})(ms|s|m|h|d)"
_LONGEST = timedelta(days=36525)
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SIZES = ("kB", "MB", "GB", "TB")
_SIZE = rf"(\d{{1,9}})({'|'.join(_SIZES)})"


def parse_duration(text: object) -> timedelta:
    """`7d`, `12h`, `5m`, `5s` or `500ms`."""
    found = re.fullmatch(_DURATION, text, re.ASCII) if isinstance(text, str) else None
    if found is None:
        raise PydanticCustomError("duration", "must be a duration: a whole number and a unit, as 7d, 12h, 5m or 500ms")
    duration = timedelta(**{_UNITS[found.group(2)]: int(found.group(1))})
    if duration > _LONGEST:
        raise PydanticCustomError("duration", "must be a duration of at most a hundred years, 36525d")
    return duration


def parse_size(text: object) -> int:
    """`512MB`, `10GB`, …, as PostgreSQL counts: in bytes, by powers of 1024."""
    found = re.fullmatch(_SIZE, text, re.ASCII) if isinstance(text, str) else None
    if not found:
        raise PydanticCustomError("size", "must be a size: a whole number and a unit, as 512MB, 10GB or 1TB")
    return int(found.group(1)) * int(1024 ** (_SIZES.index(found.group(2)) + 1))


def can_be_a_path(text: str) -> bool:
    """Without control characters and halves of characters, which no file system of ours takes."""
    return re.search("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text) is None


def _no_address(text: str) -> str:
    if not can_be_a_path(text):
        raise PydanticCustomError("path", "must be a path without control characters")
    if "://" in text:
        raise PydanticCustomError("path", "must be a path on a local or mounted file system, not an address")
    return text


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION}$"})
]
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": "string", "pattern": f"^{_SIZE}$"})]
Name = Annotated[str, StringConstraints(pattern=f"^{NAME_PATTERN}$", max_length=LONGEST_NAME)]
Text = Annotated[str, StringConstraints(min_length=1)]
FilePath = Annotated[Text, BeforeValidator(lambda value: _no_address(value) if isinstance(value, str) else value)]
Setting = Annotated[str, WithJsonSchema({"type": ["string", "number", "boolean"]})]


def _without_default(schema: dict[str, Any]) -> None:
    """The default depends on other things than the schema can say."""
    schema.pop("default", None)


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class SqliteSource(_Model):
    """An SQLite database file."""

    type: Literal["sqlite"]
    path: FilePath


class FilesSource(_Model):
    """A file of rows that newer drops replace; what differs between two drops is one transaction."""

    type: Literal["files"]
    path: FilePath
    format: Literal["csv", "jsonl", "parquet"] = Field(
        default="csv",
        description="By default what the path's suffix says.",
        json_schema_extra=_without_default,
    )
    relation: Text
    key: Annotated[list[Text], Field(min_length=1)]
    columns: dict[Text, Text] | None = Field(
        default=None,
        description="Spark types of columns. Others are text in CSV and JSON Lines, and as stored in Parquet.",
    )
    optional: bool = Field(
        default=False, description="Whether the first drop may come later; until then the relation is empty."
    )


class Limits(_Model):
    """What a database is not asked beyond."""

    connections: Annotated[int, Field(ge=1)] = Field(
        default=4, description="Connections for questions; one more reads the log."
    )
    statement_timeout: Duration = Field(default=timedelta(seconds=5), json_schema_extra={"default": "5s"})


class Slot(_Model):
    """How much log a server may keep for Strobe."""

    warn: Size = Field(default=2**30, json_schema_extra={"default": "1GB"}, description="`strobe status` warns beyond.")
    limit: Size | None = Field(default=None, description="What the server is not made to keep beyond.")
    beyond: Literal["stop", "rebuild"] = Field(
        default="stop",
        description="Beyond the limit: stop, and keep the log; or let it go, and rebuild the views that needed it.",
    )


class PostgresSource(_Model):
    """A PostgreSQL database, version 14 or newer."""

    type: Literal["postgres"]
    dsn: Text = Field(description="A URL, or keys and values, as libpq takes them.", repr=False)
    schema_name: Text = Field(alias="schema", default="public", description="Where tables without a schema are.")
    global_transactions: Text | None = Field(
        default=None,
        description="Prefix of the messages in the log that name global transactions; without it none are expected.",
    )
    limits: Limits = Limits()
    slot: Slot = Slot()


class MariadbSource(_Model):
    """A database of a server of MariaDB 10.6, MySQL 8.0, or newer."""

    type: Literal["mariadb", "mysql"]
    dsn: Text = Field(description="mysql://user:password@host:port/database", repr=False)
    global_transactions: Text | None = Field(
        default=None, description="`table.column`: new values there name global transactions."
    )
    xa_prefix: Text | None = Field(
        default=None, description="What the identifiers of XA transactions that name global transactions begin with."
    )
    limits: Limits = Limits()


class DeltaSource(_Model):
    """A Delta table with its change data feed on."""

    type: Literal["delta"]
    path: FilePath
    relation: Text | None = Field(default=None, description="By default the name of the table's folder.")
    key: list[Text] = Field(default=[], description="Columns that identify a row; verified in every version.")


SourceConfig = SqliteSource | FilesSource | PostgresSource | MariadbSource | DeltaSource
WITH_DSN = (PostgresSource, MariadbSource)


class ViewConfig(_Model):
    """A view: its SQL, written here or in a file, and how it is kept."""

    model_config = ConfigDict(json_schema_extra={"not": {"required": ["sql", "file"]}})

    sql: Text = Field(
        default="",
        description="By default what stands in views/<name>.sql.",
        json_schema_extra=_without_default,
    )
    file: Text | None = None
    consistency: Literal["convergent", "weak", "strong", "complete"] = "strong"
    algorithm: Text = "auto"
    freshness: Duration = Field(
        default=timedelta(seconds=1),
        description="How long changes may wait to share a commit, at the most.",
        json_schema_extra={"default": "1s"},
    )

    every: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="For sweep: a state after exactly so many transactions (complete-N). For rv and the strobe family: "
        "how many updates share a recomputation or an install.",
    )

    cache: list[Text] = Field(
        default=[], description="Relations of which the warehouse keeps a copy, so that their source need not be asked."
    )

    ask_view: bool = Field(
        default=False, description="Look for rows by their key in the view itself first, and then ask their source."
    )

    @property
    def origin(self) -> str:
        """The file in which the SQL stands, for messages."""
        return self.file or FILE


UMASKS = {"private": 0o077, "group": 0o027, "all": 0o022}
"""What a warehouse's mode takes away from everything that is written."""


PUBLISH = timedelta(seconds=60)


class Document(_Model):
    """What strobe.yml says."""

    model_config = ConfigDict(title="strobe.yml")

    version: Literal[1]
    project: Name = Field(description="Names what Strobe puts into sources, and labels metrics.")
    warehouse: FilePath = "./warehouse"
    retention: Duration = Field(
        default=timedelta(days=7), description="How far back readers can go.", json_schema_extra={"default": "7d"}
    )
    publish: Duration = Field(
        default=PUBLISH,
        description="How far the view tables that other engines read may be behind while commits come.",
        json_schema_extra={"default": "60s"},
    )
    audit: Duration | None = Field(
        default=None,
        description="`strobe run` compares every row of every view with the sources once in this time. Off by default.",
    )
    warehouse_mode: Literal["private", "group", "all"] = Field(
        default="private",
        description="Who may read the warehouse: the user that Strobe runs as, that user's group too, or everybody.",
    )
    spark: dict[Text, Setting] = Field(
        default={},
        description="Any Spark setting, passed through. `insecure: true` beside them accepts a cluster without "
        "authentication and encryption.",
    )
    evaluate: Literal["auto", "spark", "driver"] = "auto"
    order: Literal["source", "views"] = Field(
        default="source",
        description="Whether every commit is one prefix of every source, or views of different relations may differ.",
    )
    sources: Annotated[dict[Name, Annotated[SourceConfig, Field(discriminator="type")]], Field(min_length=1)]
    views: dict[Name, ViewConfig] = {}


def schema_text() -> str:
    """The JSON Schema of strobe.yml, as it ships with the package."""
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **Document.model_json_schema()}
    return json.dumps(schema, indent=2) + "\n"


# The project: what the rest of Strobe sees.


@dataclass(frozen=True)
class Missing:
    """The `${…}` of a project that could not be replaced, each with its line and what to do."""

    sources: tuple[UserError, ...] = ()
    spark: tuple[UserError, ...] = ()

    @staticmethod
    def demand(missing: Sequence[UserError]) -> None:
        """Raise all that is missing as one error."""
        if len(missing) == 1:
            raise missing[0]
        if missing:
            each = "; ".join(f"{error.where.rpartition(': ')[2]}: {error.message}" for error in missing)
            fixes = " ".join(dict.fromkeys(error.fix for error in missing))
            raise UserError(f"{len(missing)} values are missing: {each}", where=FILE, fix=fixes)


@dataclass(frozen=True)
class Project:
    """A project folder, read and checked. Paths are absolute, and every view has its SQL."""

    directory: Path
    name: str
    warehouse: Path
    warehouse_mode: Literal["private", "group", "all"]
    retention: timedelta
    evaluate: Literal["auto", "spark", "driver"]
    order: Literal["source", "views"]
    views: dict[str, ViewConfig]
    sources: dict[str, SourceConfig] = field(repr=False)
    spark_settings: dict[str, str] = field(repr=False)
    """As written where something is missing."""
    missing: Missing = field(default=Missing(), repr=False)
    audit: timedelta | None = None
    publish: timedelta = PUBLISH

    @property
    def spark(self) -> dict[str, str]:
        """The settings with which to start Spark."""
        self.missing.demand(self.missing.spark)
        return self.spark_settings

    @property
    def umask(self) -> int:
        """With which everything is written that belongs to the warehouse."""
        return UMASKS[self.warehouse_mode]
