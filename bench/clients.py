# ruff: noqa: E402
"""The clients for Redis and NATS side by side: `python bench/clients.py --help`.

Each does on one server what our stores ask of a client all day. A figure is the CPU time of the client's
process, all threads, for one unit: it hardly depends on what else the machine does. Clients take turns, the
least of all rounds counts, and those that are not installed are left out.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

sys.path[0] = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

import orjson

from holdfast.embedded import Nats, Redis

SMALL, SCRIPTS, ARGUMENTS, ENTRIES = 5_000, 20, 2_000, 10_000
ACKED, MESSAGES, REQUESTS = 2_000, 1_000, 500
PATIENCE = 60
ENTRY = ("id", "0198c0de-0000-7000-8000-000000000000", "type", "order.paid", "data", "x" * 200)
SUBJECT, DATA = "bench.one", b"x" * 200
HEADERS = {"ce-id": "0198c0de-0000-7000-8000-000000000000", "ce-type": "order.paid", "ce-source": "bench"}
STREAM = {"name": "BENCH", "subjects": [SUBJECT], "allow_direct": True, "allow_atomic": True}
QUERY = {"seq": 1, "next_by_subj": SUBJECT, "batch": MESSAGES}
READ = "$JS.API.DIRECT.GET.BENCH"

Run = Callable[[], Awaitable[None]]
Measures = dict[str, tuple[int, Run]]
"""By name: how many units one run has, and the run."""
Client = Callable[[str], AbstractAsyncContextManager[Measures]]
Call = Callable[..., Awaitable[Any]]
Publish = Callable[[str, bytes, dict[str, str]], Awaitable[Any]]


def on_redis(call: Call, pipelined: Callable[[list[tuple[Any, ...]]], Awaitable[Any]]) -> Measures:
    """The measures, with one raw command and with many in one go."""
    commands: list[tuple[Any, ...]] = [("SET", f"key:{number % 100}", b"x" * 100) for number in range(SMALL)]
    arguments = [b"%040d" % number for number in range(ARGUMENTS)]

    async def together() -> None:
        assert len(await pipelined(commands)) == SMALL

    async def apart() -> None:
        assert len(await asyncio.gather(*(call(*command) for command in commands))) == SMALL

    async def script() -> None:
        sha = await call("SCRIPT LOAD", "return #ARGV")
        for _ in range(SCRIPTS):
            assert await call("EVALSHA", sha, "0", *arguments) == ARGUMENTS

    async def page() -> None:
        assert len(await call("XRANGE", "stream", "-", "+", "COUNT", str(ENTRIES))) == ENTRIES

    return {
        "SET, 5,000 in a pipeline": (SMALL, together),
        "SET, 5,000 calls at once": (SMALL, apart),
        "EVALSHA, 2,000 arguments": (SCRIPTS, script),
        "entry of XRANGE 10,000": (ENTRIES, page),
    }


@asynccontextmanager
async def redis_link(url: str) -> AsyncIterator[Measures]:
    """Ours: redis-py's connection and hiredis."""
    link = import_module("holdfast.backends.redis.link").Link(
        import_module("redis.asyncio").ConnectionPool.from_url(url, protocol=2), lambda _: asyncio.sleep(0)
    )
    yield on_redis(
        lambda name, *arguments: link.call(*name.split(), *arguments), lambda all_: link.together(*all_)
    )
    await link.close()


def redis_py(package: str, parser: str) -> Client:
    """redis-py or its fork with one of its parsers, without the callbacks that reshape replies."""

    @asynccontextmanager
    async def client(url: str) -> AsyncIterator[Measures]:
        module = import_module(f"{package}.asyncio")
        parser_class = getattr(import_module(f"{package}._parsers"), parser)
        pool = module.BlockingConnectionPool.from_url(
            url, protocol=2, max_connections=8, timeout=PATIENCE, parser_class=parser_class
        )
        client = getattr(module, package.title())(connection_pool=pool)
        client.response_callbacks.clear()

        async def pipelined(commands: list[tuple[Any, ...]]) -> Any:
            pipeline = client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)
            return await pipeline.execute()

        yield on_redis(client.execute_command, pipelined)
        await client.aclose()
        await pool.disconnect()

    return client


@asynccontextmanager
async def coredis(url: str) -> AsyncIterator[Measures]:
    request = import_module("coredis.commands.request").CommandRequest
    async with import_module("coredis").Redis.from_url(url) as client:

        def call(name: str, *arguments: Any) -> Any:
            return client.execute_command(request(name.encode(), *arguments, execution_parameters={}))

        async def pipelined(commands: list[tuple[Any, ...]]) -> Any:
            async with client.pipeline(transaction=False) as pipeline:
                queued = [pipeline.set(key, value) for _, key, value in commands]
            return [await each for each in queued]

        yield on_redis(call, pipelined)


