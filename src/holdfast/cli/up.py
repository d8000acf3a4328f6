"""`holdfast up` and `holdfast serve`: everything with one command, or HTTP alone."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn
from urllib.parse import urlsplit

import typer

from holdfast.cli import logs
from holdfast.cli.options import ConfigFile, Form, Json, LogFormat, Urls, examples, flat
from holdfast.cli.output import say
from holdfast.cli.status_lines import at_terminal, show_changes, status_lines
from holdfast.wiring import connect, home

if TYPE_CHECKING:  # the web framework takes longer to import than most commands to run
    from holdfast.bus.client import Bus
    from holdfast.config.config import Config
    from holdfast.server.app import Choice
    from holdfast.server.supervisor import Service, Supervisor

Host = Annotated[str | None, typer.Option(help="Address of the HTTP server.  [default: 127.0.0.1]")]
Port = Annotated[int | None, typer.Option(help="Its port; 0 takes a free one.  [default: 8420]")]
Logs = Annotated[
    Path | None,
    typer.Option(
        "--log-folder",
        metavar="FOLDER",
        help="Write logs here. Default: .holdfast/logs at a terminal, else stderr.",
    ),
]
NoHttp = Annotated[bool, typer.Option("--no-http", help="Serve no HTTP.")]
NoSweeper = Annotated[bool, typer.Option("--no-sweeper", help="Do not sweep.")]
NoArchiver = Annotated[bool, typer.Option("--no-archiver", help="Do not archive.")]
NoIngest = Annotated[bool, typer.Option("--no-ingest", help="Do not fill the warehouse.")]
Demo = Annotated[bool, typer.Option("--demo", help="Add a small shop that publishes, works and fails.")]


def up(
    demo: Demo = False,
    host: Host = None,
    port: Port = None,
    no_http: NoHttp = False,
    no_sweeper: NoSweeper = False,
    no_archiver: NoArchiver = False,
    no_ingest: NoIngest = False,
    urls: Urls = None,
    config: ConfigFile = None,
    folder: Logs = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Run the whole system with one command.

    That is the lifecycle and the sweeper of every store, the control room, REST, health and metrics over
    HTTP, and the archiver and the ingest, each a Spark driver of its own. A part that dies is restarted.
    SIGTERM or Ctrl-C drains and ends with 0, or with 1 if a part did not stop as it should; a second one
    aborts. Status lines go to stdout.

    Without a store and a configuration everything is under .holdfast/: a private PostgreSQL, all channels
    archived into cold/ and ingested through wal/ into warehouse.duckdb. On a store that is named, the
    archiver and the ingest start where the configuration has streams for them.

    Nobody gets in without a token. Where the store never had one, it is made for an admin and kept in
    .holdfast/token. A link that signs a browser in, once within ten minutes, goes to stderr.

    With --demo a small shop publishes a few events a second, and its handlers fail now and then. Without a
    configuration it has the private store, unless --url names another one, and the pipeline that
    .holdfast/demo.yaml says.
    """
    from holdfast.config.load import FILE, load
    from holdfast.server.app import Choice

    file, shop = config, None
    if demo:
        from holdfast.cli.demo.shop import ShopService, demo_config

        file, shop = demo_config(config), ShopService
    # Not the store of the environment: a demo has to be asked before it writes to somebody's store.
    private: list[str] | None = [] if file != config else None
    flags = _flags(host, port, folder, log_format)
    effective = load(file, flags={"url": flat(urls) or private, **flags}).config
    if file != config or not (config or os.environ.get(FILE)):  # nobody has asked for a pipeline
        effective = _runnable(effective)
    choice = Choice(
        http=not no_http,
        sweeper=not no_sweeper,
        archiver=not no_archiver,
        ingest=not no_ingest,
        file=file,
        logs=_log_folder(effective, as_json),
    )
    asyncio.run(_supervise("up", effective, choice, as_json, shop))


