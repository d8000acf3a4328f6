"""Checks of the log: events are kept, once and in order, until nobody needs them (I1, I2, I7, I13, I14)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from holdfast_chaos.final_state import FinalState, Key, Owner
from holdfast_chaos.history import Call, Item, acknowledged, job_key, of


def lost(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Acknowledged, and nowhere: not in the log, or without a job for some consumer."""
    jobs, consumers = {row.key for row in store.rows}, _consumers(store)
    logged = {(event.channel, event.id) for event in store.log}
    for item, receipt in acknowledged(calls):
        channel, name, position = item["channel"], item["id"], receipt["position"]
        if (channel, name) not in logged and not _is_trimmed(store, channel, position):
            yield f"event {name} was acknowledged and is not in the log"
            continue
        for consumer in consumers[channel]:
            if (channel, consumer, store.job_at(position)) not in jobs:
                yield f"event {name} was acknowledged and {consumer} has no job for it"


def _consumers(store: FinalState) -> dict[str, list[str]]:
    """The worker consumers of each channel."""
    found: dict[str, list[str]] = defaultdict(list)
    for channel, consumer in store.terms:
        found[channel].append(consumer)
    return found


def _trimmed(calls: list[Call], store: FinalState) -> Iterator[tuple[Item, str]]:
    """What was acknowledged and then removed from the log by a trim, with its position."""
    logged = {(event.channel, event.id) for event in store.log}
    for item, receipt in acknowledged(calls):
        gone = (item["channel"], item["id"]) not in logged
        if gone and _is_trimmed(store, item["channel"], receipt["position"]):
            yield item, receipt["position"]


def trimmed_unarchived(calls: list[Call], store: FinalState) -> Iterator[str]:
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


def trimmed_unfinished(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Removed from the log while a job still needed it."""
    live, consumers = {row.key for row in store.rows if row.live}, _consumers(store)
    for item, position in _trimmed(calls, store):
        for consumer in consumers[item["channel"]]:
            if (item["channel"], consumer, store.job_at(position)) in live:
                yield f"event {item['id']} was trimmed, and {consumer} has not finished it"


def invented(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Delivered or stored, and never published so."""
    tried = {(item["id"], item["data"]) for call in of(calls, "publish") for item in call.items}
    seen = {(item["id"], item["data"]) for call in of(calls, "claim") for item in call.answers}
    channels = {item["channel"] for call in of(calls, "publish") for item in call.items}
    stored = {(event.id, event.data) for event in store.log if event.channel in channels}
    for name, data in (seen | stored) - tried:
        yield f"event {name} with the data {data} was never published"


def doubled(calls: list[Call], store: FinalState) -> Iterator[str]:
    """More than one event under one id, or receipts that name different ones."""
    for (channel, name), count in Counter((event.channel, event.id) for event in store.log).items():
        if count > 1:
            yield f"event {name} stands {count} times in {channel}"
    positions: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in store.log:
        positions[event.channel, event.id].add(event.position)
    for item, receipt in acknowledged(calls):
        if (known := positions.get((item["channel"], item["id"]))) and receipt["position"] not in known:
            yield f"a receipt of {item['id']} names {receipt['position']}, the log {known}"
    contents = {(event.channel, event.id): event.data for event in store.log}
    for item, _ in acknowledged(calls):
        if contents.get((item["channel"], item["id"]), item["data"]) != item["data"]:
            yield f"event {item['id']} was accepted with other content than it has"


def _is_trimmed(store: FinalState, channel: str, position: str) -> bool:
    return position <= store.trimmed.get(channel, "")


class _Claims(NamedTuple):
    """How often a job was leased, as far as anybody was told, and when first: asked and answered."""

    position: str
    tokens: tuple[int, ...]
    asked: int
    answered: int


class _Turn(NamedTuple):
    """A job in the order of its key, with moments of its life."""

    position: str
    job: Key
    committed: int
    """Its publisher knew of it by then."""
    asked: int
    answered: int
    """Of the first lease."""
    live: int
    """It was certainly live until then; 0 where that is not known."""


def overtaken(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Handed out while an earlier event of its key, committed before it was asked for, was certainly live."""
    ordered = {owner for owner, terms in store.terms.items() if terms.ordered}
    for (_, key), turns in _by_key(calls, ordered).items() if ordered else ():
        for earlier, later in _overtaking(sorted(turns)):
            yield f"job {later.job} of the key {key!r} was handed out before {earlier.job} had ended"


def _overtaking(turns: Iterable[_Turn]) -> Iterator[tuple[_Turn, _Turn]]:
    """Each one is held against that one before it which was live for the longest."""
    longest: _Turn | None = None
    for turn in turns:
        if longest and longest.committed < turn.asked and turn.answered < longest.live:
            yield longest, turn
        if turn.live > (longest.live if longest else 0):
            longest = turn


def _by_key(calls: list[Call], ordered: set[Owner]) -> dict[tuple[Owner, str], list[_Turn]]:
    committed, ends = _committed(calls), _ends(calls)
    by_key: dict[tuple[Owner, str], list[_Turn]] = defaultdict(list)
    for job, (position, tokens, asked, answered) in _claims(calls, ordered).items():
        if event := committed.get((job[0], position)):
            key, moment = event
            token, ending = ends.get(job, (0, 0))
            # A token that rose without a lease: the job may have ended and been revived unseen.
            live = ending if sum(each <= token for each in tokens) == token else 0
            by_key[job[:2], key].append(_Turn(position, job, moment, asked, answered, live))
    return by_key


def _committed(calls: list[Call]) -> dict[tuple[str, str], tuple[str, int]]:
    """By channel and position: the key, and when its publisher was told."""
    found: dict[tuple[str, str], tuple[str, int]] = {}
    for call in of(calls, "publish"):
        for item, receipt in call.told():
            if item["key"] is not None:
                found.setdefault((item["channel"], receipt["position"]), (item["key"], call.ended))
    return found


def _claims(calls: list[Call], owners: set[Owner]) -> dict[Key, _Claims]:
    found: dict[Key, _Claims] = {}
    for call in of(calls, "claim"):
        for item in call.answers:
            if (item["channel"], item["consumer"]) in owners:
                job = job_key(item)
                before = found.get(job, _Claims(item["position"], (), call.at, call.ended))
                first = min(before[2:], (call.at, call.ended))
                found[job] = _Claims(before.position, (*before.tokens, item["token"]), *first)
    return found


def _ends(calls: list[Call]) -> dict[Key, tuple[int, int]]:
    """The first end that was accepted: under which token, and when it was asked for."""
    found: dict[Key, tuple[int, int]] = {}
    for call in of(calls, "complete", "bury"):
        for item in (item for item, yes in call.told() if yes is True):
            job, end = job_key(item), (item["token"], call.at)
            found[job] = min(found.get(job, end), end)
    return found


def passed(calls: list[Call], store: FinalState) -> Iterator[str]:
    """Still in the log, at or below the cursor of a consumer that notes what it saw, and not among that.

    Such a consumer starts at the beginning of the log. What was trimmed is I7's.
    """
    seen: dict[Owner, set[str]] = defaultdict(set)
    for call in of(calls, "archived"):
        for item in call.items:
            seen[item["channel"], item["consumer"]].add(item["id"])
    for event in store.log if seen else ():
        for (channel, consumer), ids in seen.items():
            at = store.cursors.get((channel, consumer)) or ""
            if channel == event.channel and event.position <= at and event.id not in ids:
                yield f"the cursor of {consumer} at {at} passed event {event.id} at {event.position}"
