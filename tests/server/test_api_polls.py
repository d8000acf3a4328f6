"""Long polls: woken by a publish, few listeners for many waiters, and nothing is lost with a caller."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from application import Application, application
from running import running

import holdfast
from holdfast.contracts import Listener
from holdfast.model.errors import InvalidInput
from holdfast.server.api import jobs
from kit import CHANNEL, CONSUMER, calm_clock, publish, state, states, subscribe, until

BASE = f"/api/v1/channels/{CHANNEL}/consumers/{CONSUMER}"


@pytest.fixture(autouse=True)
def _no_looking_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes in time comes by a wake-up."""
    monkeypatch.setattr(jobs, "PAUSE", 30)


def poll(
    client: httpx.AsyncClient, wait: str = "30s", channel: str = CHANNEL, limit: int = 1
) -> asyncio.Task[httpx.Response]:
    path = f"/api/v1/channels/{channel}/consumers/{CONSUMER}/poll"
    return asyncio.create_task(client.post(path, json={"wait": wait, "limit": limit}))


class Ears:
    """Counts who listens to a store."""

    def __init__(self, bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.ever = 0, 0
        backend = bus.partitions.all[0].backend
        self._listen = backend.listen
        monkeypatch.setattr(backend, "listen", self.listen, raising=False)

    async def listen(self, channels: list[str], wake: Callable[[str], None], *options: Any) -> Any:
        self.now, self.ever = self.now + 1, self.ever + 1
        return Ear(await self._listen(channels, wake, *options), self)


class Ear:
    def __init__(self, inner: Listener, ears: Ears) -> None:
        self._inner, self._ears = inner, ears

    async def close(self) -> None:
        self._ears.now -= 1
        await self._inner.close()


async def waiting(found: Application, count: int, channel: str = CHANNEL) -> None:
    """Until so many wait for a wake-up."""

    async def there() -> bool:
        return len(found.system.wakeups.waiting(channel)) == count

    await until(there)


async def test_a_publish_wakes_those_who_wait(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store)
    async with application(each) as found:
        waiter = poll(found.client)
        await waiting(found, 1)
        async with calm_clock() as now:
            await publish(store, "a")
            [job] = (await waiter).json()["jobs"]
            assert job["event"]["id"] == "a"
            assert now() < 10
        assert found.system.wakeups.waiting(CHANNEL) == frozenset()


async def test_nothing_comes_of_an_empty_wait(bus: holdfast.Bus) -> None:
    await subscribe(bus.partitions.all[0].backend)
    async with application(bus) as found:
        began = time.monotonic()
        assert (await poll(found.client, "200ms")).json() == {"jobs": []}
        assert time.monotonic() - began >= 0.2


def test_a_wait_is_up_to_a_quarter_of_an_hour() -> None:
    assert jobs.patience("15m") == 900
    with pytest.raises(InvalidInput, match="use at most 15m"):
        jobs.patience("901s")


async def test_a_wait_may_be_longer_than_other_requests_may_take(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with application(bus, limits={"timeout": "1s"}) as found:
        waiter = poll(found.client, "15m")
        await waiting(found, 1)
        begun = time.monotonic()
        await until(lambda: _is(time.monotonic() - begun > 1.2))
        assert not waiter.done()
        await publish(store, "a")
        assert len((await waiter).json()["jobs"]) == 1


async def test_those_who_wait_for_one_consumer_cost_no_more_than_one_of_them(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with application(bus) as found:
        waiters = [poll(found.client, "15m") for _ in range(20)]
        await waiting(found, 20)
        [first] = [turn for turn in found.system.wakeups.waiting(CHANNEL) if turn.first]
        await until(lambda: _is(not first.woken.is_set()))
        claims = _counted(monkeypatch, bus)
        monkeypatch.setattr(jobs, "PAUSE", 0.02)
        first.woken.set()
        await until(lambda: _is(len(claims) > 5))
        assert len(set(claims)) == 1, "only the first of the line looks"
        await publish(store, *(f"e-{n}" for n in range(20)))
        answers = await asyncio.gather(*waiters)
        assert len({answer.json()["jobs"][0]["event"]["id"] for answer in answers}) == 20


def _counted(monkeypatch: pytest.MonkeyPatch, bus: holdfast.Bus) -> list[asyncio.Task[Any] | None]:
    """Who has polled, from now on."""
    claims: list[asyncio.Task[Any] | None] = []
    look = jobs._PollCall._claim_checked

    async def counted(self: Any) -> Any:
        claims.append(asyncio.current_task())
        return await look(self)

    monkeypatch.setattr(jobs._PollCall, "_claim_checked", counted)
    return claims


async def test_a_token_that_is_revoked_ends_the_wait_and_gets_nothing(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with application(bus, local=False) as found:
        text = await found.token("consumer", CHANNEL, CONSUMER)
        headers = {"Authorization": f"Bearer {text}"}
        waiter = asyncio.create_task(found.client.post(f"{BASE}/poll", json={"wait": "15m"}, headers=headers))
        await waiting(found, 1)
        await found.tokens.revoke(text.split("_")[1])
        await publish(store, "a")
        assert (await waiter).status_code == 401
        assert await state(store, "a") == "ready"


async def test_a_token_that_is_revoked_during_its_claim_gets_nothing(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, claim = bus.partitions.all[0].backend, bus.poll
    await subscribe(store)
    async with application(bus, local=False) as found:
        text = await found.token("consumer", CHANNEL, CONSUMER)

        async def claim_and_revoke(*names: str, limit: int) -> list[holdfast.Job]:
            if jobs := await claim(*names, limit=limit):
                await found.tokens.revoke(text.split("_")[1])
            return jobs

        headers = {"Authorization": f"Bearer {text}"}
        waiter = asyncio.create_task(found.client.post(f"{BASE}/poll", json={"wait": "15m"}, headers=headers))
        await waiting(found, 1)
        monkeypatch.setattr(bus, "poll", claim_and_revoke)
        await publish(store, "a")
        assert (await waiter).status_code == 401
        assert await state(store, "a") == "ready"


async def test_a_token_that_is_revoked_ends_the_wait_behind_others_too(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first in the line looks; the others were not asked about until they were the first."""
    monkeypatch.setattr(jobs, "PAUSE", 0.1)
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with application(bus, local=False) as found:
        texts = [await found.token("consumer", CHANNEL, CONSUMER) for _ in range(2)]
        waiters = []
        for text in (texts[0], texts[1], texts[1]):
            headers = {"Authorization": f"Bearer {text}"}
            asked = found.client.post(f"{BASE}/poll", json={"wait": "15m"}, headers=headers)
            waiters.append(asyncio.create_task(asked))
            await waiting(found, len(waiters))
        await found.tokens.revoke(texts[1].split("_")[1])
        await waiting(found, 1)
        assert [(await each).status_code for each in waiters[1:]] == [401, 401]
        await publish(store, "a")
        assert len((await waiters[0]).json()["jobs"]) == 1


async def test_many_waiters_share_one_listener(bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    store, ears = bus.partitions.all[0].backend, Ears(bus, monkeypatch)
    await subscribe(store)
    await subscribe(store, channel="other")
    async with application(bus) as found:
        waiters = [poll(found.client) for _ in range(20)]
        await waiting(found, 20)
        await until(lambda: _is(ears.now == 1))
        other = poll(found.client, channel="other")
        await waiting(found, 1, "other")
        await until(lambda: _is((ears.now, ears.ever) == (1, 2)))
        await publish(store, "x", channel="other")
        assert len((await other).json()["jobs"]) == 1
        await publish(store, *(f"e-{n}" for n in range(20)))
        answers = await asyncio.gather(*waiters)
        got = {answer.json()["jobs"][0]["event"]["id"] for answer in answers}
        assert len(got) == 20
        await until(lambda: _is(ears.now == 0))
        assert ears.ever == 2


async def _is(true: bool) -> bool:
    return true


async def test_a_job_that_becomes_ready_later_is_seen_without_a_wake_up(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAUSE", 0.05)
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "late", at=await store.now() + timedelta(hours=1))
    async with application(bus) as found:
        waiter = poll(found.client)
        await waiting(found, 1)
        await store.advance(timedelta(hours=1))
        assert len((await waiter).json()["jobs"]) == 1


async def test_who_went_away_takes_nothing_along(bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller is cut off while the store hands out jobs: they are ready again at once."""
    store = bus.partitions.all[0].backend
    await subscribe(store)
    async with running(bus) as system:
        reached, go_on = asyncio.Event(), asyncio.Event()
        _hold(monkeypatch, bus, reached, go_on)
        async with httpx.AsyncClient(base_url=system.client.base_url) as gone:
            waiter = poll(gone)
            await asyncio.wait_for(reached.wait(), 60)
            waiter.cancel()
            await asyncio.gather(waiter, return_exceptions=True)
        await publish(store, "a")
        go_on.set()
        await until(lambda: _came_back(bus))
        assert await states(store) == {"ready": 1}
        [job] = await bus.poll(CHANNEL, CONSUMER)
        assert (job.token, job.attempt) == (2, 1)


async def test_who_waited_too_long_takes_nothing_along(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server gives up on a slow store while that hands out jobs: they are ready again at once."""
    store = bus.partitions.all[0].backend
    await subscribe(store)
    await publish(store, "a")
    async with application(bus, limits={"timeout": "200ms"}) as found:
        reached, go_on = asyncio.Event(), asyncio.Event()
        _hold(monkeypatch, bus, reached, go_on)
        while not reached.is_set():  # on a slow machine a call may be given up before it comes to the store
            assert (await poll(found.client)).status_code == 504
        go_on.set()
        await until(lambda: _came_back(bus))
        assert await state(store, "a") == "ready"


async def _came_back(bus: holdfast.Bus) -> bool:
    """Whether the job was handed out once, and is ready."""
    [found] = await bus.partitions.all[0].backend.leases.find_jobs(CHANNEL, "default", "a")
    return (found.state, found.token) == ("ready", 1)


def _hold(
    monkeypatch: pytest.MonkeyPatch, bus: holdfast.Bus, reached: asyncio.Event, go_on: asyncio.Event
) -> None:
    """The next claim stops before it asks the store, until it may go on."""
    backend = bus.partitions.all[0].backend
    claim: Callable[..., Awaitable[Any]] = backend.leases.claim

    async def held(*arguments: Any) -> Any:
        reached.set()
        await go_on.wait()
        return await claim(*arguments)

    monkeypatch.setattr(backend.leases, "claim", held, raising=False)


async def test_a_server_that_stops_sends_those_who_wait_away(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "PAUSE", 0.05)
    await subscribe(bus.partitions.all[0].backend)
    async with running(bus) as system:
        await system.readiness(200)
        waiter = poll(system.client)
        [app] = [each.service for each in system.supervisor.services if each.service.name == "http"]
        waking = app._app.state.system.wakeups  # type: ignore[attr-defined]
        await until(lambda: _is(bool(waking.waiting(CHANNEL))))
        system.supervisor.stopping = True
        assert (await waiter).json() == {"jobs": []}
        system.supervisor.stopping = False


async def test_a_drain_ends_the_longest_wait_at_once(bus: holdfast.Bus) -> None:
    """Nobody looks around for 30 s here: it is the drain itself that tells them."""
    await subscribe(bus.partitions.all[0].backend)
    async with httpx.AsyncClient(timeout=60) as client:
        async with running(bus) as system:
            await system.readiness(200)
            client.base_url = system.client.base_url
            [app] = [each.service for each in system.supervisor.services if each.service.name == "http"]
            waking = app._app.state.system.wakeups  # type: ignore[attr-defined]
            waiters = [poll(client, "15m") for _ in range(3)]
            await until(lambda: _is(len(waking.waiting(CHANNEL)) == 3))
        assert [(await each).json() for each in waiters] == [{"jobs": []}] * 3
