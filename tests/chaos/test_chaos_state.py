"""What the checks read: a store that changes meanwhile does not hold them up."""

from __future__ import annotations

import asyncio

import nats

from holdfast_chaos.stores.nats import STREAM, read


async def test_what_goes_while_it_is_read_is_not_waited_for(empty_nats: str) -> None:
    """As tombstones do, which expire on their own."""
    async with await nats.connect(empty_nats) as client:
        stream = client.jetstream()
        await stream.add_stream(name=STREAM, subjects=["s.*"])
        for number in range(60):
            await stream.publish(f"s.{number}", b"")

        async def remove() -> None:
            for number in range(60, 1, -1):
                await stream.delete_msg(STREAM, number)

        removing, sizes = asyncio.create_task(remove()), [60]
        while sizes[-1] > 1:
            sizes.append(len(await read(client, ["s.*"])))
        await removing
        assert sizes == sorted(sizes, reverse=True)
        [last] = await read(client, ["s.*"])
        assert last.subject == "s.0"
