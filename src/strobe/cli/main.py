"""The command `strobe`: its commands put together, and what becomes of errors.

No traceback reaches a user. What Strobe raises on purpose becomes a message (or a JSON document) and an exit code;
anything else is one line that says so, with the traceback in a file.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperCommand, TyperGroup

from strobe import __version__
from strobe.cli.commands.algorithms import algorithms
from strobe.cli.commands.apply import apply
from strobe.cli.commands.audit import audit
from strobe.cli.commands.check import check
from strobe.cli.commands.demo import demo
from strobe.cli.commands.explain import explain
from strobe.cli.commands.fold import fold
from strobe.cli.commands.history import history
from strobe.cli.commands.init import init
from strobe.cli.commands.pin import pin
from strobe.cli.commands.plan import plan
from strobe.cli.commands.prepare import prepare
from strobe.cli.commands.rebuild import rebuild
from strobe.cli.commands.run import run
from strobe.cli.commands.simulate import simulate
from strobe.cli.commands.spectrum import spectrum
from strobe.cli.commands.sql import sql
from strobe.cli.commands.status import status
from strobe.cli.commands.wait import wait
from strobe.cli.terminal import RedactedStream, Terminal
from strobe.errors import StrobeError, UserError
from strobe.redaction import SHOW_VALUES, show_values


class _Shown:
    """Switches take no value, and help offers none for them."""

    def get_params(self, ctx: Any) -> list[Any]:
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            if getattr(each, "is_flag", False):
                each.metavar = ""
        return found


class _Command(_Shown, TyperCommand):
    pass


class _Group(_Shown, TyperGroup):
    pass


app = typer.Typer(
    name="strobe",
    cls=_Group,
    help="Joined views of several live databases, kept fresh and never wrong, in Delta tables.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

for command in (
    *(init, demo),
    *(check, plan, status, history, explain, algorithms),
    *(prepare, apply, run, wait, fold, rebuild, audit),
    *(sql, pin),
    *(simulate, spectrum),
):
    app.command(command.__name__, cls=_Command)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"strobe {__version__}")
        raise typer.Exit


@app.callback()
def _strobe(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say which one.")
    ] = False,
) -> None:
    """Joined views of several live databases, kept fresh and never wrong, in Delta tables."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    terminal = Terminal(as_json="--json" in given)
    try:
        code = _run(given, terminal)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        terminal.close()


def entry() -> None:
    """The process `strobe`. It ends without Python's finalization, in which threads that read Delta without a JVM (a
    `pyarrow` dataset over a `deltalake` table) may abort it after everything was done. What libraries write to standard
    error by themselves (warnings, the traceback of a thread) has no secrets in it either."""
    show_values(os.environ.get(SHOW_VALUES) == "1")
    sys.stderr = cast(TextIO, RedactedStream(sys.stderr))
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _run(given: list[str], terminal: Terminal) -> int:
    try:
        found = typer.main.get_command(app).main(given, prog_name="strobe", standalone_mode=False, obj=terminal)
        return found if isinstance(found, int) else 0
    except StrobeError as error:
        terminal.fail(error)
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return 130
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # the command line's library would make it a failure
            raise end.__context__ from None
        raise
    except Exception as error:
        if hasattr(error, "format_message"):
            return _misused(error, terminal)
        terminal.fail_unexpectedly(error)
        return 1


def _misused(error: Any, terminal: Terminal) -> int:
    """The command line itself is wrong: an unknown command or option, a missing argument."""
    context = getattr(error, "ctx", None)
    message = error.format_message()
    if not message or type(error).__name__ == "NoArgsIsHelpError":
        print(message)
        return 2
    path = context.command_path if context else "strobe"
    terminal.fail(UserError(message, fix=f"`{path} --help` lists what there is."))
    return 2