def serve(
    host: Host = None,
    port: Port = None,
    urls: Urls = None,
    config: ConfigFile = None,
    folder: Logs = None,
    log_format: LogFormat = None,
    as_json: Json = False,
) -> None:
    """Serve REST, health and metrics over HTTP, and run the operations that callers ask for.

    Unlike `holdfast up` it keeps no lifecycle, sweeps nothing and starts no Spark driver: run as many of
    these beside one `up` as there are callers for. Any of them keeps the summary of dead letters. Only this
    machine reaches it by default, and nobody gets in without a token: `holdfast up` makes the first one, or
    `holdfast tokens create admin`.
    SIGTERM or Ctrl-C lets requests finish and ends with 0; a second one aborts.
    """
    from holdfast.config.load import load
    from holdfast.server.app import Choice

    flags = _flags(host, port, folder, log_format)
    effective = load(config, flags={"url": flat(urls), **flags}).config
    choice = Choice(
        lifecycle=False,
        sweeper=False,
        archiver=False,
        ingest=False,
        file=config,
        logs=_log_folder(effective, as_json),
    )
    asyncio.run(_supervise("serve", effective, choice, as_json))


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    shown = examples(
        "holdfast up",
        "holdfast up --demo",
        "holdfast up --config holdfast.yaml --port 9000",
        "holdfast up --no-http --log-folder /var/log/holdfast",
    )
    app.command(epilog=shown)(up)
    shown = examples("holdfast serve", "holdfast serve --host 0.0.0.0 --port 8080 --config holdfast.yaml")
    app.command(epilog=shown)(serve)


def _flags(
    host: str | None, port: int | None, folder: Path | None, log_format: Form | None
) -> dict[str, object]:
    """What the options say, by dotted path."""
    return {
        "server.host": host,
        "server.port": port,
        "log_format": None if log_format is None else log_format.value,
        "log_folder": None if folder is None else str(folder),
    }


def _runnable(config: Config) -> Config:
    """As much of the defaults as can run here: all of them, or those that do without Spark."""
    from holdfast.config.config import ArchiverSection, IngestSection
    from holdfast.config.load import has_spark

    if has_spark() or (config.url and not config.ingest.channels):
        return config
    say("the archiver and the ingest need Spark: pip install 'holdfast[spark]'; the rest runs without")
    return config.model_copy(update={"archiver": ArchiverSection(), "ingest": IngestSection()})


def _log_folder(config: Config, as_json: bool) -> Path | None:
    """Where logs go; None means stderr."""
    if config.log_folder is not None:
        return Path(config.log_folder)
    return home() / "logs" if at_terminal(as_json) else None


async def _supervise(
    command: str, config: Config, choice: Choice, as_json: bool, more: Callable[[Bus], Service] | None = None
) -> None:
    """Run the chosen services until a signal; end the process with 1 if one did not stop as it should."""
    from holdfast.cli.pipeline import pipeline_access
    from holdfast.cli.tokens import address_published, print_sign_in
    from holdfast.server.app import assemble

    file = None if choice.logs is None else choice.logs / f"{command}.log"
    async with connect(config=config) as bus:
        urls = [partition.backend.url for partition in bus.partitions.all]
        try:
            with pipeline_access(config, choice.file, urls) as pipeline:
                system = assemble(bus, config, choice, pipeline=pipeline)
                if more is not None:
                    system.add(more(bus))
                logs.configure(config.log_format, as_json=as_json, file=file)
                if command == "up" and choice.http and not config.server.open:
                    await print_sign_in(bus, config, _address(system))
                with address_published(config, _address(system)) if choice.http else nullcontext():
                    unclean = await _run(system, choice.logs, as_json)
        except asyncio.CancelledError:
            _abort("aborted")
        if unclean:
            _abort(f"did not stop as it should: {', '.join(unclean)}")


def _address(system: Supervisor) -> str:
    """Where a browser on this machine reaches the HTTP server; its port may be any free one."""
    from holdfast.server.auth.sessions import local_url
    from holdfast.server.http import HttpService

    [http] = [each.service for each in system.services if isinstance(each.service, HttpService)]
    parts = urlsplit(http.url)
    return local_url(parts.hostname or "", parts.port or 0)


async def _run(supervisor: Supervisor, folder: Path | None, as_json: bool) -> list[str]:
    from holdfast.bus.shutdown import stop_on_signal
    from holdfast.model.gc_pause import gc_frozen

    with gc_frozen(), stop_on_signal() as stop, status_lines(folder, as_json) as show:
        follower = asyncio.create_task(show_changes(supervisor, show))
        try:
            return await supervisor.run(stop)
        finally:
            follower.cancel()
            await asyncio.gather(follower, return_exceptions=True)


def _abort(message: str) -> NoReturn:
    """End now: what still runs must not hold the process."""
    say(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)
