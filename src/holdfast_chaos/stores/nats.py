"""NATS under the rig, with every write synced: jobs and counters as a plain client reads them."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from holdfast.embedded import Nats
from holdfast.model.states import State
from holdfast.wiring import backend
from holdfast_chaos.final_state import FinalState, JobState, Owner, ServerUnderTest, contract_state

STREAM = "HOLDFAST"
_JOBS = ["HF.S.job.>", "HF.E.>", "HF.D.>"]
_COUNTS = "HF.S.count.>"
_REGISTRY = "HF.S.registry"
_PAGE, _LONG = 500, 60.0
_NEXT = json.dumps({"batch": _PAGE, "no_wait": True}).encode()


class NatsStore(ServerUnderTest):
    """The whole server is the store."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, durable: bool = True) -> None:
        super().__init__(Nats(folder, sync_interval="always" if durable else "2m").start())

    async def empty(self) -> str:
        async with connected(self.server.url) as client:
            for each in await client.jetstream().streams_info():
                await client.jetstream().delete_stream(each.config.name or "")
        return self.server.url

    async def final_state(self, url: str) -> FinalState:
        opened = backend(url, connections=1)
        await opened.open()
        try:
            found = await contract_state(opened, _job_at)
        finally:
            await opened.close()
        async with connected(url) as client:
            owners = await _owners(client)
            for message in await read(client, _JOBS):
                if message.data:
                    found.rows.append(_row(owners, json.loads(message.data)))
            for owner in owners.values():
                found.terms[owner].counted.update(dict.fromkeys(State, 0))
            for message in await read(client, [_COUNTS]):
                counted = found.terms[owners[message.subject.split(".")[3]]].counted
                for name, number in json.loads(message.data or b"{}").items():
                    counted[name] = counted.get(name, 0) + number
        return found


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Client]:
    async with await nats.connect(url, allow_reconnect=False) as client:
        yield client


async def read(client: Client, subjects: list[str]) -> list[Msg]:
    """Every message under some subjects, in order.

    The server says when it has no more: a tombstone that was counted may expire before it is read.
    """
    stream, found = client.jetstream(), list[Msg]()
    made = await stream.add_consumer(
        STREAM, ConsumerConfig(filter_subjects=subjects, ack_policy=AckPolicy.NONE, inactive_threshold=_LONG)
    )
    answers = await client.subscribe(inbox := client.new_inbox())
    status = None
    while status is None:
        await client.publish(f"$JS.API.CONSUMER.MSG.NEXT.{STREAM}.{made.name}", _NEXT, reply=inbox)
        for _ in range(_PAGE):
            message = await answers.next_msg(timeout=_LONG)
            status = (message.headers or {}).get("Status")
            if status is not None:
                break
            found.append(message)
    if status != "404":
        raise RuntimeError(f"NATS answered {status}")
    await stream.delete_consumer(STREAM, made.name)
    await answers.unsubscribe()
    return found


async def _owners(client: Client) -> dict[str, Owner]:
    """The consumers by their numbers."""
    registry = json.loads((await read(client, [_REGISTRY]))[0].data)
    return {ref: (channel, name) for ref, channel, name, *_ in registry["members"]}


def _row(owners: dict[str, Owner], record: dict[str, Any]) -> JobState:
    numbers = (record["attempts"], record["abandonments"], record["token"])
    return JobState(*owners[record["ref"]], str(record["seq"]), record["state"], *numbers, record["reason"])


def _job_at(position: str) -> str:
    return str(int(position.rpartition("-")[2], 16))
