"""One turn: `python -m bench.turn TARGET MEASURE URL SIZES`. Prints the figures as JSON.

In a process of its own, so that a turn can be one of another version of Holdfast, and none pays for another.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from functools import partial

import orjson
import uvloop

from .calling import rest
from .consuming import consume, costs, handlers
from .contestants import load
from .draining import drain
from .measures import Figures, Stage, latency, publish_bulk, publish_one
from .publishing import beside_consumers, publish_at_once
from .reading import beside_write
from .sizes import Sizes
from .stores import settle
from .surveys import scrape, sweep
from .waiting import memory, waiting

MEASURES: dict[str, Callable[[Stage, Sizes], Awaitable[Figures]]] = {
    "consume_single_1": partial(consume, published="single", processes=1),
    "consume_single_2": partial(consume, published="single", processes=2),
    "consume_bulk_1": partial(consume, published="bulk", processes=1),
    "consume_bulk_2": partial(consume, published="bulk", processes=2),
    "costs_single": partial(costs, published="single"),
    "costs_bulk": partial(costs, published="bulk"),
    "handlers_1": partial(handlers, milliseconds=1),
    "handlers_5": partial(handlers, milliseconds=5),
    "handlers_50": partial(handlers, milliseconds=50),
    "publish_one": publish_one,
    "publish_at_once": publish_at_once,
    "publish_bulk": publish_bulk,
    "beside_consumers": beside_consumers,
    "latency": latency,
    "rest": rest,
    "waiting": waiting,
    "memory": memory,
    "scrape": scrape,
    "sweep": sweep,
    "free_single": partial(drain, published="single", held=False),
    "held_single": partial(drain, published="single", held=True),
    "free_bulk": partial(drain, published="bulk", held=False),
    "held_bulk": partial(drain, published="bulk", held=True),
    "beside_write": beside_write,
}


async def perform(target: str, measure: str, url: str, sizes: Sizes) -> Figures:
    """One measure of one contestant on an empty store."""
    contestant = load(target)(url)
    await contestant.setup()
    try:
        stage = Stage(contestant, target, url, partial(settle, url))
        return await MEASURES[measure](stage, sizes)
    finally:
        await contestant.teardown()


def main(target: str, measure: str, url: str, sizes: str) -> None:
    figures = uvloop.run(perform(target, measure, url, Sizes(**orjson.loads(sizes))))
    sys.stdout.buffer.write(orjson.dumps(figures))


if __name__ == "__main__":
    main(*sys.argv[1:])
