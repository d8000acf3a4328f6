"""Random histories: whatever is done, and wherever it is cut off, the counts equal what is there (I3)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from dead_kit import LAPSE, audited, cut_off, die, fail, found, later, subscribe, work

import holdfast
from holdfast import failpoints
from holdfast.deadletters import DeadLetters, Filter, OperationOptions, Operations, Request, Runner
from holdfast.model.errors import Unavailable

CONSUMERS = ("billing", "audit")
ERRORS = ("no route to host 1", "total is missing", "timed out after 3 s")
POINTS = ("operation.after_lock", "operation.after_intent", "operation.after_act", "operation.before_end")
FIX: dict[str, object] = {"op": "add", "path": "/fixed", "value": True}


async def check(letters: DeadLetters) -> int:
    """Counts by reason and by cluster equal the list; answers how many there are."""
    items = await found(letters)
    assert len({item.id for item in items}) == len(items)
    listed = Counter((item.channel, item.consumer, item.reason) for item in items)
    status = await letters.status()
    assert listed == {(s.channel, s.consumer, r): n for s in status for r, n in s.reasons.items()}
    clustered = Counter((item.channel, item.consumer, item.fingerprint) for item in items)
    assert clustered == {(c.channel, c.consumer, c.fingerprint): c.count for c in await letters.clusters()}
    assert await letters.verify() == []
    return len(items)


def wanted(chance: random.Random) -> Request:
    """Some operation on some dead letters."""
    kind = chance.choice(["requeue", "redrive", "patch", "purge"])
    options = OperationOptions(patch=(FIX,)) if kind == "patch" else OperationOptions()
    where = Filter.of(
        kinds=["job"],
        channel="orders",
        consumer=chance.choice([None, *CONSUMERS]),
        text=chance.choice([None, "host", "total"]),
    )
    return Request(kind, where, options=options)  # type: ignore[arg-type]


async def step(bus: holdfast.Bus, runner: Runner, chance: random.Random, number: int) -> None:
    """Somebody dies, somebody works, or somebody operates, perhaps to be cut off and resumed by another."""
    match chance.choice(["die", "die", "work", "operate", "operate", "operate"]):
        case "die":
            await bus.publish("orders", {"n": number}, id=f"o-{number}")
            await bus.publish("orders", {"n": number}, id=f"p-{number}")
            for consumer in CONSUMERS:
                await fail(bus, consumer=consumer, error=chance.choice(ERRORS))
            await later(bus)
        case "work":
            await work(bus, consumer=chance.choice(CONSUMERS))
        case _:
            asked = await runner.operations.ask(wanted(chance), "ann")
            point, after = chance.choice(POINTS), chance.randrange(3)
            with failpoints.active(point, cut_off, after=after):
                try:
                    await runner.run(asked.id)
                except Unavailable:
                    await later(bus, LAPSE)
            await runner.resume_all()
            done = await runner.operations.show(asked.id)
            progress = done.progress
            assert (done.state, progress.skipped) == ("done", 0), done
            assert progress.done == progress.looked_at == progress.expected


@pytest.mark.parametrize("seed", [0, *(pytest.param(each, marks=pytest.mark.slow) for each in (1, 2))])
async def test_counts_are_exact_at_every_quiet_point(two: holdfast.Bus, seed: int) -> None:
    chance, letters = random.Random(seed), DeadLetters(two)
    runner = Runner(Operations(letters), "tester", chunk=3)
    for consumer in CONSUMERS:
        await subscribe(two, consumer)
    await die(two, *(f"first-{number}" for number in range(8)))
    for number in range(12):
        await step(two, runner, chance, number)
        await check(letters)
    told = Counter(each["operation"] for each in await audited(two))
    assert set(told.values()) == {2}, "asked and done, once each"
