"""Order per key, over several stores and several workers at once."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict

from spread import key_of

import holdfast
from kit import CHANNEL, CONSUMER, until

KEYS, EACH = 6, 15


async def test_an_ordered_consumer_keeps_each_keys_order_across_stores(
    bus: holdfast.Bus, urls: list[str]
) -> None:
    """I13: no event of a key begins before the earlier ones of it are terminal, retries included."""
    app, chance, running = holdfast.App(), random.Random(7), set[str]()
    ended: dict[str, list[int]] = defaultdict(list)
    overtaken: list[tuple[str, int]] = []

    @app.handler(CHANNEL, CONSUMER, ordered=True, max_attempts=4, backoff=["0s"], concurrency=5)
    async def work(event: holdfast.Event, job: holdfast.Job) -> None:
        key, number = str(event.key), event.json()["n"]
        if key in running or ended[key] != list(range(number)):
            overtaken.append((key, number))
        running.add(key)
        await asyncio.sleep(chance.random() * 0.002)
        running.discard(key)
        if chance.random() < 0.2 and job.attempt < 4:
            raise holdfast.Transient("again")
        ended[key].append(number)

    keys = [key_of(index, number) for index in (0, 1) for number in range(KEYS // 2)]
    await bus.subscribe(CHANNEL, CONSUMER, ordered=True, max_attempts=4, backoff=["0s"])
    stop = asyncio.Event()
    async with holdfast.connect(urls) as other:
        crew = [asyncio.create_task(app.run(each, stop=stop, idle="50ms")) for each in (bus, other)]
        for number in range(EACH):
            await bus.publish_many(CHANNEL, [holdfast.Event({"n": number}, key=key) for key in keys])

        async def all_ended() -> bool:
            return sum(map(len, ended.values())) == KEYS * EACH

        await until(all_ended, 40)
        stop.set()
        await asyncio.gather(*crew)
    assert overtaken == []
    assert dict(ended) == {key: list(range(EACH)) for key in keys}
    for partition in bus.partitions.all:
        states = (await partition.backend.channels.consumer_stats(CHANNEL, CONSUMER)).states
        assert states == {"done": KEYS * EACH // 2}
