"""The group of commands."""

from __future__ import annotations

import typer

from holdfast.cli.chaos import controls, run, simulate

app = typer.Typer(help="Break everything on purpose, and judge what is left.", no_args_is_help=True)

for module in (run, controls, simulate):
    module.register(app)
