"""Rounds: prepare a world, let two verbs act on it at once, drain it, and check."""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from multiprocessing.connection import Connection
from typing import Any, Protocol

import nats
import psycopg
import redis.asyncio
from pair_checks import Case, check_case, counted, of_channel
from round_state import CONSUMER, FEW, READER, SIDE_READER, SOON, Kind, Notes, Watched, World, prepare
from verbs import VERBS, Performance, Verb, documented, perform

from holdfast.contracts import Backend, Capabilities
from holdfast.model.errors import Overloaded
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast.model.states import LIVE
from holdfast.wiring import backend as connect
from holdfast_chaos.checks import Violation
from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.history import Call, calls_of, of
from holdfast_chaos.stores import STORES
from holdfast_chaos.stores.postgres import PostgresStore
from kit import NO_OVERLAP, in_memory, step

SIDES = 2
"""Actors for each verb of a pair."""
BULK = {"postgres": 210, "redis": 30, "nats": 30}
"""From where on a publish is a bulk publish; elsewhere it is just a batch."""
_PATIENCE = 90.0


@dataclass(frozen=True)
class Round:
    """Two verbs on one sort of consumer."""

    first: str
    second: str
    kind: Kind

    def __str__(self) -> str:
        return f"{self.first} beside {self.second}, {self.kind}"


def pairs(capabilities: Capabilities) -> list[tuple[str, str]]:
    """Every unordered pair of the verbs that a store has, each with itself included."""
    names = [verb.name for verb in VERBS.values() if verb.needs(capabilities)]
    return list(itertools.combinations_with_replacement(names, 2))


class Side(Protocol):
    """Somebody who acts on the store through a connection of his own."""

    async def open(self, url: str) -> None:
        """Connect to a store."""

    async def perform(self, world: World, verb: str, name: str, turns: int, seed: int) -> Performance:
        """Act some turns."""

    async def close(self) -> None:
        """Leave the store."""


class Task:
    """A side in this process."""

    async def open(self, url: str) -> None:
        self.backend = connect(url, connections=1)
        await self.backend.open()

    async def perform(self, world: World, verb: str, name: str, turns: int, seed: int) -> Performance:
        return await perform(self.backend, world, VERBS[verb], name, turns, seed)

    async def close(self) -> None:
        await self.backend.close()


