"""`holdfast config`: check a file, and show what holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.options import ConfigFile, Json, Urls, examples, flat
from holdfast.cli.output import say, write_json, write_table
from holdfast.config.layers import InvalidConfig

app = typer.Typer(help="Check and show the configuration.", no_args_is_help=True, rich_markup_mode=None)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The configuration file.")]


@app.command(epilog=examples("holdfast config check holdfast.yaml"))
def check(file: File, as_json: Json = False) -> None:
    """Check a file by itself, without the environment and without a store.

    Every problem is a line with its place. Ends with 2 when there is one.
    """
    from holdfast.config import load

    try:
        load.check(file)
    except InvalidConfig as error:
        if not as_json:
            raise
        write_json({"file": str(file), "problems": error.problems})
        raise typer.Exit(2) from None
    if as_json:
        write_json({"file": str(file), "problems": []})
    else:
        say(f"{file} is valid")


@app.command(epilog=examples("holdfast config show", "holdfast config show --config holdfast.yaml --json"))
def show(urls: Urls = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """What holds, and where each value comes from: a flag, the environment, the file or the default.

    Passwords in URLs are masked.
    """
    from holdfast.config.load import load, settings

    found = settings(load(config, flags={"url": flat(urls)}))
    if as_json:
        write_json([{"key": each.key, "value": each.value, "origin": str(each.origin)} for each in found])
    else:
        rows = [(each.key, _plain(each.value), each.origin) for each in found]
        write_table(["KEY", "VALUE", "FROM"], rows)


def _plain(value: object) -> object:
    """A number as it is written in the file."""
    return str(value) if isinstance(value, int) else value
