"""Durability in words: what the server's real settings mean for a power cut."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import orjson

from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.batch import MOST
from holdfast.backends.nats.link import Link
from holdfast.backends.nats.room import SERVER
from holdfast.contracts import Finding
from holdfast.model.duration import format_duration
from holdfast.model.errors import Unavailable

_DEFAULT = 120_000_000_000  # nanoseconds
_UNKNOWN = (
    "unknown: only the system account may ask, or one that it lets. The server's default is two minutes, "
    "in which a power cut loses what it acknowledged; set jetstream { sync_interval: always }, or give the "
    "stream three replicas"
)


async def check(link: Link) -> list[Finding]:
    """Read the settings as the server has them, and say what they cost."""
    client = await link.client()
    info = await stream.info(link)
    config: dict[str, Any] = info["config"]
    version = client._server_info.get("version", "unknown")
    return [
        await _sync_interval(link),
        _storage(config),
        _replicas(config),
        _limits(config),
        Finding("ok", "version", f"NATS {version}; a batch takes up to {MOST} messages"),
    ]


async def _sync_interval(link: Link) -> Finding:
    try:
        answer = await link.inquire(SERVER, {"config": True})
        settings: dict[str, Any] = (answer or {})["data"]["config"]
    except (Unavailable, KeyError, TypeError, orjson.JSONDecodeError):
        return Finding("warning", "sync_interval", _UNKNOWN)
    if settings.get("sync_always"):
        return Finding("ok", "sync_interval", "always: a power cut loses nothing that was acknowledged")
    every = format_duration(timedelta(microseconds=int(settings.get("sync_interval", _DEFAULT)) / 1000))
    text = f"{every}: a power cut loses up to that much of what was acknowledged; set it to always"
    return Finding("warning", "sync_interval", text)


def _storage(config: dict[str, Any]) -> Finding:
    if config.get("storage") == "file":
        return Finding("ok", "storage", "file: what the server has acknowledged survives its restart")
    return Finding("error", "storage", f"{config.get('storage')}: a restart loses everything; use file")


def _replicas(config: dict[str, Any]) -> Finding:
    count = int(config.get("num_replicas", 1))
    if count > 1:
        return Finding("ok", "replicas", f"{count}: a majority has what was acknowledged, in memory at least")
    return Finding("ok", "replicas", "1: what this server's disk loses is lost; three survive one server")


def _limits(config: dict[str, Any]) -> Finding:
    limits = [
        name
        for name in ("max_age", "max_msgs", "max_bytes", "max_msgs_per_subject")
        if config.get(name, 0) > 0
    ]
    if limits and (config.get("discard") != "new" or limits != ["max_bytes"]):
        text = f"{', '.join(limits)}: the server removes events and jobs by itself; take the limits away"
        return Finding("error", f"limits of {subjects.STREAM}", text)
    return Finding("ok", f"limits of {subjects.STREAM}", "none: nothing is removed but by Holdfast")
