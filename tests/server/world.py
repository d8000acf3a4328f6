"""A world with a tenant in it, and how to ask every route about that tenant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from application import Application

from holdfast.bus.client import Bus
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.deadletters.operations import Operations
from holdfast.deadletters.service import DeadLetters
from holdfast.server.auth.guard import Need, demands
from holdfast.server.routes import routes_of
from kit import bury, claim, publish, subscribe

CHANNEL, CONSUMER, NEIGHBOUR = "alpha-orders", "alpha-worker", "alpha-other"
EVENT = "alpha-event"
QUERY = {"channel": CHANNEL, "consumer": CONSUMER, "id": EVENT}
"""What queries that are about the tenant say."""


@dataclass
class World:
    """The tenant's things, and how to be about them."""

    names: dict[str, str] = field(default_factory=dict)
    """What stands for each placeholder of a path."""
    bodies: dict[str, list[Any]] = field(default_factory=dict)
    """By operation id: bodies that are about the tenant. A route that takes one and has none here must be
    refused by the guard, before anybody misses it."""

    def path(self, template: str, **other: str) -> str:
        """A path about the tenant. A new placeholder needs a value in `settle`."""
        return template.format(**{**self.names, **other})

    def body(self, operation: str) -> Any:
        """One that fits, if the route takes any."""
        return self.bodies.get(operation, [None])[0]


@dataclass(frozen=True)
class Asked:
    """One way to ask a route."""

    operation: str
    method: str
    template: str
    need: Need


def asked(found: Application) -> Iterator[Asked]:
    """Every route that is no page and not open to all."""
    for route in routes_of(found.app):
        [need] = demands(route.dependant)
        if route.include_in_schema and isinstance(need, Need):
            for method in sorted(route.methods or ()):
                yield Asked(str(route.name), method, str(route.path_format), need)


async def ask(found: Application, world: World, each: Asked, headers: dict[str, str]) -> list[httpx.Response]:
    """Ask a route about the tenant, in all ways: with each body, with and without a query."""
    parameters = found.app.openapi()["paths"][each.template][each.method.lower()].get("parameters", [])
    named = {one["name"]: one.get("required", False) for one in parameters if one["in"] == "query"}
    needed = {name: QUERY[name] for name, required in named.items() if required}
    queries = [needed]
    if each.need.filtered and "channel" in named:
        queries.append(needed | {name: QUERY[name] for name in named if name in QUERY})
    return [
        await found.client.request(
            each.method, world.path(each.template), params=query, **content(body, headers)
        )
        for query in queries
        for body in world.bodies.get(each.operation, [None])
    ]


def content(body: Any, headers: dict[str, str] | None = None) -> dict[str, Any]:
    """How a client is told to send a body; bytes are a stream of lines."""
    if body is None:
        return {"headers": headers}
    if isinstance(body, bytes):
        return {"content": body, "headers": {"Content-Type": "application/x-ndjson", **(headers or {})}}
    return {"json": body, "headers": headers}


async def settle(bus: Bus) -> World:
    """A channel with two consumers; one of them has a dead, a leased and a ready job, and an operation."""
    store = bus.partitions.all[0].backend
    for consumer in (CONSUMER, NEIGHBOUR):
        await subscribe(store, consumer, channel=CHANNEL)
    await publish(store, EVENT, "alpha-leased", "alpha-ready", channel=CHANNEL)
    dead, leased = await claim(store, 2, channel=CHANNEL, consumer=CONSUMER)
    assert await bury(store, dead)
    wanted = Filter.of(channel=CHANNEL, consumer=CONSUMER, reason="nothing")
    operation = await Operations(DeadLetters(bus)).ask(Request("purge", wanted), "alpha-operator")
    await bus.schedule("alpha-nightly", CHANNEL, every="1h", data={"of": "alpha"})
    item = f"job:{CHANNEL}:{CONSUMER}:{dead.id}"
    lease = {"token": leased.token}
    return World(
        {
            "channel": CHANNEL,
            "channelId": CHANNEL,
            "consumer": CONSUMER,
            "consumerId": CONSUMER,
            "jobId": dead.id,
            "schedule": "alpha-nightly",
            "item": item,
            "operation": operation.id,
            "failed": "alpha-failed",
        },
        {
            "put_channel": [{"display_name": "taken"}],
            "put_schema": [{"schema": {"type": "integer"}}],
            "put_consumer": [{"max_attempts": 1, "paused": True}],
            "put_schedule": [{"every": "2h"}],
            "run_schedule": [{}],
            "publish_event": [{"data": 1, "id": "alpha-new"}],
            "publish_batch": [{"events": [{"data": 1}, {"data": 2}]}],
            "publish_stream": [b'{"data": 1}\n{"data": 2}\n'],
            "query_warehouse": [{"sql": "SELECT * FROM all_events"}],
            "poll": [{"limit": 1}],
            "finalize_jobs": [{"jobs": [{"id": leased.id, **lease, "success": True}]}],
            "finalize_job": [{**lease, "success": True}],
            "extend_lease": [{**lease, "by": "1h"}],
            "release_job": [lease],
            "cancel_job": [{"id": "alpha-leased", "running": True, "reason": "taken"}, {"id": "alpha-ready"}],
            "start_operation": [
                {"kind": kind, **which}
                for kind in ("purge", "requeue")
                for which in (
                    {"filter": {"channel": CHANNEL, "consumer": CONSUMER, "kinds": ["job"]}},
                    {"filter": {"channel": CHANNEL, "kinds": ["job"]}},
                    {"filter": {"kinds": ["job"]}, "all": True},
                    {"filter": {"reason": "terminal", "kinds": ["job"]}, "dry_run": True},
                    {"items": [item]},
                )
            ],
            "cancel_operation": [None],
            "resume_operation": [None],
            "retry_failed_event": [None],
            "resolve_failed_event": [{"notes": "taken"}],
            "abandon_failed_event": [{"notes": "taken"}],
        },
    )


async def picture(bus: Bus) -> dict[str, Any]:
    """Everything that a call could have changed."""
    store = bus.partitions.all[0].backend
    consumers = await store.channels.consumers()
    jobs = [
        await store.leases.find_jobs(CHANNEL, "default", name)
        for name in (EVENT, "alpha-leased", "alpha-ready")
    ]
    return {
        "channels": [name for name in await store.channels.names() if not name.startswith("gbe.")],
        "consumers": consumers,
        "stats": [await store.channels.consumer_stats(each.channel, each.name) for each in consumers],
        "jobs": jobs,
        "log": await store.log.read(CHANNEL, None, 1000),
        "dead": await store.deadletters.counts(),
        "cursors": await store.cursors.all(),
        "schedules": await bus.schedules(),
        "schema": await store.records.get(f"gbe.state.schemas.{CHANNEL}"),
        "operations": await store.records.due("gbe.state.operations.", 1000),
        "tokens": await store.records.due("gbe.state.tokens.", 1000),
    }


def shown(answer: httpx.Response) -> str:
    """What an answer that was given tells; a refusal may repeat what the caller said."""
    return json.dumps(answer.json(), ensure_ascii=False) if answer.status_code < 300 else ""
