"""The program: all commands, and how its errors end."""

from __future__ import annotations

import os
import signal
import sys
import threading
from importlib import import_module
from importlib.metadata import version
from typing import Annotated, NoReturn

import typer
from typer.models import CommandInfo

from holdfast.cli.output import say, write_line
from holdfast.config.layers import InvalidConfig
from holdfast.embedded import MissingWheelError, ServerError
from holdfast.model.errors import HoldfastError, InvalidInput, Unavailable

FAILED, INVALID, UNAVAILABLE = 1, 2, 3
# Names and their modules, in the order of the help page.
_COMMANDS = {
    "up": "up",
    "serve": "up",
    "demo": "demo.command",
    "publish": "publish",
    "subscribe": "subscribe",
    "worker": "worker",
    "sweep": "sweep",
    "reconcile": "reconcile",
    "trace": "reconcile",
    "query": "warehouse",
    "replay": "archive",
    "compact": "compact",
    "check": "check",
    "migrate": "check",
}
_GROUPS = {
    "archive": "archive",
    "ingest": "ingest",
    "failed": "failed",
    "warehouse": "warehouse",
    "channels": "channels",
    "consumers": "consumers",
    "cursors": "consumers:cursors",
    "schedules": "schedules",
    "jobs": "jobs",
    "dlq": "dlq",
    "tokens": "tokens",
    "config": "config",
    "chaos": "chaos",
}
_MODULES = {
    "postgres": ("psycopg",),
    "redis": ("redis",),
    "nats": ("nats",),
    "spark": ("deltalake", "duckdb", "isal", "jsonschema", "obstore", "pandas", "pyarrow", "pyspark"),
    "server": ("fastapi", "jinja2", "prometheus_client", "python_multipart", "starlette", "uvicorn"),
}


def main(arguments: list[str] | None = None) -> None:
    """Run a command. An error of Holdfast's becomes one line and an exit code."""
    os.umask(os.umask(0o077) | 0o077)  # what commands write is their user's alone: events, logs, tokens
    _unwind_on_sigterm()
    given = sys.argv[1:] if arguments is None else arguments
    try:
        program(*given[:1])(given, prog_name="holdfast")
    except (HoldfastError, ServerError, MissingWheelError) as error:
        for message in error.problems if isinstance(error, InvalidConfig) else [error]:
            say(f"holdfast: {' '.join(str(message).split())}")
        sys.exit(exit_code(error))
    except ModuleNotFoundError as error:
        missing = extra_for(error)
        if missing is None:
            raise
        say(f"holdfast: {missing}")
        sys.exit(FAILED)


def program(wanted: str = "") -> typer.Typer:
    """The program with all its commands, or only with the wanted one if there is such: loading the others
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
    for module in dict.fromkeys(module for name, module in _COMMANDS.items() if not known or name in known):
        import_module(f"holdfast.cli.{module}").register(app)
    if known:  # a module may have several
        app.registered_commands = [each for each in app.registered_commands if _name(each) in known]
    for name, group in _GROUPS.items():
        if not known or name in known:
            module, _, attribute = group.partition(":")
            app.add_typer(getattr(import_module(f"holdfast.cli.{module}"), attribute or "app"), name=name)
    return app


def _name(command: CommandInfo) -> str:
    return command.name or str(getattr(command.callback, "__name__", ""))


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


def exit_code(error: Exception) -> int:
    """The exit code of a command that failed."""
    match error:
        case InvalidInput():
            return INVALID
        case Unavailable() | ServerError() | MissingWheelError():
            return UNAVAILABLE
        case _:
            return FAILED


def _unwind_on_sigterm() -> None:
    """SIGTERM ends a command as Ctrl-C does: it frees its locks and says how far it came. A second one kills.

    Commands that drain take the signal over for as long as they run.
    """

    def unwind(number: int, _: object) -> NoReturn:
        signal.signal(number, signal.SIG_DFL)
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, unwind)


def extra_for(error: ModuleNotFoundError) -> str | None:
    """What to install for a module that was not found; None where no extra of ours brings it."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in _MODULES.items():
        if module in modules:
            return f"this needs {module}, which is not installed: pip install 'holdfast[{extra}]'"
    return None
