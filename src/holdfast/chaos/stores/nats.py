"""NATS under the rig, with every write synced: jobs and counters as a plain client reads them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from holdfast.chaos.evidence import Evidence, Owner, Row, Sabotage, Store, through_the_contract
from holdfast.embedded import Nats
from holdfast.model.job import State
from holdfast.wiring import backend

_STREAM = "HOLDFAST"
_JOBS = ["HF.S.job.>", "HF.E.>", "HF.D.>"]
_COUNTS = "HF.S.count.>"
_REGISTRY = "HF.S.registry"
_PAGE = 500
_ROLLUP = {"Nats-Rollup": "sub"}


def _rewrite(subject: str, to: str | None = None, **changes: Any) -> Sabotage:
    """Change every record under a subject, in its place or under another one."""

    async def execute(client: Client) -> None:
        found = [message for message in await _read(client, [subject]) if message.data]
        for message in found:
            record = json.loads(message.data) | changes
            place = message.subject if to is None else to + ".".join(message.subject.split(".")[-2:])
            await client.jetstream().publish(place, json.dumps(record).encode(), headers=_ROLLUP)
        assert found

    return execute


def _remove(subject: str, nth: int = 0) -> Sabotage:
    """Remove a message."""

    async def execute(client: Client) -> None:
        message = (await _read(client, [subject]))[nth]
        assert await client.jetstream().delete_msg(_STREAM, message.metadata.sequence.stream)

    return execute


async def _trim_a_running_job(client: Client) -> None:
    stream, last = client.jetstream(), (await _read(client, ["orders"]))[-1].metadata.sequence.stream
    assert await stream.delete_msg(_STREAM, last)
    await stream.publish("HF.T.orders", b"%d" % last)


class NatsStore(Store):
    """The whole server is the store."""

    sabotage: ClassVar[Mapping[str, tuple[str, Sabotage]]] = {
        "a done job vanishes": ("I3", _remove("HF.E.>")),
        "a done job is live again": ("I3", _rewrite("HF.E.>", to="HF.S.job.", state="ready")),
        "a dead letter goes uncounted": ("I3", _rewrite(_COUNTS, None, **{"dead:terminal": 0})),
        "an event is lost with its job": ("I1", _remove("orders", 1)),
        "an attempt too many": ("I4", _rewrite("HF.E.>", attempts=6)),
        "nobody completed it": ("I4", _rewrite("HF.S.job.>", to="HF.E.", state="done")),
        "a token falls": ("I5", _rewrite("HF.S.job.>", token=0)),
        "a running job loses its event": ("I7", _trim_a_running_job),
        "a done job has another token": ("I5", _rewrite("HF.E.>", token=7)),
    }

    def __init__(self) -> None:
        super().__init__(Nats(sync_interval="always").start())

    async def empty(self) -> str:
        async with _client(self.server.url) as client:
            for each in await client.jetstream().streams_info():
                await client.jetstream().delete_stream(each.config.name or "")
        return self.server.url

    async def gather(self, url: str) -> Evidence:
        opened = backend(url, connections=1)
        await opened.open()
        try:
            found = await through_the_contract(opened, _job_at)
        finally:
            await opened.close()
        async with _client(url) as client:
            owners = await _owners(client)
            for message in await _read(client, _JOBS):
                if message.data:
                    found.rows.append(_row(owners, json.loads(message.data)))
            for owner in owners.values():
                found.terms[owner].counted.update(dict.fromkeys(State, 0))
            for message in await _read(client, [_COUNTS]):
                counted = found.terms[owners[message.subject.split(".")[3]]].counted
                for name, number in json.loads(message.data or b"{}").items():
                    counted[name] = counted.get(name, 0) + number
        return found

    async def vandalise(self, url: str, what: str) -> None:
        async with _client(url) as client:
            await self.sabotage[what][1](client)


@asynccontextmanager
async def _client(url: str) -> AsyncIterator[Client]:
    async with await nats.connect(url, allow_reconnect=False) as client:
        yield client


async def _read(client: Client, subjects: list[str]) -> list[Msg]:
    """Every message under some subjects, in order."""
    stream, found = client.jetstream(), list[Msg]()
    made = await stream.add_consumer(
        _STREAM, ConsumerConfig(filter_subjects=subjects, ack_policy=AckPolicy.NONE, inactive_threshold=5)
    )
    subscription = await stream.pull_subscribe_bind(made.name, stream=_STREAM)
    left = made.num_pending or 0
    while len(found) < left:
        found += await subscription.fetch(min(_PAGE, left - len(found)))
    await stream.delete_consumer(_STREAM, made.name)
    await subscription.unsubscribe()
    return found


async def _owners(client: Client) -> dict[str, Owner]:
    """The consumers by their numbers."""
    registry = json.loads((await _read(client, [_REGISTRY]))[0].data)
    return {ref: (channel, name) for ref, channel, name, *_ in registry["members"]}


def _row(owners: dict[str, Owner], record: dict[str, Any]) -> Row:
    numbers = (record["attempts"], record["abandonments"], record["token"])
    return Row(*owners[record["ref"]], str(record["seq"]), record["state"], *numbers, record["reason"])


def _job_at(position: str) -> str:
    return str(int(position.rpartition("-")[2], 16))
