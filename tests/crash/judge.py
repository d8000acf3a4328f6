"""The judge: reads the histories and the final state of the store, and names every broken invariant.

It trusts neither alone. The histories say what was asked and what was answered; the store says what there
is; the witness, a trigger of the rig, says what moved when and under which token.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from evidence import Evidence, Move, Row
from history import Call, accepted, of

Key = tuple[str, str, int]
"""A job: its channel, its consumer and its number."""


class Violation(NamedTuple):
    """A broken invariant, by its name in the list, and what broke it."""

    invariant: str
    message: str


def judge(calls: list[Call], store: Evidence, *, drained: bool = True) -> list[Violation]:
    """Every violation. `drained`: faults have healed and workers had their time, so nothing may be left."""
    found = [
        _named("I1", chain(_lost(calls, store), _invented(calls, store))),
        _named("I2", _doubled(calls, store)),
        _named("I3", chain(_miscounted(store), _misplaced(store))),
        _named("I4", chain(_completed_twice(calls, store), _over_budget(store))),
        _named("I5", chain(_stale(calls, store), _fallen(store))),
        _named("I6", chain(_overlapping(store), _leased_twice(calls))),
        _named("I15", _left(store) if drained else iter(())),
    ]
    return list(chain.from_iterable(found))


def _named(invariant: str, messages: Iterator[str]) -> Iterator[Violation]:
    return (Violation(invariant, message) for message in messages)


def _lost(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Acknowledged, and nowhere: not in the log, or without a job for some consumer."""
    jobs = {(row.channel, row.consumer, row.job) for row in store.rows}
    numbers = {(event.channel, event.id): event.job for event in store.log}
    for item, _ in chain.from_iterable(call.told() for call in of(calls, "publish")):
        number = numbers.get((item["channel"], item["id"]))
        if number is None:
            yield f"event {item['id']} was acknowledged and is not in the log"
            continue
        for channel, consumer in store.terms:
            if channel == item["channel"] and (channel, consumer, number) not in jobs:
                yield f"event {item['id']} was acknowledged and {consumer} has no job for it"


