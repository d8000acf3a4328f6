"""What the tests of the log in bulk share: events of all shapes, and pages as rows."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from holdfast.contracts import Backend
from holdfast.model.event import Event, LogEntry
from kit import CHANNEL
from stores import Store

NAMES = [f"e-{n}" for n in range(60)]
TIME = datetime(2031, 2, 3, 4, 5, 6, 789, tzinfo=UTC)
SHAPES = [
    Event(b"plain", "plain"),
    Event({"n": 1}, "typed", type="order.placed"),
    Event(1, "named source", source="shop/größe 1"),
    Event(1, "größe %41 = 1", key="k"),
    Event(1, "empty-key", key=""),
    Event(1, "odd-key", key="=a%20b c"),
    Event(1, "timed", time=TIME),
    Event(1, "timed-elsewhere", time=TIME.astimezone(tz=None)),
    Event(1, "headers", headers={"trace": "ü %25", "empty": "", "ce-id": "mine", "Nats-Msg-Id": "x"}),
    Event(b"\x00\xff\r\n\r\n binary \x80", "binary"),
    Event(b"", "nothing"),
    Event(b"all", "all", source="s", type="t", key="k", time=TIME, headers={"a": "b"}),
]


Row = tuple[str, str, str, str, str | None, int, Mapping[str, str], bytes]


def micros(time: datetime | None) -> int:
    assert time is not None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def as_read(entries: Sequence[LogEntry]) -> list[Row]:
    """What `read` gives, as rows of a page."""
    events = [(entry.position, entry.event) for entry in entries]
    return [(at, e.id, e.source, e.type, e.key, micros(e.time), dict(e.headers), e.data) for at, e in events]


async def rows(
    backend: Backend, after: str | None, until: str, size: int = 1000, channel: str = CHANNEL
) -> list[Row]:
    """What `pages` gives, as rows. Each page is whole and no larger than asked for."""
    found: list[Row] = []
    async for page in backend.log.pages(channel, after, until, size):
        columns: tuple[Any, ...] = tuple(page)
        assert {len(column) for column in columns} == {len(page.ids)}
        assert 0 < len(page.ids) <= size
        found += zip(*columns, strict=True)
    return [(*row[:6], dict(row[6]), row[7]) for row in found]


async def ids(backend: Backend, after: str | None, until: str, size: int = 1000) -> list[str]:
    return [row[1] for row in await rows(backend, after, until, size)]


async def last(backend: Backend, channel: str = CHANNEL) -> str:
    """The end of a log that is not empty."""
    found = (await backend.log.extent(channel)).last
    assert found is not None
    return found


@asynccontextmanager
async def restored(store: Store, backend: Backend) -> AsyncIterator[Backend]:
    """The same store in its next life."""
    await store.become_restored()
    reborn = backend.fork()
    await reborn.open()
    try:
        yield reborn
    finally:
        await reborn.close()
