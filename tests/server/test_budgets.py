"""Budgets: lists and polls are bounded by bytes too, and nothing is lost where one ends early."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from itertools import chain, islice, repeat

import pytest
from application import application, problem

import holdfast
from holdfast.bus.byte_limits import claim_within, weight
from holdfast.deadletters import payloads
from holdfast.model.errors import Unavailable
from holdfast.model.event import Event
from holdfast.model.job import Job
from holdfast.server.api.models import data_json
from holdfast.server.bodies import TimeSlice
from kit import subscribe

LOG = "/api/v1/channels/c/events"
POLL = "/api/v1/channels/c/consumers/w/poll"
LARGE = {"text": "x" * 100_000}


async def test_a_page_of_a_log_ends_early_and_the_next_goes_on(each: holdfast.Bus) -> None:
    await each.publish_many("c", [Event(LARGE, f"e-{n}") for n in range(40)])
    async with application(each, limits={"answer": 350_000}) as found:
        ids, after = [], None
        for _ in range(10):
            query = {"limit": 1000} | ({"after": after} if after else {})
            answer = await found.client.get(LOG, params=query)
            page = answer.json()
            ids += [one["event"]["id"] for one in page["items"]]
            assert len(page["items"]) == 4
            assert len(answer.content) < 500_000
            assert all(one["event"]["data"] == LARGE for one in page["items"])
            after = page["after"]
        assert ids == [f"e-{n}" for n in range(40)]
        assert (await found.client.get(LOG, params={"after": after})).json() == {"items": [], "after": after}


async def test_small_events_fill_a_page(bus: holdfast.Bus) -> None:
    await bus.publish_many("c", [Event(n, f"e-{n}") for n in range(50)])
    async with application(bus) as found:
        page = (await found.client.get(LOG, params={"limit": 45})).json()
        assert [one["event"]["data"] for one in page["items"]] == list(range(45))


async def test_a_poll_leases_what_fits_and_leaves_the_rest_ready(each: holdfast.Bus) -> None:
    store = each.partitions.all[0].backend
    await subscribe(store, "w", channel="c")
    await each.publish_many("c", [Event(LARGE, f"e-{n}") for n in range(20)])
    async with application(each, limits={"answer": 350_000}) as found:
        seen: list[str] = []
        for _ in range(5):
            jobs = (await found.client.post(POLL, json={"limit": 1000})).json()["jobs"]
            assert len(jobs) == 4
            assert {one["attempt"] for one in jobs} == {1}
            seen += [one["event"]["id"] for one in jobs]
        assert sorted(seen) == sorted(f"e-{n}" for n in range(20))
        assert (await found.client.post(POLL, json={"limit": 1000})).json() == {"jobs": []}


async def test_many_small_jobs_take_few_claims(each: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    await subscribe(each.partitions.all[0].backend, "w", channel="c")
    await each.publish_many("c", [Event(n, f"e-{n}") for n in range(500)])
    claims: list[int] = []
    poll = each.poll

    async def counted(channel: str, consumer: str, *, limit: int = 1) -> list[Job]:
        claims.append(limit)
        return await poll(channel, consumer, limit=limit)

    monkeypatch.setattr(each, "poll", counted)
    async with application(each) as found:
        for limit in (1, 16):
            assert len((await found.client.post(POLL, json={"limit": limit})).json()["jobs"]) == limit
        assert claims == [1, 16]
        jobs = (await found.client.post(POLL, json={"limit": 400})).json()["jobs"]
        assert len({one["id"] for one in jobs}) == 400
        assert claims[2:] == [16, 32, *[64] * 5, 32]


async def test_a_claim_after_small_jobs_is_bounded_and_after_large_ones_it_is_small() -> None:
    small, large = (
        Job("1", "c", "w", Event(b"x" * size), "p", 1, 0, 1, None)  # type: ignore[arg-type]
        for size in (1, 100_000)
    )
    sizes: list[int] = []

    def jobs(*first: Job) -> Callable[[int], Awaitable[list[Job]]]:
        rest = chain(first, repeat(large))

        async def claim(count: int) -> list[Job]:
            sizes.append(count)
            return list(islice(rest, count))

        return claim

    budget = 10 * weight(large.event)
    kept, beyond = await claim_within(jobs(*[small] * 112), 1000, budget)
    assert (len(kept) - 112, len(beyond), sizes) == (10, 54, [16, 32, 64, 64])
    sizes.clear()
    kept, beyond = await claim_within(jobs(), 1000, 20 * weight(large.event))
    assert (len(kept), len(beyond), sizes) == (20, 0, [16, 2, 1, 1])


async def test_a_store_that_fails_halfway_costs_no_job_that_is_leased() -> None:
    job = Job("1", "c", "w", Event(b"x"), "p", 1, 0, 1, None)  # type: ignore[arg-type]
    answers = [[job] * 16, Unavailable("gone")]

    async def claim(count: int) -> list[Job]:
        match answers.pop(0):
            case list() as found:
                return found
            case error:
                raise error  # type: ignore[misc]

    assert await claim_within(claim, 100, 10 * weight(job.event)) == ([job] * 10, [job] * 6)
    answers[:0] = [[job] * 16]
    assert await claim_within(claim, 100, 1 << 20) == ([job] * 16, [])
    answers.append(Unavailable("gone"))
    with pytest.raises(Unavailable):
        await claim_within(claim, 100, 1 << 20)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a": 1}',
        b'{ "a":  1e5 }',
        str(10**40).encode(),
        b'"\\u00e4"',
        b"[" * 300 + b"]" * 300,
        b"\xff",
        b"NaN",
        b"",
        b"{",
    ],
)
async def test_data_is_answered_as_it_was_published(bus: holdfast.Bus, data: bytes) -> None:
    await bus.publish_many("c", [Event(data, "e")])
    async with application(bus) as found:
        answer = await found.client.get(LOG)
        event = answer.json()["items"][0]["event"]
        if "data" in event:
            assert data in answer.content
            assert event["data"] == json.loads(data)
        else:
            assert base64.b64decode(event["data_base64"]) == data


@pytest.mark.parametrize(
    ("data", "readable"),
    [
        (b"[" * 200 + b"]" * 200, True),
        (b"[" * 201 + b"]" * 201, False),
        (b'{"a":[' * 100 + b"{}" + b"]}" * 100, False),
        (b'["' + b"[" * 500 + b'\\"[", "\\\\"]', True),
        (b'{"n":' + b"9" * 4301 + b"}", False),
        (b'"' + b"9" * 5000 + b'"', True),
        (b"1e400", False),
    ],
)
async def test_data_is_shown_as_json_where_every_parser_takes_it(data: bytes, readable: bool) -> None:
    assert list(await data_json("data", data, TimeSlice())) == ["data" if readable else "data_base64"]
    assert list(payloads.readable("data", data)) == ["data" if readable else "data_base64"]


async def test_searches_of_one_caller_leave_room_for_others(bus: holdfast.Bus) -> None:
    ask = {"kind": "requeue", "filter": {"channel": "c", "kinds": ["job"]}, "dry_run": True}
    async with application(bus) as found:
        other = await found.bearer("admin")
        with ExitStack() as places:
            for _ in range(4):
                places.enter_context(found.system.searches.take("local"))
            problem(await found.client.post("/api/v1/operations", json=ask), 429)
            assert (await found.client.get("/deadletters/ask?act=requeue&channel=c")).status_code == 429
            asked = await found.client.post("/api/v1/operations", json=ask, headers=other)
            assert asked.status_code == 200, asked.text
        assert (await found.client.post("/api/v1/operations", json=ask)).status_code == 200


async def test_a_zone_that_no_store_takes_is_refused(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        for zone in ("+16:00", "-16:00", "+23:59"):
            time = f"2030-01-31T09:00:00{zone}"
            for body in ({"time": time}, {"at": time}):
                problem(await found.client.post(LOG, json=body), 422)
            problem(await found.client.get("/api/v1/deadletters", params={"since": time}), 422)
        fine = {"time": "2030-01-31T09:00:00+15:59"}
        assert (await found.client.post(LOG, json=fine)).status_code == 201
