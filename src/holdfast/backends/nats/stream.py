"""The stream: its settings, and the subjects that it captures."""

from __future__ import annotations

import itertools
import time
from base64 import b64decode
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from holdfast.backends.nats import subjects
from holdfast.backends.nats.answers import Stored
from holdfast.backends.nats.batch import Batches, Message, Stale
from holdfast.backends.nats.link import Link
from holdfast.backends.nats.pauses import step_aside
from holdfast.model.errors import HoldfastError, Unavailable
from holdfast.model.names import matches

OLDEST = (2, 12)
LEAST_PAYLOAD = 524_288
"""What a message must hold: a job's record has up to 15 errors of up to 24,000 bytes."""
_API = "$JS.API.STREAM"
_NOT_FOUND, _EXISTS, _NO_MESSAGE, _NOTHING = 10059, 10058, 10043, 10037
_ALONE = 10
"""Seconds after which the mark of whoever changes the subjects is gone by itself."""
_SLOW = 60.0  # seconds that a purge may take
_SETTINGS: dict[str, Any] = {
    "name": subjects.STREAM,
    "description": "Holdfast: events, jobs and everything else; see docs/nats.md",
    "retention": "limits",
    "discard": "new",  # a full stream refuses, and removes nothing
    "storage": "file",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "max_msgs_per_subject": -1,
    "num_replicas": 1,
    "allow_direct": True,
    "allow_atomic": True,
    "allow_rollup_hdrs": True,
    "allow_msg_ttl": True,
}
_NEEDED = ("allow_direct", "allow_atomic", "allow_rollup_hdrs", "allow_msg_ttl")


async def info(link: Link, **query: Any) -> dict[str, Any]:
    """The stream as the server has it now."""
    answer = await link.request(f"{_API}.INFO.{subjects.STREAM}", query or None)
    return _checked(answer, f"look at the stream {subjects.STREAM}")


async def ensure(link: Link) -> str:
    """Create the stream where there is none; answers who it is.

    A restarted server may lack the newest messages that its clients have seen, so that it counts as another
    one, unless the stream has replicas.
    """
    client = await link.client()
    server: dict[str, Any] = client._server_info  # nats-py has no other way to its id
    version = tuple(int(part) for part in str(server.get("version", "0.0")).split(".")[:2] if part.isdigit())
    if version < OLDEST:
        raise HoldfastError(f"NATS {server.get('version')} has no atomic batches; use 2.12 or newer")
    if client.max_payload < LEAST_PAYLOAD:
        raise HoldfastError(
            f"NATS has max_payload {client.max_payload}, too little for the record of a job that failed "
            f"often; set it to {LEAST_PAYLOAD} or more, the default is 1 MB"
        )
    answer = await link.request(f"{_API}.INFO.{subjects.STREAM}")
    if answer.get("error", {}).get("err_code") == _NOT_FOUND:
        settings = _SETTINGS | {"subjects": [subjects.OURS]}
        answer = await link.request(f"{_API}.CREATE.{subjects.STREAM}", settings)
        if answer.get("error", {}).get("err_code") == _EXISTS:
            answer = await link.request(f"{_API}.INFO.{subjects.STREAM}")
    answer = _checked(answer, f"create the stream {subjects.STREAM}")
    missing = [name for name in _NEEDED if not answer["config"].get(name)]
    if missing:
        raise HoldfastError(
            f"the stream {subjects.STREAM} lacks {', '.join(missing)}; update it, or remove it"
        )
    replicated = int(answer["config"].get("num_replicas", 1)) > 1
    return f"{answer['created']}" + ("" if replicated else f" {server.get('server_id')}")


async def capture(link: Link, channels: Iterable[str]) -> None:
    """Let the stream capture channels that it does not capture yet."""
    wanted = list(channels)
    if not _missing(wanted, (await info(link))["config"]):
        return
    async with _alone(link):
        config = (await info(link))["config"]
        if missing := _missing(wanted, config):
            update = config | {"subjects": [*config["subjects"], *missing]}
            _checked(
                await link.request(f"{_API}.UPDATE.{subjects.STREAM}", update),
                f"let the stream {subjects.STREAM} capture {', '.join(missing[:5])}",
            )


@asynccontextmanager
async def _alone(link: Link) -> AsyncIterator[None]:
    """One update after the other. The server checks no revision: of two at once one undoes the other. And it
    compares both with the same settings, so that it subscribes to a subject twice, and stores its messages
    twice (seen with 2.15.1). Whoever dies here is waited for."""
    mark = Message(subjects.UPDATING, b"", {subjects.TTL: f"{_ALONE}s"}, expect=0)
    until = time.monotonic() + 2 * _ALONE
    for turn in itertools.count():
        try:
            seq = await Batches(link).commit([mark])
            break
        except Stale:
            if time.monotonic() > until:
                told = f"the subjects of the stream {subjects.STREAM} are changed by too many at once"
                raise Unavailable(f"{told}; try again") from None
            await step_aside(turn)
    try:
        yield
    finally:
        await delete(link, seq)


async def purge(link: Link, subject: str, last: int) -> None:
    """Remove every message of the subjects that a filter matches, up to and including a sequence."""
    if last > 0:
        _checked(
            await link.request(
                f"{_API}.PURGE.{subjects.STREAM}", {"filter": subject, "seq": last + 1}, patience=_SLOW
            ),
            f"purge {subject} from the stream {subjects.STREAM}",
        )


async def last(link: Link, subject: str) -> Stored | None:
    """The newest message of all subjects that a filter matches."""
    answer = await link.request(f"{_API}.MSG.GET.{subjects.STREAM}", {"last_by_subj": subject})
    if answer.get("error", {}).get("err_code") == _NOTHING:
        return None
    found = _checked(answer, f"look for {subject} in the stream {subjects.STREAM}")["message"]
    return Stored(found["subject"], found["seq"], found["time"], {}, b64decode(found.get("data", "")))


async def delete(link: Link, seq: int) -> None:
    """Remove one message; it may be gone already."""
    answer = await link.request(f"{_API}.MSG.DELETE.{subjects.STREAM}", {"seq": seq, "no_erase": True})
    error = answer.get("error", {})
    # Of what stood before the first message the server says so only in words, as of a store that failed.
    if error.get("err_code") != _NO_MESSAGE and error.get("description") != "no message found":
        _checked(answer, f"remove message {seq} of the stream {subjects.STREAM}")


def _missing(wanted: Iterable[str], config: dict[str, Any]) -> list[str]:
    return [channel for channel in wanted if not _captured(channel, config["subjects"])]


def _captured(channel: str, captured: Iterable[str]) -> bool:
    return any(
        channel == each or (each.islower() and ("*" in each or ">" in each) and matches(each, channel))
        for each in captured
    )


def _checked(answer: dict[str, Any], what: str) -> dict[str, Any]:
    error = answer.get("error")
    if error is None:
        return answer
    if error.get("code", 0) >= 500:  # it cannot now: no room on its disk, no leader, …
        raise Unavailable(f"NATS could not {what}: {error.get('description')}")
    raise HoldfastError(f"NATS refused to {what}: {error.get('description')} ({error.get('err_code')})")
