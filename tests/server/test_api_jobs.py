"""Jobs over REST: polled, ended, prolonged, given back; and who is too late is told."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

from application import Application, application, problem

import holdfast
from holdfast.contracts import Backend
from holdfast.model.event import Event
from kit import CHANNEL, CONSUMER, LEASE, abandon, publish, record, state, states, subscribe

BASE = f"/api/v1/channels/{CHANNEL}/consumers/{CONSUMER}"


def store_of(bus: holdfast.Bus) -> Backend:
    return bus.partitions.all[0].backend


async def polled(found: Application, limit: int = 1) -> list[dict[str, Any]]:
    answer = await found.client.post(f"{BASE}/poll", json={"limit": limit})
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


async def end(found: Application, job: dict[str, Any], verb: str = "finalize", **body: Any) -> Any:
    path = f"{BASE}/jobs/{job['id']}/{verb}"
    return await found.client.post(path, json={"token": job["token"], **body})


async def test_a_job_is_polled_prolonged_given_back_and_ended(each: holdfast.Bus) -> None:
    store = store_of(each)
    await subscribe(store, ordered=True)
    await publish(store, "a", key="k")
    await publish(store, "b", key="k")
    async with application(each) as found:
        [job] = await polled(found, 10)
        assert (job["event"]["id"], job["event"]["data"], job["attempt"]) == ("a", {"id": "a"}, 1)
        assert (await end(found, job, "extend", by="1h")).status_code == 204
        shown = (await found.client.get(f"{BASE}/jobs/{job['id']}")).json()
        assert shown["state"] == "leased"
        longer = datetime.fromisoformat(shown["lease_until"]) - datetime.fromisoformat(job["lease_until"])
        assert longer > timedelta(minutes=50)
        assert (await end(found, job, "release")).status_code == 204
        assert await polled(found, 10) == await self_again(found, job, token=2)
        assert (await end(found, {**job, "token": 2}, success=True)).status_code == 204
        [job] = await polled(found, 10)
        assert job["event"]["id"] == "b"
        assert (await end(found, job, success=True)).status_code == 204
        shown = (await found.client.get(f"{BASE}/jobs/{job['id']}")).json()
        assert (shown["state"], shown["event_id"], shown["attempts"]) == ("done", "b", 1)


async def self_again(found: Application, job: dict[str, Any], token: int) -> list[dict[str, Any]]:
    """The same job as the next poll must have it: with a new token and deadline, and no attempt spent."""
    shown = (await found.client.get(f"{BASE}/jobs/{job['id']}")).json()
    return [{**job, "token": token, "lease_until": shown["lease_until"]}]


async def test_data_comes_out_as_it_went_in(bus: holdfast.Bus) -> None:
    """What JSON would not carry unchanged travels as bytes."""
    await subscribe(store_of(bus))
    values = [2**70, -(10**40), 0.1, 1e300, "\u0000é😀", None, {"a": [1, {"b": []}]}]
    texts = [b"1e999", b"NaN", b'"\\ud800"', b"\xff", b"[" * 300 + b"]" * 300, b"[" * 2000 + b"]" * 2000, b""]
    path = f"/api/v1/channels/{CHANNEL}/events"
    async with application(bus) as found:
        for value in values:
            assert (await found.client.post(path, json={"data": value})).status_code == 201
        lines = b"".join(json.dumps({"data": value}).encode() + b"\n" for value in values)
        kind = {"Content-Type": "application/x-ndjson"}
        streamed = await found.client.post(f"{path}/stream", content=lines, headers=kind)
        assert streamed.json()["published"] == len(values)
        await bus.publish_many(CHANNEL, [Event(text) for text in texts])
        events = [job["event"] for job in await polled(found, 100)]
    assert [event["data"] for event in events[: -len(texts)]] == values * 2
    got = [base64.b64decode(event["data_base64"]) for event in events[-len(texts) :]]
    assert got == texts


async def test_attempts_are_counted_by_the_store(each: holdfast.Bus) -> None:
    store = store_of(each)
    await subscribe(store, max_attempts=2, backoff=["0s"])
    await publish(store, "a")
    async with application(each) as found:
        for attempt in (1, 2):
            [job] = await polled(found)
            assert job["attempt"] == attempt
            answer = await end(found, job, success=False, error=f"no account {attempt}")
            assert answer.status_code == 204
        shown = (await found.client.get(f"{BASE}/jobs/{job['id']}")).json()
        assert (shown["state"], shown["reason"]) == ("dead", "max_attempts")
        assert [(e["attempt"], e["error"]) for e in shown["errors"]] == [
            (1, "no account 1"),
            (2, "no account 2"),
        ]


async def test_what_no_retry_can_help_is_buried_at_once(bus: holdfast.Bus) -> None:
    await subscribe(store_of(bus))
    await publish(store_of(bus), "a")
    async with application(bus) as found:
        [job] = await polled(found)
        assert (await end(found, job, success=False, error="no", terminal=True)).status_code == 204
        assert (await record(store_of(bus), "a")).reason == "terminal"


async def test_many_are_ended_at_once_each_in_its_own_way(each: holdfast.Bus) -> None:
    store = store_of(each)
    await subscribe(store, backoff=["1h"])
    await publish(store, "done", "again", "dead", "lost")
    async with application(each) as found:
        jobs = {job["event"]["id"]: job for job in await polled(found, 10)}
        how: dict[str, dict[str, Any]] = {
            "lost": {"success": True, "token": 99},
            "again": {"success": False},
            "done": {"success": True},
            "dead": {"success": False, "terminal": True, "error": "no"},
        }
        body = [{"id": jobs[name]["id"], "token": jobs[name]["token"], **how[name]} for name in how]
        answer = (await found.client.post(f"{BASE}/finalize", json={"jobs": body})).json()
        assert answer["lost"] == [jobs["lost"]["id"]]
        assert answer["accepted"] == [jobs[name]["id"] for name in ("again", "done", "dead")]
    expected = {"done": "done", "again": "scheduled", "dead": "dead", "lost": "leased"}
    assert {name: await state(store, name) for name in how} == expected


async def test_who_lost_the_lease_changes_nothing(each: holdfast.Bus) -> None:
    store = store_of(each)
    await subscribe(store)
    await publish(store, "a")
    async with application(each) as found:
        [late] = await polled(found)
        await abandon(store, LEASE)
        [now] = await polled(found)
        assert now["token"] > late["token"]
        before = await record(store, "a")
        for verb, body in (
            ("finalize", {"success": True}),
            ("finalize", {"success": False}),
            ("extend", {"by": "1h"}),
            ("release", {}),
        ):
            told = problem(await end(found, late, verb, **body), 409)
            assert (told["type"], told["jobs"]) == ("urn:holdfast:problem:lease-lost", [late["id"]])
        assert await record(store, "a") == before
        assert (await end(found, now, success=True)).status_code == 204
        problem(await end(found, now, success=True), 409)


async def test_a_job_that_never_was_is_nobodys(each: holdfast.Bus) -> None:
    await subscribe(store_of(each))
    async with application(each) as found:
        for job_id in ("no-number", "9" * 30, "1-1", "0", "77"):
            problem(await end(found, {"id": job_id, "token": 1}, success=True), 409)
            problem(await end(found, {"id": job_id, "token": 1}, success=False), 409)
            problem(await end(found, {"id": job_id, "token": 1}, "extend", by="1m"), 409)
            problem(await found.client.get(f"{BASE}/jobs/{job_id}"), 404)


async def test_what_does_not_exist_and_what_is_too_much_is_told(bus: holdfast.Bus) -> None:
    async with application(bus, limits={"batch": 2}) as found:
        problem(await found.client.post(f"{BASE}/poll", json={}), 404)
        problem(await found.client.post(f"{BASE}/poll", json={"wait": "5s"}), 404)
        for success in (True, False):  # a consumer that is gone took its leases along
            problem(await end(found, {"id": "1", "token": 1}, success=success), 409)
        await subscribe(store_of(bus))
        await publish(store_of(bus), *"abc")
        problem(await found.client.post(f"{BASE}/poll", json={"wait": "16m"}), 400)
        problem(await found.client.post(f"{BASE}/poll", json={"limit": 0}), 422)
        problem(await end(found, {"id": "1@7", "token": 1}, success=True), 404)
        assert len(await polled(found, 3)) == 2
        endings = [{"id": str(n), "token": 1, "success": True} for n in range(3)]
        problem(await found.client.post(f"{BASE}/finalize", json={"jobs": endings}), 413)


async def test_a_paused_consumer_hands_out_nothing(bus: holdfast.Bus) -> None:
    await subscribe(store_of(bus))
    await publish(store_of(bus), "a")
    async with application(bus) as found:
        await found.client.put(BASE, json={"paused": True})
        assert await polled(found) == []
        await found.client.put(BASE, json={"paused": False})
        assert len(await polled(found)) == 1


async def test_a_consumers_token_ends_only_its_own_jobs(bus: holdfast.Bus) -> None:
    store = store_of(bus)
    await subscribe(store)
    await subscribe(store, "other")
    await publish(store, "a")
    async with application(bus, local=False) as found:
        mine = await found.bearer("consumer", CHANNEL, CONSUMER)
        answer = await found.client.post(f"{BASE}/poll", json={}, headers=mine)
        [job] = answer.json()["jobs"]
        other = await found.bearer("consumer", CHANNEL, "other")
        body = {"token": job["token"], "success": True}
        path = f"/jobs/{job['id']}/finalize"
        problem(await found.client.post(BASE + path, json=body, headers=other), 403)
        theirs = BASE.replace(CONSUMER, "other")
        problem(await found.client.post(theirs + path, json=body, headers=other), 409)
        assert (await states(store)) == {"leased": 1}
        assert (await found.client.post(BASE + path, json=body, headers=mine)).status_code == 204


async def test_jobs_of_several_stores_are_one_list(new_database: Callable[[], str]) -> None:
    async with holdfast.connect([new_database(), new_database()]) as bus, application(bus) as found:
        made = await found.client.put(BASE, json={"paused": False, "display_name": "Billing"})
        assert made.status_code == 201
        bodies = {"events": [{"data": n, "id": f"e-{n}"} for n in range(20)]}
        batch = f"/api/v1/channels/{CHANNEL}/events/batch"
        assert (await found.client.post(batch, json=bodies)).status_code == 201
        jobs = await polled(found, 20)
        assert len(jobs) == 20
        assert {job["id"].partition("@")[2] for job in jobs} == {"", "1"}
        endings = [
            {"id": job["id"], "token": job["token"], "success": place > 0, "terminal": True}
            for place, job in enumerate(jobs)
        ]
        answer = (await found.client.post(f"{BASE}/finalize", json={"jobs": endings})).json()
        assert answer == {"accepted": [job["id"] for job in jobs], "lost": []}
        shown = (await found.client.get(f"{BASE}/jobs/{jobs[0]['id']}")).json()
        assert (shown["id"], shown["state"]) == (jobs[0]["id"], "dead")
        channel = (await found.client.get(f"/api/v1/channels/{CHANNEL}")).json()
        assert (channel["events"], channel["consumers"]) == (20, [CONSUMER])
        dry = await found.client.delete(BASE, params={"dry_run": True})
        assert dry.json() == {"jobs": {"dead": 1, "done": 19}}
        asked = await found.client.delete(BASE)
        await found.system.runner.follow(asked.json()["id"])
        problem(await found.client.get(BASE), 404)
        problem(await found.client.post(f"{BASE}/poll", json={}), 404)


async def test_a_job_is_cancelled_while_it_waits_and_while_it_runs(each: holdfast.Bus) -> None:
    store = store_of(each)
    await subscribe(store)
    await publish(store, "a", "b")
    async with application(each) as found:
        [job] = await polled(found)

        async def cancel(**body: Any) -> tuple[int, list[Any]]:
            answer = await found.client.post(f"{BASE}/cancel", json={"id": "a", **body})
            assert answer.status_code == 200, answer.text
            jobs = answer.json()["jobs"]
            return answer.json()["cancelled"], [jobs[0][name] for name in ("state", "cancelled_by", "reason")]

        assert await cancel() == (0, ["leased", None, None])
        assert await cancel(running=True, reason="no more") == (1, ["cancelled", "local", "no more"])
        assert await cancel(running=True) == (0, ["cancelled", "local", "no more"])
        assert await cancel(id="b") == (1, ["cancelled", "local", None])
        lost = problem(await end(found, job, success=True), 409)
        assert job["id"] in str(lost["detail"])
        problem(await found.client.post(f"{BASE}/cancel", json={"id": "c"}), 404)
        problem(await found.client.post(f"{BASE}/cancel", json={"id": "b", "reason": "a\nb"}), 400)
        noted = [entry.event.json() for entry in await found.system.audit.latest(10)]
        assert [(every["actor"], every["target"]) for every in noted] == [
            ("local", f"{CHANNEL}/{CONSUMER}/b"),
            ("local", f"{CHANNEL}/{CONSUMER}/a"),
        ]
