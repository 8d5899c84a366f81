"""Reads a project folder: `strobe.yml` and `views/*.sql`.

Reading goes in steps, each of which knows where it is in the file: text to plain values with their lines; `${…}`
replaced in sources and Spark settings; values to models; models to a `Project`. Whatever is wrong ends in one
`UserError` that names the line and what to write instead. Messages quote the file as it was written, never a value that
came in through `${…}`.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, ValidationError, WithJsonSchema
from pydantic_core import ErrorDetails, PydanticCustomError

from strobe.errors import UserError
from strobe.yamlfile import FILE, NodePath, YamlFile, mistake

_NAME = "[a-z][a-z0-9_]*"
_DURATION = r"(\d{1,9})(ms|s|m|h|d)"
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SIZES = ("kB", "MB", "GB", "TB")
_SIZE = rf"(\d{{1,9}})({'|'.join(_SIZES)})"
_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_SHORTEST_SECRET = 4
"""A shorter value hides nothing, and blotting it out would spoil every message that happens to contain it."""


# The models: what strobe.yml may say.


def parse_duration(text: object) -> timedelta:
    """`7d`, `12h`, `5m`, `5s` or `500ms`."""
    found = re.fullmatch(_DURATION, text, re.ASCII) if isinstance(text, str) else None
    try:
        return timedelta(**{_UNITS[found.group(2)]: int(found.group(1))}) if found else _refuse_duration()
    except OverflowError:
        return _refuse_duration()


def _refuse_duration() -> timedelta:
    raise PydanticCustomError("duration", "must be a duration: a whole number and a unit, as 7d, 12h, 5m, 5s or 500ms")


def parse_size(text: object) -> int:
    """`512MB`, `10GB`, …, as PostgreSQL counts: in bytes, by powers of 1024."""
    found = re.fullmatch(_SIZE, text, re.ASCII) if isinstance(text, str) else None
    if not found:
        raise PydanticCustomError("size", "must be a size: a whole number and a unit, as 512MB, 10GB or 1TB")
    return int(found.group(1)) * int(1024 ** (_SIZES.index(found.group(2)) + 1))


def _no_address(text: str) -> str:
    if "://" in text:
        raise PydanticCustomError("path", "must be a path on a local or mounted file system, not an address")
    return text


Duration = Annotated[
    timedelta, BeforeValidator(parse_duration), WithJsonSchema({"type": "string", "pattern": f"^{_DURATION}$"})
]
Size = Annotated[int, BeforeValidator(parse_size), WithJsonSchema({"type": "string", "pattern": f"^{_SIZE}$"})]
Name = Annotated[str, StringConstraints(pattern=f"^{_NAME}$")]
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
    limits: Limits = Limits()
    slot: Slot = Slot()


class MariadbSource(_Model):
    """A database of a server of MariaDB 10.6, MySQL 8.0, or newer."""

    type: Literal["mariadb"]
    dsn: Text = Field(description="mysql://user:password@host:port/database", repr=False)
    global_transactions: Text | None = Field(
        default=None, description="`table.column`: new values there name global transactions."
    )
    limits: Limits = Limits()


class DeltaSource(_Model):
    """A Delta table with its change data feed on."""

    type: Literal["delta"]
    path: FilePath
    relation: Text | None = Field(default=None, description="By default the name of the table's folder.")
    key: list[Text] = Field(default=[], description="Columns that identify a row; verified in every version.")


SourceConfig = SqliteSource | FilesSource | PostgresSource | MariadbSource | DeltaSource
_WITH_DSN = (PostgresSource, MariadbSource)


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
        description="How long changes may wait to share a commit.",
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


class Document(_Model):
    """What strobe.yml says."""

    model_config = ConfigDict(title="strobe.yml")

    version: Literal[1]
    project: Name = Field(description="Names what Strobe puts into sources, and labels metrics.")
    warehouse: FilePath = "./warehouse"
    retention: Duration = Field(
        default=timedelta(days=7), description="How far back readers can go.", json_schema_extra={"default": "7d"}
    )
    spark: dict[Text, Setting] = Field(default={}, description="Any Spark setting, passed through.")
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
class Project:
    """A project folder, read and checked. Paths are absolute, and every view has its SQL."""

    directory: Path
    name: str
    warehouse: Path
    retention: timedelta
    evaluate: Literal["auto", "spark", "driver"]
    order: Literal["source", "views"]
    views: dict[str, ViewConfig]
    sources: dict[str, SourceConfig] = field(repr=False)
    spark: dict[str, str] = field(repr=False)
    secrets: frozenset[str] = field(default=frozenset(), repr=False)

    def redact(self, text: str) -> str:
        """The text without any value that came in through `${…}`."""
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, "***")
        return text


def load(directory: Path) -> Project:
    """Read the project in a folder, or say in one `UserError` what is wrong with it."""
    directory = directory.resolve()
    source = YamlFile.read(directory / FILE)
    filled, secrets = _substitute(source, directory)
    document = _validate(source, filled)
    return Project(
        directory=directory,
        name=document.project,
        warehouse=_absolute(directory, document.warehouse),
        retention=document.retention,
        evaluate=document.evaluate,
        order=document.order,
        views=_views(source, document, directory),
        sources={
            name: config
            if isinstance(config, _WITH_DSN)
            else config.model_copy(update={"path": str(_absolute(directory, config.path))})
            for name, config in document.sources.items()
        },
        spark=dict(document.spark),
        secrets=frozenset(secret for secret in (*secrets, *_passwords(document)) if len(secret) >= _SHORTEST_SECRET),
    )


def _passwords(document: Document) -> Iterable[str]:
    """Parts of dsns that are secrets by themselves."""
    dsns = (config.dsn for config in document.sources.values() if isinstance(config, _WITH_DSN))
    return [found for dsn in dsns for found in _password(dsn)]


def _password(dsn: str) -> list[str]:
    in_url = re.findall(r"://[^/?#]*?:([^/?#]*)@", dsn) + re.findall(r"[?&]password=([^&]*)", dsn)
    in_keys = [a or b for a, b in re.findall(r"\bpassword\s*=\s*(?:'((?:[^'\\]|\\.)*)'|([^\s']+))", dsn)]
    found = [text for text in (in_url if "://" in dsn else in_keys) if text]
    return [*found, *(unquote(text) for text in found)]


def _absolute(directory: Path, path: str) -> Path:
    return Path(os.path.normpath(directory / Path(path).expanduser()))


# Secrets.


def _substitute(source: YamlFile, directory: Path) -> tuple[dict[str, Any], set[str]]:
    """The values with every `${…}` in sources and Spark settings replaced, and what they were replaced by."""
    secrets: set[str] = set()

    def fill(value: Any, path: NodePath) -> Any:
        if isinstance(value, dict):
            return {key: fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        return re.sub(r"\$\{([^}]*)\}", lambda found: secret(found.group(1), path), value)

    def secret(reference: str, path: NodePath) -> str:
        try:
            found = _look_up(reference, directory)
        except _MissingError as missing:
            raise mistake(missing.message, source.line(path), missing.fix) from None
        secrets.add(found)
        return found

    values = {key: fill(item, (key,)) if key in ("sources", "spark") else item for key, item in source.values.items()}
    return values, secrets


class _MissingError(Exception):
    def __init__(self, message: str, fix: str) -> None:
        self.message, self.fix = message, fix


def _look_up(reference: str, directory: Path) -> str:
    if reference.startswith("file:"):
        path = reference.removeprefix("file:")
        try:
            return _absolute(directory, path).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise _MissingError(
                f"the secret file {path} cannot be read: {reason}", f"Put the secret into {path}."
            ) from None
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", reference):
        raise _MissingError(
            f"${{{reference}}} names nothing", "Write ${NAME} for an environment variable or ${file:path}."
        )
    if reference not in os.environ:
        raise _MissingError(
            f"the environment variable {reference} is not set", f"Set {reference} before you start Strobe."
        )
    return os.environ[reference]


# Validation, and its errors in plain words.


def _validate(source: YamlFile, values: dict[str, Any]) -> Document:
    for section in ("spark", "views"):
        if section in values and values[section] is None:
            values[section] = {}
    _check_sources(source, values.get("sources"))
    _check_spark(source, values.get("spark"))
    views = values.get("views")
    if isinstance(views, dict):
        values["views"] = {name: {} if view is None else view for name, view in views.items()}
    try:
        document = Document.model_validate(values)
    except ValidationError as error:
        # The first in the file, but a misspelt key before the complaint that the right one is missing.
        details = error.errors(include_url=False, include_input=False)
        mistakes = [(detail["type"] == "missing", *_explain(source, detail)) for detail in details]
        raise min(mistakes, key=lambda each: each[:2])[2] from None
    if not document.retention:
        raise mistake("retention must be longer than nothing", source.line(("retention",)), "Write retention: 7d.")
    return document


def _check_sources(source: YamlFile, sources: Any) -> None:
    """What the models cannot say of sources: reserved names, formats by suffix, keys that repeat."""
    for name, config in sources.items() if isinstance(sources, dict) else ():
        path: NodePath = ("sources", name)
        if name == "views":
            fix = "`views.<name>` stands for views on views: give the source another name."
            raise mistake("views is reserved and cannot name a source", source.line(path), fix)
        if not isinstance(config, dict):
            continue
        if config.get("type") == "files":
            _check_files(source, path, config)
        if config.get("type") in ("files", "delta"):
            _check_key(source, path, config)
        if config.get("type") in ("postgres", "mariadb"):
            _check_dsn(source, path)


def _check_dsn(source: YamlFile, path: NodePath) -> None:
    """A password may come from outside only, where it is known to be a secret."""
    written = source.get((*path, "dsn"))
    if isinstance(written, str) and _password(re.sub(r"\$\{[^}]*\}", "", written)):
        fix = f"Write dsn: ${{{str(path[1]).upper()}_DSN}} and set that variable, or use ${{file:…}}."
        raise mistake("the dsn holds a password", source.line((*path, "dsn")), fix)


def _check_files(source: YamlFile, path: NodePath, config: dict[str, Any]) -> None:
    if "format" not in config and isinstance(config.get("path"), str):
        suffix = Path(config["path"]).suffix.lower()
        if suffix not in _FORMATS:
            fix = f"Add format: csv, jsonl or parquet to source {path[1]}."
            raise mistake("the path does not say which format the file has", source.line((*path, "path")), fix)
        config["format"] = _FORMATS[suffix]


def _check_key(source: YamlFile, path: NodePath, config: dict[str, Any]) -> None:
    key = config.get("key")
    if isinstance(key, list) and any(key.count(column) > 1 for column in key):
        raise mistake("key names a column twice", source.line((*path, "key")), "Name each column of the key once.")


def _check_spark(source: YamlFile, settings: Any) -> None:
    for name, value in settings.items() if isinstance(settings, dict) else ():
        line = source.line(("spark", name))
        if not name.startswith("spark."):
            raise mistake(f"{name} is not a Spark setting", line, "Spark's settings begin with `spark.`")
        if name == "spark.sql.session.timeZone" and value != "UTC":
            fix = "Remove the setting; convert with from_utc_timestamp where a view should show local time."
            raise mistake("Strobe always runs Spark in UTC", line, fix)


_KINDS = {
    "string_type": "text",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "model_attributes_type": "keys and values",
    "list_type": "a list, as [a, b]",
}


def _explain(source: YamlFile, detail: ErrorDetails) -> tuple[int, UserError]:
    """One of pydantic's findings as (line, error)."""
    is_key = detail["loc"][-1:] == ("[key]",)
    path = _path_in_file(detail["loc"][:-1] if is_key else detail["loc"])
    name = ".".join(map(str, path))
    kind, context, line = detail["type"], detail.get("ctx", {}), source.line(path)
    if kind == "extra_forbidden":
        known = _keys_at(source, path[:-1])
        message, fix = f"{name} is not a known key", _suggest(str(path[-1]), known)
    elif kind in ("missing", "union_tag_not_found"):
        wanted = f"{name}.type" if kind == "union_tag_not_found" else name
        message, fix = f"{wanted} is missing", f"Add {wanted.rpartition('.')[2]}."
    elif kind in ("literal_error", "union_tag_invalid"):
        inside = path if kind == "literal_error" else (*path, "type")
        line = source.line(inside)
        known = re.findall(r"'([^']*)'", str(context.get("expected") or context.get("expected_tags"))) or ["1"]
        message = f"{'.'.join(map(str, inside))} cannot be {_shown(source.get(inside))}"
        fix = _suggest(str(source.get(inside)), known)
    elif kind == "string_pattern_mismatch":
        shown = path[-1] if is_key else source.get(path)
        message = f"{shown} is not a name that Strobe takes"
        fix = "Names begin with a lower-case letter; lower-case letters, digits and _ follow."
    elif kind in _KINDS:
        message, fix = f"{name} must be {_KINDS[kind]}, not {_shown(source.get(path))}", "Put text in quotes."
        if kind != "string_type":
            fix = f"Write {_KINDS[kind]} there."
    elif kind in ("string_too_short", "too_short"):
        message, fix = f"{name} is empty", "Fill it in."
    else:
        message, fix = f"{name} {detail['msg']}", f"Change {name}."
    return line, mistake(message, line, fix)


