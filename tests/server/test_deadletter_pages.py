"""The pages of dead letters, operations and the audit: what they mean, for whom, and what they refuse."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape

import httpx
import pytest
from application import Application, application

import holdfast
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Operation, Request
from holdfast.model.job import Job
from kit import CHANNEL, CONSUMER, bury, claim, publish, subscribe

HERE = {"Origin": "http://localhost"}
HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
RENAME = '[{"op": "replace", "path": "/id", "value": "mended"}]'


async def dead(bus: holdfast.Bus, *ids: str, channel: str = "orders") -> list[Job]:
    """Jobs that died."""
    store = bus.partitions.all[0].backend
    await subscribe(store, channel=channel)
    await publish(store, *ids, channel=channel)
    jobs = await claim(store, channel=channel)
    for job in jobs:
        assert await bury(store, job)
    await store.advance(timedelta(seconds=1))
    return jobs


async def left(bus: holdfast.Bus) -> int:
    return sum(each.count for each in await bus.partitions.all[0].backend.deadletters.counts())


async def agree(found: Application, question: httpx.Response) -> Operation:
    """Send the form of a question, and see the operation through."""
    assert question.status_code == 200, question.text
    form = question.text.partition('action="/deadletters/do"')[2]
    fields = {unescape(name): unescape(value) for name, value in HIDDEN.findall(form)}
    answer = await found.client.post("/deadletters/do", data=fields, headers=HERE)
    assert answer.status_code == 303, answer.text
    return await found.system.runner.follow(answer.headers["location"].rpartition("/")[2])


async def test_what_died_after_the_question_is_not_meant(bus: holdfast.Bus) -> None:
    await dead(bus, "a", "b")
    async with application(bus) as found:
        question = await found.client.get("/deadletters/ask?act=purge&channel=orders")
        assert "Purge 2 dead letters?" in question.text
        await dead(bus, "c")
        operation = await agree(found, question)
        assert (operation.progress.done, operation.progress.expected) == (2, 2)
        assert await left(bus) == 1


async def test_a_patch_is_made_only_of_the_data_that_was_shown(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    [job] = await dead(bus, "a")
    patch = {"act": "patch", "item": f"job:orders:billing:{job.id}", "patch": RENAME}
    async with application(bus) as found:
        shown = await found.client.post("/deadletters/ask", data=patch, headers=HERE)
        assert "&#34;id&#34;: &#34;mended&#34;" in shown.text
        other = {**patch, "patch": RENAME.replace("mended", "other")}
        await agree(found, await found.client.post("/deadletters/ask", data=other, headers=HERE))
        [again] = await claim(store)
        assert again.event.json() == {"id": "other"}
        await bury(store, again)
        operation = await agree(found, shown)
        assert operation.progress.done == 0
        assert await left(bus) == 1


@pytest.mark.parametrize("query", ["", "&letters=job"])
async def test_everything_is_meant_only_by_whoever_says_so(bus: holdfast.Bus, query: str) -> None:
    await dead(bus, "a", "b")
    async with application(bus) as found:
        question = await found.client.get(f"/deadletters/ask?act=purge{query}")
        assert "this means all jobs that died" in question.text
        assert 'name="all" value="yes" required' in question.text
        fields = {"act": "purge", "letters": "job", "csrf": ""}
        refused = await found.client.post("/deadletters/do", data=fields, headers=HERE)
        assert refused.status_code == 400
        asked = await found.client.post("/deadletters/do", data={**fields, "all": "yes"}, headers=HERE)
        await found.system.runner.follow(asked.headers["location"].rpartition("/")[2])
        assert await left(bus) == 0


async def test_only_those_without_attempts_left_are_counted_and_purged(bus: holdfast.Bus) -> None:
    await dead(bus, "a", "b")  # given up at their first attempt
    async with application(bus) as found:
        question = await found.client.get("/deadletters/ask?act=purge&channel=orders&only_exhausted=yes")
        assert "Purge 0 dead letters?" in question.text
        assert "/deadletters/do" not in question.text
        assert await left(bus) == 2


@pytest.mark.parametrize(
    "path",
    [
        "/deadletters?since=yesterday",
        "/deadletters?channel=../etc",
        "/deadletters?letters=fruit",
        "/deadletters?after=%00",
        "/deadletters/ask?act=drop",
        "/deadletters/ask?act=remove_consumer&channel=orders&consumer=billing",
        "/deadletters/ask?act=empty_consumer&channel=orders&consumer=billing",
        "/deadletters/ask?act=delete&channel=orders",
        "/deadletters/ask?act=redrive&channel=orders&rate=nan",
        "/deadletters/ask?act=redrive&channel=orders&canary=many",
        "/deadletters/job:orders",
        "/audit?until=%3Cb%3E",
    ],
)
async def test_what_makes_no_sense_is_said_on_a_page(bus: holdfast.Bus, path: str) -> None:
    async with application(bus) as found:
        answer = await found.client.get(path)
        assert answer.status_code in (400, 422)
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]


async def test_a_stranger_sees_and_stops_nothing(bus: holdfast.Bus) -> None:
    [job] = await dead(bus, "secret-event")
    item = f"job:orders:billing:{job.id}"
    async with application(bus) as found:
        operation = await found.system.operations.ask(Request("requeue", items=(item,)), "owner")
        for scope in (("channel", "stock"), ("consumer", "orders", "other"), ("reader", "stock.>")):
            await found.sign_in(*scope)
            for path in ("/deadletters", "/deadletters?channel=orders", "/operations"):
                answer = await found.client.get(path)
                assert answer.status_code == 200
                assert "secret-event" not in answer.text
                assert operation.id not in answer.text
            for path in (f"/deadletters/{item}", f"/operations/{operation.id}", "/audit"):
                assert (await found.client.get(path)).status_code in (403, 404), path
            assert (await found.client.get(f"/live/operations/{operation.id}")).status_code == 404
        assert (await found.system.operations.show(operation.id)).state == "waiting"


async def test_an_operation_that_ended_is_told_once(bus: holdfast.Bus) -> None:
    [job] = await dead(bus, "a")
    async with application(bus) as found:
        asked = Request("requeue", items=(f"job:orders:billing:{job.id}",))
        operation = await found.system.runner.do(asked, "tester")
        answer = await found.client.get(f"/live/operations/{operation.id}")
        assert answer.headers["content-type"].startswith("text/event-stream")
        assert answer.text.count("\n\n") == 1
        assert "data-ended" in answer.text


async def test_an_emptied_consumer_is_in_the_list_of_operations(bus: holdfast.Bus) -> None:
    await bus.subscribe(CHANNEL, CONSUMER)
    await bus.publish(CHANNEL, {}, id="a")
    async with application(bus) as found:
        request = Request("empty_consumer", Filter.of(channel=CHANNEL, consumer=CONSUMER))
        operation = await found.system.runner.do(request, "tester")
        for path in ("/operations", f"/operations/{operation.id}"):
            text = (await found.client.get(path)).text
            assert {"Empty consumer", CHANNEL, CONSUMER} <= set(re.findall(r"Empty consumer|\w+", text))


async def test_the_audit_goes_back_to_its_beginning(each: holdfast.Bus) -> None:
    async with application(each) as found:
        for number in range(130):
            await found.system.audit.did("tester", "name", f"target-{number:03}")
        seen: list[str] = []
        path = "/audit"
        while path:
            text = (await found.client.get(path)).text
            seen += re.findall(r"target-\d{3}", text)
            older = re.search(r'rel="next" href="([^"]*)"', text)
            path = unescape(older[1]) if older else ""
        assert seen == [f"target-{number:03}" for number in reversed(range(130))]
