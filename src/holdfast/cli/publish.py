"""`holdfast publish`: one event, or one for each line of stdin."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import IO, Annotated, Any, TypedDict

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from holdfast.bus.sync import SyncBus
from holdfast.cli.options import Channel, ConfigFile, Json, Source, Urls, examples, flat, parse_time
from holdfast.cli.output import say, stderr, write_json, write_line
from holdfast.model.errors import InvalidInput
from holdfast.model.event import DEFAULT_SOURCE, DEFAULT_TYPE, Event, Receipt, check_event
from holdfast.wiring import connect_sync

Data = Annotated[
    str | None,
    typer.Argument(metavar="DATA", help="JSON, @FILE for a file's bytes, or - for JSON lines on stdin."),
]
Id = Annotated[str | None, typer.Option("--id", help="Publishing the same id again changes nothing.")]
Type = Annotated[str, typer.Option("--type", help="The event's type.")]
Key = Annotated[str | None, typer.Option("--key", help="Ordered consumers keep the order of a key.")]
Header = Annotated[list[str] | None, typer.Option("--header", metavar="NAME=TEXT", help="Repeatable.")]
At = Annotated[str | None, typer.Option("--at", metavar="TIME", help="Deliver no sooner than this.")]
Priority = Annotated[int, typer.Option("--priority", help="Higher is polled first, -100 to 100.")]
Envelope = Annotated[
    bool,
    typer.Option("--envelope", help="Each line is an object: data, id, source, type, key, time, headers."),
]
_CHUNK = 1 << 17  # at two bytes a line, fewer events than a batch may have
_FIELDS = ("data", "id", "source", "type", "key", "time", "headers")


class DeliveryOptions(TypedDict):
    """When and how urgently events are to be delivered."""

    at: datetime | None
    priority: int


def publish(
    channel: Channel,
    data: Data = None,
    event_id: Id = None,
    source: Source = DEFAULT_SOURCE,
    type_: Type = DEFAULT_TYPE,
    key: Key = None,
    header: Header = None,
    at: At = None,
    priority: Priority = 0,
    envelope: Envelope = False,
    urls: Urls = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Append events, and print what the store acknowledged.

    A line of the answer is an event's id, its position, and whether it was there before. Lines of stdin are
    published in their order, as they arrive; the first one that is wrong ends it, and what stands before it
    stays published.
    """
    common: dict[str, Any] = {
        "source": source,
        "type": type_,
        "key": key,
        "headers": parse_headers(header or []),
    }
    due = None if at is None else parse_time(at, "--at")
    many = data == "-"
    if many and event_id:
        raise InvalidInput(
            "--id names one event, - reads many; use --envelope and write the ids in the lines"
        )
    if envelope and not many:
        raise InvalidInput("--envelope is about lines of stdin; use it with -")
    if many and sys.stdin is None:
        raise InvalidInput("stdin is closed; - reads lines from it")
    delivery: DeliveryOptions = {"at": due, "priority": priority}
    event = None if many else Event(parse_data(data), id=event_id or "", **common)
    with connect_sync(flat(urls), config=config) as bus:
        if event is None:
            arriving = read_events(sys.stdin.buffer, common, envelope=envelope)
            _publish_arriving(bus, channel, arriving, delivery, as_json)
        else:
            _print(bus.publish_many(channel, [event], **delivery), as_json)


def _publish_arriving(
    bus: SyncBus, channel: str, arriving: Iterator[list[Event]], delivery: DeliveryOptions, as_json: bool
) -> None:
    columns = SpinnerColumn(), TextColumn("{task.completed:,.0f} events published"), TimeElapsedColumn()
    published = duplicates = sent = 0
    with Progress(*columns, console=stderr(), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task("publish", total=None)
        try:
            for events in arriving:
                sent += len(events)
                receipts = bus.publish_many(channel, events, **delivery)
                published += len(receipts)  # before they are printed: nobody may be there to read it
                duplicates += sum(receipt.duplicate for receipt in receipts)
                progress.advance(task, len(receipts))
                _print(receipts, as_json)
        finally:
            progress.stop()
            said = f"{published - duplicates} events published, {duplicates} were there before"
            unknown = sent - published
            say(f"{said}; {unknown} more were sent and not acknowledged" if unknown else said)


def _print(receipts: Sequence[Receipt], as_json: bool) -> None:
    for receipt in receipts:
        if as_json:
            write_json(receipt)
        else:
            write_line(f"{receipt.id} {receipt.position}{' duplicate' if receipt.duplicate else ''}")


def parse_data(text: str | None) -> object:
    """What somebody wrote as data: JSON, or @ and a file for its bytes."""
    if text is None:
        return None
    if not text.startswith("@"):
        try:
            return parse_json(text)
        except InvalidInput as error:
            raise InvalidInput(f"DATA is {error}; text needs its own quotes, as in '\"text\"'") from None
    try:
        return Path(text[1:]).read_bytes()
    except OSError as error:
        raise InvalidInput(f"DATA {text!r} cannot be read: {error.strerror}") from None


def parse_headers(pairs: Sequence[str]) -> dict[str, str]:
    """The headers of `--header NAME=TEXT`."""
    headers = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise InvalidInput(f"--header {pair!r} has no name and text; write NAME=TEXT")
        headers[name] = value
    return headers


def parse_json(text: str | bytes) -> Any:
    """A JSON value."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"not JSON: {error.msg} at character {error.pos + 1}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}") from None


def read_events(stream: IO[bytes], common: Mapping[str, Any], *, envelope: bool) -> Iterator[list[Event]]:
    """The events of the lines that have arrived, as soon as they have; empty lines are skipped.

    What a line leaves out is taken from `common`. A wrong line is raised after the events before it.
    """
    first = 1
    for lines in _arriving_lines(stream):
        events: list[Event] = []
        try:
            for number, line in enumerate(lines, first):
                if line.strip():
                    events.append(_event(number, line, common, envelope))
        except InvalidInput:
            if events:
                yield events
            raise
        if events:
            yield events
        first += len(lines)


def _arriving_lines(stream: IO[bytes]) -> Iterator[list[bytes]]:
    rest = b""
    while chunk := os.read(stream.fileno(), _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        yield lines
    yield [rest]


def _event(number: int, line: bytes, common: Mapping[str, Any], envelope: bool) -> Event:
    try:
        value = parse_json(line)
        fields = _fields(value) if envelope else {"data": value}
        return check_event(Event(**(dict(common) | fields)))
    except InvalidInput as error:
        raise InvalidInput(f"line {number}: {error}") from None


def _fields(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value.keys() <= set(_FIELDS):
        raise InvalidInput(f"no event; write an object with some of {', '.join(_FIELDS)}")
    headers = value.get("headers", {})
    if not isinstance(headers, dict):
        raise InvalidInput(f"headers {headers!r} are no object; write names and texts")
    if value.get("time") is not None:
        value["time"] = parse_time(str(value["time"]), "time")
    return value


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    shown = examples(
        "holdfast publish orders '{\"total\": 12}' --id o-1 --key customer-7",
        "holdfast publish orders @order.json --at 2030-01-31T09:00:00Z",
        "holdfast publish orders - < orders.ndjson",
        "holdfast publish orders - --envelope < events.ndjson",
    )
    app.command(epilog=shown)(publish)