def _path_in_file(loc: Iterable[str | int]) -> NodePath:
    """Where pydantic's location is in the file: it puts the kind of a source behind the source's name."""
    path = tuple(loc)
    return path[:2] + path[3:] if path[:1] == ("sources",) and len(path) > 2 else path


def _keys_at(source: YamlFile, path: NodePath) -> list[str]:
    models: dict[str, type[_Model]] = {
        "sqlite": SqliteSource,
        "files": FilesSource,
        "postgres": PostgresSource,
        "mariadb": MariadbSource,
        "delta": DeltaSource,
    }
    if path[:1] == ("sources",) and path[2:] == ("limits",):
        return list(Limits.model_fields)
    if path[:1] == ("sources",) and path[2:] == ("slot",):
        return list(Slot.model_fields)
    if path[:1] == ("views",):
        return list(ViewConfig.model_fields)
    if path[:1] == ("sources",):
        fields = models[source.get((*path, "type"))].model_fields
        return [field.alias or name for name, field in fields.items()]
    return list(Document.model_fields)


def _suggest(written: str, known: list[str]) -> str:
    close = difflib.get_close_matches(written, known, n=1)
    listed = ", ".join(known)
    return f"Did you mean {close[0]}? Possible here: {listed}." if close else f"Possible here: {listed}."


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return "keys and values" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=str, ensure_ascii=False)


