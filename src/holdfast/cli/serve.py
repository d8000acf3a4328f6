"""`holdfast serve`: the HTTP server alone, for stores that others look after."""

from __future__ import annotations

import asyncio

import typer

from holdfast.cli.options import ConfigFile, Json, LogFormat, Urls, examples, flat
from holdfast.cli.up import Host, Logs, Port, log_folder, supervise


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
    from holdfast.server.system import Choice

    form = None if log_format is None else log_format.value
    given = None if folder is None else str(folder)
    flags = {
        "url": flat(urls),
        "server.host": host,
        "server.port": port,
        "log_format": form,
        "log_folder": given,
    }
    effective = load(config, flags=flags).config
    choice = Choice(
        lifecycle=False,
        sweeper=False,
        archiver=False,
        ingest=False,
        file=config,
        logs=log_folder(effective, as_json),
    )
    asyncio.run(supervise("serve", effective, choice, as_json))


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples("holdfast serve", "holdfast serve --host 0.0.0.0 --port 8080 --config holdfast.yaml")
    app.command(epilog=shown)(serve)