class Process:
    """A side in a process of its own, which lives through many stores."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._orders, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    async def open(self, url: str) -> None:
        await self._ask("open", url)

    async def perform(self, world: World, verb: str, name: str, turns: int, seed: int) -> Performance:
        performance: Performance = await self._ask("perform", world, verb, name, turns, seed)
        return performance

    async def close(self) -> None:
        await self._ask("close")

    async def _ask(self, method: str, *arguments: Any) -> Any:
        self._orders.send((method, arguments))
        return await asyncio.to_thread(self._orders.recv)

    def end(self) -> None:
        self._orders.close()
        self._process.join()


def _serve(orders: Connection) -> None:
    asyncio.run(_obey(orders))


async def _obey(orders: Connection) -> None:
    """Do what the other process asks of a side, until it is gone."""
    side = Task()
    while True:
        try:
            method, arguments = await asyncio.to_thread(orders.recv)
        except EOFError:
            return
        orders.send(await getattr(side, method)(*arguments))


@dataclass
class Arena:
    """An empty store with everybody who acts on it. Its rounds come one after the other."""

    store: ServerUnderTest
    url: str
    backend: Backend
    sides: Sequence[Side]
    bulk: int
    turns: int = 6
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    async def play(self, round_: Round, seed: int) -> list[Violation]:
        """One round; answers every violation."""
        channel, notes = f"round{next(self.numbers)}", Notes()
        watched = Watched(self.backend, notes)
        pair = VERBS[round_.first], VERBS[round_.second]
        world = await prepare(
            watched, channel, round_.kind, self.bulk, expiring="expire" in (round_.first, round_.second)
        )
        if "groups" in (round_.first, round_.second):
            await _form_group(self.url, channel)
        calls, violations = await self._act(world, pair, seed)
        calls += notes.calls("before")
        found = await _drain(self.backend, world, calls)
        if found:
            return violations + found
        evidence = of_channel(await self.store.final_state(self.url), channel)
        case = Case(world, frozenset({round_.first, round_.second}), calls, evidence)
        violations += check_case(case)
        violations += await counted(self.backend, case)
        return violations + [Violation("I20", each) async for each in _clear(self.backend, world)]

    async def _act(
        self, world: World, pair: tuple[Verb, Verb], seed: int
    ) -> tuple[list[Call], list[Violation]]:
        sides = [(verb, other) for verb, other in (pair, pair[::-1]) for _ in range(SIDES)]
        acting = [
            side.perform(world, verb.name, f"{verb.name}-{number}", self.turns, seed * len(sides) + number)
            for number, ((verb, _), side) in enumerate(zip(sides, self.sides, strict=True))
        ]
        async with asyncio.timeout(_PATIENCE):
            performances = await asyncio.gather(*acting)
        return told(world, sides, performances)


def told(
    world: World, sides: Sequence[tuple[Verb, Verb]], performances: Sequence[Performance]
) -> tuple[list[Call], list[Violation]]:
    """What the sides were told, and every error that a verb must not raise beside the other one."""
    calls: list[Call] = []
    violations: list[Violation] = []
    for (verb, other), performance in zip(sides, performances, strict=True):
        calls += calls_of(verb.name, performance.lines)
        allowed = documented(verb, other, bounded=world.kind.bounded)
        violations += [
            Violation("I20", f"{verb.name} raised {text}")
            for kind, text in performance.errors
            if not issubclass(kind, allowed)
        ]
    return calls, violations


async def _form_group(url: str, channel: str) -> None:
    """Other software has a consumer group on the channel, where the store knows such."""
    if url.startswith("redis"):
        async with redis.asyncio.Redis.from_url(url) as client:
            await client.xgroup_create(channel, "foreign", id="0")
            await client.xreadgroup("foreign", "gone", {channel: ">"}, count=FEW)
    elif url.startswith("nats"):
        async with await nats.connect(url) as client:
            await client.jetstream().pull_subscribe(channel, durable=f"foreign-{channel}")


async def _drain(backend: Backend, world: World, calls: list[Call]) -> list[Violation]:
    """Complete what is held, then everything that comes, until nothing does. What is left is wedged."""
    notes = Notes()
    watched, channel = Watched(backend, notes), world.channel
    await watched.leases.complete(_held(calls))
    for consumer in await backend.channels.consumers(channel):
        await backend.channels.set_paused(channel, consumer.name, False)
    violations: list[Violation] = []
    is_quiet = 0
    while is_quiet < 2:
        moved = (await step(backend)).total
        for consumer in await backend.channels.consumers(channel):
            jobs = await watched.leases.claim(channel, consumer.name, 1000, "drain")
            answers = await watched.leases.complete(jobs)
            moved += len(jobs)
            violations += [
                Violation("I18", f"job {job.id} was refused right after its claim")
                for job, accepted in zip(jobs, answers, strict=True)
                if not accepted
            ]
        if not moved:
            await backend.advance(SOON)
            is_quiet += 1
    calls += notes.calls("drain")
    return violations


def _held(calls: list[Call]) -> list[Job]:
    """Every lease that was handed out and not known to be gone."""
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for item in (item for call in of(calls, "claim") for item in call.answers):
        key = item["consumer"], item["job"]
        if key not in newest or newest[key]["token"] < item["token"]:
            newest[key] = item
    return [_job(item) for item in newest.values()]


def _job(item: dict[str, Any]) -> Job:
    event = Event(item["data"].encode(), item["id"], key=item["key"])
    until = datetime.fromisoformat(item["until"])
    place = item["position"]
    return Job(item["job"], item["channel"], item["consumer"], event, place, 1, 0, item["token"], until)


async def _clear(backend: Backend, world: World) -> AsyncIterator[str]:
    """Purge, trim and remove everything: what does not go is wrong."""
    channel, names = world.channel, [each.name for each in await backend.channels.consumers(world.channel)]
    if world.policy.max_depth and CONSUMER in names:
        async for message in _filled(backend, world, world.policy.max_depth):
            yield message
    now = await backend.now() + timedelta(seconds=1)
    while await backend.retention.purge_dead(channel, now, 500, world.lock):
        pass
    if left := [each for each in await backend.deadletters.counts() if each.channel == channel]:
        yield f"after a purge of all dead letters there are {left}"
    for name in names:
        while not (await backend.channels.remove_consumer(channel, name, 500)).done:
            pass
    for reader in (READER, SIDE_READER):
        await backend.cursors.detach(channel, reader)
    while (trimmed := await backend.retention.trim(channel, now, 500, world.lock)).more:
        pass
    if trimmed.hold or (await backend.log.extent(channel)).first:
        yield f"after everything was finished, a trim left events: {trimmed}"


async def _filled(backend: Backend, world: World, bound: int) -> AsyncIterator[str]:
    """A bounded consumer without a live job takes as many as its bound says."""
    await backend.channels.subscribe(world.channel, CONSUMER, world.policy)
    states = (await backend.channels.consumer_stats(world.channel, CONSUMER)).states
    if any(count for state, count in states.items() if state in LIVE):
        return  # that is said already
    for size in (bound - 1, 1):
        try:
            await backend.log.publish(world.channel, [Event(0, f"fill{size}-{n}") for n in range(size)])
        except Overloaded:
            yield f"the empty consumer has no room for {size} of {bound} jobs"
            return
    try:
        await backend.log.publish(world.channel, [Event(0, "over")])
    except Overloaded:
        return
    yield f"the consumer took more than {bound} jobs"


def start(name: str) -> ServerUnderTest:
    """A server of that kind, which need not survive anything. PostgreSQL refuses rows that overlap."""
    with in_memory():
        store = STORES[name](durable=False)
    if isinstance(store, PostgresStore):
        with psycopg.connect(store.postgres.database_url("witnessed")) as connection:
            connection.execute(NO_OVERLAP)
    return store


@asynccontextmanager
async def arena(name: str, store: ServerUnderTest, sides: Sequence[Side] = ()) -> AsyncIterator[Arena]:
    """An empty store, and two actors for each of two verbs: unless given, tasks with own connections."""
    url, actors = await store.empty(), sides or [Task() for _ in range(2 * SIDES)]
    async with AsyncExitStack() as stack:
        backend = connect(url, connections=2)
        await backend.open()
        stack.push_async_callback(backend.close)
        for side in actors:
            await side.open(url)
            stack.push_async_callback(side.close)
        yield Arena(store, url, backend, actors, BULK[name])
