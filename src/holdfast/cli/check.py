"""`holdfast check` and `holdfast migrate`: the stores' settings and their schema."""

from __future__ import annotations

import asyncio
from typing import Annotated

import typer

from holdfast import wiring
from holdfast.bus.partitions import Partition
from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_line, write_table
from holdfast.cli.session import ask_partitions, open_partition, store_name
from holdfast.contracts import Finding
from holdfast.model.errors import Unavailable

_STORE = "store"


def check(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Durability in words.

    Ends with 1 when a finding is an error, with 3 when no store answers.
    """
    found = [each for findings in ask_partitions(urls, config, _findings) for each in findings]
    if as_json:
        names = ("store", "level", "subject", "message")
        rows = [(store, f.level, f.subject, f.message) for store, f in found]
        write_json([dict(zip(names, row, strict=True)) for row in rows])
    else:
        several = len({store for store, _ in found}) > 1
        columns = ["LEVEL", "SUBJECT", "FINDING", *(["STORE"] if several else [])]
        write_table(
            columns, [(f.level, f.subject, f.message, *([store] if several else [])) for store, f in found]
        )
    if all(finding.subject == _STORE for _, finding in found):
        raise typer.Exit(3)
    if any(finding.level == "error" for _, finding in found):
        raise typer.Exit(1)


async def _findings(partition: Partition) -> list[tuple[str, Finding]]:
    name = store_name(partition)
    try:
        return [(name, finding) for finding in await (await open_partition(partition)).check()]
    except Unavailable as error:
        return [(name, Finding("error", _STORE, str(error)))]


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
    """Add the commands to the program."""
    app.command(epilog=examples("holdfast check", "holdfast check --json"))(check)
    app.command(epilog=examples("holdfast migrate", "holdfast migrate --sql > holdfast.sql"))(migrate)
