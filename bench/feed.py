"""The feed of the ingest benchmark: a durable server, and a channel full of events."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import holdfast
from bench.stores import SETTINGS
from holdfast import Event
from holdfast.embedded import Postgres, Redis
from holdfast.pipeline.connection import Connection

CHANNEL, WARM_UP = "gbe.events.bench", "gbe.events.warmup"
BATCH, PUBLISHED = 250_000, 10_000


@contextmanager
def server(store: str) -> Iterator[str]:
    """A server on which a publish is on disk before it returns; answers the URL of an empty store."""
    if store == "redis":
        with Redis(appendfsync="always") as running:
            yield running.url
    else:
        with Postgres(settings=SETTINGS) as database:
            yield database.create_database("bench")


def publish(url: str, channel: str, count: int) -> None:
    """Events `e-0`, `e-1`, …"""
    with holdfast.connect_sync(url) as bus:
        bus.create_channel(channel)
        for first in range(0, count, PUBLISHED):
            numbers = range(first, min(count, first + PUBLISHED))
            bus.publish_many(channel, [Event(data(n), f"e-{n}") for n in numbers])
    tell(f"{count:,} events published to {channel}")


def data(number: int) -> bytes:
    """Some 170 bytes of JSON."""
    return b'{"n":%d,"text":"%b"}' % (number, b"x" * 150)


def forget_cursor(url: str, channel: str) -> None:
    """Let the next ingest of a channel start at its beginning."""
    with Connection([url]) as connection:
        connection.run(connection.backends[0].cursors.detach(channel, "ingest"))


def tell(line: str) -> None:
    """Progress; the results go elsewhere."""
    print(line, file=sys.stderr, flush=True)
