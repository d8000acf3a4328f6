"""Output: results on stdout, as text or as JSON; messages on stderr."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import orjson
import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from holdfast.model.duration import format_duration
from holdfast.model.errors import HoldfastError

# What an error's text or an event's id must not do to somebody's terminal.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_WIDE = 10_000
_CUT = 40
_NUMBERS = re.compile(r"(TINY|SMALL|BIG|HUGE|U)*(INT|INTEGER)|DECIMAL.*|FLOAT|DOUBLE")


@cache
def stderr() -> Console:
    """The console for messages and progress."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def say(message: str) -> None:
    """A message to the person at the terminal."""
    typer.echo(safe(message), err=True)


def write_json(value: Any) -> None:
    """One JSON document on one line."""
    with _write_errors():
        typer.echo(orjson.dumps(plain(value), default=str).decode())


def write_line(text: str) -> None:
    """One line of a result."""
    with _write_errors():
        typer.echo(safe(text))


def write_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Rows under headings; cut to fit a terminal, whole in a pipe."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(" ".join(safe(show(value)).split())) for value in row))
    _print(table)


def write_pairs(pairs: Mapping[str, object]) -> None:
    """Names and values, one pair per line."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in pairs.items():
        table.add_row(Text(name), Text(safe(show(value))))
    _print(table)


def write_result(columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]) -> None:
    """Rows of a query under their names, numbers to the right. Where a terminal is too narrow, long texts are
    cut; where that does not help, each row stands as pairs. Whole in a pipe."""
    cells = [[" ".join(safe(_cell(value)).split()) for value in row] for row in rows]
    if sys.stdout.isatty():
        room = stderr().width
        if _full_width(columns, cells) > room:
            cut = [[each if len(each) <= _CUT else f"{each[: _CUT - 1]}…" for each in row] for row in cells]
            if _full_width(columns, cut) > room:
                for number, row in enumerate(cells, 1):
                    write_line(f"-- row {number:,}")
                    write_pairs({safe(name): each for (name, _), each in zip(columns, row, strict=True)})
                return
            cells = cut
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, kind in columns:
        table.add_column(
            Text(safe(name)), justify="right" if _NUMBERS.fullmatch(kind) else "left", no_wrap=True
        )
    for row in cells:
        table.add_row(*map(Text, row))
    _print(table)


def _full_width(columns: Sequence[tuple[str, str]], cells: Sequence[Sequence[str]]) -> int:
    """How wide a table is that has room for everything."""
    widths = [max(map(cell_len, [name, *each])) for (name, _), *each in zip(columns, *cells, strict=True)]
    return sum(widths) + 2 * len(widths)


def _cell(value: object) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case list() | dict():
            return orjson.dumps(value).decode()
        case _:
            return str(value)


def show(value: object) -> str:
    """A value as people read it."""
    if value is None or value in ("", [], (), {}):
        return "-"
    match value:
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case timedelta():
            return format_duration(value)
        case list() | tuple():
            return ", ".join(map(show, value))
        case dict():
            return ", ".join(f"{name} {show(part)}" for name, part in value.items())
        case _:
            return str(value)


def plain(value: Any) -> Any:
    """A value in JSON's own types."""
    if hasattr(value, "to_json"):
        return value.to_json()
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    return format_duration(value) if isinstance(value, timedelta) else value


def safe(text: str) -> str:
    """Text that cannot move a terminal's cursor or change its colours."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def _print(table: Table) -> None:
    width = None if sys.stdout.isatty() else _WIDE
    with _write_errors():
        Console(width=width, highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def _write_errors() -> Iterator[None]:
    """A result that cannot be written is an error in one line; where nobody reads it, the program ends."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise HoldfastError(f"the result cannot be written: {error.strerror}") from None
