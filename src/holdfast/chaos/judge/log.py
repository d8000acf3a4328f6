"""Judgements on events: acknowledged and kept, once, until nobody needs them any more (I1, I2, I7)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain

from holdfast.chaos.evidence import Evidence
from holdfast.chaos.history import Call, Item, of


def lost(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Acknowledged, and nowhere: not in the log, or without a job for some consumer."""
    jobs, consumers = {row.key for row in store.rows}, _consumers(store)
    logged = {(event.channel, event.id) for event in store.log}
    for item, receipt in _acked(calls):
        channel, name, position = item["channel"], item["id"], receipt["position"]
        if (channel, name) not in logged and not _is_trimmed(store, channel, position):
            yield f"event {name} was acknowledged and is not in the log"
            continue
        for consumer in consumers[channel]:
            if (channel, consumer, store.job_at(position)) not in jobs:
                yield f"event {name} was acknowledged and {consumer} has no job for it"


def _consumers(store: Evidence) -> dict[str, list[str]]:
    """The worker consumers of each channel."""
    found: dict[str, list[str]] = defaultdict(list)
    for channel, consumer in store.terms:
        found[channel].append(consumer)
    return found


def _trimmed(calls: list[Call], store: Evidence) -> Iterator[tuple[Item, str]]:
    """What was acknowledged and then removed from the log by a trim, with its position."""
    logged = {(event.channel, event.id) for event in store.log}
    for item, receipt in _acked(calls):
        gone = (item["channel"], item["id"]) not in logged
        if gone and _is_trimmed(store, item["channel"], receipt["position"]):
            yield item, receipt["position"]


def trimmed_unarchived(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Removed from the log before a stream consumer had noted it."""
    archived = {
        (item["channel"], item["consumer"], item["id"])
        for call in of(calls, "archived")
        for item in call.items
    }
    for item, _ in _trimmed(calls, store):
        for channel, consumer in store.cursors:
            if channel == item["channel"] and (channel, consumer, item["id"]) not in archived:
                yield f"event {item['id']} was trimmed, and {consumer} has not archived it"


def trimmed_unfinished(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Removed from the log while a job still needed it."""
    live, consumers = {row.key for row in store.rows if row.live}, _consumers(store)
    for item, position in _trimmed(calls, store):
        for consumer in consumers[item["channel"]]:
            if (item["channel"], consumer, store.job_at(position)) in live:
                yield f"event {item['id']} was trimmed, and {consumer} has not finished it"


def invented(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Delivered or stored, and never published so."""
    tried = {(item["id"], item["data"]) for call in of(calls, "publish") for item in call.items}
    seen = {(item["id"], item["data"]) for call in of(calls, "claim") for item in call.answers}
    channels = {item["channel"] for call in of(calls, "publish") for item in call.items}
    stored = {(event.id, event.data) for event in store.log if event.channel in channels}
    for name, data in (seen | stored) - tried:
        yield f"event {name} with the data {data} was never published"


def doubled(calls: list[Call], store: Evidence) -> Iterator[str]:
    """More than one event under one id, or receipts that name different ones."""
    for (channel, name), count in Counter((event.channel, event.id) for event in store.log).items():
        if count > 1:
            yield f"event {name} stands {count} times in {channel}"
    positions: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in store.log:
        positions[event.channel, event.id].add(event.position)
    for item, receipt in _acked(calls):
        if (known := positions.get((item["channel"], item["id"]))) and receipt["position"] not in known:
            yield f"a receipt of {item['id']} names {receipt['position']}, the log {known}"
    contents = {(event.channel, event.id): event.data for event in store.log}
    for item, _ in _acked(calls):
        if contents.get((item["channel"], item["id"]), item["data"]) != item["data"]:
            yield f"event {item['id']} was accepted with other content than it has"


def _acked(calls: list[Call]) -> Iterator[tuple[Item, Item]]:
    """Every event that was acknowledged, with its receipt."""
    return chain.from_iterable(call.told() for call in of(calls, "publish"))


def _is_trimmed(store: Evidence, channel: str, position: str) -> bool:
    return position <= store.trimmed.get(channel, "")
