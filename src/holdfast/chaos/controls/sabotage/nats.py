"""What can be done to NATS behind the back of the bus, with a plain client."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from nats.aio.client import Client

from holdfast.chaos.controls.sabotage.contract import Sabotage, had_effect
from holdfast.chaos.rig import CHANNEL
from holdfast.chaos.stores.nats import STREAM, connected, read

_ROLLUP = {"Nats-Rollup": "sub"}
_LIVE, _ENDED, _COUNTS = "HF.S.job.", "HF.E.", "HF.S.count.>"


def _with_client(work: Callable[[Client], Awaitable[bool]]) -> Sabotage:
    async def execute(url: str) -> None:
        async with connected(url) as client:
            had_effect(await work(client))

    return execute


def _rewrite(subject: str, to: str | None = None, **changes: Any) -> Sabotage:
    """Change every record under a subject, in its place or under another one."""

    async def work(client: Client) -> bool:
        found = [message for message in await read(client, [subject]) if message.data]
        for message in found:
            record = json.loads(message.data) | changes
            place = message.subject if to is None else to + ".".join(message.subject.split(".")[-2:])
            await client.jetstream().publish(place, json.dumps(record).encode(), headers=_ROLLUP)
        return bool(found)

    return _with_client(work)


def _remove(subject: str, nth: int = 0) -> Sabotage:
    """Remove a message."""

    async def work(client: Client) -> bool:
        message = (await read(client, [subject]))[nth]
        return await client.jetstream().delete_msg(STREAM, message.metadata.sequence.stream)

    return _with_client(work)


async def _trim_a_running_job(client: Client) -> bool:
    stream, last = client.jetstream(), (await read(client, [CHANNEL]))[-1].metadata.sequence.stream
    await stream.publish(f"HF.T.{CHANNEL}", b"%d" % last)
    return await stream.delete_msg(STREAM, last)


SABOTAGE: Mapping[str, Sabotage] = {
    "an event is lost with its job": _remove(CHANNEL, 1),
    "a done job vanishes": _remove(_ENDED + ">"),
    "a done job is live again": _rewrite(_ENDED + ">", to=_LIVE, state="ready"),
    "a dead letter goes uncounted": _rewrite(_COUNTS, None, **{"dead:terminal": 0}),
    "a job gets an attempt too many": _rewrite(_ENDED + ">", attempts=6),
    "a job is done that nobody completed": _rewrite(_LIVE + ">", to=_ENDED, state="done"),
    "a token falls": _rewrite(_LIVE + ">", token=0),
    "a done job has another token": _rewrite(_ENDED + ">", token=7),
    "a running job loses its event": _with_client(_trim_a_running_job),
}
