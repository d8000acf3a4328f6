"""Options of the dead-letter commands, and the filter that they make."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from holdfast.cli.options import parse_time
from holdfast.deadletters import Filter
from holdfast.model.errors import InvalidInput

Kinds = Annotated[
    list[str] | None,
    typer.Option(
        "--kind",
        metavar="job|ingest|stream",
        help="Only this kind; may be repeated. Default: all that are configured.",
    ),
]
OfChannel = Annotated[str | None, typer.Option("--channel", help="Only of this channel.")]
OfConsumer = Annotated[str | None, typer.Option("--consumer", help="Only of this consumer.")]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help="Only with this reason: max_attempts, crash_loop, expired, terminal, …"),
]
ErrorClass = Annotated[
    str | None, typer.Option("--error-class", help="Only where the last error is of this class.")
]
Fingerprint = Annotated[
    str | None, typer.Option("--fingerprint", help="Only of this cluster; 'dlq clusters' lists them.")
]
Since = Annotated[str | None, typer.Option("--since", metavar="TIME", help="Died at this time or later.")]
Until = Annotated[str | None, typer.Option("--until", metavar="TIME", help="Died before this time.")]
Text = Annotated[str | None, typer.Option("--text", help="Only with this text in the last error.")]
All = Annotated[bool, typer.Option("--all", help="Really all: needed where no filter is given.")]

Item = Annotated[str, typer.Argument(metavar="ITEM", help="The dead letter's id, as the list prints it.")]
Items = Annotated[
    list[str] | None,
    typer.Argument(metavar="[ITEM]…", help="Dead letters by id, as the list prints them; or use a filter."),
]
OperationId = Annotated[str, typer.Argument(metavar="OPERATION", help="The operation's id.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say how many, show some, and change nothing.")]
Rate = Annotated[float | None, typer.Option("--rate", metavar="N", help="At most so many per second.")]
Limit = Annotated[int, typer.Option(min=1, max=1000, help="Show at most so many.")]


def filter_of(
    *,
    kinds: list[str] | None = None,
    channel: str | None = None,
    consumer: str | None = None,
    reason: str | None = None,
    error_class: str | None = None,
    fingerprint: str | None = None,
    since: str | None = None,
    until: str | None = None,
    text: str | None = None,
) -> Filter:
    """The filter that the options make."""
    texts = {
        "channel": channel,
        "consumer": consumer,
        "reason": reason,
        "kind": error_class,
        "fingerprint": fingerprint,
        "text": text,
    }
    for name, value in texts.items():
        if value == "":  # a shell's variable that is not set: it must not mean all
            option = "error-class" if name == "kind" else name
            raise InvalidInput(f"--{option} is empty; give it a value, or leave it out")
    return Filter.of(
        kinds=list(kinds or []),
        **texts,
        since=_time(since, "--since"),
        until=_time(until, "--until"),
    )


def _time(text: str | None, option: str) -> datetime | None:
    return None if text is None else parse_time(text, option)
