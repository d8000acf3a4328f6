"""The stores of a chaos run: durable servers of their own, and an empty store for each part of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from holdfast.embedded import Nats, Postgres, Redis

Urls = Callable[[str], str]
"""From the name of a part to the URL of its store."""


@contextmanager
def postgres() -> Iterator[Urls]:
    """A database for each part."""
    with Postgres() as server:
        yield server.create_database


@contextmanager
def redis() -> Iterator[Urls]:
    """A numbered database for each part."""
    with Redis() as server:
        names: list[str] = []

        def url(name: str) -> str:
            names.append(name)
            return f"{server.url.rpartition('/')[0]}/{len(names)}"

        yield url


@contextmanager
def nats() -> Iterator[Urls]:
    """A server for each part: a store is a stream of fixed name."""
    running: list[Nats] = []

    def url(_: str) -> str:
        running.append(Nats().start())
        return running[-1].url

    try:
        yield url
    finally:
        for server in running:
            server.stop()


SERVERS: dict[str, Callable[[], AbstractContextManager[Urls]]] = {
    "postgres": postgres,
    "redis": redis,
    "nats": nats,
}
