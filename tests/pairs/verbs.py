"""The one table of verbs. A new verb is paired with every other by being named here.

A verb is a coroutine that does one thing of the contract to a round's world, the methods that it stands for,
the errors that it may raise, and the errors that it may cause in whatever runs beside it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, TypeVar

import psycopg
from round_state import CONSUMER, FEW, LEASE, READER, SIDE_READER, SOON, Notes, Watched, World

from holdfast.contracts import Backend, Capabilities
from holdfast.model.decide import Due, DueKind, when_due
from holdfast.model.errors import (
    HoldfastError,
    InvalidInput,
    LeaseLost,
    NotFound,
    Outdated,
    Overloaded,
    Unavailable,
)
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.model.job import Burial, Cancellation, Completion, Reason, Retry
from holdfast.model.policy import Policy
from kit import BOOM

T = TypeVar("T")
Errors = tuple[type[HoldfastError], ...]
PATCH = b'{"patched":true}'
STEP = 500
RUNNING = Cancellation(running=True, by="the pairs", reason="to meet the others")


@dataclass
class Actor:
    """One side of a round: who acts on what, for the how-manieth time."""

    name: str
    backend: Watched
    world: World
    chance: random.Random
    turn: int = 0
    connection: psycopg.AsyncConnection[Any] | None = None

    def next(self, jobs: Sequence[T], count: int = 2) -> list[T]:
        """The next few, the same for every actor in the same turn."""
        return [jobs[(self.turn * count + n) % len(jobs)] for n in range(count)]


Act = Callable[[Actor], Awaitable[None]]


@dataclass(frozen=True)
class Verb:
    """Something that can be done to a store while something else is done to it."""

    name: str
    methods: tuple[str, ...]
    act: Act
    raises: Errors = ()
    causes: Errors = ()
    needs: Callable[[Capabilities], bool] = lambda _: True


VERBS: dict[str, Verb] = {}


def verb(
    *methods: str,
    raises: Errors = (),
    causes: Errors = (),
    needs: Callable[[Capabilities], bool] = lambda _: True,
) -> Callable[[Act], Act]:
    """Name a coroutine as a verb that stands for these verbs of the contract, each with its noun."""

    def register(act: Act) -> Act:
        name = act.__name__  # type: ignore[attr-defined]
        VERBS[name] = Verb(name, methods, act, raises, causes, needs)
        return act

    return register


def documented(verb: Verb, beside: Verb, *, bounded: bool) -> Errors:
    """What a verb may raise beside another one."""
    full: Errors = (Overloaded,) if bounded and "log.publish" in verb.methods else ()
    return (*verb.raises, *verb.causes, *beside.causes, *full)


@dataclass
class Performance:
    """What one actor was told, and what it raised, as text with the error's class."""

    lines: list[dict[str, Any]]
    errors: list[tuple[type[BaseException], str]]


async def perform(
    backend: Backend, world: World, verb: Verb, name: str, turns: int, seed: int
) -> Performance:
    """Act some turns, whatever is raised."""
    notes = Notes()
    actor = Actor(name, Watched(backend, notes), world, random.Random(seed))
    raised: list[tuple[type[BaseException], str]] = []
    try:
        for actor.turn in range(turns):
            try:
                await verb.act(actor)
            except Exception as error:
                raised.append((type(error), f"{type(error).__name__}: {error}"))
    finally:
        if actor.connection is not None:
            await actor.connection.close()
    return Performance(notes.lines, raised)


# publish: all actors publish the same ids with the same content


def _batch(actor: Actor, name: str, count: int, different: int = 100) -> list[Event]:
    """Every other one of the first is behind a job that is leased; the others follow one another in pairs."""
    heads, number = actor.world.leased, actor.turn % different
    names = [f"{name}{number}-{n}" for n in range(count)]
    behind = (number + n if n < len(heads) else 1 for n in range(count))
    return [
        Event({"n": n}, each, key=f"{name}{n // 2}" if odd % 2 else heads[odd % len(heads)].event.id)
        for n, (each, odd) in enumerate(zip(names, behind, strict=True))
    ]


@verb("log.publish", "channels.create")
async def publish_one(actor: Actor) -> None:
    await actor.backend.channels.create(actor.world.channel)
    await actor.backend.log.publish(actor.world.channel, _batch(actor, "one", 1))


