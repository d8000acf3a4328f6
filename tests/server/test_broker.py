"""The broker's endpoints: their shapes, on real dead letters."""

from __future__ import annotations

from datetime import datetime, timedelta

import httpx
import pytest
from application import Application, application, problem

import holdfast
from holdfast.contracts import Backend
from holdfast.model.states import State
from kit import CHANNEL, CONSUMER, bury, claim, complete, fail, publish, read_all, record, state, subscribe


def store(bus: holdfast.Bus) -> Backend:
    return bus.partitions.all[0].backend


async def dead(backend: Backend, *ids: str, channel: str = CHANNEL, consumer: str = CONSUMER) -> None:
    """Events whose jobs are dead, buried early."""
    await publish(backend, *ids, channel=channel)
    for job in await claim(backend, len(ids), channel=channel, consumer=consumer):
        assert await bury(backend, job)


async def exhausted(backend: Backend, name: str) -> None:
    """An event whose job died after two attempts."""
    await publish(backend, name)
    [job] = await claim(backend, 1)
    assert await fail(backend, job)
    [job] = await claim(backend, 1)
    assert await bury(backend, job)


def path(*rest: str, channel: str = CHANNEL, consumer: str = CONSUMER) -> str:
    return "/".join([f"/channel/{channel}/consumer/{consumer}", *rest])


async def counts(found: Application, **headers: str) -> dict[tuple[str, str], int]:
    answer = await found.client.get("/dlq-status", headers=headers)
    assert answer.status_code == 200, answer.text
    return {(each["channelId"], each["consumerId"]): each["deadCount"] for each in answer.json()["consumers"]}


async def test_dlq_status_has_the_shape_of_the_broker(each: holdfast.Bus) -> None:
    backend = store(each)
    await subscribe(backend)
    await backend.channels.set_display(CHANNEL, None, "Order Events")
    await backend.channels.set_display(CHANNEL, CONSUMER, "Payment Service")
    await dead(backend, "a", "b")
    async with application(each) as found:
        answer = await found.client.get("/dlq-status")
    assert answer.json() == {
        "consumers": [
            {
                "channelId": CHANNEL,
                "channelName": "Order Events",
                "consumerId": CONSUMER,
                "consumerName": "Payment Service",
                "deadCount": 2,
            }
        ]
    }


async def test_the_ids_of_dlq_status_work_in_the_paths_of_delete(each: holdfast.Bus) -> None:
    backend = store(each)
    await subscribe(backend)
    await backend.channels.set_display(CHANNEL, CONSUMER, "Payment Service")
    await dead(backend, "a", "b", "c")
    async with application(each) as found:
        [shown] = (await found.client.get("/dlq-status")).json()["consumers"]
        at = path(channel=shown["channelId"], consumer=shown["consumerId"])
        one = (await record(backend, "a")).id
        answer = await found.client.delete(f"{at}/job/{one}")
        assert (answer.status_code, answer.json()) == (200, {"deleted": 1})
        assert await counts(found) == {(CHANNEL, CONSUMER): 2}
        answer = await found.client.delete(f"{at}/dlq")
        assert (answer.status_code, answer.json()) == (200, {"deleted": 2})
        assert await counts(found) == {(CHANNEL, CONSUMER): 0}
        assert [await state(backend, name) for name in "abc"] == [State.PURGED] * 3


async def test_a_job_that_is_not_dead_is_left_alone(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend)
    await publish(backend, "done", "leased", "ready")
    for job in await claim(backend, 2):
        if job.event.id == "done":
            assert await complete(backend, job)
    async with application(bus) as found:
        for name in ("done", "leased", "ready"):
            job_id, before = (await record(backend, name)).id, await state(backend, name)
            refused = problem(await found.client.delete(path("job", job_id)), 409)
            assert f"is {before}, not dead" in str(refused["detail"])
            assert await state(backend, name) == before
        answer = await found.client.delete(path("dlq"))
        assert answer.json() == {"deleted": 0}
        assert [await state(backend, name) for name in ("done", "leased", "ready")] == [
            State.DONE,
            State.LEASED,
            State.READY,
        ]


