"""Durability in words: what the server's real settings mean for a power cut."""

from __future__ import annotations

from redis.exceptions import ResponseError

from holdfast.backends.redis.codec import named, pairs
from holdfast.backends.redis.session import NotPermitted, Session
from holdfast.contracts import Finding

OLDEST = (6, 2)
_SETTINGS = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy", "save")
_FORBIDDEN = "unknown: this user may not run {}; ask whoever runs the server"


async def check(session: Session) -> list[Finding]:
    """Return the settings as the server has them, and what they cost."""
    return [
        *await _settings(session),
        *await _server(session),
        *await _expiry(session),
        *await _lost(session),
    ]


async def _settings(session: Session) -> list[Finding]:
    settings: dict[str, str] = {}
    try:
        for name in _SETTINGS:
            found = pairs(await session.call("CONFIG", "GET", name))
            settings |= {each: value.decode() for each, value in found.items()}
    except (ResponseError, NotPermitted):  # the command is forbidden, or has another name
        return [Finding("warning", "durability", _FORBIDDEN.format("CONFIG GET"))]
    return [_log(settings), _memory(settings)]


def _log(settings: dict[str, str]) -> Finding:
    if settings.get("appendonly") != "yes":
        saves = settings.get("save", "")
        lost = f"everything since the last snapshot (save {saves})" if saves else "everything"
        text = f"no: a power cut or a restart loses {lost}; set appendonly yes and appendfsync always"
        return Finding("error", "appendonly", text)
    match settings.get("appendfsync"):
        case "always":
            return Finding("ok", "appendfsync", "always: a power cut loses nothing that was acknowledged")
        case "everysec":
            text = "everysec: a power cut loses up to about a second of acknowledged events; set it to always"
        case other:
            text = f"{other}: a power cut loses what the system had not written, often 30 s; set it to always"
    return Finding("warning", "appendfsync", text)


def _memory(settings: dict[str, str]) -> Finding:
    policy = settings.get("maxmemory-policy", "")
    if policy == "noeviction":
        return Finding("ok", "maxmemory-policy", "noeviction: a full server refuses, and removes nothing")
    ids = "ids before their time, so that repeats are new events"
    lost = ids if policy.startswith("volatile") else "jobs and events"
    text = f"{policy}: a full server removes {lost}, without a word; set it to noeviction"
    return Finding("warning" if settings.get("maxmemory") == "0" else "error", "maxmemory-policy", text)


async def _server(session: Session) -> list[Finding]:
    try:
        answer: bytes = await session.call("INFO")
    except (ResponseError, NotPermitted):
        return [Finding("warning", "version", _FORBIDDEN.format("INFO"))]
    lines = (line.partition(":") for line in answer.decode().splitlines())
    info = {name: value for name, colon, value in lines if colon}
    findings = [_version(info.get("redis_version", "0.0"))]
    if info.get("cluster_enabled") == "1":
        text = "on: our scripts span slots; use a server or a primary with replicas, several as partitions"
        findings.append(Finding("error", "cluster", text))
    if info.get("aof_last_write_status", "ok") != "ok":
        findings.append(Finding("error", "append-only file", "the last write failed; look at the disk"))
    connected = int(info.get("connected_slaves", 0))
    if connected or session.replicas:
        findings.append(_replication(session.replicas, connected))
    return findings


def _replication(asked: int, connected: int) -> Finding:
    """What a failover can cost. `asked`: how many replicas a publish waits for."""
    if asked > connected:
        text = f"publishes are refused: they wait for {asked} replicas, and {connected} are connected"
        return Finding("error", "replication", text)
    if asked == connected:
        text = "each publish waits for every replica: a failover loses nothing that was acknowledged"
        return Finding("ok", "replication", text)
    text = (
        f"each publish waits for {asked} of {connected} replicas: a failover to another one can lose the "
        f"last acknowledged events; use replicas={connected} in the URL; min-replicas-to-write waits for none"
    )
    return Finding("warning", "replication", text)


async def _expiry(session: Session) -> list[Finding]:
    names = [name.decode("utf-8", "replace") for name in await session.run("store/expiring")]
    shown = ", ".join(names[:5]) + (", …" if len(names) > 5 else "")
    text = f"{shown} had a time to live, and has none any more; find out who sets it, or they vanish"
    return [Finding("error", "expiry", text)] if names else []


async def _lost(session: Session) -> list[Finding]:
    """What other clients removed from a log before it was a consumer's turn: a plain XTRIM asks nobody."""
    consumers = [pairs(stored) for stored in await session.run("channels/consumers", named(None))]
    lost = [
        f"{each['lost'].decode()} of {each['channel'].decode()}/{each['name'].decode()}"
        for each in consumers
        if "lost" in each
    ]
    text = (
        f"{', '.join(lost[:5])} were removed by another client while they waited; find out who trims the log"
    )
    return [Finding("error", "lost events", text)] if lost else []


def _version(version: str) -> Finding:
    if tuple(int(part) for part in version.split(".")[:2]) >= OLDEST:
        return Finding("ok", "version", f"Redis {version}")
    return Finding("error", "version", f"Redis {version} is too old; use 6.2 or newer")
