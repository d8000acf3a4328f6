"""The options of the data source: text from Spark, checked once, as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, NamedTuple

from holdfast import wiring
from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name, compile_pattern
from holdfast.model.position import parse_position


class Position(NamedTuple):
    """A place in the log of one store."""

    text: str


Place = Literal["earliest", "latest"] | datetime | Position
"""A time is one of publishing: the log is in that order, and has no index on the times of its events."""


@dataclass(frozen=True)
class Options:
    """What to read, from where to where, and in batches of what size."""

    urls: tuple[str, ...]
    """One for each partition. None at all means the private store of this folder."""
    channels: tuple[str, ...]
    """Names and patterns."""
    consumer: str | None = None
    start: Place = "earliest"
    end: Place | None = None
    max_rows: int = 500_000
    max_bytes: int = 512 << 20
    rows_per_partition: int = 50_000
    min_partitions: int = 1
    fail_on_loss: bool = True
    fail_on_missing: bool = True
    """Whether a channel that is named and not there is an error; it is empty until it is there otherwise."""

    @classmethod
    def of(cls, given: Mapping[str, str]) -> Options:
        """The options as Spark hands them over: names in any case, values as text."""
        text = {name.lower(): value.strip() for name, value in given.items()}
        if unknown := sorted(text.keys() - {name.lower() for name in _OPTIONS}):
            raise InvalidInput(f"unknown option {unknown[0]!r}; the options are {', '.join(_OPTIONS)}")
        # Read even where they are not given: the one has a default of its own, the other has none.
        text = {"url": "", "channel": ""} | text
        values = {
            field: parse(name, text[name.lower()])
            for name, (field, parse) in _OPTIONS.items()
            if name.lower() in text
        }
        options = cls(**values)
        _refuse_contradictions(options)
        return options


def _refuse_contradictions(options: Options) -> None:
    places = (options.start, options.end)
    if any(isinstance(place, Position) for place in places) and len(options.urls) > 1:
        raise InvalidInput(
            f"a position belongs to one store, and url lists {len(options.urls)}; give a time instead"
        )
    if options.consumer is not None and isinstance(options.start, Position):
        raise InvalidInput(
            f"startingPosition {options.start.text!r} cannot be combined with consumer {options.consumer!r}, "
            "which starts at its cursor; leave one of them out"
        )


def _urls(_: str, value: str) -> tuple[str, ...]:
    return tuple(wiring.urls(value or None))


def _channels(_: str, value: str) -> tuple[str, ...]:
    channels = tuple(each.strip() for each in value.split(",") if each.strip())
    if not channels:
        raise InvalidInput("option channel is missing; name a channel or a pattern such as 'gbe.events.>'")
    for each in channels:
        compile_pattern(each) if is_pattern(each) else check_name(each)
    return channels


def is_pattern(channel: str) -> bool:
    """Whether this selects channels, rather than naming one."""
    return "*" in channel or ">" in channel


def _consumer(_: str, value: str) -> str:
    return check_name(value, "consumer")


def _place(name: str, value: str) -> Place:
    match value:
        case "earliest" | "latest":
            return value
    try:
        parse_position(value, value.count("-"))
        return Position(value)
    except InvalidInput:
        return _time(name, value)


def _time(name: str, value: str) -> datetime:
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise InvalidInput(
            f"{name} {value!r} is not understood; write earliest, latest, a time of publishing such as "
            "2026-07-01T00:00:00Z, or a position that a row gave you"
        ) from None
    if time.tzinfo is None:
        raise InvalidInput(f"{name} {value!r} has no zone; add one, as in 2026-07-01T00:00:00Z")
    return time


def _count(name: str, value: str) -> int:
    if not value.isascii() or not value.isdigit() or len(value) > 18 or int(value) < 1:
        raise InvalidInput(f"{name} {value!r} is not a count; write a whole number from 1 on")
    return int(value)


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise InvalidInput(f"{name} {value!r} is neither true nor false; write one of them")
    return value.lower() == "true"


_OPTIONS: dict[str, tuple[str, Callable[[str, str], Any]]] = {
    "url": ("urls", _urls),
    "channel": ("channels", _channels),
    "consumer": ("consumer", _consumer),
    "startingPosition": ("start", _place),
    "endingPosition": ("end", _place),
    "maxRowsPerBatch": ("max_rows", _count),
    "maxBytesPerBatch": ("max_bytes", _count),
    "rowsPerPartition": ("rows_per_partition", _count),
    "minPartitions": ("min_partitions", _count),
    "failOnDataLoss": ("fail_on_loss", _flag),
    "failOnMissingChannel": ("fail_on_missing", _flag),
}
