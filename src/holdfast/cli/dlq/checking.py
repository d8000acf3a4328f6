"""Checking: one line and an exit code for Nagios and whatever understands its plugins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, NamedTuple

import typer

from holdfast.cli.dlq.options import OfChannel, OfConsumer, wanted
from holdfast.cli.dlq.session import with_letters
from holdfast.cli.options import ConfigFile, Json, Urls, examples
from holdfast.cli.output import write_json, write_line
from holdfast.deadletters import ConsumerDead
from holdfast.embedded import MissingWheelError, ServerError
from holdfast.model.errors import HoldfastError, NotFound

OK, WARNING, CRITICAL, UNKNOWN = range(4)
_NAMES = ("OK", "WARNING", "CRITICAL", "UNKNOWN")

Warn = Annotated[int, typer.Option("--warn", min=0, help="Warn where a consumer has more dead letters.")]
Crit = Annotated[int, typer.Option("--crit", min=0, help="Critical where a consumer has more dead letters.")]


class Check(NamedTuple):
    """What a monitor is told."""

    code: int
    message: str
    figures: dict[str, int]


def judge(found: Sequence[ConsumerDead], warn: int, crit: int) -> Check:
    """The verdict on these consumers: the worst one decides."""
    worst = max((each.dead for each in found), default=0)
    code = CRITICAL if worst > crit else WARNING if worst > warn else OK
    limit = {CRITICAL: crit, WARNING: warn}.get(code, 0)
    named = [f"{c.consumer} of {c.channel} has {c.dead}" for c in found if c.dead > limit and code]
    total = sum(each.dead for each in found)
    said = f"{_some(total, 'dead letter')}, {_some(len(found), 'consumer')}"
    return Check(code, "; ".join([said, *named]), {f"{c.channel}/{c.consumer}": c.dead for c in found})


def _some(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def line(check: Check, warn: int, crit: int) -> str:
    """The line, with performance data after the bar."""
    data = " ".join(f"'{name}'={count};{warn};{crit};0" for name, count in check.figures.items())
    # What stands after the first bar is data.
    said = f"DEAD LETTERS {_NAMES[check.code]} - {check.message.replace('|', '/')}"
    return f"{said} | {data}" if data else said


def check(
    warn: Warn,
    crit: Crit,
    channel: OfChannel = None,
    consumer: OfConsumer = None,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """For monitoring: one line with performance data; ends with 0 ok, 1 warning, 2 critical, 3 unknown."""
    try:
        meant = wanted(channel=channel, consumer=consumer)
        found = with_letters(urls, config, None, (), lambda letters: letters.status())
        mine = [c for c in found if channel in (None, c.channel) and consumer in (None, c.consumer)]
        if not mine and not meant.empty:  # a name that is misspelt must not look well
            raise NotFound(f"no consumer fits: channel {channel or 'any'}, consumer {consumer or 'any'}")
        verdict = judge(mine, warn, crit)
    except (HoldfastError, ServerError, MissingWheelError, ModuleNotFoundError) as error:
        verdict = Check(UNKNOWN, " ".join(str(error).split()), {})
    if as_json:
        write_json({"status": _NAMES[verdict.code], "message": verdict.message, "dead": verdict.figures})
    else:
        write_line(line(verdict, warn, crit))
    raise typer.Exit(verdict.code)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command(
        epilog=examples(
            "holdfast dlq check --warn 10 --crit 100",
            "holdfast dlq check --warn 0 --crit 50 --channel orders --consumer billing",
        )
    )(check)
