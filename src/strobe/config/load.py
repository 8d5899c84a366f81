"""Reads a project folder: `strobe.yml` and `views/*.sql`.

Reading goes in steps, each of which knows where it is in the file: text to plain values with their lines; `${…}`
replaced in sources and Spark settings; values to models; models to a `Project`. Whatever is wrong ends in one
`UserError` that names the line and what to write instead. Messages quote the file as it was written, never a value that
came in through `${…}`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from strobe import redaction
from strobe.config import dsn
from strobe.config.files import Unreadable, read_text
from strobe.config.model import (
    LONGEST_NAME,
    NAME_PATTERN,
    WITH_DSN,
    DeltaSource,
    Document,
    FilesSource,
    Limits,
    MariadbSource,
    Missing,
    PostgresSource,
    Project,
    Slot,
    SqliteSource,
    ViewConfig,
    _Model,
    can_be_a_path,
)
from strobe.config.references import Allowed, MissingError, References
from strobe.config.yamlfile import FILE, NodePath, YamlFile, mistake
from strobe.errors import UserError, suggestion

_LONGEST_SQL = 256 * 1024
_MOST_SQL = 512 * 1024
"""Characters of SQL in all views of a project; each is read by parsers that take their time."""
_FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_UMASK = "spark.hadoop.fs.permissions.umask-mode"


def load_project(directory: Path, *, offline: bool = False) -> Project:
    """Read the project in a folder, or say in one `UserError` what is wrong with it.

    `offline` reads nothing outside the folder: `${…}` stays as it is written, and a view's file has to be inside.
    """
    directory = directory.resolve()
    if offline:
        _check_inside(directory / FILE, directory, FILE, str(directory))
    source = YamlFile.read(directory / FILE)
    filled, missing = (dict(source.values), Missing()) if offline else _substitute(source, directory)
    document = _validate(source, filled)
    if not offline and not missing.sources:
        _check_dsns(source, document)
    redaction.learn((), [*document.sources, *document.views])
    return Project(
        directory=directory,
        name=document.project,
        warehouse=_absolute(directory, document.warehouse),
        warehouse_mode=document.warehouse_mode,
        retention=document.retention,
        evaluate=document.evaluate,
        order=document.order,
        views=_views(source, document, directory, offline),
        sources={
            name: config
            if isinstance(config, WITH_DSN)
            else config.model_copy(update={"path": str(_absolute(directory, config.path))})
            for name, config in document.sources.items()
        },
        spark_settings=dict(document.spark),
        missing=missing,
        audit=document.audit,
        publish=document.publish,
    )


def warehouse_alone(warehouse: Path, name: str) -> Project:
    """A project of which only the warehouse is known: for reading it where the project's folder is not."""
    return Project(
        directory=Path.cwd(),
        name=name,
        warehouse=warehouse.absolute(),
        warehouse_mode="private",
        retention=timedelta(),
        evaluate="auto",
        order="source",
        views={},
        sources={},
        spark_settings={},
    )


def _absolute(directory: Path, path: str) -> Path:
    if not can_be_a_path(path):
        raise UserError(f"{path} cannot be the name of a file", where=FILE, fix="Name a file.")
    try:
        return Path(os.path.normpath(directory / Path(path).expanduser()))
    except RuntimeError:
        raise UserError(f"the path {path} names a user who is not there", where=FILE, fix="Write it out.") from None


def _check_inside(file: Path, directory: Path, shown: str, where: str) -> None:
    if not Path(os.path.realpath(file)).is_relative_to(directory):
        fix = "Without --offline it is read. If you trust this project, check it so."
        raise UserError(f"{shown} leads out of the project's folder", where=where, fix=fix)


# Secrets.


