"""Checks: what the real settings of the servers mean for a power cut and for the loss of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import orjson

from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import MOST
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.contracts import Finding
from holdfast.model.duration import format_duration
from holdfast.model.errors import Unavailable

_DEFAULT_SYNC = 120_000_000_000  # nanoseconds
_ALWAYS = "always"
_UNKNOWN_SYNC = (
    "only the system account may ask, or one that it lets. The server's default is two minutes, "
    "in which a power cut loses what it acknowledged; set jetstream { sync_interval: always }"
)


async def check(connection: NatsConnection) -> list[Finding]:
    """Return what the real settings of the servers that have the stream mean for a power cut."""
    client, found = await connection.client(), await stream.info(connection)
    config, cluster = found["config"], found.get("cluster") or {}
    version = client.server_info.get("version", "unknown")
    names = [cluster.get("leader") or client.server_name]
    names += [each["name"] for each in cluster.get("replicas") or ()]
    return [
        await _sync_interval(connection, names),
        _storage(config),
        _replicas(config, cluster),
        *await _buckets(connection, int(config["num_replicas"])),
        _removals(config),
        Finding("ok", "version", f"NATS {version}; a batch takes up to {MOST} messages"),
    ]


async def _sync_interval(connection: NatsConnection, servers: Sequence[str]) -> Finding:
    """Whether every server that has the stream syncs before it acknowledges."""
    asked = await asyncio.gather(*(_synced_every(connection, each) for each in servers))
    every = dict(zip(servers, asked, strict=True))
    if None in every.values():
        silent = [name for name, told in every.items() if told is None]
        whose = f" of {', '.join(silent)}" if len(servers) > 1 else ""
        return Finding("warning", "sync_interval", f"unknown{whose}: {_UNKNOWN_SYNC}")
    late = {name: told for name, told in every.items() if told != _ALWAYS}
    if not late:
        where = f" on {', '.join(servers)}" if len(servers) > 1 else ""
        text = f"{_ALWAYS}{where}: a power cut loses nothing that was acknowledged"
        return Finding("ok", "sync_interval", text)
    if len(servers) == 1:
        text = f"{late.popitem()[1]}: a power cut loses up to that much of what was acknowledged"
        return Finding("warning", "sync_interval", f"{text}; set it to always")
    named = ", ".join(f"{told} on {name}" for name, told in late.items())
    return Finding(
        "warning",
        "sync_interval",
        f"{named}: it counts for the majority before it has synced, and a power cut of several servers loses "
        "what was acknowledged; set it to always on each",
    )


async def _synced_every(connection: NatsConnection, server: str) -> str | None:
    """Return how often a server syncs; None where it does not say."""
    try:
        reply = await connection.inquire(stream.SERVER_INFO, stream.about(server))
        settings: dict[str, Any] = (reply or {})["data"]["config"]
    except (Unavailable, KeyError, TypeError, orjson.JSONDecodeError):
        return None
    if settings.get("sync_always"):
        return _ALWAYS
    return format_duration(timedelta(microseconds=int(settings.get("sync_interval", _DEFAULT_SYNC)) / 1000))


def _storage(config: dict[str, Any]) -> Finding:
    if config.get("storage") == "file":
        return Finding("ok", "storage", "file: what the server has acknowledged survives its restart")
    return Finding("error", "storage", f"{config.get('storage')}: a restart loses everything; use file")


def _replicas(config: Mapping[str, Any], cluster: Mapping[str, Any]) -> Finding:
    """How many servers have the stream, whether each has all of it, and who leads."""
    count, others = int(config.get("num_replicas", 1)), cluster.get("replicas") or ()
    if count == 1:
        return Finding(
            "ok",
            "replicas",
            "1: what this server's disk loses is lost; three (?replicas=3) survive one server",
        )
    behind = [
        f"{each['name']} is " + _standing(each)
        for each in others
        if each.get("offline") or not each.get("current")
    ]
    text = f"{count}, led by {cluster.get('leader') or 'nobody'}"
    if behind:
        return Finding("warning", "replicas", f"{text}; {', '.join(behind)}; see to those servers")
    if count == 2:
        return Finding(
            "warning", "replicas", f"{text}: without one of two nothing is accepted; ask for three"
        )
    return Finding("ok", "replicas", f"{text}, all current: a majority has what was acknowledged")


def _standing(replica: Mapping[str, Any]) -> str:
    if replica.get("offline"):
        return "offline"
    return f"{replica['lag']} operations behind" if replica.get("lag") else "not current"


async def _buckets(connection: NatsConnection, replicas: int) -> list[Finding]:
    """Buckets of ours with fewer replicas than the stream."""
    reply = await connection.inquire("$JS.API.STREAM.LIST")
    if reply is None:  # it is the cluster that lists them, and may have no leader now
        return [Finding("warning", "replicas of state records", "unknown: no server told its streams")]
    fewer = [
        f"{each['config']['name']} has {each['config']['num_replicas']}"
        for each in reply.get("streams") or ()
        if each["config"].get("description") == stream.BUCKET and each["config"]["num_replicas"] < replicas
    ]
    if not fewer:
        return []
    text = f"{', '.join(fewer)}, the stream {replicas}; ask for ?replicas={replicas}, and write a record"
    return [Finding("warning", "replicas of state records", text)]


def _removals(config: dict[str, Any]) -> Finding:
    limits = [
        name
        for name in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
        if config.get(name, 0) > 0
    ]
    if limits and (config.get("discard") != "new" or limits != ["max_bytes"]):
        text = f"{', '.join(limits)}: the server removes events and jobs by itself; take the limits away"
        return Finding("error", f"limits of {subjects.STREAM}", text)
    return Finding("ok", f"limits of {subjects.STREAM}", "none: nothing is removed but by Holdfast")