async def test_only_exhausted_keeps_what_was_buried_early(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend, max_attempts=2)
    await exhausted(backend, "tired")
    await exhausted(backend, "weary")
    await dead(backend, "early")
    early, tired = (await record(backend, "early")).id, (await record(backend, "tired")).id
    strictly = {"only_exhausted": True}
    async with application(bus) as found:
        problem(await found.client.delete(path("job", early), params=strictly), 409)
        assert (await found.client.delete(path("job", tired), params=strictly)).json() == {"deleted": 1}
        assert (await found.client.delete(path("dlq"), params=strictly)).json() == {"deleted": 1}
        assert await state(backend, "early") is State.DEAD
        assert (await found.client.delete(path("job", early))).json() == {"deleted": 1}


@pytest.mark.parametrize(
    "query", ["only_exhuasted=true", "Only_Exhausted=true", "=", "a[]=1", "x=1&only_exhausted=true"]
)
async def test_a_misspelt_parameter_does_not_mean_everything(bus: holdfast.Bus, query: str) -> None:
    backend = store(bus)
    await subscribe(backend)
    await dead(backend, "a")
    async with application(bus) as found:
        refused = problem(await found.client.delete(f"{path('dlq')}?{query}"), 400)
        assert "known: only_exhausted" in str(refused["detail"])
        assert await counts(found) == {(CHANNEL, CONSUMER): 1}


