"""`holdfast subscribe`: create a worker consumer, or change its policy."""

from __future__ import annotations

import re
from typing import Annotated, Any

import typer

from holdfast.cli.options import Channel, ConfigFile, Consumer, Json, Urls, examples, parse_time
from holdfast.cli.output import say, write_json, write_pairs
from holdfast.cli.session import with_bus
from holdfast.model.policy import Policy

_DEFAULTS = Policy().to_json()
_NUMBER = re.compile(r"[0-9]{1,20}")


def _default(text: str, name: str) -> str:
    return f"{text}  [default: {_DEFAULTS[name]}]"


MaxAttempts = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER", help=_default("Failures before a job is dead, or unlimited.", "max_attempts")
    ),
]
MaxAbandonments = Annotated[
    int | None, typer.Option(help=_default("Lost workers before a job is dead.", "max_abandonments"))
]
MaxRuns = Annotated[int | None, typer.Option(help="Failures and lost workers together before a job is dead.")]
Lease = Annotated[str | None, typer.Option(help=_default("How long a worker may be silent.", "lease"))]
Backoff = Annotated[
    str | None, typer.Option(help="Waits between attempts, as in 1s,10s,1m. Default: exponential.")
]
ExpiresAfter = Annotated[str | None, typer.Option(help="Bury what has waited for so long.")]
DeadLetter = Annotated[str | None, typer.Option(metavar="CHANNEL", help="Also publish dead jobs here.")]
OnDead = Annotated[str | None, typer.Option(help=_default("keep, or discard with a log entry.", "on_dead"))]
Ordered = Annotated[bool, typer.Option("--ordered", help="One job of a key at a time, in order.")]
MaxDepth = Annotated[int | None, typer.Option(help="Refuse publishes while there are so many live jobs.")]
Start = Annotated[str, typer.Option(help="latest, earliest or a time; counts at creation only.")]


def subscribe(
    channel: Channel,
    consumer: Consumer,
    max_attempts: MaxAttempts = None,
    max_abandonments: MaxAbandonments = None,
    max_runs: MaxRuns = None,
    lease: Lease = None,
    backoff: Backoff = None,
    expires_after: ExpiresAfter = None,
    dead_letter: DeadLetter = None,
    on_dead: OnDead = None,
    ordered: Ordered = False,
    max_depth: MaxDepth = None,
    start: Start = "latest",
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Create a worker consumer, or change its policy.

    An option that is left out takes its default, also when the consumer is there already.
    """
    given = {
        "max_attempts": int(max_attempts)
        if max_attempts and _NUMBER.fullmatch(max_attempts)
        else max_attempts,
        "max_abandonments": max_abandonments,
        "max_runs": max_runs,
        "lease": lease,
        "backoff": None if backoff is None else [step.strip() for step in backoff.split(",")],
        "expires_after": expires_after,
        "dead_letter": dead_letter,
        "on_dead": on_dead,
        "ordered": ordered,
        "max_depth": max_depth,
    }
    policy = {name: value for name, value in given.items() if value is not None}
    begin: Any = start if start in ("latest", "earliest") else parse_time(start, "--start")
    made = with_bus(urls, config, lambda bus: bus.subscribe(channel, consumer, start=begin, **policy))
    if as_json:
        write_json(made)
    else:
        say(f"{consumer} reads {channel}")
        write_pairs(made.policy.to_json())


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast subscribe orders billing",
        "holdfast subscribe orders billing --max-attempts 3 --lease 30s --backoff 1s,10s,1m",
        "holdfast subscribe orders audit --ordered --start earliest",
    )
    app.command(epilog=shown)(subscribe)
