"""Durability in words: what the server's real settings mean for a power cut."""

from __future__ import annotations

from holdfast.backends.postgres.session import Session
from holdfast.contracts import Finding
from holdfast.model.position import format_position

OLDEST = 160000


async def check(session: Session) -> list[Finding]:
    """Read the settings as the server has them, and say what they cost."""
    settings = dict(await session.rows("settings"))
    findings = [_fsync(settings["fsync"]), _commit(settings["synchronous_commit"])]
    if await session.through_pooler():
        text = (
            "connections end at a pooler: each transaction brings its settings with it, nothing is prepared,"
        )
        text += " and workers poll for new work, since wake-ups need a connection of their own"
        findings.append(Finding("warning", "pooler", text))
    findings += [_pages(settings["full_page_writes"]), _version(int(settings["server_version_num"]))]
    for crowded, taken, limit in await session.rows("server_crowded"):
        if crowded:
            text = (
                f"{taken} of max_connections = {limit} are taken: above two thirds, no process makes a second"
            )
            text += " one; raise it, run fewer processes, or put PgBouncer before the server"
            findings.append(Finding("warning", "connections", text))
    for epoch, timeline, began in await session.rows("last_epoch"):
        text = f"since {began:%Y-%m-%d %H:%M} UTC this is another server than before (epoch {epoch}, timeline"
        text += f" {timeline}): what that one acknowledged last may be missing; publish it again, same ids"
        findings.append(Finding("warning", "failover", text))
    for channel, lost, first, last in await session.rows("known_lost"):
        text = f"{lost} acknowledged events of channel {channel!r} are missing, at {format_position(*first)}"
        text += (
            f" to {format_position(*last)}, as their publishers report; the table holdfast.lost names them"
        )
        findings.append(Finding("warning", "lost events", text))
    for pid, age, channels in await session.rows("blockers"):
        text = f"server process {pid} has held a publish open for {age:.0f} s: readers of"
        text += f" {', '.join(channels)} wait for it; end it with pg_terminate_backend({pid})"
        findings.append(Finding("warning", "open publish", text))
    return findings


def _fsync(value: str) -> Finding:
    if value == "on":
        return Finding("ok", "fsync", "on: a power cut loses nothing that was acknowledged")
    return Finding("error", "fsync", "off: a power cut can lose or corrupt the whole store; set fsync = on")


def _commit(value: str) -> Finding:
    if value in ("on", "remote_write", "remote_apply"):
        return Finding("ok", "synchronous_commit", f"{value}: an acknowledged publish is on disk")
    if value == "local":
        text = "local: on this disk, but a standby may lack the last events after a failover"
        return Finding("warning", "synchronous_commit", text)
    text = "off: a crash of the server loses the last moments of acknowledged events; set it to on"
    return Finding("warning", "synchronous_commit", text)


def _pages(value: str) -> Finding:
    if value == "on":
        return Finding("ok", "full_page_writes", "on: a torn page is repaired at recovery")
    text = "off: a power cut can leave torn pages unless the file system prevents them"
    return Finding("warning", "full_page_writes", text)


def _version(number: int) -> Finding:
    text = f"PostgreSQL {number // 10000}.{number % 10000}"
    if number >= OLDEST:
        return Finding("ok", "version", text)
    return Finding("error", "version", f"{text} is too old; use 16 or newer")
