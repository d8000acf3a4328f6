"""`holdfast chaos`: the crash rig, and whether it can be believed."""

from __future__ import annotations

import typer

from holdfast_chaos.cli import controls, export, run, simulate

app = typer.Typer(help="Break everything on purpose, and judge what is left.", no_args_is_help=True)

for module in (run, export, controls, simulate):
    module.register(app)