@verb("log.publish")
async def publish_bulk(actor: Actor) -> None:
    await actor.backend.log.publish(actor.world.channel, _batch(actor, "bulk", actor.world.bulk, 2))


@verb("log.publish")
async def publish_scheduled(actor: Actor) -> None:
    at = actor.world.now + SOON
    await actor.backend.log.publish(actor.world.channel, _batch(actor, "later", 2), at=at)


@verb("log.publish", needs=lambda capabilities: capabilities.joins_transactions)
async def publish_in_transaction(actor: Actor) -> None:
    """Every other transaction is rolled back; each stays open for a moment. Its ids are its own: who
    publishes what another open transaction has published waits for the end of that."""
    if actor.connection is None:
        actor.connection = await psycopg.AsyncConnection.connect(actor.backend.url)
    commits = actor.turn % 2 == 0
    backend = actor.backend if commits else actor.backend.inner
    events = _batch(actor, f"joined-{actor.name}-", 2)
    try:
        await backend.log.publish(actor.world.channel, events, connection=actor.connection)
        await asyncio.sleep(0.002)
    except BaseException:
        commits = False
        raise
    finally:
        await (actor.connection.commit() if commits else actor.connection.rollback())


# subscribe


def _late(actor: Actor) -> Policy:
    return Policy.of(lease=LEASE, ordered=actor.world.kind.ordered)


@verb("channels.subscribe")
async def subscribe_new(actor: Actor) -> None:
    await actor.backend.channels.subscribe(actor.world.channel, f"new{actor.turn % 2}", _late(actor))


@verb("channels.subscribe")
async def subscribe_past(actor: Actor) -> None:
    await actor.backend.channels.subscribe(
        actor.world.channel, f"past{actor.turn % 2}", _late(actor), "earliest"
    )


@verb("channels.subscribe", raises=(Outdated,))
async def subscribe_changed(actor: Actor) -> None:
    """Budgets, and where there is a bound, also whether there is one; every other time with a revision.

    Beside a removal it may make the consumer anew, which is to have every job again.
    """
    bound = actor.world.policy.max_depth if actor.turn % 2 else None
    changed = replace(actor.world.policy, max_attempts=5 + actor.turn, max_depth=bound)
    revision = None
    if actor.turn % 2:
        revision = (await actor.backend.channels.consumer(actor.world.channel, CONSUMER)).revision
    await actor.backend.channels.subscribe(
        actor.world.channel, CONSUMER, changed, "earliest", revision=revision
    )


# leases


@verb("leases.claim")
async def claim(actor: Actor) -> None:
    most = 100 if actor.world.kind.bulk else 4
    await actor.backend.leases.claim(actor.world.channel, CONSUMER, actor.chance.randint(1, most), actor.name)


@verb("leases.complete")
async def complete(actor: Actor) -> None:
    await actor.backend.leases.complete(actor.next(actor.world.leased))


@verb(
    "leases.complete_within",
    "leases.transaction",
    raises=(LeaseLost, InvalidInput),
    causes=(Unavailable,),
    needs=lambda capabilities: capabilities.joins_transactions,
)
async def complete_in_transaction(actor: Actor) -> None:
    """On a connection of its own, and by a block; each transaction stays open for a moment, and every other
    one is rolled back. Two may meet at one job: that is refused. A requeue gives way in the end."""
    if actor.connection is None:
        actor.connection = await psycopg.AsyncConnection.connect(actor.backend.url)
    commits = actor.turn % 2 == 0
    own, other = actor.next(actor.world.leased)
    await actor.backend.leases.complete_in_block(replace(own, completion=Completion.NONE), commits)
    await actor.backend.leases.complete_on(actor.connection, other, commits)


@verb("leases.retry")
async def retry(actor: Actor) -> None:
    delay = timedelta(minutes=actor.turn % 2)
    await actor.backend.leases.retry([Retry(job, delay, BOOM) for job in actor.next(actor.world.leased)])


@verb("leases.retry")
async def release(actor: Actor) -> None:
    await actor.backend.leases.retry([Retry(job, None) for job in actor.next(actor.world.leased)])


@verb("leases.bury")
async def bury(actor: Actor) -> None:
    await actor.backend.leases.bury(
        [Burial(job, Reason.TERMINAL, BOOM) for job in actor.next(actor.world.leased)]
    )


