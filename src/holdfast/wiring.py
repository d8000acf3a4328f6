"""The composition root: from URLs to objects. Only this module knows the concrete backends."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from holdfast.bus.client import Bus
from holdfast.bus.sync import SyncBus
from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput

HOME = Path(".holdfast")
Urls = str | Sequence[str] | None


def connect(url: Urls = None, *, connections: int = 4) -> Bus:
    """A bus on one store or, given several URLs, on partitions. Use it with `async with`.

    Without a URL: `HOLDFAST_URL`, then `DATABASE_URL`, then a private PostgreSQL under `.holdfast/`.
    """
    urls = _urls(url)
    if urls:
        return Bus([backend(each, connections=connections) for each in urls])
    address, leave = _embedded()
    return Bus([backend(address, connections=connections)], on_close=leave)


def connect_sync(url: Urls = None, *, connections: int = 4) -> SyncBus:
    """The same without await, for scripts: use it with `with`."""
    return SyncBus(connect(url, connections=connections))


def backend(url: str, *, connections: int = 4) -> Backend:
    """The backend for a URL's scheme."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError as error:
        raise InvalidInput(f"the URL cannot be read: {error}") from None
    if scheme in ("postgresql", "postgres"):
        from holdfast.backends.postgres import PostgresBackend

        return PostgresBackend(url, connections=connections)
    if scheme in ("redis", "rediss"):
        from holdfast.backends.redis import RedisBackend

        return RedisBackend(url, connections=connections)
    if scheme in ("nats", "tls"):
        from holdfast.backends.nats import NatsBackend

        return NatsBackend(url, connections=connections)
    raise InvalidInput(
        f"no backend for the URL scheme {scheme!r}; use postgresql://user@host/database, redis://host:6379/0 "
        "or nats://host:4222"
    )


def migration_script() -> str:
    """The schema as a script, for people who apply migrations themselves. Only PostgreSQL has one."""
    from holdfast.backends.postgres import migrate as migrations

    return migrations.script()


async def migrate(url: Urls = None) -> list[list[str]]:
    """Bring every store up to date; answers, store by store, the names of what was applied."""
    urls, leave = _urls(url), None
    if not urls:
        address, leave = _embedded()
        urls = [address]
    applied = []
    try:
        for each in urls:
            store = backend(each)
            applied.append(await store.open())
            await store.close()
    finally:
        if leave is not None:
            leave()
    return applied


def _urls(url: Urls) -> list[str]:
    if url is None:
        url = os.environ.get("HOLDFAST_URL") or os.environ.get("DATABASE_URL") or []
    # A comma before a scheme separates stores; others belong to a URL with several hosts.
    urls = re.split(r"\s*,\s*(?=[a-z]+://)", url.strip()) if isinstance(url, str) else list(url)
    if len(set(urls)) != len(urls):
        raise InvalidInput("the same store is listed twice; name each partition once")
    return urls


def _embedded() -> tuple[str, Callable[[], None]]:
    """Start, or join, the private server of this folder; it stops when its last user leaves."""
    from holdfast.embedded import Postgres

    server = Postgres.shared(HOME / "postgres").start()
    return server.url, server.stop
