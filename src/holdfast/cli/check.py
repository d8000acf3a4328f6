"""`holdfast check`: what the stores' real settings mean for what was acknowledged."""

from __future__ import annotations

import typer

from holdfast.bus.client import Bus
from holdfast.bus.partitions import Partition
from holdfast.cli.options import Json, Urls, examples
from holdfast.cli.output import write_json, write_table
from holdfast.cli.session import name_of, with_bus
from holdfast.contracts import Finding
from holdfast.model.errors import Unavailable


def check(urls: Urls = None, as_json: Json = False) -> None:
    """Durability in words. Ends with 1 when a finding is an error."""
    found = with_bus(urls, _findings)
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
    if any(finding.level == "error" for _, finding in found):
        raise typer.Exit(1)


async def _findings(bus: Bus) -> list[tuple[str, Finding]]:
    return [(name_of(store), finding) for store in bus.partitions.all for finding in await _of(bus, store)]


async def _of(bus: Bus, partition: Partition) -> list[Finding]:
    try:
        return await (await bus.partitions.ready(partition)).backend.check()
    except Unavailable as error:
        return [Finding("error", "store", str(error))]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=examples("holdfast check", "holdfast check --json"))(check)