@verb("leases.extend")
async def extend(actor: Actor) -> None:
    """Also leases that are past their deadline: they are held until somebody takes them back."""
    jobs = [*actor.next(actor.world.leased), *actor.next(actor.world.overdue, 1)]
    await actor.backend.leases.extend(jobs, LEASE)


# operators


@verb("leases.cancel")
async def cancel(actor: Actor) -> None:
    names = [*actor.chance.sample(actor.world.waiting, 2), *actor.next(actor.world.scheduled, 1)]
    for name in names:
        await actor.backend.leases.cancel(actor.world.channel, DEFAULT_SOURCE, name, None)


@verb("leases.cancel")
async def cancel_running(actor: Actor) -> None:
    """What is leased, overdue, scheduled, dead, and something that may be anything."""
    world = actor.world
    jobs = [*actor.next(world.leased), *actor.next(world.overdue, 1), *actor.next(world.dead, 1)]
    names = [job.event.id for job in jobs]
    names += [*actor.next(world.scheduled, 1), actor.chance.choice(world.waiting)]
    for name in names:
        await actor.backend.leases.cancel(world.channel, DEFAULT_SOURCE, name, None, RUNNING)


@verb("leases.cancel_waiting")
async def empty(actor: Actor) -> None:
    """In steps of a few jobs, and every fourth time in one that takes as many as there are."""
    limit = STEP if actor.turn % 4 == 3 else actor.chance.randint(1, 4)
    await actor.backend.leases.cancel_waiting(actor.world.channel, CONSUMER, limit)


@verb("leases.requeue")
async def requeue(actor: Actor) -> None:
    """What is dead, leased, overdue, scheduled, and something that may be anything."""
    world = actor.world
    jobs = [*actor.next(world.dead, 1), *actor.next(world.leased, 1), *actor.next(world.overdue, 1)]
    numbers = [job.id for job in jobs]
    for name in (*actor.next(world.scheduled, 1), actor.chance.choice(world.waiting)):
        found = await actor.backend.leases.find_jobs(world.channel, DEFAULT_SOURCE, name)
        numbers += [each.id for each in found if each.consumer == CONSUMER]
    for number in numbers:
        await actor.backend.leases.requeue(world.channel, CONSUMER, number)


def _dead(actor: Actor) -> list[str]:
    return [job.id for job in actor.next(actor.world.dead)]


@verb("deadletters.revive")
async def revive(actor: Actor) -> None:
    await actor.backend.deadletters.revive(actor.world.channel, CONSUMER, _dead(actor))


@verb("deadletters.revive")
async def revive_patched(actor: Actor) -> None:
    await actor.backend.deadletters.revive(actor.world.channel, CONSUMER, _dead(actor), PATCH)


@verb("deadletters.purge")
async def purge(actor: Actor) -> None:
    await actor.backend.deadletters.purge(actor.world.channel, CONSUMER, _dead(actor))


@verb("retention.purge_dead")
async def purge_old(actor: Actor) -> None:
    world = actor.world
    await actor.backend.retention.purge_dead(world.channel, world.now, 2, world.lock)


@verb("channels.set_paused")
async def pause(actor: Actor) -> None:
    for paused in (True, False):
        await actor.backend.channels.set_paused(actor.world.channel, CONSUMER, paused)


@verb("channels.set_display")
async def display(actor: Actor) -> None:
    await actor.backend.channels.set_display(actor.world.channel, CONSUMER, f"Main {actor.turn}")
    await actor.backend.channels.set_display(actor.world.channel, None, f"Channel {actor.turn}")


@verb("channels.remove_consumer", "channels.subscribe", causes=(NotFound, Outdated))
async def remove_consumer(actor: Actor) -> None:
    """And make it anew, so that there is something to remove the next time."""
    world = actor.world
    if actor.turn % 2 == 0:
        while not (await actor.backend.channels.remove_consumer(world.channel, CONSUMER, 20)).done:
            pass
        await actor.backend.channels.subscribe(world.channel, CONSUMER, world.policy, "earliest")


# retention


@verb("retention.trim")
async def trim(actor: Actor) -> None:
    world = actor.world
    await actor.backend.retention.trim(world.channel, world.now, 2, world.lock)


@verb("retention.forget")
async def forget(actor: Actor) -> None:
    world = actor.world
    await actor.backend.retention.forget(world.early, await actor.backend.now(), STEP, world.lock)


@verb("retention.set_full", causes=(Overloaded,))
async def fill(actor: Actor) -> None:
    for full in (True, False):
        await actor.backend.retention.set_full(actor.world.channel, full)


