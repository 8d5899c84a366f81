"""YAML as plain values that still know their lines, so that a mistake in `strobe.yml` can be pointed at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from strobe.errors import UserError

FILE = "strobe.yml"

NodePath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""


@dataclass(frozen=True)
class YamlFile:
    """The plain values of a YAML file, and the line on which each of them begins."""

    values: Any
    lines: dict[NodePath, int]

    @staticmethod
    def read(file: Path) -> YamlFile:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except FileNotFoundError:
            fix = "Run `strobe init` to make a project, or name its folder with --project."
            raise UserError(f"there is no {FILE} in {file.parent}", where=str(file), fix=fix) from None
        except (OSError, UnicodeDecodeError) as error:
            reason = "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror
            raise UserError(f"the file cannot be read: {reason}", where=str(file), fix="Make it readable.") from None
        try:
            return _Nodes(text).source()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise mistake(
                f"this is not valid YAML: {problem}", mark.line + 1 if mark else 1, "Mend the syntax."
            ) from None

    def line(self, path: NodePath) -> int:
        """The line of a value, or of the nearest thing around it that is in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def get(self, path: NodePath) -> Any:
        """The value as it was written, None where there is none."""
        value = self.values
        for step in path:
            known = range(len(value)) if isinstance(value, list) else value if isinstance(value, dict) else ()
            if step not in known:
                return None
            value = value[step]
        return value


class _Nodes:
    """Turns a YAML text into plain values and notes lines on the way."""

    def __init__(self, text: str) -> None:
        self._loader = yaml.SafeLoader(text)
        self._lines: dict[NodePath, int] = {}
        self._open: list[yaml.Node] = []

    def source(self) -> YamlFile:
        root = self._loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            found = "is empty" if root is None else "does not hold keys and values"
            raise mistake(f"the file {found}", 1, "Begin with `version: 1`; `strobe init` writes an example.")
        return YamlFile(self._value(root, ()), self._lines)

    def _value(self, node: yaml.Node, path: NodePath) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        if any(node is outer for outer in self._open):
            raise mistake("an alias stands inside what it repeats", self._lines[path], "Write the value out.")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, path)
        self._open.append(node)
        value = self._mapping(node, path) if isinstance(node, yaml.MappingNode) else self._list(node, path)
        self._open.pop()
        return value

    def _scalar(self, node: yaml.ScalarNode, path: NodePath) -> Any:
        if path[:1] == ("spark",) and not node.tag.endswith(":null"):
            return node.value  # a setting is passed on as written: 1e3 and 0.10 included
        try:
            return self._loader.construct_object(node)
        except ValueError:
            raise mistake(
                f"{node.value} is not a valid value", self._lines[path], "Put it in quotes if it is text."
            ) from None

    def _list(self, node: Any, path: NodePath) -> list[Any]:
        return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: NodePath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._loader.construct_object(key_node) if isinstance(key_node, yaml.ScalarNode) else None
            if not isinstance(key, str):
                raise mistake("this key is not text", line, "Put the key in quotes if it is a name.")
            place = (*path, key)
            if key in values:
                first = self._lines[place]
                raise mistake(f"{key} is there twice, first on line {first}", line, "Keep one of the two.")
            self._lines[place] = line
            values[key] = self._value(value_node, place)
        return values


def mistake(message: str, line: int, fix: str) -> UserError:
    return UserError(message, where=f"{FILE}: line {line}", fix=fix)
