"""Operations: each does what it says to what was meant, once; a dry run changes nothing."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from dead_kit import (
    BILLING,
    JOBS,
    audited,
    dead,
    die,
    fail,
    found,
    later,
    names,
    states,
    store,
    subscribe,
    work,
)

import holdfast
from holdfast.deadletters import Canary, DeadLetters, Filter, OperationOptions, Operations, Request, Runner
from holdfast.deadletters.runner import RunClock
from holdfast.model.errors import InvalidInput, NotFound, Outdated
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from holdfast.model.states import State
from holdfast.tasks import Tasks, TaskType
from kit import CHANNEL, CONSUMER

ADD: dict[str, object] = {"op": "add", "path": "/fixed", "value": True}


def runner_on(bus: holdfast.Bus) -> Runner:
    return Runner(Operations(DeadLetters(bus)), "tester", chunk=3)


async def test_requeue_some_by_their_ids(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await die(each, *"abcdefgh")
    chosen = [item.id for item in await found(DeadLetters(each)) if item.event_id in "aceg"]
    done = await runner.do(Request("requeue", items=(*chosen, chosen[0])), "ann")
    assert (done.state, done.outcome) == ("done", "4 of 4 done, 0 skipped")
    assert sorted(await work(each)) == ["a", "c", "e", "g"]
    again = await runner.do(Request("requeue", items=tuple(chosen)), "ann")
    assert (again.progress.done, again.progress.skipped, again.progress.looked_at) == (0, 4, 4)
    assert await dead(each) == 4


async def test_an_item_that_cannot_be_there_keeps_no_other_from_its_end(
    each: holdfast.Bus, caplog: pytest.LogCaptureFixture
) -> None:
    await subscribe(each)
    await die(each, "a", "b")
    [one, other] = [item.id for item in await found(DeadLetters(each))]
    strange = (f"{one}@7", f"job:{CHANNEL}:nobody:1", f"job:nowhere:{CONSUMER}:1")
    for kind, options in (("requeue", OperationOptions()), ("purge", OperationOptions(only_exhausted=True))):
        chosen = one if kind == "requeue" else other
        done = await runner_on(each).do(Request(kind, items=(*strange, chosen), options=options), "ann")
        assert (done.state, done.progress.looked_at) == ("done", 4), done
        assert [str(each.exc_info) for each in caplog.records if each.exc_info] == []
    assert await work(each) == ["b"]


async def test_requeue_a_cluster(each: holdfast.Bus) -> None:
    letters = DeadLetters(each)
    await subscribe(each)
    await die(each, "a", "b", "c", "d", error="no route to host 1")
    await die(each, "e", error="total is missing")
    [largest, _] = await letters.clusters(CHANNEL, CONSUMER)
    wanted = Filter.of(kinds=["job"], channel=CHANNEL, consumer=CONSUMER, fingerprint=largest.fingerprint)
    done = await runner_on(each).do(Request("requeue", wanted), "ann")
    assert (done.progress.done, done.progress.expected) == (4, 4)
    assert sorted(await work(each)) == ["a", "b", "c", "d"]
    assert await names(letters) == ["e"]


async def test_purge_goes_over_all_stores(two: holdfast.Bus) -> None:
    await subscribe(two)
    await subscribe(two, "audit")
    await die(two, *(f"o-{number}" for number in range(20)))
    await fail(two, consumer="audit")
    await later(two)
    done = await runner_on(two).do(Request("purge", BILLING), "ann")
    assert (done.state, done.progress.done, done.progress.expected) == ("done", 20, 20)
    assert await states(two) == {"purged": 20}
    assert await states(two, "audit") == {"dead": 20}
    assert await runner_on(two).operations.letters.verify() == []


async def test_what_died_after_it_was_asked_for_is_not_meant(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await die(each, "a", "b")
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    await later(each)
    await die(each, "c")
    done = await runner.follow(asked.id)
    assert (done.progress.done, done.progress.expected) == (2, 2)
    assert await names(DeadLetters(each)) == ["c"]


async def test_what_died_after_somebody_agreed_is_not_meant(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, "a", "b")
    shown = await runner.operations.preview(Request("purge", BILLING), exact=True)
    await die(bus, "c")
    asked = await runner.operations.ask(Request("purge", BILLING), "ann", preview=shown)
    done = await runner.follow(asked.id)
    assert (done.progress.done, done.progress.expected) == (2, 2)
    assert await names(runner.operations.letters) == ["c"]


async def test_a_redrive_does_not_chase_what_dies_again(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, *"abcdefgh")

    async def fail_at_once(_: float) -> None:
        await fail(bus)
        clock.append(1.0)

    clock: list[float] = []
    hasty = Runner(runner.operations, "hasty", clock=RunClock(lambda: sum(clock), fail_at_once))
    done = await hasty.do(Request("redrive", BILLING, options=OperationOptions(rate=1)), "ann")
    await fail(bus)
    assert (done.progress.done, done.progress.looked_at) == (8, 8)
    assert await states(bus) == {"dead": 8}


async def test_only_exhausted_leaves_what_was_buried_early(bus: holdfast.Bus, runner: Runner) -> None:
    # CORRECTIONS 004.8
    await subscribe(bus, max_attempts=1)
    await die(bus, "a", "b", "c", terminal=False)
    await subscribe(bus, max_attempts=2)
    await subscribe(bus, "other", max_attempts=1)
    await fail(bus, consumer="other", terminal=False)
    await later(bus)
    request = Request("purge", JOBS, options=OperationOptions(only_exhausted=True), all=True)
    assert (await runner.operations.preview(request, exact=True)).count == 3
    done = await runner.do(request, "ann")
    assert (done.progress.done, done.progress.skipped, done.progress.looked_at) == (3, 3, 6)
    assert "has used 1 of 2 attempts" in done.problems[0]
    assert {item.consumer for item in await found(runner.operations.letters)} == {CONSUMER}
    [one, *_] = await found(runner.operations.letters)
    strict = Request("delete", items=(one.id,), options=OperationOptions(only_exhausted=True))
    assert (await runner.do(strict, "ann")).progress.skipped == 1
    assert (await runner.do(Request("delete", items=(one.id,)), "ann")).progress.done == 1
    assert await dead(bus) == 2


async def test_each_store_has_its_own_budget(two: holdfast.Bus) -> None:
    """As while a policy changes, or where one store was away when it did."""
    await subscribe(two, max_attempts=1)
    for number in range(20):
        await two.publish(CHANNEL, {}, id=f"o-{number}")
    await fail(two, terminal=False)
    await later(two)
    on_each = [(await store(two, index).deadletters.counts())[0].count for index in (0, 1)]
    assert sum(on_each) == 20
    await store(two, 1).channels.subscribe(CHANNEL, CONSUMER, Policy.of(max_attempts=2))
    request = Request("purge", BILLING, options=OperationOptions(only_exhausted=True))
    assert (await runner_on(two).operations.preview(request, exact=True)).count == on_each[0]
    done = await runner_on(two).do(request, "ann")
    assert (done.progress.done, done.progress.skipped) == tuple(on_each)


async def test_a_dry_run_changes_nothing(each: holdfast.Bus) -> None:
    operations = Operations(DeadLetters(each))
    await subscribe(each)
    await die(each, *"abcdefgh")
    before = (await states(each), await found(operations.letters))
    for kind in ("requeue", "redrive", "purge"):
        preview = await operations.preview(Request(kind, BILLING))
        assert (preview.count, preview.exact, len(preview.sample)) == (8, True, 5)
    assert (await states(each), await found(operations.letters)) == before
    assert (await operations.latest(), await audited(each)) == ([], [])


@pytest.mark.parametrize(
    "request_",
    [
        Request("purge", Filter()),
        Request("redrive", JOBS),
        Request("purge"),
        Request("purge", BILLING, items=("job:orders:billing:1",)),
        Request("delete", BILLING),
        Request("delete", items=("job:orders:billing:1", "job:orders:billing:2")),
        Request("requeue", items=("nonsense",)),
        Request("requeue", Filter.of(kinds=["job", "stream"], channel="orders")),
        Request("requeue", items=tuple(f"job:orders:billing:{n}" for n in range(1001))),
        Request("purge", items=("stream:gbe._deadletter.mail:0001-0001",)),
        Request("purge", Filter.of(kinds=["stream"], channel="orders")),
        Request("remove_consumer", Filter.of(channel="orders")),
        Request("empty_consumer", Filter.of(channel="orders")),
        Request("empty_consumer", items=("job:orders:billing:1",)),
        Request("redrive", BILLING, options=OperationOptions(rate=0)),
        Request("redrive", BILLING, options=OperationOptions(rate=float("nan"))),
        Request("redrive", BILLING, options=OperationOptions(canary=Canary(0))),
        Request("redrive", BILLING, options=OperationOptions(canary=Canary(5, share=1.5))),
        Request("purge", BILLING, options=OperationOptions(canary=Canary(5))),
        Request(
            "redrive", Filter.of(kinds=["ingest"], channel="x"), options=OperationOptions(canary=Canary(5))
        ),
        Request("redrive", BILLING, options=OperationOptions(only_exhausted=True)),
        Request("patch", BILLING),
        Request("purge", BILLING, options=OperationOptions(patch=(ADD,))),
        Request("patch", BILLING, options=OperationOptions(patch=({"op": "steal"},))),
        Request("patch", BILLING, options=OperationOptions(patch=("text",))),  # type: ignore[arg-type]
    ],
    ids=lambda request: f"{request.kind}",
)
async def test_what_makes_no_sense_is_refused(bus: holdfast.Bus, runner: Runner, request_: Request) -> None:
    await subscribe(bus)
    await die(bus, "a")
    with pytest.raises(InvalidInput):
        await runner.operations.ask(request_, "ann")
    assert (await dead(bus), await runner.operations.latest()) == (1, [])


async def test_whoever_acts_has_a_name(bus: holdfast.Bus, runner: Runner) -> None:
    asked = await runner.operations.ask(Request("purge", BILLING), "ann")
    for actor in ("", "x" * 201, "a\nb", "\ud800"):
        with pytest.raises(InvalidInput):
            await runner.operations.ask(Request("purge", BILLING), actor)
        with pytest.raises(InvalidInput):
            await runner.operations.cancel(asked.id, actor)
    audit = await runner.operations.audit()
    await audit.refused("\ud800", "GET /" + "x" * 1000, "\x00", "no such token")
    assert (await audited(bus))[-1]["outcome"] == "refused: no such token"


async def test_all_is_meant_where_it_is_said(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, "a", "b")
    assert (await runner.do(Request("purge", JOBS, all=True), "ann")).progress.done == 2


async def test_a_patch_is_shown_and_the_original_kept(each: holdfast.Bus) -> None:
    letters, runner = DeadLetters(each), runner_on(each)
    await subscribe(each)
    await die(each, "a")
    [item] = await found(letters)
    change = await runner.operations.change(item.id, (ADD,))
    assert (change.before, change.after) == ({"id": "a"}, {"id": "a", "fixed": True})
    assert '+  "fixed": true' in change.diff
    options = OperationOptions(patch=(ADD,), digest=change.digest)
    done = await runner.do(Request("patch", items=(item.id,), options=options), "ann")
    assert done.progress.done == 1
    [job] = await each.poll(CHANNEL, CONSUMER)
    assert job.event.json() == {"id": "a", "fixed": True}
    await each.finalize(job, success=False, error="still bad", terminal=True)
    shown = (await letters.show(item.id)).to_json()
    assert (shown["data"], shown["original"]) == ({"id": "a", "fixed": True}, {"id": "a"})
    [entry] = await store(each).log.read(CHANNEL, None, 10)
    assert entry.event.json() == {"id": "a"}


async def test_a_patch_for_data_that_has_changed_is_refused(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    await die(bus, "a")
    [item] = await found(runner.operations.letters)
    shown = await runner.operations.change(item.id, (ADD,))
    request = Request("patch", items=(item.id,), options=OperationOptions(patch=(ADD,), digest=shown.digest))
    assert (await runner.do(request, "ann")).progress.done == 1
    await fail(bus)
    await later(bus)
    done = await runner.do(request, "bob")
    assert (done.state, done.progress.done, done.progress.skipped) == ("done", 0, 1)
    assert "was changed by somebody" in done.problems[0]
    assert await dead(bus) == 1


async def test_a_patch_that_does_not_fit_leaves_the_job_dead(bus: holdfast.Bus, runner: Runner) -> None:
    letters = runner.operations.letters
    await subscribe(bus)
    await bus.publish(CHANNEL, b"\xff no json", id="bytes")
    await fail(bus)
    await die(bus, "a", "b")
    test = ({"op": "test", "path": "/id", "value": "a"}, ADD)
    for item in await found(letters):
        if item.event_id != "a":
            with pytest.raises(InvalidInput):
                await runner.operations.change(item.id, test)
    done = await runner.do(Request("patch", BILLING, options=OperationOptions(patch=test)), "ann")
    assert (done.progress.done, done.progress.skipped, len(done.problems)) == (1, 2, 2)
    assert sorted(await names(letters)) == ["b", "bytes"]
    assert await work(bus) == ["a"]


async def test_a_consumer_is_removed_with_all_that_it_had(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await subscribe(each, "audit")
    await die(each, "a", "b", "c")
    await work(each, consumer="audit")
    await each.publish(CHANNEL, {}, id="waits")
    request = Request("remove_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))
    preview = await runner.operations.preview(request)
    assert (preview.count, preview.exact) == (4, True)
    assert await dead(each) == 3
    done = await runner.do(request, "ann")
    assert (done.state, done.progress.expected) == ("done", 4)
    assert [each_.consumer for each_ in await runner.operations.letters.status()] == ["audit"]
    with pytest.raises(NotFound):
        await runner.operations.ask(request, "ann")
    assert len(await store(each).log.read(CHANNEL, None, 10)) == 4


def empty_billing() -> Request:
    return Request("empty_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))


async def test_a_consumer_is_emptied_of_what_waits(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await subscribe(each, "audit")
    await die(each, "a", "b")
    await each.publish(CHANNEL, {}, id="held")
    [held] = await each.poll(CHANNEL, CONSUMER)
    for number in range(70):
        await each.publish(CHANNEL, {}, id=f"waits-{number}")
    await each.publish(CHANNEL, {}, id="later", at=await store(each).now() + timedelta(hours=1))
    preview = await runner.operations.preview(empty_billing())
    assert (preview.count, preview.exact) == (71, True)
    assert await runner.operations.jobs_of(empty_billing()) == {State.READY: 70, State.SCHEDULED: 1}
    assert (await states(each)).get("cancelled") is None
    done = await runner.do(empty_billing(), "ann")
    assert (done.state, done.outcome) == ("done", "71 of 71 done, 0 skipped")
    assert await states(each) == {"dead": 2, "leased": 1, "cancelled": 71}
    assert (await states(each, "audit"))["ready"] == 73
    await each.finalize(held, success=True)
    await each.publish(CHANNEL, {}, id="new")
    assert await work(each) == ["new"]
    again = await runner.do(empty_billing(), "ann")
    assert (again.state, again.progress.done, again.progress.expected) == ("done", 0, 0)
    with pytest.raises(NotFound):
        await runner.operations.ask(
            Request("empty_consumer", Filter.of(channel=CHANNEL, consumer="nobody")), "ann"
        )


async def test_a_consumer_is_emptied_on_all_stores(two: holdfast.Bus) -> None:
    await subscribe(two)
    for number in range(20):
        await two.publish(CHANNEL, {}, id=f"o-{number}")
    done = await runner_on(two).do(empty_billing(), "ann")
    assert (done.progress.done, done.progress.expected) == (20, 20)
    assert await states(two) == {"cancelled": 20}


async def test_a_consumer_that_catches_up_is_emptied_too(each: holdfast.Bus) -> None:
    await each.publish_many(CHANNEL, [Event(n, f"o-{n}") for n in range(1500)])
    await each.subscribe(CHANNEL, CONSUMER, start="earliest")
    done = await runner_on(each).do(empty_billing(), "ann")
    assert (done.progress.done, done.progress.expected) == (1500, 1500)
    assert await states(each) == {"cancelled": 1500}


async def test_what_is_published_while_a_consumer_is_emptied_may_be_cancelled_only_for_what_was_taken(
    bus: holdfast.Bus, runner: Runner
) -> None:
    """A busy publisher does not keep it running: it cancels as many as waited, the oldest first."""
    await subscribe(bus)
    await bus.publish_many(CHANNEL, [Event(n, f"o-{n}") for n in range(100)])
    cancel, steps = store(bus).leases.cancel_waiting, 0

    async def beside(channel: str, consumer: str, limit: int) -> int:
        nonlocal steps
        steps += 1
        await bus.publish_many(CHANNEL, [Event(n, f"n-{steps}-{n}") for n in range(100)])
        return await cancel(channel, consumer, limit)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store(bus).leases, "cancel_waiting", beside)
        done = await runner.do(empty_billing(), "ann")
    assert (done.outcome, steps) == ("100 of 100 done, 0 skipped", 4)
    assert await states(bus) == {"cancelled": 100, "ready": 400}
    assert len(await work(bus)) == 400


async def test_messages_are_published_again_where_they_came_from_once(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    tasks = Tasks(each, types={"mail": TaskType(timedelta(minutes=1), max_retries=0)})
    for name in ("t-1", "t-2"):
        await tasks.submit("mail", {"to": name}, id=name)
        [task] = await tasks.claim("mail")
        await tasks.fail(task, "no route")
    await later(each)
    wanted = Filter.of(kinds=["stream"], channel="gbe._deadletter.mail")
    done = await runner.do(Request("requeue", wanted), "ann")
    assert (done.progress.done, done.progress.expected) == (2, 2)
    claimed = await tasks.claim("mail", limit=10)
    assert sorted(task.json()["to"] for task in claimed) == ["t-1", "t-2"]
    for task in claimed:
        assert task.job.event.headers["holdfast-requeued"].startswith("gbe._deadletter.mail t-")
        await tasks.complete(task)
    again = await runner.do(Request("requeue", wanted), "ann")
    assert (again.progress.done, again.progress.skipped) == (0, 2)
    assert await tasks.claim("mail") == []


async def test_a_filter_without_kinds_means_jobs(bus: holdfast.Bus, runner: Runner) -> None:
    tasks = Tasks(bus, types={"mail": TaskType(timedelta(minutes=1), max_retries=0)})
    await tasks.submit("mail", {}, id="t-1")
    [task] = await tasks.claim("mail")
    await tasks.fail(task, "no route")
    await later(bus)
    assert len((await runner.operations.letters.find()).items) == 2, "the job, and its copy"
    done = await runner.do(Request("requeue", Filter(), all=True), "ann")
    assert (done.progress.done, done.progress.expected) == (1, 1)
    assert len(await tasks.claim("mail", limit=10)) == 1


async def test_a_message_that_does_not_say_where_it_came_from_stays(
    bus: holdfast.Bus, runner: Runner
) -> None:
    await bus.publish("gbe._deadletter.mail", {"to": "nobody"}, id="m-1")
    await later(bus)
    done = await runner.do(Request("requeue", Filter.of(kinds=["stream"]), all=True), "ann")
    assert (done.progress.done, done.progress.skipped) == (0, 1)
    assert "does not say where it came from" in done.problems[0]


async def test_operations_are_listed_the_latest_first(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await die(each, "a", "b")
    first = await runner.do(Request("redrive", BILLING, options=OperationOptions(rate=500.0)), "ann")
    await later(each)
    second = await runner.operations.ask(Request("purge", BILLING), "bob")
    listed = await runner.operations.latest()
    assert [operation.id for operation in listed] == [second.id, first.id]
    assert listed[1] == first
    assert listed[1].to_json()["options"] == {"rate": 500.0}
    assert (await runner.operations.show(second.id)).state == "waiting"
    with pytest.raises(NotFound):
        await runner.operations.show("0198-nothing")
    with pytest.raises(InvalidInput):
        await runner.operations.show("../x")


async def test_what_is_over_is_neither_cancelled_nor_resumed(bus: holdfast.Bus, runner: Runner) -> None:
    await subscribe(bus)
    done = await runner.do(Request("purge", BILLING), "ann")
    assert (done.state, done.outcome) == ("done", "0 of 0 done, 0 skipped")
    with pytest.raises(Outdated):
        await runner.operations.cancel(done.id, "bob")
    with pytest.raises(Outdated):
        await runner.operations.resume(done.id, "bob")


async def test_the_audit_tells_of_every_action(each: holdfast.Bus) -> None:
    runner = runner_on(each)
    await subscribe(each)
    await die(each, *"abcdef")
    items = {item.event_id: item.id for item in await found(DeadLetters(each))}
    requests = [
        Request("requeue", items=(items["a"],)),
        Request("redrive", replace(BILLING, where=replace(BILLING.where, text="secret?"))),
        Request("patch", items=(items["b"],), options=OperationOptions(patch=(ADD,))),
        Request("delete", items=(items["c"],)),
        Request("purge", BILLING),
        Request("empty_consumer", BILLING),
        Request("remove_consumer", BILLING),
    ]
    for request in requests:
        await runner.do(request, "ann")
    asked = await runner.operations.ask(Request("purge", JOBS, all=True), "bob")
    await runner.operations.cancel(asked.id, "eve")
    await runner.operations.resume(asked.id, "dan")
    audit = await runner.operations.audit()
    await audit.refused("nobody", "DELETE /channel/orders", "orders", "no token")
    told = await audited(each)
    assert [(t["actor"], t["action"], t["outcome"].partition(":")[0]) for t in told] == [
        *[("ann", request.kind, outcome) for request in requests for outcome in ("asked", "done")],
        ("bob", "purge", "asked"),
        ("eve", "purge", "cancelled"),
        ("dan", "purge", "resumed"),
        ("nobody", "DELETE /channel/orders", "refused"),
    ]
    assert (told[0]["target"], told[2]["filter"]["text"]) == (items["a"], "secret?")
    assert "fixed" not in str(told), "no payload, and nothing of a patch"