async def test_a_large_purge_is_an_operation(bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.api.broker.SMALL", 2)
    backend = store(bus)
    await subscribe(backend)
    await dead(backend, "a", "b", "c")
    async with application(bus) as found:
        answer = await found.client.delete(path("dlq"))
        assert answer.status_code == 202
        operation = answer.json()["operation"]
        assert answer.json() == {"operation": operation, "expected": 3}
        assert answer.headers["Location"] == f"/api/v1/operations/{operation}"
        assert await counts(found) == {(CHANNEL, CONSUMER): 3}
        await dead(backend, "later")
        assert await found.system.runner.resume_all() == 1
        assert (await found.system.operations.show(operation)).progress.done == 3
        assert await counts(found) == {(CHANNEL, CONSUMER): 1}


async def test_what_does_not_exist_is_not_found(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend)
    async with application(bus) as found:
        problem(await found.client.delete(path("dlq", consumer="nobody")), 404)
        problem(await found.client.delete(path("dlq", channel="nowhere")), 404)
        for job in ("1", "999999999999", "nonsense"):
            problem(await found.client.delete(path("job", job)), 404)
        problem(await found.client.delete(path("job", "1@7")), 404)
        for job in ("..", "a b", "1@0", "@", "*"):
            answer = await found.client.delete(path("job", job))
            assert answer.status_code in (404, 422), job


async def test_each_caller_sees_its_own_consumers(bus: holdfast.Bus) -> None:
    backend = store(bus)
    for channel in ("orders", "stock"):
        for consumer in ("billing", "audit"):
            await subscribe(backend, consumer, channel=channel)
    await dead(backend, "a", channel="stock", consumer="audit")
    async with application(bus) as found:
        everything = {
            (channel, consumer) for channel in ("orders", "stock") for consumer in ("billing", "audit")
        }
        for scope, seen in [
            (("admin",), everything),
            (("reader",), everything),
            (("reader", "stock"), {("stock", "billing"), ("stock", "audit")}),
            (("channel", "stock"), {("stock", "billing"), ("stock", "audit")}),
            (("consumer", "stock", "audit"), {("stock", "audit")}),
            (("channel", "elsewhere"), set()),
        ]:
            headers = await found.bearer(*scope)
            assert set(await counts(found, **headers)) == seen
            jobs = (await found.client.get("/job-status", headers=headers)).json()["consumers"]
            assert {(each["channelId"], each["consumerId"]) for each in jobs} == seen
        for endpoint in ("/dlq-status", "/job-status"):
            problem(await found.client.get(endpoint, headers=await found.bearer("producer")), 403)


async def test_deleting_takes_both_tokens_as_the_broker_says(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend)
    await subscribe(backend, "audit")
    await dead(backend, "a", "b")
    job = (await record(backend, "a")).id
    async with application(bus, local=False) as found:
        channel = await found.token("channel", CHANNEL)
        mine, other = (
            await found.token("consumer", CHANNEL, CONSUMER),
            await found.token("consumer", CHANNEL, "audit"),
        )

        async def delete(at: str, **tokens: str) -> httpx.Response:
            headers = {f"X-Broker-{name.title()}-Token": token for name, token in tokens.items()}
            return await found.client.delete(at, headers=headers)

        for at in (path("job", job), path("dlq")):
            problem(await delete(at), 401)
            problem(await delete(at, channel=channel), 401)
            problem(await delete(at, consumer=mine), 403)
            problem(await delete(at, channel=channel, consumer=other), 403)
        reader = {"Authorization": f"Bearer {await found.token('reader')}"}
        assert await counts(found, **reader) == {(CHANNEL, CONSUMER): 2, (CHANNEL, "audit"): 0}
        assert (await delete(path("job", job), channel=channel, consumer=mine)).json() == {"deleted": 1}
        assert (await delete(path("dlq"), channel=channel, consumer=mine)).json() == {"deleted": 1}


async def test_the_dead_jobs_of_a_consumer_are_listed_and_requeued(each: holdfast.Bus) -> None:
    backend = store(each)
    await subscribe(backend)
    await subscribe(backend, "audit")
    await backend.channels.set_display(CHANNEL, CONSUMER, "Payment Service")
    await dead(backend, "a", "b", "c")
    async with application(each) as found:
        first = (await found.client.get(path("dlq"), params={"limit": 2})).json()
        assert (first["channelId"], first["consumerName"], first["deadCount"]) == (
            CHANNEL,
            "Payment Service",
            3,
        )
        rest = (await found.client.get(path("dlq"), params={"limit": 2, "after": first["after"]})).json()
        jobs = first["jobs"] + rest["jobs"]
        assert sorted(job["messageId"] for job in jobs) == ["a", "b", "c"]
        one = (await record(backend, "a")).id
        [shown] = [job for job in jobs if job["messageId"] == "a"]
        assert {name: shown[name] for name in ("jobId", "status", "retryAttemptCount", "reason")} == {
            "jobId": one,
            "status": 1004,
            "retryAttemptCount": 1,
            "reason": "terminal",
        }
        answer = await found.client.post(path("dlq"))
        assert (answer.status_code, answer.json()) == (200, {"requeued": 3})
        assert [await state(backend, name) for name in "abc"] == [State.READY] * 3
        assert await counts(found) == {(CHANNEL, CONSUMER): 0, (CHANNEL, "audit"): 0}
        assert (await found.client.post(path("dlq"))).json() == {"requeued": 0}
        assert (await found.client.get(path("dlq"))).json()["jobs"] == []
        for consumer, channel in (("nobody", CHANNEL), (CONSUMER, "nowhere")):
            problem(await found.client.get(path("dlq", consumer=consumer, channel=channel)), 404)
            problem(await found.client.post(path("dlq", consumer=consumer, channel=channel)), 404)


async def test_many_are_requeued_by_an_operation_that_is_audited(
    bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.api.broker.SMALL", 2)
    backend = store(bus)
    await subscribe(backend)
    await dead(backend, "a", "b", "c")
    async with application(bus) as found:
        answer = await found.client.post(path("dlq"))
        assert answer.status_code == 202
        operation = answer.json()["operation"]
        assert answer.headers["Location"] == f"/api/v1/operations/{operation}"
        assert await found.system.runner.resume_all() == 1
        assert (await found.system.operations.show(operation)).progress.done == 3
        told = [entry.event.data for entry in await read_all(backend, "gbe.events.system.audit")]
        assert any(b'"requeue"' in each and operation.encode() in each for each in told)


async def test_the_list_and_the_requeue_take_both_tokens_too(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend)
    await subscribe(backend, "audit")
    await dead(backend, "a")
    async with application(bus, local=False) as found:
        channel = await found.token("channel", CHANNEL)
        mine, other = [await found.token("consumer", CHANNEL, each) for each in (CONSUMER, "audit")]

        async def call(method: str, **tokens: str) -> httpx.Response:
            headers = {f"X-Broker-{name.title()}-Token": token for name, token in tokens.items()}
            return await found.client.request(method, path("dlq"), headers=headers)

        for method in ("GET", "POST"):
            problem(await call(method), 401)
            problem(await call(method, channel=channel), 401)
            problem(await call(method, channel=channel, consumer=other), 403)
        reader = await found.bearer("reader", CHANNEL)
        assert (await found.client.get(path("dlq"), headers=reader)).status_code == 200
        problem(await found.client.post(path("dlq"), headers=reader), 403)
        elsewhere = await found.bearer("reader", "elsewhere")
        problem(await found.client.get(path("dlq"), headers=elsewhere), 403)
        assert (await call("GET", channel=channel, consumer=mine)).json()["deadCount"] == 1
        assert (await call("POST", channel=channel, consumer=mine)).json() == {"requeued": 1}


async def test_job_status_counts_by_the_codes_of_the_broker(each: holdfast.Bus) -> None:
    backend = store(each)
    await subscribe(backend)
    await publish(backend, "a", "b", "c", "d", "e")
    await publish(backend, "later", at=await backend.now() + timedelta(days=1))
    first, second, _ = await claim(backend, 3)
    assert await complete(backend, first)
    assert await bury(backend, second)
    async with application(each) as found:
        [shown] = (await found.client.get("/job-status")).json()["consumers"]
        [whole] = (await found.client.get("/job-status?delivered=true")).json()["consumers"]
    assert [shown[name] for name in ("channelId", "channelName", "consumerId", "consumerName")] == [
        CHANNEL,
        CHANNEL,
        CONSUMER,
        CONSUMER,
    ]
    names = ("status", "name", "count", "exact")
    assert [{name: each[name] for name in names} for each in shown["statuses"]] == [
        {"status": 1001, "name": "QUEUED", "count": 3, "exact": True},
        {"status": 1002, "name": "INFLIGHT", "count": 1, "exact": True},
        {"status": 1004, "name": "DEAD", "count": 1, "exact": True},
    ]
    assert {each["name"]: each["count"] for each in whole["statuses"]} == {
        "QUEUED": 3,
        "INFLIGHT": 1,
        "DELIVERED": 1,
        "DEAD": 1,
    }


async def test_a_count_that_was_cut_is_said_to_be(bus: holdfast.Bus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.api.broker.COUNTED", 3)
    backend = store(bus)
    await subscribe(backend)
    await publish(backend, *"abcde")
    async with application(bus) as found:
        [shown] = (await found.client.get("/job-status")).json()["consumers"]
    queued = shown["statuses"][0]
    assert (queued["name"], queued["count"], queued["exact"]) == ("QUEUED", 3, False)
    assert shown["statuses"][2]["exact"]


async def test_a_deletion_is_audited(bus: holdfast.Bus) -> None:
    backend = store(bus)
    await subscribe(backend)
    await dead(backend, "a", "b")
    async with application(bus) as found:
        headers = await found.bearer("channel", CHANNEL)
        [token] = await found.tokens.all()
        await found.client.delete(path("job", (await record(backend, "a")).id), headers=headers)
        await found.client.delete(path("dlq"), headers=headers)
    told = [entry.event.json() for entry in await bus.read("gbe.events.system.audit")]
    assert {(each["actor"], each["action"]) for each in told} == {
        (f"token:{token.id}", "delete"),
        (f"token:{token.id}", "purge"),
    }
    assert [each["outcome"].partition(":")[0] for each in told] == ["asked", "done", "asked", "done"]


async def test_job_status_has_the_oldest_and_the_newest_time(each: holdfast.Bus) -> None:
    backend = store(each)
    minute = timedelta(minutes=1)
    await subscribe(backend)
    await subscribe(backend, "idle", channel="other")
    due, died = [], []
    for name, priority in (("a", 0), ("b", 5), ("c", 0), ("d", 0), ("e", 0), ("f", 9)):
        await publish(backend, name, priority=priority)
        due.append((await record(backend, name)).created_at)
        await backend.advance(minute)
    await publish(backend, "later", at=await backend.now() + timedelta(days=1))
    for job in await claim(backend, 3):  # f, b, a: by priority, then by age
        assert await bury(backend, job)
        ended = (await record(backend, job.event.id)).ended_at
        assert ended is not None
        died.append(ended)
        await backend.advance(minute)
    async with application(each) as found:

        async def times() -> dict[str, list[datetime | None]]:
            consumers = (await found.client.get("/job-status")).json()["consumers"]
            [mine] = [each for each in consumers if each["consumerId"] == CONSUMER]
            [idle] = [each for each in consumers if each["consumerId"] == "idle"]
            assert all(each["oldest"] is each["newest"] is None for each in idle["statuses"])
            return {
                each["name"]: [
                    None if each[end] is None else datetime.fromisoformat(each[end])
                    for end in ("oldest", "newest")
                ]
                for each in mine["statuses"]
            }

        nothing = [None, None]
        assert await times() == {
            "QUEUED": [due[2], due[4]],
            "INFLIGHT": nothing,
            "DEAD": [died[0], died[2]],
        }
        await found.client.delete(path("job", (await record(backend, "f")).id))
        await found.client.delete(path("job", (await record(backend, "a")).id))
        assert (await times())["DEAD"] == [died[1], died[1]]
