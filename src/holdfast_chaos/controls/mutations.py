"""Mutations: what is done to a store behind the back of the bus, through a plain client (I1, I3 to I7).

Each follows some regular work on the store, and must be found although no call of the bus did it.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg
from nats.aio.client import Client
from redis import asyncio as redis

from holdfast.model.event import Event
from holdfast_chaos.controls.control import Control, Play
from holdfast_chaos.rig import CHANNEL, CONSUMER, Rig
from holdfast_chaos.stores.nats import STREAM, connected, read, sequences

Mutation = Callable[[str], Awaitable[None]]
"""Changes the store at a URL. Raises `RuntimeError` if there was nothing to change."""
RedisClient = Any
"""The library's types do not know that it decodes."""
_LEASE = timedelta(minutes=5)


def _require(changed: bool) -> None:
    """A mutation that changes nothing would prove nothing."""
    if not changed:
        raise RuntimeError(
            "a mutation found nothing to change; the scenario before it has to leave something"
        )


# PostgreSQL: one statement each


def _sql(statement: str) -> Mutation:
    async def execute(url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            _require((await connection.execute(statement)).rowcount > 0)

    return execute


_POSTGRES: Mapping[str, Mutation] = {
    "an event is lost with its job": _sql("DELETE FROM holdfast.log WHERE seq = 2"),
    "an event changes": _sql("UPDATE holdfast.log SET data = '{}' WHERE seq = 2"),
    "a done job vanishes": _sql(
        "UPDATE holdfast.history SET members = '{2}', first = 2 WHERE members = '{1,2}'"
    ),
    "a done job is live again": _sql(
        "INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, due_at, created_at, state)"
        " SELECT consumer_id, channel_id, epoch, seq, ended_at, created_at, 'ready' FROM holdfast.job_log"
    ),
    "a running job vanishes": _sql("DELETE FROM holdfast.jobs WHERE members IS NOT NULL"),
    "a waiting job vanishes": _sql(
        "INSERT INTO holdfast.ahead (consumer_id, seq) SELECT consumer_id, seq FROM holdfast.live_jobs"
        " WHERE state = 'ready' AND token = 0"
    ),
    "a dead letter goes uncounted": _sql("DELETE FROM holdfast.dead_deltas"),
    "a job gets an attempt too many": _sql("UPDATE holdfast.history SET attempts = 6"),
    "a job is done that nobody completed": _sql(
        "WITH j AS (DELETE FROM holdfast.jobs RETURNING *, coalesce(members, ARRAY[id]) AS of)"
        " INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at,"
        " ended_at, outcome, priority, attempts, abandonments, members)"
        " SELECT consumer_id, channel_id, epoch, of[1], of[cardinality(of)], token, started_at, started_at,"
        " 'done', priority, attempts, abandonments, members FROM j"
    ),
    "a token falls": _sql(
        "UPDATE holdfast.jobs SET token = 0, id = CASE WHEN members IS NULL THEN id ELSE 0 END"
    ),
    "a running lease is given to another": _sql(
        "UPDATE holdfast.jobs SET token = token + 1,"
        " id = CASE WHEN members IS NULL THEN id ELSE -token - 1 END"
    ),
    "a running lease is taken back": _sql(
        "UPDATE holdfast.jobs SET state = 'ready', lease_until = NULL, abandonments = abandonments + 1"
        " WHERE members IS NULL"
    ),
    "a running job loses its event": _sql(
        "WITH gone AS (DELETE FROM holdfast.log WHERE seq = 5 RETURNING *)"
        " UPDATE holdfast.channels SET trimmed_epoch = epoch, trimmed_seq = seq FROM gone"
    ),
}


# Redis

_REDIS_JOB, _REDIS_BLOCK, _REDIS_LEASES = "{holdfast}:job:", "{holdfast}:block:", "{holdfast}:due:lease"


def _on_redis(work: Callable[[RedisClient], Awaitable[bool]]) -> Mutation:
    async def execute(url: str) -> None:
        async with redis.Redis.from_url(url, decode_responses=True, socket_timeout=60) as client:
            _require(await work(client))

    return execute


def _each(*command: str, state: str) -> Mutation:
    """A command for every job of its own in that state; JOB stands for its key."""

    async def work(client: RedisClient) -> bool:
        found = 0
        async for key in client.scan_iter(match=_REDIS_JOB + "*"):
            if await client.hget(key, "state") == state:
                await client.execute_command(*(key if word == "JOB" else word for word in command))
                found += 1
        return found > 0

    return _on_redis(work)


async def _drop_from_stream(client: RedisClient) -> bool:
    entries = await client.xrange(CHANNEL, count=2)
    return bool(await client.xdel(CHANNEL, entries[1][0]))


async def _trim_stream(client: RedisClient) -> bool:
    *_, (running, _) = await client.xrange(CHANNEL, count=5)
    await client.hset(f"{{holdfast}}:log:{CHANNEL}", "trimmed", running)
    return bool(await client.xdel(CHANNEL, running))


async def _blocks(client: RedisClient) -> list[str]:
    return [key async for key in client.scan_iter(match=_REDIS_BLOCK + "*")]


async def _forget_done(client: RedisClient) -> bool:
    found = 0
    for key in await _blocks(client):
        states = await client.hget(key, "states") or ""
        await client.hset(key, "states", states.replace("0", "x"))
        found += states.count("0")
    return found > 0


async def _done_again(client: RedisClient) -> bool:
    (entry, _), *_ = await client.xrange(CHANNEL, count=1)
    return bool(await client.hset(f"{_REDIS_JOB}1:{entry}", mapping={"state": "ready", "token": "1"}))


async def _other_tokens(client: RedisClient) -> bool:
    blocks = await _blocks(client)
    for key in blocks:
        base = int(key.rpartition(":")[2])
        await client.rename(key, f"{_REDIS_BLOCK}1:{2 * base}")
        await client.zrem(_REDIS_LEASES, f"1:@{base}")
        await client.zadd(_REDIS_LEASES, {f"1:@{2 * base}": 1})
    return bool(blocks)


async def _drop_count(client: RedisClient) -> bool:
    keys = [key async for key in client.scan_iter(match="{holdfast}:counts:*")]
    return any([await client.hdel(key, "dead:terminal") for key in keys])


_REDIS: Mapping[str, Mutation] = {
    "an event is lost with its job": _on_redis(_drop_from_stream),
    "a done job vanishes": _on_redis(_forget_done),
    "a done job is live again": _on_redis(_done_again),
    "a dead letter goes uncounted": _on_redis(_drop_count),
    "a job gets an attempt too many": _each("HSET", "JOB", "attempts", "6", state="dead"),
    "a job is done that nobody completed": _each("HSET", "JOB", "state", "done", state="leased"),
    "a token falls": _each("HSET", "JOB", "token", "0", state="leased"),
    "a done job has another token": _on_redis(_other_tokens),
    "a running job loses its event": _on_redis(_trim_stream),
}


# NATS

_ROLLUP = {"Nats-Rollup": "sub"}
_LEASES, _FRONTIER, _COUNTS = "HF.W.>", "HF.S.c.1.frontier", "HF.S.c.*.count.>"


def _on_nats(work: Callable[[Client], Awaitable[bool]]) -> Mutation:
    async def execute(url: str) -> None:
        async with connected(url) as client:
            _require(await work(client))

    return execute


def _rewrite(subject: str, change: Callable[[Any], Any]) -> Mutation:
    """Change what stands under a subject."""

    async def work(client: Client) -> bool:
        found = [message for message in await read(client, [subject]) if message.data]
        for message in found:
            body = json.dumps(change(json.loads(message.data))).encode()
            await client.jetstream().publish(message.subject, body, headers=_ROLLUP)
        return bool(found)

    return _on_nats(work)


async def _revive_done(client: Client) -> bool:
    """Write a job of its own beside each one that a lease says is done."""
    found = await read(client, [_LEASES])
    for message in found:
        first = json.loads(message.data)[0][0]
        record = {
            "ref": "1",
            "seq": first,
            "state": "ready",
            "event": "e-0",
            "source": "default",
            "created": 0,
        }
        body = json.dumps(
            record | {"due": 0, "attempts": 0, "abandonments": 0, "token": 0, "errors": [], "reason": None}
        )
        await client.jetstream().publish(f"HF.S.c.1.job.{first}", body.encode(), headers=_ROLLUP)
    return bool(found)


async def _end_open(client: Client) -> bool:
    """Say of every open lease that all of its members were completed."""
    frontier = json.loads((await read(client, [_FRONTIER]))[-1].data)
    records = {message.subject.rpartition(".")[2]: message for message in await read(client, [_LEASES])}
    for token, _, _, first, _, _, runs in frontier[5]:
        message = records.get(str(token))
        subject = f"HF.W.1.8.{first >> 8}.{token}" if message is None else message.subject
        body = json.dumps([[first, runs], "done", [[1]], None, []]).encode()
        await client.jetstream().publish(subject, body, headers=_ROLLUP)
    return bool(frontier[5])


def _remove(subject: str, nth: int = 0) -> Mutation:
    """Remove a message."""

    async def work(client: Client) -> bool:
        message = (await read(client, [subject]))[nth]
        return await client.jetstream().delete_msg(STREAM, message.metadata.sequence.stream)

    return _on_nats(work)


async def _lease_forgotten(client: Client) -> bool:
    """Take the lease that has ended off the list, with its jobs counted, and remove its record."""
    [message] = await read(client, [_LEASES])
    (first, runs), _, ended, *_ = json.loads(message.data)
    done = sum(len(sequences(*(part or (first, runs)))) for _, *part in ended)
    at, special, token, before, ahead, _ = json.loads((await read(client, [_FRONTIER]))[-1].data)
    body = json.dumps([at, special, token, before + done, ahead, []]).encode()
    await client.jetstream().publish(_FRONTIER, body, headers=_ROLLUP)
    return await client.jetstream().delete_msg(STREAM, message.metadata.sequence.stream) and done > 0


async def _trim_channel(client: Client) -> bool:
    stream, last = client.jetstream(), (await read(client, [CHANNEL]))[4].metadata.sequence.stream
    await stream.publish(f"HF.T.{CHANNEL}", b"%d" % last)
    return await stream.delete_msg(STREAM, last)


_NATS: Mapping[str, Mutation] = {
    "an event is lost with its job": _remove(CHANNEL, 1),
    "a done job vanishes": _on_nats(_lease_forgotten),
    "a done job is live again": _on_nats(_revive_done),
    "a dead letter goes uncounted": _rewrite(_COUNTS, lambda counts: counts | {"dead:terminal": 0}),
    "a job gets an attempt too many": _rewrite("HF.S.c.1.job.*", lambda job: job | {"attempts": 7}),
    "a job is done that nobody completed": _on_nats(_end_open),
    "a token falls": _rewrite("HF.S.c.1.job.*", lambda job: job | {"token": 0}),
    "a running job loses its event": _on_nats(_trim_channel),
}


# as controls

MUTATIONS: Mapping[str, Mapping[str, Mutation]] = {"postgres": _POSTGRES, "redis": _REDIS, "nats": _NATS}
"""By store, and by what it does."""
BREAKS: Mapping[str, str] = {
    "an event is lost with its job": "I1",
    "an event changes": "I1",
    "a done job vanishes": "I3",
    "a done job is live again": "I3",
    "a running job vanishes": "I3",
    "a waiting job vanishes": "I3",
    "a dead letter goes uncounted": "I3",
    "a job gets an attempt too many": "I4",
    "a job is done that nobody completed": "I4",
    "a token falls": "I5",
    "a done job has another token": "I5",
    "a running lease is given to another": "I6",
    "a running lease is taken back": "I6",
    "a running job loses its event": "I7",
}
"""The invariant that each of them breaks."""


async def mutate(url: str, what: str) -> None:
    """Do that to the store at a URL. Raises `RuntimeError` if there is nothing to change."""
    scheme = url.partition(":")[0]
    await MUTATIONS["postgres" if scheme == "postgresql" else scheme][what](url)


async def work_regularly(rig: Rig) -> None:
    """Two jobs done, one dead, one retried and leased again, one still leased, one that waits."""
    async with rig.bus("honest") as bus:
        await bus.subscribe(CHANNEL, CONSUMER, backoff=["0s"])
        await bus.publish_many(CHANNEL, [Event({"n": n}, f"e-{n}") for n in range(5)])
        first, second, third, fourth, _ = await bus.poll(CHANNEL, CONSUMER, limit=5)
        await bus.finalize_many([first, second], success=True)
        await bus.finalize(third, success=False, error="no", terminal=True)
        await bus.finalize(fourth, success=False, error="not yet")
        [again] = await bus.poll(CHANNEL, CONSUMER)
        await bus.extend(again, _LEASE)
        await bus.publish(CHANNEL, {"n": 5}, id="e-5")


def _then(what: str) -> Play:
    async def play(rig: Rig, sound: bool) -> set[str]:
        await work_regularly(rig)
        if not sound:
            await mutate(rig.url, what)
        return await rig.broken(drained=False)

    return play


CONTROLS = [
    Control(
        what.partition(" ")[2].replace(" ", "-"),
        f"Behind the back of the bus, {what}.",
        invariant,
        _then(what),
        tuple(store for store, known in MUTATIONS.items() if what in known),
    )
    for what, invariant in BREAKS.items()
]
