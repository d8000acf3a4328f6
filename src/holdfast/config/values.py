"""Values: what people write for durations, sizes, counts, names and patterns, and how it is written back."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from ipaddress import ip_network
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer
from pydantic_settings import NoDecode

from holdfast.config.urls import check_url, split_urls
from holdfast.model.duration import format_duration, parse_duration
from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_name, compile_pattern
from holdfast.model.redact import mask

_UNITS = {
    "B": 1,
    "KB": 10**3,
    "KIB": 2**10,
    "MB": 10**6,
    "MIB": 2**20,
    "GB": 10**9,
    "GIB": 2**30,
    "TB": 10**12,
    "TIB": 2**40,
}
_SIZE = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*([KMGT]?i?B)", re.IGNORECASE | re.ASCII)
_DIGITS = re.compile(r"[0-9]{1,20}")
_MOST = 2**53  # more than anybody counts; every store and every JSON reader holds it exactly

_DESTINATIONS = ("s3", "folder", "postgres")
_DESTINATION_URLS = ("s3://", "file://", "postgresql://", "postgres://")


@dataclass(frozen=True, slots=True)
class TypeName:
    """What the reference calls a type."""

    text: str


def parse_size(value: Any) -> int:
    """Bytes: a whole number, or text such as `10GB` (powers of ten) and `512MiB` (powers of two)."""
    found = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if found:
        return round(float(found[1]) * _UNITS[found[2].upper()])
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InvalidInput(f"{value!r} is not a size; write a number of bytes, or text like '10GB' or '512MiB'")


def format_size(value: int) -> str:
    """The text with the largest unit that fits evenly."""
    for unit, factor in sorted(_UNITS.items(), key=lambda each: -each[1]):
        if value % factor == 0 and value >= factor:
            return f"{value // factor}{unit.replace('IB', 'iB')}"
    return f"{value}B"


def _positive(value: timedelta) -> timedelta:
    if not value:
        raise InvalidInput("0s is too short; write a duration above zero, such as '30s'")
    return value


def _whole(value: Any) -> Any:
    if isinstance(value, bool | float):
        raise InvalidInput(f"{value!r} is not a whole number; write one such as 1000")
    return value


def _pattern(value: str) -> str:
    compile_pattern(value)
    return value


def _network(value: str) -> str:
    try:
        ip_network(value)
    except ValueError as error:
        raise InvalidInput(f"{error}; write an address such as 10.0.0.7, or a network: 10.0.0.0/8") from None
    return value


def _destination(value: str) -> str:
    if value.startswith(("postgresql://", "postgres://")):
        return check_url(value)
    if value in _DESTINATIONS or value.startswith(_DESTINATION_URLS):
        return value
    raise InvalidInput(
        f"{mask(value)!r} is no destination; write s3, folder or postgres, or a URL such as s3://bucket/prefix"
    )


def _urls(value: Any) -> Any:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise InvalidInput("write one URL, or a list of them: each is a partition")
    return tuple(split_urls(texts))


def _named(what: str) -> AfterValidator:
    return AfterValidator(lambda value: check_name(value, what))


_as_text = PlainSerializer(format_duration, return_type=str, when_used="json")
_as_size = PlainSerializer(format_size, return_type=str, when_used="json")
_as_masked = PlainSerializer(mask, return_type=str, when_used="json")

Span = Annotated[timedelta, BeforeValidator(parse_duration), _as_text, TypeName("duration")]
Positive = Annotated[Span, AfterValidator(_positive)]
Size = Annotated[int, BeforeValidator(parse_size), Field(ge=1, le=_MOST), _as_size, TypeName("size")]
Count = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=_MOST), TypeName("number")]
Batch = Annotated[int, BeforeValidator(_whole), Field(ge=1, le=_MOST), TypeName("number")]
Port = Annotated[int, BeforeValidator(_whole), Field(ge=0, le=65535), TypeName("port")]
Pattern = Annotated[str, AfterValidator(_pattern), TypeName("pattern")]
Network = Annotated[str, AfterValidator(_network), TypeName("address or network")]
Namespace = Annotated[str, _named("namespace"), TypeName("name")]
TaskName = Annotated[str, _named("task type"), TypeName("name")]
Address = Annotated[str, _as_masked, TypeName("text")]
Destination = Annotated[Address, AfterValidator(_destination)]
Urls = Annotated[tuple[Address, ...], NoDecode, BeforeValidator(_urls), TypeName("URL, or list of URLs")]
