"""Pools: which server a URL leads to: one that it names, or the primary that sentinels name.

    redis://user:password@host:6379/0
    redis+sentinel://user:password@s1:26379,s2,s3/mymaster/0?sentinel_password=…

The user and the password are those of the servers. `?replicas=1` makes each publish wait until so many
replicas have it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit

from redis.asyncio.connection import ConnectionPool, parse_url
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool

from holdfast.model.errors import InvalidInput
from holdfast.model.redact import address

_PORT, _SENTINEL_PORT = 6379, 26379
_PATIENCE = 2.0
"""Seconds after which the next sentinel is asked."""
_SENTINEL_USER, _SENTINEL_PASSWORD, _REPLICAS = "sentinel_username", "sentinel_password", "replicas"
_OURS = (_SENTINEL_USER, _SENTINEL_PASSWORD, _REPLICAS)


def hosts(url: str) -> str:
    """Return the hosts of a URL, for messages."""
    return address(url, _SENTINEL_PORT if _names_sentinels(urlsplit(url)) else _PORT)


def replicas(url: str) -> int:
    """Return how many replicas have to have a publish before it is acknowledged. Raises `InvalidInput`."""
    _, ours = _split(url)
    asked = ours.get(_REPLICAS, "0")
    if not asked.isascii() or not asked.isdigit():
        raise InvalidInput(f"{_REPLICAS}={asked!r} in the URL of {hosts(url)} is not a number of replicas")
    return int(asked)


def make_pool(url: str, **options: Any) -> ConnectionPool:
    """Return a pool whose connections lead to the server that takes writes. What the URL says goes before
    the options.

    Raises `InvalidInput`, and what redis-py raises for options that it does not know.
    """
    parts, ours = _split(url)
    if not _names_sentinels(parts):
        return ConnectionPool.from_url(parts.geturl(), **options)
    user, at, names = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise InvalidInput(f"the URL of {hosts(url)} does not say which primary; end it with /mymaster/0")
    server = parts._replace(scheme=parts.scheme.partition("+")[0], netloc=f"{user}{at}primary", path=database)
    settings = {**options, **parse_url(server.geturl())}
    settings["ssl"] = settings.pop("connection_class", None) is not None
    sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py
        [(each.hostname or "localhost", each.port or _SENTINEL_PORT) for each in _each(names)],
        sentinel_kwargs={
            "username": ours.get(_SENTINEL_USER),
            "password": ours.get(_SENTINEL_PASSWORD),
            "ssl": settings["ssl"],
            "socket_timeout": _PATIENCE,
            **options,
        },
    )
    pool: ConnectionPool = SentinelConnectionPool(  # type: ignore[no-untyped-call]  # redis-py
        unquote(service), sentinel, **settings
    )
    return pool


async def close(pool: ConnectionPool) -> None:
    """Close what a pool has open, to sentinels as well."""
    await pool.disconnect()
    if isinstance(pool, SentinelConnectionPool):
        await pool.sentinel_manager.aclose()


@asynccontextmanager
async def opened(url: str, **options: Any) -> AsyncIterator[ConnectionPool]:
    """Yield such a pool, and close it."""
    pool = make_pool(url, **options)
    try:
        yield pool
    finally:
        await close(pool)


def _split(url: str) -> tuple[SplitResult, dict[str, str]]:
    """Return a URL without the parameters that are ours, and those."""
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    rest = urlencode([(name, value) for name, value in query if name not in _OURS])
    return parts._replace(query=rest), {name: value for name, value in query if name in _OURS}


def _names_sentinels(parts: SplitResult) -> bool:
    return parts.scheme.endswith("+sentinel")


def _each(names: str) -> list[SplitResult]:
    return [urlsplit(f"//{name}") for name in names.split(",")]
