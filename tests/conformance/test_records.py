"""State records: written whole under the revision that was read, and found when they are due."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.contracts import Backend
from holdfast.model.upkeep import StateRecord
from kit import MINUTE

PREFIX = "gbe.state.tasks."
KEY = PREFIX + "resize.7f3a"
FIELDS = {"state": "pending", "retry_count": "0"}


async def due(backend: Backend, prefix: str = PREFIX, limit: int = 100) -> list[str]:
    return [record.key for record in await backend.records.due(prefix, limit)]


async def test_a_record_reads_as_it_was_written(backend: Backend) -> None:
    assert await backend.records.get(KEY) is None
    revision = await backend.records.put(KEY, FIELDS, 0)
    assert revision is not None
    assert revision > 0
    assert await backend.records.get(KEY) == StateRecord(KEY, FIELDS, revision)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"empty": ""},
        {"text": 'ä€😀 "quoted" \\ {json}'},
        {"number": "007"},
        {f"f{n}": "x" for n in range(50)},
    ],
    ids=["none", "empty", "text", "number", "many"],
)
async def test_any_text_survives(backend: Backend, fields: dict[str, str]) -> None:
    await backend.records.put(KEY, fields, 0)
    found = await backend.records.get(KEY)
    assert found is not None
    assert found.fields == fields


async def test_a_write_replaces_the_whole_record(backend: Backend) -> None:
    first = await backend.records.put(KEY, FIELDS, 0)
    assert first is not None
    second = await backend.records.put(KEY, {"state": "done"}, first)
    assert second is not None
    assert second > first
    assert await backend.records.get(KEY) == StateRecord(KEY, {"state": "done"}, second)


async def test_a_record_is_removed_only_under_the_revision_that_was_read(backend: Backend) -> None:
    first = await backend.records.put(KEY, FIELDS, 0, await backend.now())
    assert first is not None
    second = await backend.records.put(KEY, FIELDS, first, await backend.now())
    assert second is not None
    assert not await backend.records.remove(KEY, first)
    assert not await backend.records.remove(PREFIX + "resize.none", 1)
    assert await due(backend) == [KEY]
    assert await backend.records.remove(KEY, second)
    assert not await backend.records.remove(KEY, second)
    assert (await backend.records.get(KEY), await due(backend)) == (None, [])
    assert await backend.records.put(KEY, FIELDS, 0, await backend.now()) is not None
    assert await due(backend) == [KEY]


async def test_a_record_that_another_process_removed_is_not_due(backend: Backend) -> None:
    assert await backend.records.put(KEY, FIELDS, 0, await backend.now()) is not None
    assert await due(backend) == [KEY]
    other = backend.fork()
    await other.open()
    [found] = await other.records.due(PREFIX, 9)
    assert await other.records.remove(KEY, found.revision)
    await other.close()
    assert await due(backend, limit=1) == []


async def test_a_record_that_is_made_anew_has_none_of_its_old_revisions(backend: Backend) -> None:
    first = await backend.records.put(KEY, FIELDS, 0)
    second = await backend.records.put(KEY, FIELDS, first or 0)
    assert await backend.records.remove(KEY, second or 0)
    again = await backend.records.put(KEY, {"state": "new"}, 0)
    for stale in (first or 0, second or 0):
        assert await backend.records.put(KEY, FIELDS, stale) is None
        assert not await backend.records.remove(KEY, stale)
    assert await backend.records.get(KEY) == StateRecord(KEY, {"state": "new"}, again or 0)


async def test_a_write_under_another_revision_is_refused(backend: Backend) -> None:
    # CORRECTIONS 000.4: setting fields without a check is no compare and swap.
    assert await backend.records.put(KEY, FIELDS, 1) is None, "there is none to change"
    assert await backend.records.get(KEY) is None
    first = await backend.records.put(KEY, FIELDS, 0)
    assert first is not None
    assert await backend.records.put(KEY, {"state": "mine"}, 0) is None, "there is one"
    second = await backend.records.put(KEY, {"state": "running"}, first)
    assert await backend.records.put(KEY, {"state": "late"}, first) is None, "it has changed since"
    found = await backend.records.get(KEY)
    assert found is not None
    assert (found.fields, found.revision) == ({"state": "running"}, second)


async def test_the_same_content_is_a_change_too(backend: Backend) -> None:
    first = await backend.records.put(KEY, FIELDS, 0)
    assert first is not None
    second = await backend.records.put(KEY, FIELDS, first)
    assert second is not None
    assert second > first


@pytest.mark.parametrize("exists", [False, True])
async def test_of_many_writers_one_wins(backend: Backend, exists: bool) -> None:
    expected = await backend.records.put(KEY, FIELDS, 0) if exists else 0
    assert expected is not None
    answers = await asyncio.gather(*(backend.records.put(KEY, {"by": str(n)}, expected) for n in range(12)))
    [winner] = [n for n, revision in enumerate(answers) if revision is not None]
    found = await backend.records.get(KEY)
    assert found is not None
    assert (found.fields, found.revision) == ({"by": str(winner)}, answers[winner])


async def test_increments_under_the_revision_lose_none(backend: Backend) -> None:
    await backend.records.put(KEY, {"n": "0"}, 0)

    async def increment() -> None:
        while True:
            found = await backend.records.get(KEY)
            assert found is not None
            changed = {"n": str(int(found.fields["n"]) + 1)}
            if await backend.records.put(KEY, changed, found.revision) is not None:
                return

    await asyncio.gather(*(increment() for _ in range(10)))
    found = await backend.records.get(KEY)
    assert found is not None
    assert found.fields == {"n": "10"}


async def test_a_record_is_due_from_its_time_on(backend: Backend) -> None:
    revision = await backend.records.put(KEY, FIELDS, 0, await backend.now() + MINUTE)
    assert revision is not None
    await backend.advance(timedelta(seconds=30))
    assert await due(backend) == []
    await backend.advance(timedelta(seconds=30))
    assert await backend.records.due(PREFIX, 10) == [StateRecord(KEY, FIELDS, revision)]
    assert await due(backend) == [KEY], "it stays due until it is written again"


async def test_a_write_sets_the_due_time_anew(backend: Backend) -> None:
    now = await backend.now()
    first = await backend.records.put(KEY, FIELDS, 0, now)
    assert first is not None
    assert await due(backend) == [KEY]
    second = await backend.records.put(KEY, FIELDS, first, now + MINUTE)
    assert second is not None
    assert await due(backend) == [], "later"
    await backend.advance(MINUTE)
    assert await due(backend) == [KEY]
    assert await backend.records.put(KEY, FIELDS, second) is not None
    assert await due(backend) == [], "never"
    found = await backend.records.get(KEY)
    assert found is not None


async def test_a_refused_write_leaves_the_due_time(backend: Backend) -> None:
    now = await backend.now()
    await backend.records.put(KEY, FIELDS, 0, now)
    assert await backend.records.put(KEY, FIELDS, 0, now + MINUTE) is None
    assert await backend.records.put(KEY, FIELDS, 0) is None
    assert await due(backend) == [KEY]


async def test_due_records_come_oldest_first_and_no_more_than_asked_for(backend: Backend) -> None:
    now = await backend.now()
    for n in (3, 1, 5, 2, 4):
        await backend.records.put(f"{PREFIX}t.{n}", {"n": str(n)}, 0, now - n * MINUTE)
    expected = [f"{PREFIX}t.{n}" for n in (5, 4, 3, 2, 1)]
    assert await due(backend) == expected
    assert await due(backend, limit=2) == expected[:2]


async def test_a_prefix_is_text_and_not_a_pattern(backend: Backend) -> None:
    now = await backend.now()
    for key in ("gbe.state.tasks.a", "gbe.state.tasks.b.c", "gbe.state.other.a", "gbe.state.tasksx"):
        await backend.records.put(key, FIELDS, 0, now)
    assert sorted(await due(backend)) == ["gbe.state.tasks.a", "gbe.state.tasks.b.c"]
    assert await due(backend, "gbe.state.tasks.b.") == ["gbe.state.tasks.b.c"]
    assert await due(backend, "gbe.state.%.") == []
    assert await due(backend, "gbe.state.*.") == []
    assert len(await due(backend, "gbe.state.")) == 4


async def test_records_are_the_stores_and_not_the_connections(backend: Backend) -> None:
    revision = await backend.records.put(KEY, FIELDS, 0)
    other = backend.fork()
    await other.open()
    try:
        assert await other.records.get(KEY) == StateRecord(KEY, FIELDS, revision or 0)
    finally:
        await other.close()


async def test_the_first_record_of_its_kind_is_read_while_it_is_written(backend: Backend) -> None:
    """Where records of a kind have a place of their own, it appears under the reader's eyes."""
    readers = [backend.fork() for _ in range(3)]
    for reader in readers:
        await reader.open()
    try:
        for turn in range(10):
            key = f"kind{turn}.state.first"
            writing = asyncio.create_task(backend.records.put(key, {"a": "b"}, 0))
            while not writing.done():
                await asyncio.gather(*(reader.records.get(key) for reader in readers))
            revision = await writing
            assert revision is not None
            for reader in readers:
                found = await reader.records.get(key)
                assert found is not None
                assert found.revision == revision
    finally:
        for reader in readers:
            await reader.close()