@asynccontextmanager
async def glide(url: str) -> AsyncIterator[Measures]:
    module, parts = import_module("glide"), urlsplit(url)
    client = await module.GlideClient.create(
        module.GlideClientConfiguration(
            [module.NodeAddress(parts.hostname, parts.port)],
            credentials=module.ServerCredentials(password=parts.password),
            protocol=module.ProtocolVersion.RESP2,
            request_timeout=PATIENCE * 1000,
            inflight_requests_limit=SMALL,
        )
    )

    async def pipelined(commands: list[tuple[Any, ...]]) -> Any:
        batch = module.Batch(is_atomic=False)
        for command in commands:
            batch.custom_command(list(command))
        return await client.exec(batch, raise_on_error=True)

    yield on_redis(lambda name, *arguments: client.custom_command([*name.split(), *arguments]), pipelined)
    await client.close()


@asynccontextmanager
async def redis_rs(url: str) -> AsyncIterator[Measures]:
    async with import_module("redis_rs").create_client(url, max_size=8) as client:

        def call(name: str, *arguments: Any) -> Any:
            return client.execute(*name.split(), *arguments)

        async def pipelined(commands: list[tuple[Any, ...]]) -> Any:  # it has no pipelines
            return await asyncio.gather(*(call(*command) for command in commands))

        yield on_redis(call, pipelined)


def on_nats(acked: Call, batch: Call, request: Call, read: Call) -> Measures:
    """The measures, with a publish, an atomic batch, a question, and a page of the stream."""

    async def publishes() -> None:
        assert len(await asyncio.gather(*(acked() for _ in range(ACKED)))) == ACKED

    async def batches() -> None:
        assert await batch() > MESSAGES

    async def requests() -> None:
        for _ in range(REQUESTS):
            await request()

    async def page() -> None:
        assert len(await read()) == MESSAGES

    return {
        "publish and ack, 2,000 at once": (ACKED, publishes),
        "message of a batch of 1,000": (MESSAGES, batches),
        "request, one by one": (REQUESTS, requests),
        "message of a direct get of 1,000": (MESSAGES, page),
    }


def plain(publish: Publish, acked: Publish, request: Publish, ask: Callable[[], Awaitable[Any]]) -> Measures:
    """The measures with what any client has. `request` returns the answer's data, `ask` reads the page."""

    async def batch() -> int:
        marks = {**HEADERS, "Nats-Batch-Id": os.urandom(8).hex()}
        for number in range(1, MESSAGES):
            await publish(SUBJECT, DATA, {**marks, "Nats-Batch-Sequence": str(number)})
        last = {**marks, "Nats-Batch-Sequence": str(MESSAGES), "Nats-Batch-Commit": "1"}
        return int(orjson.loads(await request(SUBJECT, DATA, last))["seq"])

    return on_nats(
        lambda: acked(SUBJECT, DATA, HEADERS), batch, lambda: request("$JS.API.INFO", b"", {}), ask
    )


@asynccontextmanager
async def nats_link(url: str) -> AsyncIterator[Measures]:
    """Ours: nats-py's connection, and our parser for answers."""
    module = import_module("holdfast.backends.nats.wire.batches")
    link = module.NatsConnection(url)
    await link.open()
    batches, message = module.Batches(link), module.BatchMessage(SUBJECT, DATA, HEADERS)

    async def read() -> Any:
        return (await link.read(QUERY, "BENCH"))[0]

    yield on_nats(
        lambda: batches.commit([message]),
        lambda: batches.commit([message] * MESSAGES),
        lambda: link.request("$JS.API.INFO"),
        read,
    )
    await link.close()


@asynccontextmanager
async def nats_py(url: str) -> AsyncIterator[Measures]:
    client = await import_module("nats").connect(url)
    stream = client.jetstream()

    async def acked(subject: str, data: bytes, headers: dict[str, str]) -> Any:
        return await (await stream.publish_async(subject, data, headers=headers))

    async def request(subject: str, data: bytes, headers: dict[str, str]) -> Any:
        return (await client.request(subject, data, timeout=PATIENCE, headers=headers or None)).data

    async def read() -> list[Any]:
        inbox = client.new_inbox()
        answers = await client.subscribe(inbox)
        await client.publish(READ, orjson.dumps(QUERY), reply=inbox)
        found = [await answers.next_msg(PATIENCE) for _ in range(MESSAGES + 1)]
        await answers.unsubscribe()
        return [(each.headers["Nats-Sequence"], each.data) for each in found[:-1]]

    yield plain(lambda *message: client.publish(*message[:2], headers=message[2]), acked, request, read)
    await client.close()


@asynccontextmanager
async def nats_core(url: str) -> AsyncIterator[Measures]:
    parts = urlsplit(url)
    client = await import_module("nats.client").connect(
        f"nats://{parts.hostname}:{parts.port}", user=parts.username, password=parts.password
    )

    async def request(subject: str, data: bytes, headers: dict[str, str]) -> Any:
        return (await client.request(subject, data, timeout=PATIENCE, headers=headers)).data

    async def read() -> list[Any]:
        inbox = client.new_inbox()
        async with await client.subscribe(inbox) as answers:
            await client.publish(READ, orjson.dumps(QUERY), reply=inbox)
            found = [await answers.next(PATIENCE) for _ in range(MESSAGES + 1)]
        return [(each.headers.get("Nats-Sequence"), each.data) for each in found[:-1]]

    yield plain(lambda *message: client.publish(*message[:2], headers=message[2]), request, request, read)
    await client.close()


