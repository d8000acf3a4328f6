"""The group of commands."""

from __future__ import annotations

import typer

from holdfast.cli.dlq import acting, checking, looking, operating

app = typer.Typer(help="Dead letters: look, requeue, redrive, patch, purge.", no_args_is_help=True)

for module in (looking, acting, operating, checking):
    module.register(app)
