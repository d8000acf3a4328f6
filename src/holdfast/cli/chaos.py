"""`holdfast chaos`: the crash rig, a distribution of its own, where that is installed."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

from holdfast.cli.output import say

_RIG, _FAILED = "holdfast_chaos", 1


class _Missing(TyperGroup):
    """Takes the place of the rig's commands. Whatever is asked of it, it says how to get them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell asks for completions
            return super().parse_args(ctx, args)
        say("holdfast: the crash rig is not installed: pip install holdfast-chaos")
        raise typer.Exit(_FAILED)


def _commands() -> typer.Typer:
    try:
        commands: typer.Typer = import_module(f"{_RIG}.cli").app
    except ModuleNotFoundError as error:
        if error.name != _RIG:
            raise
        return typer.Typer(cls=_Missing, help="Break everything on purpose; needs holdfast-chaos.")
    return commands


app = _commands()
