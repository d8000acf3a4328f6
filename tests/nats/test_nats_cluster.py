"""A cluster of three servers: one URL, three copies of everything, and what happens when servers fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress

import pytest
from nats_cluster import Cluster, cluster
from nats_load import Load, judge

import holdfast
from holdfast.backends.nats import NatsBackend
from kit import CHANNEL, claim, claim_one, complete, in_memory, publish, read_all, subscribe, until

Open = Callable[..., Awaitable[NatsBackend]]
log = logging.getLogger(__name__)
LONGEST = 20
"""Seconds that a failover may take here: the servers elect a leader within 4 to 9."""
ROUNDS = 30
RECORD, BUCKET = "gbe.state.tests.one", "KV_gbe_state"
STEP_DOWN = "$JS.API.STREAM.LEADER.STEPDOWN.HOLDFAST"


@pytest.fixture(scope="module")
def servers() -> Iterator[Cluster]:
    with in_memory(), cluster() as made:
        yield made


@pytest.fixture
async def nodes(servers: Cluster) -> Cluster:
    """All servers up, and nothing on them."""
    await asyncio.to_thread(servers.start)
    await servers.ready()
    await servers.emptied()
    return servers


@pytest.fixture
async def opened(nodes: Cluster) -> AsyncIterator[Open]:
    """Opens backends on the cluster, with what is added to its URL."""
    made: list[NatsBackend] = []

    async def open_one(parameters: str = "") -> NatsBackend:
        made.append(NatsBackend(nodes.url + parameters))
        await made[-1].open()
        return made[-1]

    yield open_one
    for each in made:
        await each.close()


async def count(nodes: Cluster, stream: str = "HOLDFAST") -> int:
    return int((await nodes.stream(stream))["config"]["num_replicas"])


async def test_three_servers_have_three_copies_and_check_tells_of_them(nodes: Cluster, opened: Open) -> None:
    backend = await opened()
    await publish(backend, "a")
    await backend.records.put(RECORD, {"a": "1"}, 0)
    assert [await count(nodes), await count(nodes, BUCKET)] == [3, 3]
    leader = await nodes.leader()
    found = {each.subject: (each.level, each.message) for each in await backend.check()}
    assert found["sync_interval"][0] == "ok"
    assert found["sync_interval"][1].startswith(f"always on {leader.name}, ")
    assert found["replicas"] == (
        "ok",
        f"3, led by {leader.name}, all current: a majority has what was acknowledged",
    )
    gone = next(node for node in nodes.nodes if node is not leader)
    await asyncio.to_thread(gone.kill)
    await publish(backend, "b")

    async def told() -> bool:
        findings = {each.subject: each for each in await backend.check()}
        unknown = findings["sync_interval"].message.startswith(f"unknown of {gone.name}:")
        return unknown and f"{gone.name} is " in findings["replicas"].message

    await until(told)


async def test_replicas_are_added_on_request_and_never_taken_away(nodes: Cluster, opened: Open) -> None:
    first = await opened("?replicas=1")
    await subscribe(first)
    await publish(first, "a")
    revision = await first.records.put(RECORD, {"a": "1"}, 0)
    await opened()
    assert [await count(nodes), await count(nodes, BUCKET)] == [1, 1]
    wide = await opened("?replicas=3")
    assert revision is not None
    await wide.records.put(RECORD, {"a": "2"}, revision)
    assert [await count(nodes), await count(nodes, BUCKET)] == [3, 3]
    await nodes.leader()
    await opened("?replicas=1")
    assert await count(nodes) == 3
    assert await complete(first, await claim_one(first)), "who was there goes on"
    with pytest.raises(holdfast.InvalidInput, match="for 5 replicas"):
        await opened("?replicas=5")


@pytest.mark.slow
async def test_no_single_copy_is_made_while_a_server_is_away(nodes: Cluster, opened: Open) -> None:
    gone = nodes.nodes[0]
    await asyncio.to_thread(gone.kill)
    with suppress(holdfast.Unavailable):  # it depends on whether the others know already
        await opened()
    await asyncio.to_thread(gone.start)
    await insist(opened)
    assert await count(nodes) == 3


async def test_the_servers_of_a_cluster_are_not_partitions(nodes: Cluster) -> None:
    with pytest.raises(holdfast.InvalidInput, match="are the same store"):
        async with holdfast.connect([node.url for node in nodes.nodes]):
            raise AssertionError("it was opened")


async def test_who_is_connected_follows_the_leader(nodes: Cluster, opened: Open) -> None:
    """Also one that knows only one of the servers: they tell of each other."""
    backend = await opened()
    single = NatsBackend(nodes.nodes[0].url)
    try:
        await single.open()
        await subscribe(backend)
        for turn in range(3):
            before = await nodes.leader()
            assert "error" not in await nodes.ask(STEP_DOWN)

            async def moved(before: object = before) -> bool:
                return await nodes.leader() is not before

            await until(moved)
            for each in (backend, single):
                name = f"{turn}-{each is single}"
                await insist(lambda each=each, name=name: publish(each, name))
                assert name in {entry.event.id for entry in await read_all(each)}
                client = await each._store.connection.client()
                assert client.server_name == (await nodes.leader()).name
    finally:
        await single.close()


async def insist(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat what a change of leaders has interrupted."""

    async def done() -> bool:
        try:
            await call()
        except holdfast.Unavailable:
            return False
        return True

    await until(done)