@verb("deadletters.fold")
async def fold(actor: Actor) -> None:
    await actor.backend.deadletters.fold(timedelta(0), 0, actor.world.lock)


@verb("deadletters.recount")
async def recount(actor: Actor) -> None:
    """Where nothing is wrong, there is nothing to repair, whatever happens at the same time."""
    drifts = await actor.backend.deadletters.recount(actor.turn % 2 == 1, actor.world.lock)
    assert not drifts, f"counts drifted: {drifts}"


# lifecycle: each move for itself


async def _apply(actor: Actor, wanted: Callable[[Due], Due | None]) -> None:
    reading = await actor.backend.lifecycle.due(STEP)
    chosen = [due for each in reading.due if (due := wanted(each)) is not None]
    if chosen:
        await actor.backend.lifecycle.apply([when_due(due) for due in chosen[: 2 + actor.turn]])


@verb("lifecycle.apply")
async def promote(actor: Actor) -> None:
    await _apply(actor, lambda due: due if due.kind is DueKind.SCHEDULE else None)


@verb("lifecycle.apply")
async def expire(actor: Actor) -> None:
    await _apply(actor, lambda due: due if due.kind is DueKind.EXPIRY else None)


@verb("lifecycle.apply")
async def abandon(actor: Actor) -> None:
    await _apply(actor, lambda due: due if due.kind is DueKind.LEASE else None)


@verb("lifecycle.apply")
async def bury_crash_loop(actor: Actor) -> None:
    await _apply(actor, lambda due: replace(due, max_abandonments=1) if due.kind is DueKind.LEASE else None)


@verb("lifecycle.backfill", "channels.subscribe")
async def backfill(actor: Actor) -> None:
    if actor.turn == 0:
        await actor.backend.channels.subscribe(actor.world.channel, "late", _late(actor), "earliest")
    # A store that only takes up special events ahead of claims does so for more than a reading has.
    for ref in (await actor.backend.lifecycle.due(FEW)).backfills:
        await actor.backend.lifecycle.backfill(ref, 20)


# stream consumers


@verb("cursors.attach")
async def attach(actor: Actor) -> None:
    await actor.backend.cursors.attach(
        actor.world.channel, SIDE_READER, "latest" if actor.turn % 2 else "earliest"
    )


@verb("cursors.move")
async def move(actor: Actor) -> None:
    """A reader that notes what it saw once its cursor has moved over it."""
    channel = actor.world.channel
    [cursor] = [each for each in await actor.backend.cursors.all(channel) if each.name == READER]
    entries = await actor.backend.log.read(channel, cursor.position, 10)
    if entries and await actor.backend.cursors.move(channel, READER, cursor.position, entries[-1].position):
        actor.backend.archived(channel, READER, [entry.event.id for entry in entries])


@verb("cursors.detach", "cursors.attach")
async def detach(actor: Actor) -> None:
    await actor.backend.cursors.attach(actor.world.channel, SIDE_READER)
    await actor.backend.cursors.detach(actor.world.channel, SIDE_READER)


# locks, records, foreign groups


@verb("locks.acquire", "locks.renew", "locks.release")
async def lock(actor: Actor) -> None:
    taken = await actor.backend.locks.acquire(f"{actor.world.channel}.role", actor.name, LEASE)
    if taken is not None:
        await actor.backend.locks.release(await actor.backend.locks.renew(taken, 2 * LEASE))


def _record(actor: Actor) -> str:
    return f"gbe.state.{actor.world.channel}"


@verb("records.remove")
async def remove_record(actor: Actor) -> None:
    if known := await actor.backend.records.get(_record(actor)):
        await actor.backend.records.remove(known.key, known.revision)


@verb("records.put")
async def put_record(actor: Actor) -> None:
    key = _record(actor)
    known = await actor.backend.records.get(key)
    await actor.backend.records.put(
        key, {"turn": str(actor.turn)}, known.revision if known else 0, actor.world.now
    )


@verb("groups.reclaim", "groups.remove")
async def groups(actor: Actor) -> None:
    """Of other software, where the store knows such."""
    for group in await actor.backend.groups.all(timedelta(0)):
        await actor.backend.groups.reclaim(group, timedelta(0), STEP, actor.world.lock)
        await actor.backend.groups.remove(group, timedelta(0), actor.world.lock)
