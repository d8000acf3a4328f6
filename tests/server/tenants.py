"""Two tenants with the same things, and one that nobody knows: what each route can be asked about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import httpx
from application import Application

from holdfast.bus.client import Bus
from holdfast.deadletters.items import Filter
from holdfast.deadletters.operation import Request
from holdfast.model.event import new_id
from kit import bury, claim, publish, subscribe


@dataclass(frozen=True)
class Target:
    """What a call is about."""

    names: dict[str, str]
    """What stands for each placeholder of a path; a new one needs a value here."""
    message: str
    """The item of a message in its dead-letter channel."""
    cursor: str
    """Where a list goes on, for somebody."""
    lease: dict[str, Any]

    def queries(self, known: set[str]) -> list[dict[str, str]]:
        """Ways to be about it in a query that knows these words."""
        names = self.names
        said = {"channel": names["channel"], "consumer": names["consumer"], "id": names["event"]}
        said |= {"q": names["channel"], "item": names["item"], "act": "purge"}
        asked = [{}, {name: text for name, text in said.items() if name in known}]
        if "after" in known:
            asked.append({**asked[1], "after": self.cursor})
        if "item" in known:
            asked += [{"act": "requeue", "item": self.message}, {"act": "purge", "channel": names["channel"]}]
        return [each for place, each in enumerate(asked) if each not in asked[:place]]

    def bodies(self, route: str) -> list[Any]:
        """By a route's function: bodies that are about it. Other routes get none."""
        names = self.names
        where = {"channel": names["channel"], "consumer": names["consumer"]}
        which: list[dict[str, Any]] = [
            {"filter": {**where, "kinds": ["job"]}},
            {"filter": {"channel": names["channel"], "kinds": ["stream"]}},
            {"filter": {"kinds": ["job"]}, "all": True},
            {"items": [names["item"]]},
            {"items": [self.message]},
            {"items": [f"ingest:{names['failed']}"]},
        ]
        known: dict[str, list[Any]] = {
            "put_channel": [{"display_name": "taken"}],
            "put_schedule": [{"every": "1h"}, {"cron": "0 3 * * *", "data_base64": "AA=="}],
            "run_schedule": [{}],
            "put_schema": [{"schema": {"type": "integer"}}],
            "put_consumer": [{"max_attempts": 1}, {"dead_letter": names["channel"]}],
            "publish_event": [{"data": 1, "headers": {"holdfast-channel": names["channel"]}}, {"data": 1}],
            "publish_batch": [{"events": [{"data": 1}]}],
            "publish_stream": [b'{"data": 1}\n'],
            "poll": [{"limit": 1}],
            "finalize_jobs": [{"jobs": [{"id": names["jobId"], **self.lease, "success": True}]}],
            "finalize_job": [{**self.lease, "success": True}],
            "extend_lease": [{**self.lease, "by": "1h"}],
            "release_job": [self.lease],
            "cancel_job": [{"id": names["event"], "running": True}],
            "start_operation": [
                *({"kind": "requeue", "dry_run": True, **each} for each in which),
                *({"kind": "purge", **each} for each in (which[0], which[3], which[5])),
                {"kind": "requeue", **which[4]},
            ],
            "resolve_failed_event": [{"notes": "taken"}],
            "abandon_failed_event": [{"notes": "taken"}],
        }
        return known.get(route, [None])

    def forms(self) -> list[dict[str, str]]:
        """What a page's form says about it."""
        common = {"paused": "true", "notes": "taken", "token": "nonsense", "id": self.names["event"]}
        common |= {"name": self.names["schedule"], "every": "2h", "go": "save"}
        where = {"channel": self.names["channel"], "consumer": self.names["consumer"]}
        return [
            {**common, "act": "purge", **where},
            {**common, "act": "requeue", "item": self.names["item"]},
            {**common, "act": "requeue", "item": self.message},
        ]

    def crossed(self, other: Target) -> Target:
        """Its channel and consumer, with somebody else's ids."""
        ids = {name: other.names[name] for name in ("jobId", "operation", "failed", "event")}
        item = f"job:{self.names['channel']}:{self.names['consumer']}:{ids['jobId']}"
        place = other.message.rpartition(":")[2]
        message = f"{self.message.rpartition(':')[0]}:{place}"
        return Target({**self.names, **ids, "item": item}, message, other.cursor, other.lease)


