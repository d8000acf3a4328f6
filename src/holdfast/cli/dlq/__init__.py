"""`holdfast dlq`: what died and why, and what can be done about it."""

from __future__ import annotations

import typer

from holdfast.cli.dlq import operations, read, write

app = typer.Typer(help="Dead letters: look, requeue, redrive, patch, purge.", no_args_is_help=True)

for module in (read, write, operations):
    module.register(app)
