"""Refusals: what a server answers that cannot or may not take a call, in our own errors."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis
from redis.exceptions import (
    ClusterDownError,
    ExecAbortError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
)

import holdfast
from holdfast.backends.redis import RedisBackend
from holdfast.backends.redis.session import is_demoted, translate
from holdfast.embedded import Redis
from holdfast.model.errors import LockLost
from holdfast.model.event import Event
from kit import CHANNEL, MINUTE, claim, publish, subscribe

URL = "redis://:secret@there:6379/0"
PLACE = "Error running script (call to f_1ccd): @user_script:88: "
IN_SCRIPT = PLACE + "@user_script: 88: -"  # before 7.0
Unavailable, Overloaded, InvalidInput = holdfast.Unavailable, holdfast.Overloaded, holdfast.InvalidInput
SAID: list[tuple[Exception, type[Exception]]] = [
    (ReadOnlyError("You can't write against a read only replica."), Unavailable),
    (ResponseError(IN_SCRIPT + "READONLY You can't write against a read only replica."), Unavailable),
    (MasterDownError("Link with MASTER is down"), Unavailable),
    (ClusterDownError("The cluster is down"), Unavailable),
    (ExecAbortError("Transaction discarded because of previous errors."), Unavailable),
    (ResponseError("BUSY Redis is busy running a script."), Unavailable),
    (ResponseError("MISCONF Errors writing to the AOF file"), Unavailable),
    (ResponseError(IN_SCRIPT + "MISCONF Errors writing to the AOF file: No space left"), Unavailable),
    (ResponseError("NOREPLICAS Not enough good replicas to write."), Unavailable),
    (ResponseError(IN_SCRIPT + "NOREPLICAS Not enough good replicas to write."), Unavailable),
    (ResponseError(PLACE + "Script killed by user with SCRIPT KILL..."), Unavailable),
    (NoPermissionError("this user has no permissions to run the 'evalsha' command"), Unavailable),
    (ResponseError(IN_SCRIPT[:-1] + "The user executing the script can't run this command"), Unavailable),
    (ResponseError("ACL failure in script: no permissions script: 1ccd"), Unavailable),
    (OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), Overloaded),
    (ResponseError(IN_SCRIPT + "OOM command not allowed when used memory"), Overloaded),
    (ResponseError(IN_SCRIPT + "WRONGTYPE Operation against a key"), InvalidInput),
    (ResponseError("DB index is out of range"), InvalidInput),
    (MovedError("3999 127.0.0.1:6381"), InvalidInput),
    (
        ResponseError(IN_SCRIPT[:-1] + "Lua script attempted to access a non local key in a cluster node"),
        InvalidInput,
    ),
    (ResponseError(PLACE + "user_script:88: HFLOCK a b 7"), LockLost),
    (ResponseError("HFINPUT no, script: 1ccd, on @user_script:88."), InvalidInput),
]


@pytest.fixture
def guest(relaxed_redis: Redis, client: redis.Redis) -> Iterator[str]:
    """The URL of a user who may do everything, until told otherwise."""
    client.execute_command("ACL", "SETUSER", "guest", "on", ">pass", "~*", "&*", "+@all")
    yield relaxed_redis.url.replace(f":{relaxed_redis.secret}@", "guest:pass@")
    client.execute_command("ACL", "DELUSER", "guest")


@pytest.mark.parametrize(("error", "kind"), SAID, ids=lambda value: str(value)[-40:])
def test_each_answer_has_its_place_in_the_tree(error: Exception, kind: type[Exception]) -> None:
    told = translate(error, URL, publishing=True)
    assert isinstance(told, kind)
    assert "user_script" not in str(told)
    assert is_demoted(error) == ("read only" in str(error))


async def test_a_primary_without_enough_replicas_is_unavailable(
    backend: RedisBackend, client: redis.Redis
) -> None:
    await subscribe(backend)
    await publish(backend, "a")
    client.config_set("min-replicas-to-write", 1)
    try:
        for call in (
            publish(backend, "b"),
            backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(300)]),
            claim(backend),
            backend.locks.acquire("l", "me", MINUTE),
        ):
            with pytest.raises(Unavailable, match="NOREPLICAS"):
                await call
    finally:
        client.config_set("min-replicas-to-write", 0)
    assert len(await claim(backend)) == 1


@pytest.mark.parametrize("right", ["-xadd", "-evalsha", "-multi"])
async def test_what_a_user_may_not_do_is_said_in_our_words(
    guest: str, client: redis.Redis, right: str
) -> None:
    backend = RedisBackend(guest)
    await backend.open()
    client.execute_command("ACL", "SETUSER", "guest", right)
    for size in (1, 300):
        if right == "-multi" and size == 1:
            continue
        with pytest.raises(Unavailable, match="does not let this user"):
            await backend.log.publish(CHANNEL, [Event(n, f"e-{n}") for n in range(size)])
    await backend.close()


@pytest.mark.parametrize("end", ["?nonsense=1", "?socket_timeout=soon", "?db=999"])
async def test_a_url_that_cannot_be_used_is_said_at_once(relaxed_redis: Redis, end: str) -> None:
    backend = RedisBackend(relaxed_redis.url + end)
    with pytest.raises(InvalidInput) as caught:
        await backend.open()
    assert relaxed_redis.secret not in str(caught.value)


async def test_a_url_does_not_change_how_replies_are_read(relaxed_redis: Redis, client: redis.Redis) -> None:
    backend = RedisBackend(relaxed_redis.url + "?protocol=3&decode_responses=true")
    await backend.open()
    await subscribe(backend)
    await publish(backend, "a")
    assert [job.event.id for job in await claim(backend)] == ["a"]
    await backend.records.put("gbe.state.t-1", {"state": "running"}, 0)
    found = await backend.records.get("gbe.state.t-1")
    assert found is not None
    assert found.fields == {"state": "running"}
    assert await backend.check()
    await backend.close()


async def test_only_a_publish_is_overloaded_by_a_lack_of_memory(
    backend: RedisBackend, client: redis.Redis
) -> None:
    client.config_set("maxmemory", 1)
    client.script_flush()
    for _ in range(2):  # the first call sends the script
        with pytest.raises(Unavailable):
            await backend.channels.create("new")
        with pytest.raises(Overloaded):
            await publish(backend, "a")
