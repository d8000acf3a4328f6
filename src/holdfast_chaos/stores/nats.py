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
_JOBS = ["HF.S.c.*.job.*", "HF.E.>", "HF.D.>"]
_COUNTS, _FRONTIERS = "HF.S.c.*.count.>", "HF.S.c.*.frontier"
_LEASES, _MARKS = "HF.W.>", "HF.X.>"
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
            await opened.lifecycle.due(1)  # events with a time or a priority become jobs
            found = await contract_state(opened, _job_at)
            for owner, known in found.terms.items():
                stats = await opened.channels.consumer_stats(*owner)
                known.counted.update({str(each): stats.states.get(each, 0) for each in State})
        finally:
            await opened.close()
        async with connected(url) as client:
            owners = await _owners(client)
            for message in await read(client, _JOBS):
                if message.data:
                    found.rows.append(_row(owners, json.loads(message.data)))
            marked = {message.metadata.sequence.stream - 1 for message in await read(client, [_MARKS])}
            gone = await _leases(client, owners, found)
            for message in await read(client, [_FRONTIERS]):
                if message.data:
                    _take_apart(message, owners, gone, marked, found)
            for message in await read(client, [_COUNTS]):
                counted = found.terms[owners[message.subject.split(".")[3]]].counted
                for name, number in json.loads(message.data or b"{}").items():
                    if name.startswith("dead:"):
                        counted[name] = counted.get(name, 0) + number
        return found


def _take_apart(
    message: Msg, owners: dict[str, Owner], gone: set[tuple[str, int]], marked: set[int], found: FinalState
) -> None:
    """Add the jobs that a frontier tells of: in its leases, and behind it in the log."""
    ref = message.subject.split(".")[3]
    owner = owners[ref]
    at, special, _, _, ahead, leases = json.loads(message.data)
    passed = set(sequences(*ahead)) if ahead else set[int]()
    if not found.terms[owner].ordered:
        passed |= {seq for seq in marked if seq < special}
    for token, _, _, first, _, _, runs in leases:
        members = (seq for seq in sequences(first, runs) if (ref, seq) not in gone)
        found.rows.extend(JobState(*owner, str(seq), State.LEASED, 1, 0, token, None) for seq in members)
    for entry in found.log:
        if entry.channel == owner[0] and int(entry.job) > at and int(entry.job) not in passed:
            found.rows.append(JobState(*owner, entry.job, State.READY, 0, 0, 0, None))


async def _leases(client: Client, owners: dict[str, Owner], found: FinalState) -> set[tuple[str, int]]:
    """Add the jobs that ended in leases; returns those that are leased no more, with their consumers."""
    gone = set[tuple[str, int]]()
    for message in await read(client, [_LEASES]):
        _, _, ref, *_, token = message.subject.split(".")
        (first, runs), state, ended, out, _ = json.loads(message.data)
        for _, *part in ended:
            for seq in sequences(*(part or (first, runs))):
                gone.add((ref, seq))
                done = state == State.DONE
                found.rows.append(
                    JobState(*owners[ref], str(seq), state, int(done), 0, int(token) if done else 0, None)
                )
        gone |= {(ref, seq) for seq in (sequences(*out) if out else ())}
    return gone


def sequences(first: int, runs: str) -> list[int]:
    """Return some sequences of which the first is given, and the steps to each of the others."""
    found = [first]
    for step, _, count in (run.partition("x") for run in runs.split()):
        for _ in range(int(count or 1)):
            found.append(found[-1] + int(step))
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
