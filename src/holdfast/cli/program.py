"""The program: all commands, and how its errors end."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from typing import Annotated

import typer

from holdfast.cli import (
    archive,
    channels,
    check,
    compact,
    config,
    consumers,
    cursors,
    failed,
    ingest,
    jobs,
    migrate,
    publish,
    reconcile,
    replay,
    serve,
    subscribe,
    sweep,
    tokens,
    trace,
    up,
    warehouse,
    worker,
)
from holdfast.cli.chaos import program as chaos
from holdfast.cli.demo import command as demo
from holdfast.cli.dlq import program as dlq
from holdfast.cli.extras import advice
from holdfast.cli.output import say, write_line
from holdfast.cli.stopping import unwind_on_sigterm
from holdfast.config.problems import InvalidConfig
from holdfast.embedded import MissingWheelError, ServerError
from holdfast.model.errors import HoldfastError, InvalidInput, Unavailable

FAILED, INVALID, UNAVAILABLE = 1, 2, 3

# Plain help pages: they can be piped, searched and embedded in the documentation.
app = typer.Typer(
    name="holdfast",
    help="Durable event delivery: publish, work, look, repair.",
    epilog="Exit codes: 0 done, 1 failed or not found, 2 wrong input, 3 the store did not answer.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for module in (
    up,
    serve,
    demo,
    publish,
    subscribe,
    worker,
    sweep,
    reconcile,
    trace,
    replay,
    compact,
    check,
    migrate,
):
    module.register(app)
for name, group in (
    ("archive", archive.app),
    ("ingest", ingest.app),
    ("failed", failed.app),
    ("warehouse", warehouse.app),
    ("channels", channels.app),
    ("consumers", consumers.app),
    ("cursors", cursors.app),
    ("jobs", jobs.app),
    ("dlq", dlq.app),
    ("tokens", tokens.app),
    ("config", config.app),
    ("chaos", chaos.app),
):
    app.add_typer(group, name=name)


def _version(wanted: bool) -> None:
    if wanted:
        write_line(f"holdfast {version('holdfast')}")
        raise typer.Exit


@app.callback()
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
    try:
        app(arguments, prog_name="holdfast")
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