async def settle(found: Application, name: str, failed: str) -> Target:
    """A tenant with a dead, a leased and a ready job, a copy of the dead one, a cursor and an operation."""
    bus = found.system.bus
    store, channel, consumer = bus.partitions.all[0].backend, f"{name}.orders", f"{name}-worker"
    copies = f"gbe._deadletter.{name}"
    await store.channels.create(copies)
    await subscribe(store, consumer, channel=channel, dead_letter=copies)
    await publish(
        store, *(f"{name}-{each}" for each in ("dead", "again", "leased", "ready")), channel=channel
    )
    for job in await claim(store, 2, channel=channel, consumer=consumer):
        assert await bury(store, job)
        dead = job
    [leased] = await claim(store, 1, channel=channel, consumer=consumer)
    await store.cursors.attach(channel, f"{name}-reader")
    wanted = Filter.of(channel=channel, consumer=consumer, reason="nothing")
    operation = await found.system.operations.ask(Request("purge", wanted), f"{name}-operator")
    [*_, copy] = await store.log.read(copies, None, 10)
    page = await found.system.deadletters.find(Filter.of(channel=channel, kinds=["job"]), None, 1)
    await bus.schedule(f"{name}-nightly", channel, every="1h", data={"of": name})
    names = {
        "channel": channel,
        "schedule": f"{name}-nightly",
        "channelId": channel,
        "consumer": consumer,
        "consumerId": consumer,
        "jobId": dead.id,
        "event": f"{name}-dead",
        "item": f"job:{channel}:{consumer}:{dead.id}",
        "operation": operation.id,
        "failed": failed,
        "act": "resolve",
    }
    cursor = f"{'f' * 32}{page.after}"
    return Target(names, f"stream:{copies}:{copy.position}", cursor, {"token": leased.token})


def unknown(like: Target, own: str, name: str) -> Target:
    """What a tenant of this name would have, if there were one."""

    def renamed(text: str) -> str:
        return text.replace(own, name)

    names = {key: renamed(text) for key, text in like.names.items()}
    names |= {"jobId": "987654", "operation": new_id(), "failed": "00000000-0000-5000-8000-000000000000"}
    names["item"] = f"job:{names['channel']}:{names['consumer']}:{names['jobId']}"
    message = renamed(like.message)[:-1] + "e"
    return Target(names, message, f"{'e' * 32}{like.cursor[32:]}", like.lease)


async def picture(found: Application, target: Target) -> dict[str, Any]:
    """Everything of a tenant that a call could have changed."""
    bus: Bus = found.system.bus
    store, channel, consumer = (
        bus.partitions.all[0].backend,
        target.names["channel"],
        target.names["consumer"],
    )
    records = found.system.pipeline.records if found.system.pipeline is not None else None
    return {
        "channels": [each for each in await store.channels.names() if each == channel],
        "consumer": await store.channels.consumer(channel, consumer),
        "stats": await store.channels.consumer_stats(channel, consumer),
        "log": await store.log.read(channel, None, 100),
        "schedules": await bus.schedules(channel),
        "copies": await store.log.read(target.message.split(":")[1], None, 100),
        "cursors": await store.cursors.all(channel),
        "dead": [each for each in await store.deadletters.counts() if each.channel == channel],
        "operation": await found.system.operations.show(target.names["operation"]),
        "failed": records.show(target.names["failed"]) if records is not None else None,
    }


def as_body(body: Any) -> dict[str, Any]:
    """How a client is told to send a body."""
    if body is None:
        return {}
    if isinstance(body, bytes):
        return {"content": body, "headers": {"Content-Type": "application/x-ndjson"}}
    return {"json": body}


def everything_of(answer: httpx.Response) -> str:
    """All that an answer tells."""
    headers = {name: value for name, value in answer.headers.items() if name != "content-length"}
    return f"{answer.status_code} {headers} {answer.text}"
