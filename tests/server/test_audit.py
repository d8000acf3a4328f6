"""The audit: nobody fills it, forges it, or keeps an entry out of it."""

from __future__ import annotations

import pytest
from application import Application, application, problem

import holdfast
from holdfast.deadletters.audit import Audit
from holdfast.model.errors import IdConflict
from holdfast.model.event import Event
from holdfast.upkeep.announcements import SOURCE, Audited
from kit import bury, claim, publish, read_all, subscribe

AUDIT = "gbe.events.system.audit"


async def entries(bus: holdfast.Bus) -> list[Audited]:
    found = await read_all(bus.partitions.all[0].backend, AUDIT)
    return [Audited.model_validate_json(each.event.data) for each in found]


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_refused_calls_make_two_entries_a_minute_and_one_that_counts_the_rest(
    bus: holdfast.Bus,
) -> None:
    clock = Clock()
    audit = Audit(bus.partitions.all[0].backend, clock=clock)
    for _ in range(50):
        await audit.refused("token:a", "GET /x", "/x", "no")
    await audit.refused("token:b", "GET /x", "/x", "no")
    assert [each.actor for each in await entries(bus)] == ["token:a", "token:a", "token:b"]
    clock.now = 59.9
    await audit.refused("token:a", "GET /x", "/x", "no")
    assert len(await entries(bus)) == 3
    clock.now = 60.0
    await audit.refused("token:b", "GET /y", "/y", "no")
    told = (await entries(bus))[3:]
    assert [(each.actor, each.outcome) for each in told] == [
        ("token:a", "refused: 49 more calls within a minute; the server's log has some"),
        ("token:b", "refused: no"),
    ]
    await audit.refused("token:a", "GET /x", "/x", "no")
    assert (await entries(bus))[-1].outcome == "refused: no"


async def test_a_token_that_is_refused_again_and_again_does_not_fill_the_audit(bus: holdfast.Bus) -> None:
    async with application(bus, local=False) as found:
        headers = await found.bearer("reader", "mine")
        for number in range(30):
            problem(await found.client.get(f"/api/v1/channels/c{number}", headers=headers), 403)
        assert len(await entries(bus)) == 2


async def asked(found: Application, headers: dict[str, str]) -> str:
    wanted = {"channel": "orders", "consumer": "worker"}
    answer = await found.client.post(
        "/api/v1/operations", json={"kind": "requeue", "filter": wanted}, headers=headers
    )
    assert answer.status_code == 202
    return str(answer.json()["id"])


@pytest.fixture
async def dead(bus: holdfast.Bus) -> holdfast.Bus:
    store = bus.partitions.all[0].backend
    await subscribe(store, "worker", channel="orders")
    await publish(store, "e", channel="orders")
    [job] = await claim(store, channel="orders", consumer="worker")
    await bury(store, job)
    return bus


async def test_nobody_who_knows_an_operation_can_keep_its_end_out_of_the_audit(dead: holdfast.Bus) -> None:
    """Even where somebody can write to the audit as Holdfast does, the ids cannot be known before."""
    store = dead.partitions.all[0].backend
    async with application(dead, local=False) as found:
        operation = await asked(found, await found.bearer("channel", "orders"))
        guesses = [f"{operation}:done:1", f"{operation}:cancelled:2", f"{operation}:asked:1"]
        for guess in guesses:
            try:
                await store.log.publish(AUDIT, [Event(b"{}", guess, SOURCE, "holdfast.audit")])
            except IdConflict:
                pytest.fail(f"{guess} is the id of an entry")
        await found.system.runner.follow(operation)
        found_entries = await read_all(store, AUDIT)
        told = [Audited.model_validate_json(e.event.data) for e in found_entries if e.event.data != b"{}"]
        assert [each.outcome for each in told] == ["asked", "done: 1 of 1 done, 0 skipped"]


async def test_an_end_that_is_told_again_after_a_crash_is_told_once(dead: holdfast.Bus) -> None:
    async with application(dead, local=False) as found:
        operation = await asked(found, await found.bearer("channel", "orders"))
        done = await found.system.runner.follow(operation)
        before = await entries(dead)
        for _ in range(2):  # other processes
            await Audit(dead.partitions.all[0].backend).ended(done)
        assert await entries(dead) == before