@asynccontextmanager
async def natsrpy(url: str) -> AsyncIterator[Measures]:
    parts = urlsplit(url)
    client = import_module("natsrpy").Nats(
        [f"nats://{parts.hostname}:{parts.port}"], (parts.username, parts.password), request_timeout=PATIENCE
    )
    await client.startup()
    stream = await client.jetstream(ack_timeout=PATIENCE)

    async def request(subject: str, data: bytes, headers: dict[str, str]) -> Any:
        return (await client.request(subject, data, headers=headers or None)).payload

    async def read() -> list[Any]:
        inbox = f"_INBOX.{os.urandom(8).hex()}"
        async with client.subscribe(inbox) as answers:
            await client.publish(READ, orjson.dumps(QUERY), reply=inbox)
            found = [await anext(answers) for _ in range(MESSAGES + 1)]
        return [(each.headers["Nats-Sequence"], each.payload) for each in found[:-1]]

    yield plain(
        lambda *message: client.publish(*message[:2], headers=message[2]),
        lambda *message: stream.publish(*message[:2], headers=message[2], wait=True),
        request,
        read,
    )
    await client.shutdown()


REDIS: dict[str, tuple[str, Client]] = {
    "ours": ("hiredis", redis_link),
    "redis-py": ("hiredis", redis_py("redis", "_AsyncHiredisParser")),
    "redis-py, no hiredis": ("redis", redis_py("redis", "_AsyncRESP2Parser")),
    "valkey-py": ("libvalkey", redis_py("valkey", "_AsyncLibvalkeyParser")),
    "coredis": ("coredis", coredis),
    "valkey-glide": ("glide", glide),
    "redis-rs": ("redis_rs", redis_rs),
}
NATS: dict[str, tuple[str, Client]] = {
    "ours": ("nats", nats_link),
    "nats-py": ("nats", nats_py),
    "nats-core": ("nkeys", nats_core),
    "natsrpy": ("natsrpy", natsrpy),
}
"""By name: a module that is there where the client can run, and its measures."""


async def fill_redis(url: str) -> None:
    async with import_module("redis.asyncio").from_url(url) as client:
        for _ in range(ENTRIES):
            await client.execute_command("XADD", "stream", "*", *ENTRY)


async def fill_nats(url: str) -> None:
    client = await import_module("nats").connect(url)
    await client.request("$JS.API.STREAM.CREATE.BENCH", orjson.dumps(STREAM), timeout=PATIENCE)
    for _ in range(MESSAGES):
        await client.jetstream().publish(SUBJECT, DATA, headers=HEADERS)
    await client.close()


async def least(url: str, clients: dict[str, Client], rounds: int) -> dict[str, dict[str, float]]:
    """The least CPU time of a unit, in microseconds, by client and measure."""
    found: dict[str, dict[str, float]] = {name: {} for name in clients}
    for _ in range(rounds):
        for name, client in clients.items():
            async with client(url) as measures:
                for measure, (units, run) in measures.items():
                    await run()  # to warm up
                    before = time.process_time()
                    await run()
                    spent = (time.process_time() - before) * 1e6 / units
                    found[name][measure] = min(spent, found[name].get(measure, spent))
    return found


def compare(runner: asyncio.Runner, url: str, known: dict[str, tuple[str, Client]], rounds: int) -> None:
    clients = {name: client for name, (module, client) in known.items() if find_spec(module)}
    figures = runner.run(least(url, clients, rounds))
    print("| µs of CPU | " + " | ".join(next(iter(figures.values()))) + " |")
    for name, row in figures.items():
        print(f"| {name} | " + " | ".join(f"{spent:.1f}" for spent in row.values()) + " |")
    print("not installed:", ", ".join(known.keys() - clients.keys()) or "none")


def main() -> None:
    parser = argparse.ArgumentParser(description="Clients for Redis and NATS: CPU time for one unit.")
    parser.add_argument("--store", choices=["redis", "nats", "all"], default="all")
    parser.add_argument("--rounds", type=int, default=8)
    options = parser.parse_args()
    loop = import_module("uvloop").new_event_loop if find_spec("uvloop") else None
    with asyncio.Runner(loop_factory=loop) as runner:
        if options.store != "nats":
            with Redis(appendfsync="no") as redis:
                runner.run(fill_redis(redis.url))
                compare(runner, redis.url, REDIS, options.rounds)
        if options.store != "redis":
            with Nats(sync_interval="2m") as nats:
                runner.run(fill_nats(nats.url))
                compare(runner, nats.url, NATS, options.rounds)


if __name__ == "__main__":
    main()