def _substitute(source: YamlFile, directory: Path) -> tuple[dict[str, Any], Missing]:
    """The values with every `${…}` in sources and Spark settings replaced; these are never shown. What cannot be
    replaced stays, and is missing to whoever needs it: readers of the views need no source."""
    secrets: set[str] = set()
    missing: dict[str, list[UserError]] = {"sources": [], "spark": []}

    def fill(value: Any, path: NodePath) -> Any:
        if isinstance(value, dict):
            return {key: fill(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, list):
            return [fill(item, (*path, index)) for index, item in enumerate(value)]
        if not isinstance(value, str):
            return value
        filled = re.sub(r"\$\{([^}]*)\}", lambda found: secret(found.group(1), path), value)
        if filled != value:
            secrets.update(dsn.secrets(filled))
        return filled

    def secret(reference: str, path: NodePath) -> str:
        try:
            found = references().value(reference)
        except MissingError as error:
            missing[str(path[0])].append(mistake(error.message, source.line(path), error.fix))
            return f"${{{reference}}}"
        secrets.add(found)
        return found

    @cache
    def references() -> References:
        return References(directory, Allowed.here())

    values = {key: fill(item, (key,)) if key in missing else item for key, item in source.values.items()}
    redaction.learn(secrets)  # whatever is wrong further down must not show them
    return values, Missing(tuple(missing["sources"]), tuple(missing["spark"]))


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
        if config.get("type") in ("postgres", "mariadb", "mysql"):
            _check_dsn(source, path)


def _check_dsn(source: YamlFile, path: NodePath) -> None:
    """A password may come from outside only, where it is known to be a secret."""
    written = source.get((*path, "dsn"))
    if isinstance(written, str) and dsn.passwords(re.sub(r"\$\{[^}]*\}", "", written)):
        fix = f"Write dsn: ${{{str(path[1]).upper()}_DSN}} and set that variable, or use ${{file:…}}."
        raise mistake("the dsn holds a password", source.line((*path, "dsn")), fix)


def _check_dsns(source: YamlFile, document: Document) -> None:
    """A password with signs that mean something in a DSN would be cut in two, and its parts taken for a host."""
    for name, config in document.sources.items():
        problem = dsn.ambiguity(config.dsn) if isinstance(config, WITH_DSN) else None
        if problem:
            message, fix = problem
            raise mistake(f"the dsn of source {name} {message}", source.line(("sources", name, "dsn")), fix)


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
        if name == "insecure":
            if value not in ("true", "false"):
                raise mistake("insecure must be true or false", line, "Write insecure: true.")
        elif name == _UMASK:
            raise mistake(f"{name} follows from warehouse_mode", line, "Set warehouse_mode: private, group or all.")
        elif not name.startswith("spark."):
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
        message, fix = f"{name} is not a known key", suggestion(str(path[-1]), known, "Possible here:")
    elif kind in ("missing", "union_tag_not_found"):
        wanted = f"{name}.type" if kind == "union_tag_not_found" else name
        message, fix = f"{wanted} is missing", f"Add {wanted.rpartition('.')[2]}."
    elif kind in ("literal_error", "union_tag_invalid"):
        inside = path if kind == "literal_error" else (*path, "type")
        line = source.line(inside)
        known = re.findall(r"'([^']*)'", str(context.get("expected") or context.get("expected_tags"))) or ["1"]
        message = f"{'.'.join(map(str, inside))} cannot be {_shown(source.get(inside))}"
        fix = suggestion(str(source.get(inside)), known, "Possible here:")
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
        "mysql": MariadbSource,
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


def _shown(value: Any) -> str:
    if value is None:
        return "empty"
    if isinstance(value, dict | list):
        return "keys and values" if isinstance(value, dict) else "a list"
    return json.dumps(value, default=str, ensure_ascii=False)


# Views.


def _views(source: YamlFile, document: Document, directory: Path, offline: bool) -> dict[str, ViewConfig]:
    """The views of strobe.yml with their SQL, and then those that are only files, by name."""
    folder = directory / "views"
    if offline:
        _check_inside(folder, directory, "views", str(directory))
    files = {file.stem: file for file in sorted(folder.glob("*.sql")) if not file.name.startswith(".")}
    named = {_absolute(directory, view.file) for view in document.views.values() if view.file}
    views: dict[str, ViewConfig] = {}
    for name, view in document.views.items():
        line = source.line(("views", name))
        own = files.pop(name, None)
        if view.sql and view.file:
            raise mistake(f"view {name} has both sql and file", line, "Keep one of the two.")
        if own and (view.sql or view.file) and own not in named:
            raise mistake(f"view {name} is defined here and in views/{name}.sql", line, "Remove one of the two.")
        views[name] = _with_sql(name, view, own, directory, f"{FILE}: line {line}", offline)
    for name, file in files.items():
        if file not in named:
            views[name] = _with_sql(name, ViewConfig(), file, directory, f"views/{file.name}", offline)
    if not views:
        fix = "Add a view under `views:`, or a file views/<name>.sql."
        raise mistake("the project has no views", source.line(("views",)), fix)
    if sum(len(view.sql) for view in views.values()) > _MOST_SQL:
        fix = "Make several projects of it."
        raise mistake(f"the views have more than {_MOST_SQL:,} characters of SQL", source.line(("views",)), fix)
    return views


def _with_sql(name: str, view: ViewConfig, own: Path | None, directory: Path, where: str, offline: bool) -> ViewConfig:
    if not re.fullmatch(NAME_PATTERN, name) or len(name) > LONGEST_NAME:
        fix = "Names begin with a lower-case letter; lower-case letters, digits and _ follow: rename the file."
        raise UserError(f"{name} is not a name that a view can have", where=where, fix=fix)
    if view.sql:
        sql, file = view.sql, None
    elif view.file or own:
        file = view.file or f"views/{name}.sql"
        path = _absolute(directory, file)
        if offline:
            _check_inside(path, directory, file, where)
        sql = _read_sql(path, file, where)
    else:
        fix = f"Add sql: or file: to it, or write views/{name}.sql."
        raise UserError(f"view {name} has no SQL", where=where, fix=fix)
    if not sql.strip():
        raise UserError(f"the SQL of view {name} is empty", where=file or where, fix="Write a SELECT statement.")
    return view.model_copy(update={"sql": sql, "file": file})


def _read_sql(path: Path, shown: str, where: str) -> str:
    try:
        return read_text(path, _LONGEST_SQL)
    except Unreadable as problem:
        fix = "Name a file that holds SQL."
        raise UserError(f"{shown} cannot be read: {problem}", where=where, fix=fix) from None
