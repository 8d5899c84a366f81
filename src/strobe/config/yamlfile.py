"""YAML as plain values that still know their lines, so that a mistake in `strobe.yml` can be pointed at."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from strobe.config.files import Unreadable, read_text
from strobe.errors import UserError

FILE = "strobe.yml"

NodePath = tuple[str | int, ...]
"""The keys and indexes that lead to a value."""

_BYTES = 512 * 1024
_MOST = 20_000
"""Values of a file. An alias counts with all that it repeats: a few lines can stand for millions of values."""
_DEEPEST = 20
_LONGEST = 100
"""Characters of a scalar that is not text."""
_TEXT = "tag:yaml.org,2002:str"


@dataclass(frozen=True)
class YamlFile:
    """The plain values of a YAML file, and the line on which each of them begins."""

    values: Any
    lines: dict[NodePath, int]

    @staticmethod
    def read(file: Path) -> YamlFile:
        try:
            text = read_text(file, _BYTES)
        except Unreadable as reason:
            if reason.missing:
                fix = "Run `strobe init` to make a project, or name its folder with --project."
                raise UserError(f"there is no {FILE} in {file.parent}", where=str(file), fix=fix) from None
            fix = "Put a project's configuration there; long SQL belongs into files under views."
            raise UserError(f"the file cannot be read: {reason}", where=str(file), fix=fix) from None
        try:
            return _Nodes(text).source()
        except yaml.YAMLError as error:
            mark = getattr(error, "problem_mark", None)
            problem = getattr(error, "problem", None) or str(error).splitlines()[0]
            raise mistake(
                f"this is not valid YAML: {problem}", mark.line + 1 if mark else 1, "Correct the syntax."
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


class _Loader(yaml.SafeLoader):
    """Composes nodes as far as a project file may have them."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes = self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self._nodes, self._depth = self._nodes + 1, self._depth + 1
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        if self._depth > _DEEPEST:
            raise mistake(f"this is nested more than {_DEEPEST} deep", line, "Nothing in a project file is so deep.")
        _check_number(self._nodes, line)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


def _check_number(values: int, line: int) -> None:
    if values > _MOST:
        fix = "Use fewer aliases, or make several projects."
        raise mistake(f"the file has more than {_MOST:,} values, aliases counted wherever they stand", line, fix)


class _Nodes:
    """Turns a YAML text into plain values and notes lines on the way."""

    def __init__(self, text: str) -> None:
        self._loader = _Loader(text)
        self._lines: dict[NodePath, int] = {}
        self._open: list[yaml.Node] = []
        self._number = 0

    def source(self) -> YamlFile:
        root = self._loader.get_single_node()
        if not isinstance(root, yaml.MappingNode):
            found = "is empty" if root is None else "does not hold keys and values"
            raise mistake(f"the file {found}", 1, "Begin with `version: 1`; `strobe init` writes an example.")
        return YamlFile(self._value(root, ()), self._lines)

    def _value(self, node: yaml.Node, path: NodePath) -> Any:
        self._lines.setdefault(path, node.start_mark.line + 1)
        self._number += 1
        _check_number(self._number, self._lines[path])
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
        return self._plain(node, self._lines[path])

    def _plain(self, node: yaml.ScalarNode, line: int) -> Any:
        """What YAML makes of a scalar: text, or a number, a truth value, a date."""
        if node.tag != _TEXT and len(node.value) > _LONGEST:
            raise mistake("this is too long for anything but text", line, "Put it in quotes if it is text.")
        try:
            return self._loader.construct_object(node)
        except yaml.YAMLError:
            raise
        except Exception:  # yaml fails with errors of all kinds on values that are not what their tags say
            raise mistake(f"{node.value} is not a valid value", line, "Put it in quotes if it is text.") from None

    def _list(self, node: Any, path: NodePath) -> list[Any]:
        return [self._value(item, (*path, index)) for index, item in enumerate(node.value)]

    def _mapping(self, node: yaml.MappingNode, path: NodePath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            key = self._plain(key_node, line) if isinstance(key_node, yaml.ScalarNode) else None
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
