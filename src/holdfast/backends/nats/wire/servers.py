"""Servers: what a URL says: the servers of one cluster, and how many of them keep each message.

    nats://user:password@a:4222,b:4222,c:4222?replicas=3

The user and the password stand once, or before each host.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from holdfast.model.errors import InvalidInput

_PORT = 4222
_MOST_REPLICAS = 5  # a limit of the server
_REPLICAS = "replicas"
_PINGS = {"ping_interval": 0.7, "max_outstanding_pings": 2}


class Servers(NamedTuple):
    """The URL of each server, and the number of replicas that was asked for."""

    urls: tuple[str, ...]
    replicas: int | None

    @property
    def pings(self) -> dict[str, Any]:
        """Options of a connection: of several servers, one that is silent for two seconds is given up."""
        return _PINGS if len(self.urls) > 1 else {}


def parse_servers(url: str) -> Servers:
    """Return what a URL says. Raises `InvalidInput`, whose message shows no credentials."""
    try:
        parts = urlsplit(url)
        return Servers(tuple(_each(parts)), _asked(parts))
    except ValueError as error:
        raise InvalidInput(f"the URL of the NATS store cannot be used: {error}") from None


def discovered(url: str, info: dict[str, Any]) -> list[str]:
    """Return the URLs of the servers that one of them tells of, with the credentials of `url`."""
    parts = urlsplit(url)
    user, at, _ = parts.netloc.rpartition("@")
    return [f"{parts.scheme}://{user}{at}{host}" for host in info.get("connect_urls") or ()]


def _each(parts: SplitResult) -> Iterator[str]:
    user, at, hosts = parts.netloc.rpartition("@")
    if "@" in user and "," in parts.netloc:
        named = parts.netloc.split(",")  # each with its own
        if any(each.count("@") != 1 for each in named):
            raise ValueError("name the user once, or before each host, and write an at sign in it as %40")
    else:
        named = [f"{user}{at}{host}" for host in hosts.split(",")]
    for each in named:
        host = urlsplit(f"//{each.rpartition('@')[2]}")
        if not host.hostname:
            raise ValueError("it names no host")
        yield f"{parts.scheme}://{each}" + ("" if _port(host) else f":{_PORT}")


def _port(host: SplitResult) -> int | None:
    try:
        return host.port
    except ValueError:  # its message shows what may be part of a password
        raise ValueError("a port is no number from 1 to 65535") from None


def _asked(parts: SplitResult) -> int | None:
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    asked = given.pop(_REPLICAS, None)
    if given:
        raise ValueError(f"it has the parameter {next(iter(given))!r}; NATS has {_REPLICAS}")
    if asked is None:
        return None
    if asked not in map(str, range(1, _MOST_REPLICAS + 1)):
        raise ValueError(f"{_REPLICAS}={asked!r} is no number from 1 to {_MOST_REPLICAS}")
    return int(asked)
