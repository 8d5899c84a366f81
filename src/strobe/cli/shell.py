"""The interactive shell of `strobe sql`: statements end with `;`, commands begin with a backslash.

Works over ssh and in a pipe: lines come from Python's own line editor, with history and completion where there is a
terminal.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from strobe.api import parse_at
from strobe.cli.results import Format, write
from strobe.client.query import Queries
from strobe.errors import StrobeError, UserError
from strobe.redaction import printable

HELP = """\
\\d             the views
\\d VIEW        the columns of a view
\\at COMMIT     read the views at a commit or time; \\at now for the newest commit
\\format NAME   table, csv, json or jsonl
\\limit N       at most so many rows; \\limit all for all of them
\\q             leave (Ctrl-D too)
Anything else is SQL and ends with ;"""

_WORDS = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "LIMIT", "JOIN", "LEFT JOIN", "ON", "AND", "OR", "AS"),
    *("DISTINCT", "COUNT(*)", "HAVING", "WITH", "UNION ALL", "BETWEEN", "IS NULL", "IS NOT NULL", "DESC"),
)


class Shell:
    def __init__(
        self,
        queries: Queries,
        out: IO[str],
        format_: Format,
        at: int | datetime | None,
        limit: int | None,
        fail: Callable[[StrobeError], None],
    ) -> None:
        self._queries, self._out, self._fail = queries, out, fail
        self._format, self._at, self._limit = format_, at, limit

    def run(self) -> None:
        """Until the input ends."""
        terminal = sys.stdin.isatty()
        if terminal:
            print("Statements end with ;   \\? shows the commands, \\q leaves.", file=sys.stderr)
        with _line_editor(self._words) if terminal else _nothing():
            for statement in _statements(terminal):
                if statement in ("\\q", "exit", "quit"):
                    return
                try:
                    self._carry_out(statement)
                except StrobeError as error:
                    self._fail(error)
                except KeyboardInterrupt:
                    self._queries.cancel()
                    print("cancelled", file=sys.stderr)

    def _carry_out(self, statement: str) -> None:
        if not statement.startswith("\\"):
            self._show(statement)
            return
        command, _, argument = statement.partition(" ")
        argument = argument.strip()
        if command == "\\d":
            self._describe(argument)
        elif command == "\\at":
            self._at = None if argument in ("", "now") else parse_at(argument)
        elif command == "\\limit" and (argument == "all" or argument.isdecimal()):
            self._limit = None if argument == "all" else int(argument)
        elif command == "\\format" and argument in _FORMATS:
            self._format = Format(argument)
        elif command == "\\?":
            print(HELP, file=self._out)
        else:
            raise UserError(f"unknown command {statement}", fix="\\? shows the commands.")
        self._out.flush()

    def _show(self, statement: str) -> None:
        result = self._queries.ask(statement, self._at, self._limit)
        count = write(result, self._format, self._out, _no_bytes)
        if self._format is Format.table:
            print(f"{count} row{'' if count == 1 else 's'} at commit {result.commit}\n", file=self._out)
        self._out.flush()

    def _describe(self, view: str) -> None:
        views = self._queries.views()
        if not view:
            print("\n".join(map(printable, sorted(views))), file=self._out)
        elif view in views:
            print("\n".join(printable(f"{column.name}  {column.type}") for column in views[view]), file=self._out)
        else:
            raise UserError(f"there is no view {view!r}", fix=f"The views are {', '.join(sorted(views))}.")

    def _words(self) -> Sequence[str]:
        views = self._queries.views()
        return [*views, *(column.name for columns in views.values() for column in columns), *_WORDS]


_FORMATS = [each.value for each in Format if each is not Format.parquet]


def _no_bytes() -> IO[bytes]:
    raise UserError("Parquet is not text", fix="Use `strobe sql --format parquet --output FILE`.")


def _statements(terminal: bool) -> Iterator[str]:
    """Commands, a line each, and SQL up to the `;` at the end of a line, or to the end of the input."""
    open_: list[str] = []
    while True:
        try:
            line = input(("strobe> " if not open_ else "     -> ") if terminal else "")
        except EOFError:
            if terminal:
                print(file=sys.stderr)
            break
        except KeyboardInterrupt:
            open_.clear()
            print(file=sys.stderr)
            continue
        if not open_ and line.lstrip().startswith("\\"):
            yield line.strip()
        elif not open_ and line.strip().rstrip(";") in ("exit", "quit", ""):
            if line.strip().rstrip(";"):
                yield line.strip().rstrip(";")
        elif line.rstrip().endswith(";"):
            yield "\n".join([*open_, line.rstrip().rstrip(";")])
            open_.clear()
        else:
            open_.append(line)
    if "".join(open_).strip():
        yield "\n".join(open_)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _line_editor(words: Callable[[], Sequence[str]]) -> Iterator[None]:
    """History in this user's own file, and completion of views, columns and keywords."""
    import readline

    history = Path(os.environ.get("XDG_STATE_HOME", Path.home() / ".local/state")) / "strobe/sql_history"
    with suppress(OSError):
        history.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        readline.read_history_file(history)

    def complete(begun: str, number: int) -> str | None:
        found = sorted({word for word in words() if word.lower().startswith(begun.lower())})
        return found[number] if number < len(found) else None

    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n,()=<>;.")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(None)
        with suppress(OSError):
            old = os.umask(0o077)
            try:
                readline.write_history_file(history)
            finally:
                os.umask(old)
