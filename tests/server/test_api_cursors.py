"""Stream consumers over REST: seen, and removed by force where they have something left to read."""

from __future__ import annotations

from application import application, problem

import holdfast
from kit import CHANNEL, publish

LIST = f"/api/v1/channels/{CHANNEL}/cursors"
PATH = f"{LIST}/archiver"


async def test_a_stream_consumer_is_removed_by_force_while_it_is_behind(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await publish(store, "a")
    await store.cursors.attach(CHANNEL, "archiver")
    async with application(bus) as found:
        [cursor] = (await found.client.get(LIST)).json()
        assert (cursor["consumer"], cursor["position"], cursor["behind"]) == ("archiver", None, 1)
        assert (await found.client.delete(PATH, params={"dry_run": True})).json() == [cursor]
        assert "force=true" in problem(await found.client.delete(PATH), 409)["detail"]
        assert (await found.client.delete(PATH, params={"force": True})).json() == [cursor]
        assert (await found.client.get(LIST)).json() == []
        problem(await found.client.delete(PATH), 404)


async def test_one_that_has_read_everything_needs_no_force(bus: holdfast.Bus) -> None:
    store = bus.partitions.all[0].backend
    await publish(store, "a")
    await store.cursors.attach(CHANNEL, "archiver", "latest")
    async with application(bus) as found:
        assert (await found.client.delete(PATH)).status_code == 200
        assert await store.cursors.all(CHANNEL) == []


async def test_a_channel_that_is_not_there_has_none(bus: holdfast.Bus) -> None:
    async with application(bus) as found:
        problem(await found.client.get(LIST), 404)
