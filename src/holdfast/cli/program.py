"""The program: all commands, and how its errors end."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.cli.extras import advice
from holdfast.cli.output import say, write_line
from holdfast.cli.stopping import unwind_on_sigterm
from holdfast.config.problems import InvalidConfig
from holdfast.embedded import MissingWheelError, ServerError
from holdfast.model.errors import HoldfastError, InvalidInput, Unavailable

FAILED, INVALID, UNAVAILABLE = 1, 2, 3

# Names and their modules, in the order of the help page.
_COMMANDS = {
    "up": "up",
    "serve": "serve",
    "demo": "demo.command",
    "publish": "publish",
    "subscribe": "subscribe",
    "worker": "worker",
    "sweep": "sweep",
    "reconcile": "reconcile",
    "trace": "trace",
    "query": "query",
    "replay": "replay",
    "compact": "compact",
    "check": "check",
    "migrate": "migrate",
}
_GROUPS = {
    "archive": "archive",
    "ingest": "ingest",
    "failed": "failed",
    "warehouse": "warehouse",
    "channels": "channels",
    "consumers": "consumers",
    "cursors": "cursors",
    "jobs": "jobs",
    "dlq": "dlq.program",
    "tokens": "tokens",
    "config": "config",
    "chaos": "chaos.program",
}


def program(wanted: str = "") -> typer.Typer:
    """The program with all its commands, or only with the wanted one if there is such: to load the others
    takes longer than most commands do."""
    # Plain help pages: they can be piped, searched and embedded in the documentation.
    app = typer.Typer(
        name="holdfast",
        help="Durable event delivery: publish, work, look, repair.",
        epilog="Exit codes: 0 done, 1 failed or not found, 2 wrong input, 3 the store did not answer, "
        "4 done, and something is missing.",
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_options)
    known = {wanted} & (_COMMANDS.keys() | _GROUPS.keys())
    for name, module in _COMMANDS.items():
        if not known or name in known:
            import_module(f"holdfast.cli.{module}").register(app)
    for name, module in _GROUPS.items():
        if not known or name in known:
            app.add_typer(import_module(f"holdfast.cli.{module}").app, name=name)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        write_line(f"holdfast {version('holdfast')}")
        raise typer.Exit


def _options(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command. An error of Holdfast's becomes one line and an exit code."""
    os.umask(os.umask(0o077) | 0o077)  # what commands write is their user's alone: events, logs, tokens
    unwind_on_sigterm()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        program(*given[:1])(given, prog_name="holdfast")
    except (HoldfastError, ServerError, MissingWheelError) as error:
        for message in error.problems if isinstance(error, InvalidConfig) else [error]:
            say(f"holdfast: {' '.join(str(message).split())}")
        sys.exit(exit_code(error))
    except ModuleNotFoundError as error:
        missing = advice(error)
        if missing is None:
            raise
        say(f"holdfast: {missing}")
        sys.exit(FAILED)


def exit_code(error: Exception) -> int:
    """What a failed command answers to its shell."""
    match error:
        case InvalidInput():
            return INVALID
        case Unavailable() | ServerError() | MissingWheelError():
            return UNAVAILABLE
        case _:
            return FAILED