def _invented(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Delivered or stored, and never published so."""
    tried = {(item["id"], item["data"]) for call in of(calls, "publish") for item in call.items}
    seen = {(item["id"], item["data"]) for call in of(calls, "claim") for item in call.answers}
    stored = {(event.id, event.data) for event in store.log}
    for name, data in (seen | stored) - tried:
        yield f"event {name} with the data {data} was never published"


def _doubled(calls: list[Call], store: Evidence) -> Iterator[str]:
    """More than one event under one id, or receipts that name different ones."""
    for (channel, name), count in Counter((event.channel, event.id) for event in store.log).items():
        if count > 1:
            yield f"event {name} stands {count} times in {channel}"
    positions: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in store.log:
        positions[event.channel, event.id].add(event.position)
    for item, receipt in chain.from_iterable(call.told() for call in of(calls, "publish")):
        if (known := positions.get((item["channel"], item["id"]))) and receipt["position"] not in known:
            yield f"a receipt of {item['id']} names {receipt['position']}, the log {known}"
    contents = {(event.channel, event.id): event.data for event in store.log}
    for item, _ in chain.from_iterable(call.told() for call in of(calls, "publish")):
        if contents.get((item["channel"], item["id"]), item["data"]) != item["data"]:
            yield f"event {item['id']} was accepted with other content than it has"


def _miscounted(store: Evidence) -> Iterator[str]:
    """Created jobs that are in no state, or counters that differ from a count."""
    created = {_key(move) for move in store.moves if move.before is None}
    standing = {(row.channel, row.consumer, row.job) for row in store.rows}
    for key in created ^ standing:
        yield f"job {key} was created {key in created}, and has a state {key in standing}"
    dead = Counter((row.channel, row.consumer, row.reason) for row in store.rows if row.state == "dead")
    counted = {
        (*owner, reason): n for owner, terms in store.terms.items() for reason, n in terms.dead.items()
    }
    for group in dead.keys() | counted.keys():
        if dead[group] != counted.get(group, 0):
            yield f"{group}: {dead[group]} dead letters, and the counter says {counted.get(group, 0)}"


def _misplaced(store: Evidence) -> Iterator[str]:
    places = Counter((row.channel, row.consumer, row.job) for row in store.rows)
    for key, count in places.items():
        if count > 1:
            yield f"job {key} is in {count} places at once"


def _completed_twice(calls: list[Call], store: Evidence) -> Iterator[str]:
    """A done job without exactly one accepted completion. One whose answer was lost may have been it."""
    yes = Counter(_item_key(item) for item in accepted(calls, "complete"))
    lost = {_item_key(i) for c in of(calls, "complete") if c.outcome == "unknown" for i in c.items}
    done = {(row.channel, row.consumer, row.job) for row in store.rows if row.state == "done"}
    for key, count in yes.items():
        if count > 1:
            yield f"job {key} was completed {count} times"
        if key not in done:
            yield f"job {key} was told to be done and is not"
    for key in done - yes.keys() - lost:
        yield f"job {key} is done, and nobody completed it"
    left = Counter(_key(move) for move in store.moves if move.after is None)
    entered = Counter(_key(move) for move in store.moves if move.before is None)
    for key in (key for key, count in left.items() if count > entered[key]):
        yield f"job {key} ended {left[key]} times and was created {entered[key]} times"


def _over_budget(store: Evidence) -> Iterator[str]:
    for row in store.rows:
        terms = store.terms[row.channel, row.consumer]
        if row.attempts > terms.max_attempts or row.abandonments > terms.max_abandonments:
            yield f"job {row.job} has {row.attempts} attempts and {row.abandonments} abandonments: {terms}"


def _stale(calls: list[Call], store: Evidence) -> Iterator[str]:
    """Accepted for a token under which the store moved nothing, or which was not the newest."""
    moved = {(_kind(move), _key(move), move.old_token) for move in store.moves if move.before == "leased"}
    issued: dict[Key, int] = defaultdict(int)
    for item in chain.from_iterable(call.answers for call in of(calls, "claim")):
        issued[_item_key(item)] = max(issued[_item_key(item)], item["token"])
    for verb, kind in (("complete", "end"), ("bury", "end"), ("retry", "back"), ("extend", "stay")):
        for item in accepted(calls, verb):
            key, token = _item_key(item), item["token"]
            if (kind, key, token) not in moved:
                yield f"{verb} of job {key} was accepted with token {token}, and nothing moved under it"
            if kind == "end" and issued[key] > token:
                yield f"{verb} of job {key} was accepted with token {token} after {issued[key]} was issued"


def _fallen(store: Evidence) -> Iterator[str]:
    for move in store.moves:
        if move.token is not None and move.old_token is not None and move.token < move.old_token:
            yield f"the token of job {_key(move)} fell from {move.old_token} to {move.token}"


def _overlapping(store: Evidence) -> Iterator[str]:
    """A lease that began, or was taken back, before the deadline of the one before it."""
    reasons = {(row.channel, row.consumer, row.job): row.reason for row in store.rows}
    abandonments: dict[Key, int] = defaultdict(int)
    for move in store.moves:
        key, early = _key(move), move.old_lease is not None and move.at < move.old_lease
        if early and move.after == "leased" and move.token != move.old_token:
            yield f"job {key} was leased at {move.at} while its lease ran until {move.old_lease}"
        crashed = move.after is None and reasons.get(key) == "crash_loop"
        if early and (crashed or move.abandonments > abandonments[key]):
            yield f"job {key} was taken back at {move.at}, before its deadline at {move.old_lease}"
        abandonments[key] = move.abandonments


def _leased_twice(calls: list[Call]) -> Iterator[str]:
    leases = Counter((_item_key(item), item["token"]) for call in of(calls, "claim") for item in call.answers)
    for (key, token), count in leases.items():
        if count > 1:
            yield f"job {key} was leased {count} times under the token {token}"


def _left(store: Evidence) -> Iterator[str]:
    for row in store.rows:
        if row.place == "jobs":
            yield f"job {row.job} of {row.consumer} is still {row.state}"


def _kind(move: Move) -> str:
    if move.after is None:
        return "end"
    return "stay" if move.after == "leased" and move.token == move.old_token else "back"


def _key(move: Move | Row) -> Key:
    return move.channel, move.consumer, move.job


def _item_key(item: dict[str, object]) -> Key:
    return str(item["channel"]), str(item["consumer"]), int(str(item["job"]))
