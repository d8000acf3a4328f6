"""`holdfast migrate`: bring the stores' schema up to date, or print how."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast import wiring
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line


def migrate(
    sql: Annotated[bool, typer.Option("--sql", help="Print the whole script; change nothing.")] = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Apply what is missing, under a lock. Opening a store does the same by itself."""
    if sql:
        script = wiring.migration_script()
        write_json({"sql": script}) if as_json else typer.echo(script, nl=False)
        return
    applied = asyncio.run(wiring.migrate(flat(urls), config))
    if as_json:
        write_json([{"partition": index, "applied": names} for index, names in enumerate(applied)])
        return
    for index, names in enumerate(applied):
        where = f"partition {index}: " if len(applied) > 1 else ""
        say(f"{where}{f'{len(names)} applied' if names else 'up to date'}")
        for name in names:
            write_line(name)


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=examples("holdfast migrate", "holdfast migrate --sql > holdfast.sql"))(migrate)