async def test_a_killed_leader_loses_nothing(nodes: Cluster, opened: Open) -> None:
    backend = await opened()
    await subscribe(backend, max_abandonments=100)
    load = Load(backend)
    await until(lambda: load.got_on(200, 40))
    leader = await nodes.leader()
    await asyncio.to_thread(leader.kill)
    await got_on(load)
    await asyncio.to_thread(leader.start)
    await load.end()
    report("leader killed", load)
    positions = await judge(backend, load)
    assert len({each.split("-")[0] for each in positions}) == 1, "it is the same store"


async def test_a_killed_follower_refuses_nobody(nodes: Cluster, opened: Open) -> None:
    backend = await opened()
    await subscribe(backend)
    load = Load(backend)
    await until(lambda: load.got_on(200, 40))
    leader = await nodes.leader()
    follower = next(node for node in nodes.nodes if node is not leader)
    await asyncio.to_thread(follower.kill)
    await got_on(load, 1000)
    await load.end()
    report("follower killed", load)
    assert load.refused == 0
    await judge(backend, load)


async def test_what_was_acknowledged_is_read_at_once(opened: Open) -> None:
    """By whomever, though each read may be served by a server that lags: without a proof some are wrong."""
    writer, reader = await opened(), await opened()
    await subscribe(writer)
    last = None
    for turn in range(ROUNDS):
        [first] = await publish(writer, f"{turn}-a")
        assert [each.position for each in await writer.log.read(CHANNEL, last, 10)] == [first.position]
        [second] = await publish(writer, f"{turn}-b")
        pages = [page async for page in reader.log.pages(CHANNEL, first.position, second.position, 10)]
        assert [position for page in pages for position in page.positions] == [second.position]
        jobs = await claim(reader, 10)
        assert [job.event.id for job in jobs] == [f"{turn}-a", f"{turn}-b"]
        assert all(await writer.leases.complete(jobs))
        last = second.position


@pytest.mark.slow
async def test_a_paused_leader_is_left_for_another_one(nodes: Cluster, opened: Open) -> None:
    backend = await opened()
    await subscribe(backend, max_abandonments=100)
    load = Load(backend)
    await until(lambda: load.got_on(200, 40))
    leader = await nodes.leader()
    leader.pause()
    try:
        await got_on(load)
    finally:
        leader.resume()
    await load.end()
    report("leader paused", load)
    await judge(backend, load)


@pytest.mark.slow
async def test_a_rolling_restart_loses_nothing(nodes: Cluster, opened: Open) -> None:
    backend = await opened()
    await subscribe(backend, max_abandonments=100)
    load = Load(backend)
    for node in nodes.nodes:
        await got_on(load)
        await asyncio.to_thread(node.restart)
        await nodes.leader()
    await got_on(load)
    await load.end()
    report("rolling restart", load)
    await judge(backend, load)


async def got_on(load: Load, more: int = 200) -> None:
    acked, completed = len(load.acked), len(load.completed)
    await until(lambda: load.got_on(acked + more, completed + 40))


def report(what: str, load: Load) -> None:
    log.info("%s: %.1f s without an acknowledgement, %d refused", what, load.longest_pause, load.refused)
    assert load.longest_pause < LONGEST
