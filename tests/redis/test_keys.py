"""Keys: one codec for streams, and no key that is not documented."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import pytest
import redis

from holdfast import failpoints
from holdfast.backends.redis import RedisBackend, keys
from holdfast.backends.redis.session import SCRIPTS
from holdfast.model.event import Event
from holdfast.model.job import Burial, Reason
from kit import BOOM, CHANNEL, MINUTE, bury, claim, claim_one, complete, publish, subscribe


@pytest.mark.parametrize("channel", ["a", "gbe.events.audit.change", "gbe._deadletter.x-y"])
def test_a_channel_and_its_stream_name_each_other(channel: str) -> None:
    # CORRECTIONS 000.7: one codec between '.' and ':'.
    assert keys.channel(keys.stream(channel)) == channel
    assert not keys.stream(channel).startswith(keys.PREFIX)


async def test_every_key_is_documented_with_its_type(backend: RedisBackend, client: redis.Redis) -> None:
    await backend.channels.create("dead")
    await subscribe(backend, ordered=True, dead_letter="dead", expires_after="1h")
    await subscribe(backend, "late", start="earliest")
    await subscribe(backend, "bounded", max_depth=10_000)
    await publish(backend, "later", at=await backend.now() + MINUTE)
    for _ in range(2):
        client.xadd(CHANNEL, {"id": "theirs", "data": "1"})
    await backend.log.publish(CHANNEL, [Event(n, f"e-{n}", key=f"k {n % 3}") for n in range(6000)])
    await bury(backend, await claim_one(backend))
    await complete(backend, await claim_one(backend))
    await claim(backend, 1)
    await claim(backend, 1, consumer="late")
    assert await backend.leases.cancel(CHANNEL, "default", "e-5999", "late") == 1
    await backend.cursors.attach(CHANNEL, "archiver")
    await backend.retention.set_full(CHANNEL, True)
    await backend.locks.acquire("gbe:lock:sweeper", "me", MINUTE)
    for name in ("gbe.state.t-1", "gbe.state.tasks.t-1"):
        await backend.records.put(name, {"state": "running"}, 0, due=await backend.now())
    await leave_half_done(backend)
    shown = {CHANNEL: "stream", "dead": "stream", "gbe:lock:sweeper": "string", "gbe:lock:census": "string"}
    shown |= {"gbe:state:t-1": "hash", "gbe:state:tasks:t-1": "hash", "crowd": "stream"}
    seen = set()
    for name in client.scan_iter(count=1000):
        kind = client.type(name)
        if not name.startswith(keys.PREFIX):
            assert shown[name] == kind
            continue
        [known] = [key for key in keys.KEYS if key.pattern.fullmatch(name) and key.type == kind]
        seen.add(known.name)
    assert seen == {key.name for key in keys.KEYS}, "each kind was there"


async def leave_half_done(backend: RedisBackend) -> None:
    """A recount and a removal that somebody did not end."""
    lock = await backend.locks.acquire("gbe:lock:census", "me", MINUTE)
    assert lock is not None
    for consumer in ("crowded", "going"):
        await subscribe(backend, consumer, channel="crowd")
    await backend.log.publish("crowd", [Event(n, f"s-{n}") for n in range(20)], priority=1)
    await claim(backend, 1, channel="crowd", consumer="going")
    await backend.log.publish("crowd", [Event(n, f"e-{n}") for n in range(600)])
    jobs = await claim(backend, 620, channel="crowd", consumer="crowded")
    await backend.leases.bury([Burial(job, Reason.TERMINAL, BOOM) for job in jobs])
    with failpoints.active("dead.mid_recount", "raise"), pytest.raises(failpoints.FailpointError):
        await backend.deadletters.recount(False, lock)
    assert not (await backend.channels.remove_consumer("crowd", "going", 1)).done


def test_the_table_and_the_script_that_builds_the_names_agree() -> None:
    text = files("holdfast.backends.redis").joinpath("lua", "shared", "keys.lua").read_text()
    documented = {line.split()[1] for line in text.splitlines() if line.startswith("--   {holdfast}:")}
    assert documented == {key.name for key in keys.KEYS} | {keys.WAKE}


def test_every_script_says_which_keys_it_touches() -> None:
    folder = Path(str(files("holdfast.backends.redis").joinpath("lua")))
    scripts = [script for script in folder.glob("*/*.lua") if script.parent.name != "shared"]
    assert len(scripts) == len(SCRIPTS)
    for script in scripts:
        head = script.read_text().split("\nlocal ")[0]
        assert "{holdfast}:" in head, script.name
