"""`holdfast worker`: run an app's handlers until told to stop."""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from holdfast.bus.app import App, when_connected
from holdfast.bus.client import Bus
from holdfast.cli import logs
from holdfast.cli.options import ConfigFile, Json, LogFormat, MetricsPort, Urls, examples, flat
from holdfast.cli.output import say
from holdfast.model.errors import InvalidInput
from holdfast.wiring import configured, connect

log = logging.getLogger("holdfast.worker")

Target = Annotated[str, typer.Argument(metavar="MODULE:APP", help="Where the holdfast.App is.")]
PollOnly = Annotated[bool, typer.Option("--poll-only", help="Do not listen for wake-ups.")]
Idle = Annotated[str, typer.Option("--idle", help="The longest wait between two polls, at most 10s.")]
Grace = Annotated[str, typer.Option("--grace", help="How long running handlers get to finish.")]


def worker(
    target: Target,
    poll_only: PollOnly = False,
    idle: Idle = "1s",
    grace: Grace = "30s",
    metrics_port: MetricsPort = None,
    urls: Urls = None,
    config: ConfigFile = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run the handlers of an app. SIGTERM or Ctrl-C drains, a second one aborts.

    The module is looked up in the current folder first. Logs go to stderr, as JSON lines unless that
    is a terminal.
    """
    app = load(target)
    effective = configured(flat(urls), config)
    logs.configure(log_format or effective.log_format, as_json=as_json)
    options = {"listen": not poll_only, "idle": idle, "grace": grace}
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_serve(app, connect(config=effective), metrics_port, options))
        except asyncio.CancelledError:
            say("aborted: what ran was released and will run again")
            sys.stderr.flush()
            os._exit(1)  # the runner's end would wait for a thread in which a handler blocks


async def _serve(app: App, bus: Bus, metrics_port: int | None, options: dict[str, Any]) -> None:
    names = ", ".join(f"{handler.channel}/{handler.consumer}" for handler in app.handlers)
    with _metrics(bus, metrics_port):
        await when_connected(bus.partitions.open)
        async with bus:
            log.info("worker %s: %s", bus.name, names or "no handlers")
            await app.serve(bus, **options)
            log.info("worker %s: drained", bus.name)


@contextmanager
def _metrics(bus: Bus, port: int | None) -> Iterator[None]:
    """The worker's own counts, where they are wanted."""
    if port is None:
        yield
        return
    from holdfast.server.metrics import serve

    with serve(bus, port) as bound:
        log.info("metrics on http://127.0.0.1:%s/metrics", bound)
        yield


def load(target: str) -> App:
    """The app that `module:name` means."""
    found = find(target, "app; write MODULE:APP, as in shop.workers:app")
    if not isinstance(found, App):
        module, _, name = target.partition(":")
        raise InvalidInput(f"{name!r} in module {module!r} is {type(found).__name__}, not a holdfast.App")
    return found


def find(target: str, wanted: str) -> Any:
    """What `module:name` means; None where the module has no such name."""
    module, colon, name = target.partition(":")
    if not (module and colon and name):
        raise InvalidInput(f"{target!r} names no {wanted}")
    sys.path.insert(0, "")
    found: Any = _import(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def _import(module: str) -> object:
    try:
        return importlib.import_module(module)
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"there is no module {module!r} in this folder or on PYTHONPATH") from None
        say("".join(traceback.format_exception(error, limit=-3)).rstrip())
        raise InvalidInput(f"module {module!r} cannot be imported: see above") from None


def _loop_factory() -> Any:
    """uvloop's event loop where it is installed."""
    return importlib.import_module("uvloop").new_event_loop if find_spec("uvloop") else None


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples("holdfast worker shop.workers:app", "holdfast worker shop.workers:app --grace 2m --json")
    app.command(epilog=shown)(worker)