# Views.


def _views(source: YamlFile, document: Document, directory: Path) -> dict[str, ViewConfig]:
    """The views of strobe.yml with their SQL, and then those that are only files, by name."""
    files = {file.stem: file for file in sorted((directory / "views").glob("*.sql")) if not file.name.startswith(".")}
    named = {_absolute(directory, view.file) for view in document.views.values() if view.file}
    views: dict[str, ViewConfig] = {}
    for name, view in document.views.items():
        line = source.line(("views", name))
        own = files.pop(name, None)
        if view.sql and view.file:
            raise mistake(f"view {name} has both sql and file", line, "Keep one of the two.")
        if own and (view.sql or view.file) and own not in named:
            raise mistake(f"view {name} is defined here and in views/{name}.sql", line, "Remove one of the two.")
        views[name] = _with_sql(name, view, own, directory, f"{FILE}: line {line}")
    for name, file in files.items():
        if file not in named:
            views[name] = _with_sql(name, ViewConfig(), file, directory, f"views/{file.name}")
    if not views:
        fix = "Add a view under `views:`, or a file views/<name>.sql."
        raise mistake("the project has no views", source.line(("views",)), fix)
    return views


def _with_sql(name: str, view: ViewConfig, own: Path | None, directory: Path, where: str) -> ViewConfig:
    if not re.fullmatch(_NAME, name):
        fix = "Names begin with a lower-case letter; lower-case letters, digits and _ follow: rename the file."
        raise UserError(f"{name} is not a name that a view can have", where=where, fix=fix)
    if view.sql:
        sql, file = view.sql, None
    elif view.file or own:
        file = view.file or f"views/{name}.sql"
        sql = _read_sql(_absolute(directory, file), file, where)
    else:
        fix = f"Add sql: or file: to it, or write views/{name}.sql."
        raise UserError(f"view {name} has no SQL", where=where, fix=fix)
    if not sql.strip():
        raise UserError(f"the SQL of view {name} is empty", where=file or where, fix="Write a SELECT statement.")
    return view.model_copy(update={"sql": sql, "file": file})


def _read_sql(path: Path, shown: str, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UserError(f"{shown} cannot be read: {reason}", where=where, fix="Name a file that holds SQL.") from None


if __name__ == "__main__":
    print(schema_text(), end="")
