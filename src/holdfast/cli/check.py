"""`holdfast check`: what the stores' real settings mean for what was acknowledged."""

from __future__ import annotations

import typer

from holdfast.bus.partitions import Partition
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import write_json, write_table
from holdfast.cli.session import look, name_of, opened
from holdfast.contracts import Finding
from holdfast.model.errors import Unavailable

_STORE = "store"


def check(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Durability in words.

    Ends with 1 when a finding is an error, with 3 when no store answers.
    """
    found = [each for findings in look(urls, config, _findings) for each in findings]
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
    name = name_of(partition)
    try:
        return [(name, finding) for finding in await (await opened(partition)).check()]
    except Unavailable as error:
        return [(name, Finding("error", _STORE, str(error)))]


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command(epilog=examples("holdfast check", "holdfast check --json"))(check)
