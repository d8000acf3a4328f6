"""What really differs between stores: what each one does with it and, where it cannot, instead of it."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path

import psycopg
import pytest
from sweeps import locked

from holdfast.contracts import Backend
from holdfast.model.errors import InvalidInput
from holdfast.model.event import Event
from holdfast.model.job import Completion
from holdfast.model.states import State
from kit import CHANNEL, MINUTE, claim, claim_one, complete, publish, read_all, state, subscribe
from stores import STORES, Store

PAGE = Path(__file__).parents[2] / "docs" / "guarantees.md"


async def test_a_publish_joins_the_callers_transaction_or_is_refused(store: Store, backend: Backend) -> None:
    await subscribe(backend)
    if backend.capabilities.joins_transactions:
        async with await psycopg.AsyncConnection.connect(store.url) as connection:
            await backend.log.publish(CHANNEL, [Event(1, "undone")], connection=connection)
            await connection.rollback()
            await backend.log.publish(CHANNEL, [Event(1, "kept")], connection=connection)
        assert [job.event.id for job in await claim(backend)] == ["kept"]
    else:
        with pytest.raises(InvalidInput, match="connection"):
            await backend.log.publish(CHANNEL, [Event(1, "a")], connection=object())
        assert await read_all(backend) == []


async def test_a_completion_joins_the_callers_transaction_or_is_refused(
    store: Store, backend: Backend
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    job = await claim_one(backend)
    if backend.capabilities.joins_transactions:
        async with await psycopg.AsyncConnection.connect(store.url) as connection:
            await backend.leases.complete_within(job, connection)
            await connection.rollback()
            assert await state(backend, "a") is State.LEASED
            assert await backend.leases.completions([job]) == [Completion.NONE]
        async with backend.leases.transaction(job, lambda: None):
            pass
        assert await backend.leases.completions([job]) == [Completion.DONE]
    else:
        with pytest.raises(InvalidInput, match="no transaction"):
            await backend.leases.complete_within(job, object())
        with pytest.raises(InvalidInput, match="no transaction"):
            backend.leases.transaction(job, lambda: None)
        assert await backend.leases.completions([job]) == [Completion.NONE]
        assert await complete(backend, job)
    assert await state(backend, "a") is State.DONE


async def test_a_client_that_knows_only_the_server_is_heard(store: Store, backend: Backend) -> None:
    """By a plain append where the log takes it, else by the store's own function."""
    await subscribe(backend)
    await store.append(CHANNEL, '{"n": 1}')
    assert (await claim_one(backend)).event.json() == {"n": 1}


async def test_groups_of_other_software_are_seen_where_there_can_be_some(
    store: Store, backend: Backend
) -> None:
    await publish(backend, "a")
    await store.form_group(CHANNEL, "theirs")
    seen = [(group.channel, group.name) for group in await backend.groups.all(MINUTE)]
    assert seen == ([(CHANNEL, "theirs")] if backend.capabilities.foreign_groups else [])


async def test_a_listed_group_holds_everything_until_it_is_known_what_it_has_read(
    store: Store, backend: Backend
) -> None:
    await publish(backend, "a")
    await store.form_group(CHANNEL, "theirs")
    before = await backend.now() + MINUTE
    step = await backend.retention.trim(CHANNEL, before, 10, await locked(backend), groups=["theirs"])
    assert (step.removed, step.hold is not None and step.hold.consumer) == (0, "theirs")


async def test_the_page_says_what_the_backend_says(request: pytest.FixtureRequest, backend: Backend) -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (\w+) \| (\w+) \|", PAGE.read_text(), re.MULTILINE)
    column = list(STORES).index(request.node.callspec.params["store"].partition("-")[0]) + 1
    assert {row[0]: row[column] == "yes" for row in rows} == asdict(backend.capabilities)


def test_no_test_of_this_suite_is_left_out_on_any_store() -> None:
    for file in Path(__file__).parent.glob("*.py"):
        found = re.findall(r"pytest\.(?:mark\.)?(?:skip|skipif|xfail|importorskip)\(", file.read_text())
        assert found == [], f"{file.name} leaves a test out: say so in {PAGE.name}, with the reason"
