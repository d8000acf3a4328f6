"""Ordered consumers under fire: many workers, with failures, cancels, burials and leases that run out."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from holdfast.contracts import Backend
from holdfast.model.event import Event
from holdfast.model.job import Burial, Job, Reason, Retry
from holdfast.model.states import LIVE, State
from kit import BOOM, CHANNEL, CONSUMER, claim, ids, record, states, step, subscribe

KEYS, TURNS, WORKERS, LEASE = 8, 25, 5, timedelta(minutes=1)


@dataclass
class History:
    """Who was handed out when: the store's time just after each claim, so that it is an upper bound."""

    handed_out: list[tuple[str, int, datetime]] = field(default_factory=list)
    refused: int = 0

    def overtakings(self, ended: dict[tuple[str, int], datetime]) -> list[str]:
        """Every event that was handed out before an earlier one of its key had ended (I13)."""
        return [
            f"{key}-{turn} was handed out at {seen}, before {key}-{earlier} ended at {ended[key, earlier]}"
            for key, turn, seen in self.handed_out
            for earlier in range(turn)
            if ended[key, earlier] > seen
        ]


async def worker(backend: Backend, chance: random.Random, history: History) -> None:
    paused: list[Job] = []
    while LIVE & (await states(backend)).keys():
        jobs = await claim(backend, chance.randint(1, 4))
        seen = await backend.now()
        for job in jobs:
            history.handed_out.append((str(job.event.key), job.event.json(), seen))
        for job in jobs:
            if chance.random() < 0.1:
                paused.append(job)  # its lease runs out while the worker stands still
            else:
                history.refused += not await answer(backend, chance, job)
    answers = await backend.leases.complete(paused)
    assert not any(answers), "everything had ended before they woke up"
    history.refused += len(answers)


async def answer(backend: Backend, chance: random.Random, job: Job) -> bool:
    draw = chance.random()
    if draw < 0.55:
        return all(await backend.leases.complete([job]))
    if draw < 0.7:
        return all(await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM)]))
    delay = timedelta(seconds=20) if draw < 0.9 else None
    return all(await backend.leases.retry([Retry(job, delay, BOOM if delay else None)]))


async def canceller(backend: Backend, chance: random.Random) -> None:
    while True:
        key, turn = chance.randrange(KEYS), chance.randrange(TURNS)
        await backend.leases.cancel(CHANNEL, "default", f"{key}-{turn}", None)
        await asyncio.sleep(0.005)


async def timekeeper(backend: Backend) -> None:
    while True:
        await backend.advance(timedelta(seconds=15))
        await step(backend)
        await asyncio.sleep(0)


async def play(backend: Backend, *, ordered: bool) -> tuple[History, dict[tuple[str, int], datetime]]:
    await subscribe(backend, ordered=ordered, lease=LEASE, max_abandonments=4, expires_after="30m")
    events = [Event(turn, f"{key}-{turn}", key=str(key)) for turn in range(TURNS) for key in range(KEYS)]
    await backend.log.publish(CHANNEL, events)
    history, chance = History(), random.Random(7)
    helpers = [asyncio.create_task(canceller(backend, chance)), asyncio.create_task(timekeeper(backend))]
    try:
        async with asyncio.timeout(60):
            await asyncio.gather(*(worker(backend, random.Random(n), history) for n in range(WORKERS)))
    finally:
        for task in helpers:
            task.cancel()
        await asyncio.gather(*helpers, return_exceptions=True)
    ended = {}
    for event in events:
        kept = await record(backend, event.id)
        assert kept.ended_at is not None, f"{event.id} is {kept.state}"
        ended[str(event.key), int(event.json())] = kept.ended_at
    return history, ended


@pytest.mark.concurrency
async def test_everything_drains_and_nothing_overtakes_within_its_key(backend: Backend) -> None:
    history, ended = await play(backend, ordered=True)
    assert history.overtakings(ended) == []
    counts = await states(backend)
    assert sum(counts.values()) == KEYS * TURNS
    assert set(counts) == {State.DONE, State.DEAD, State.CANCELLED}, "each way to end was taken"
    assert history.refused > 0, "some answers came too late, and changed nothing"


@pytest.mark.concurrency
async def test_the_same_play_without_order_is_caught_overtaking(backend: Backend) -> None:
    """The positive control: the judgement above can find what it looks for."""
    history, ended = await play(backend, ordered=False)
    assert history.overtakings(ended) != []


@pytest.mark.concurrency
@pytest.mark.parametrize("turn", range(3))
async def test_two_that_leave_at_once_free_the_third(backend: Backend, turn: int) -> None:
    await subscribe(backend, ordered=True)
    chance = random.Random(turn)
    lanes = [[f"{lane}-{place}" for place in range(3)] for lane in range(40)]
    for lane in lanes:
        await backend.log.publish(CHANNEL, [Event(1, name, key=lane[0]) for name in lane])
    heads = await claim(backend)
    assert len(heads) == 40
    await claim(backend)  # now the others are known to wait
    moves = [backend.leases.complete([head]) for head in heads]
    moves += [backend.leases.cancel(CHANNEL, "default", lane[1], None) for lane in lanes]  # type: ignore[misc]
    chance.shuffle(moves)
    await asyncio.gather(*moves)
    free: dict[str, list[str]] = defaultdict(list)
    for name in ids(await claim(backend)):
        free[name.split("-")[0]].append(name)
    assert {names[0] for names in free.values()} == {lane[2] for lane in lanes}
    assert (await backend.channels.consumer_stats(CHANNEL, CONSUMER)).states[State.CANCELLED] == 40
