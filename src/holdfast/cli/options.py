"""Options that several commands share, and what people write for a time."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from datetime import date, datetime
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from holdfast.config.urls import split_urls
from holdfast.model.errors import InvalidInput

INCOMPLETE = 4
"""The exit code of a command that is done while something is missing."""


class Form(StrEnum):
    """How logs are written."""

    AUTO = "auto"
    LINES = "lines"
    JSON = "json"


Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="The store; several, or a comma list, are partitions. Default: HOLDFAST_URL, the config "
        "file's, DATABASE_URL, else a private PostgreSQL under .holdfast/.",
    ),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", metavar="FILE", help="The configuration. Default: the file in HOLDFAST_CONFIG."),
]
LogFormat = Annotated[
    Form | None,
    typer.Option("--log-format", help="How logs are written. Default: auto, lines at a terminal, else JSON."),
]
MetricsPort = Annotated[
    int | None, typer.Option("--metrics-port", help="Answer Prometheus on this port; 0 takes a free one.")
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")]
Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.")]
EventId = Annotated[str, typer.Argument(metavar="ID", help="The event's id.")]
Source = Annotated[str, typer.Option("--source", help="The event's source.")]


def flat(urls: Sequence[str] | None) -> list[str] | None:
    """Every URL on its own; None where none is given."""
    if not urls:
        return None
    try:
        return split_urls(urls)
    except InvalidInput as error:
        raise InvalidInput(f"--url: {error}") from None


def parse_time(text: str, option: str) -> datetime:
    """An ISO 8601 time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a time; write 2030-01-31T09:00:00Z") from None
    if time.tzinfo is None:
        raise InvalidInput(f"{option} {text!r} has no zone; add Z or an offset such as +02:00")
    return time


def parse_day(text: str) -> date:
    """The day of `--day`."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"--day {text!r} is no day; write 2026-02-14") from None


def examples(*lines: str) -> str:
    """A help page's closing lines, kept as they are written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]


By = Annotated[
    str,
    typer.Option(
        "--by", help="Who does it, for the audit.", default_factory=getpass.getuser, show_default="you"
    ),
]
