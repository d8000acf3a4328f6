"""Options that several commands share, and what people write for a time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from urllib.parse import urlsplit

import typer

from holdfast.model.errors import InvalidInput

Urls = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="HOLDFAST_URL",
        help="The store; several, or a comma list, are partitions. Default: DATABASE_URL, "
        "else a private PostgreSQL under .holdfast/.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Channel = Annotated[str, typer.Argument(metavar="CHANNEL", help="The channel's name.")]
Consumer = Annotated[str, typer.Argument(metavar="CONSUMER", help="The consumer's name.")]
EventId = Annotated[str, typer.Argument(metavar="ID", help="The event's id.")]
Source = Annotated[str, typer.Option("--source", help="The event's source.")]

_BETWEEN_URLS = re.compile(r",(?=[a-z][a-z0-9+.-]*://)")


def flat(urls: Sequence[str] | None) -> list[str] | None:
    """Every URL on its own. A comma inside one, as between PostgreSQL's hosts, stays."""
    if not urls:
        return None
    return [_checked(each.strip()) for text in urls for each in _BETWEEN_URLS.split(text)]


def _checked(url: str) -> str:
    try:
        urlsplit(url).port  # noqa: B018 - reading it is the check
    except ValueError as error:  # the URL itself stays unsaid: it may hold a password
        raise InvalidInput(f"--url is not a URL: {error}; write postgresql://user@host/database") from None
    return url


def parse_time(text: str, option: str) -> datetime:
    """An ISO 8601 time with a zone."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{option} {text!r} is not a time; write 2030-01-31T09:00:00Z") from None
    if time.tzinfo is None:
        raise InvalidInput(f"{option} {text!r} has no zone; add Z or an offset such as +02:00")
    return time


def examples(*lines: str) -> str:
    """A help page's closing lines, kept as they are written."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)
