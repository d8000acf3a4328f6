"""Locks: one holder at a time, a token that only ever rises, and a deadline by the store's clock."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.model.upkeep import Lock
from kit import MINUTE

NAME = "gbe:lock:sweeper"


async def take(backend: Backend, owner: str = "a", name: str = NAME) -> Lock:
    """The lock, which must be free."""
    held = await backend.locks.acquire(name, owner, MINUTE)
    assert held is not None
    return held


async def test_a_lock_names_its_holder_and_its_deadline(backend: Backend) -> None:
    before = await backend.now()
    held = await take(backend)
    assert (held.name, held.owner) == (NAME, "a")
    assert held.token > 0
    assert before + MINUTE <= held.until <= await backend.now() + MINUTE


async def test_a_held_lock_is_refused_to_everybody_even_to_its_owner(backend: Backend) -> None:
    await take(backend)
    assert await backend.locks.acquire(NAME, "b", MINUTE) is None
    assert await backend.locks.acquire(NAME, "a", MINUTE) is None


async def test_locks_of_other_names_are_free(backend: Backend) -> None:
    await take(backend)
    await take(backend, "b", "gbe:lock:archiver")


@pytest.mark.concurrency
async def test_of_many_that_try_at_once_one_wins(backend: Backend) -> None:
    tries = await asyncio.gather(*(backend.locks.acquire(NAME, f"owner-{n}", MINUTE) for n in range(12)))
    [winner] = [held for held in tries if held is not None]
    assert (await backend.locks.renew(winner, MINUTE)).owner == winner.owner


async def test_a_lock_ends_at_its_deadline_and_not_before(backend: Backend) -> None:
    first = await take(backend)
    await backend.advance(MINUTE - timedelta(seconds=30))
    assert await backend.locks.acquire(NAME, "b", MINUTE) is None
    await backend.advance(timedelta(seconds=30))
    second = await take(backend, "b")
    assert second.token > first.token


async def test_the_token_rises_whoever_takes_it_and_however_it_ended(backend: Backend) -> None:
    tokens = []
    for turn in range(6):
        held = await take(backend, f"owner-{turn % 2}")
        tokens.append(held.token)
        if turn % 2:
            assert await backend.locks.release(held)
        else:
            await backend.advance(MINUTE)
    assert tokens == sorted(set(tokens))


async def test_renewing_moves_the_deadline(backend: Backend) -> None:
    first = await take(backend)
    await backend.advance(timedelta(seconds=30))
    renewed = await backend.locks.renew(first, MINUTE)
    assert (renewed.name, renewed.owner, renewed.token) == (NAME, "a", first.token)
    assert renewed.until >= first.until + timedelta(seconds=30)
    await backend.advance(timedelta(seconds=45))
    assert await backend.locks.acquire(NAME, "b", MINUTE) is None


async def test_a_late_holder_renews_while_nobody_else_took_it(backend: Backend) -> None:
    first = await take(backend)
    await backend.advance(10 * MINUTE)
    renewed = await backend.locks.renew(first, MINUTE)
    assert renewed.token == first.token
    assert await backend.locks.acquire(NAME, "b", MINUTE) is None


async def test_a_holder_from_the_past_can_do_nothing(backend: Backend) -> None:
    # CORRECTIONS 000.6: freeing without a check would free somebody else's lock.
    first = await take(backend)
    await backend.advance(MINUTE)
    second = await take(backend, "b")
    with pytest.raises(LockLost, match=NAME):
        await backend.locks.renew(first, MINUTE)
    assert not await backend.locks.release(first)
    assert await backend.locks.acquire(NAME, "c", MINUTE) is None, "it is still the second one's"
    assert (await backend.locks.renew(second, MINUTE)).token == second.token


async def test_the_same_owner_under_an_older_token_is_from_the_past_too(backend: Backend) -> None:
    first = await take(backend)
    await backend.advance(MINUTE)
    second = await take(backend)
    with pytest.raises(LockLost):
        await backend.locks.renew(first, MINUTE)
    assert not await backend.locks.release(first)
    assert await backend.locks.release(second)


async def test_a_freed_lock_can_be_taken_at_once_and_freed_only_once(backend: Backend) -> None:
    first = await take(backend)
    assert await backend.locks.release(first)
    assert not await backend.locks.release(first)
    with pytest.raises(LockLost):
        await backend.locks.renew(first, MINUTE)
    await take(backend, "b")


async def test_a_late_holder_may_still_free_it(backend: Backend) -> None:
    first = await take(backend)
    await backend.advance(10 * MINUTE)
    assert await backend.locks.release(first)


async def test_a_lock_that_never_was_is_nobodys(backend: Backend) -> None:
    never = Lock(NAME, "a", 7, await backend.now())
    assert not await backend.locks.release(never)
    with pytest.raises(LockLost):
        await backend.locks.renew(never, MINUTE)


async def test_locks_are_the_stores_and_not_the_connections(backend: Backend) -> None:
    held = await take(backend)
    other = backend.fork()
    await other.open()
    try:
        assert await other.locks.acquire(NAME, "b", MINUTE) is None
        assert (await other.locks.renew(held, MINUTE)).token == held.token
        assert await other.locks.release(held)
    finally:
        await other.close()
    await take(backend, "b")
