"""What must hold after two verbs ran at once: the rig's checks, and what holds only where nothing fails."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, pairwise

from round_state import CONSUMER, READER, World
from verbs import PATCH

from holdfast.contracts import Backend
from holdfast.model.states import State
from holdfast_chaos.checks import Violation, jobs, log
from holdfast_chaos.final_state import FinalState, Key
from holdfast_chaos.history import Call, accepted, of

_ENDED = ("complete", "purge")


@dataclass(frozen=True)
class Case:
    """A round that is over and drained: what was asked, what was answered, and what is there."""

    world: World
    verbs: frozenset[str]
    calls: list[Call]
    store: FinalState

    @property
    def is_removed(self) -> bool:
        """Whether the consumer was removed and made anew: what was said of the old one means nothing now."""
        return "remove_consumer" in self.verbs


def of_channel(store: FinalState, channel: str) -> FinalState:
    """What a store says of one channel; of its stream consumers only the one that notes what it saw."""
    return replace(
        store,
        log=[each for each in store.log if each.channel == channel],
        rows=[each for each in store.rows if each.channel == channel],
        terms={owner: terms for owner, terms in store.terms.items() if owner[0] == channel},
        cursors={owner: at for owner, at in store.cursors.items() if owner == (channel, READER)},
        moves=None if store.moves is None else [each for each in store.moves if each.channel == channel],
    )


def check_case(case: Case) -> list[Violation]:
    """Every violation in the histories and in the store."""
    calls, store = case.calls, case.store
    if "forget" in case.verbs:  # a job that is forgotten was created, and is nowhere
        store = replace(store, moves=None)
    found = [
        _named("I1", _lost(case), _invented(calls, store)),
        _named("I2", log.doubled(calls, store)),
        _named("I3", jobs.miscounted(store), jobs.misplaced(store)),
        _named("I4", jobs.over_budget(store)),
        _named("I7", log.trimmed_unarchived(calls, store), log.trimmed_unfinished(calls, store)),
        _named("I14", log.passed(calls, store)),
        _named("I15", jobs.left(store)),
    ]
    if not case.is_removed:
        rest, untouched = _without_requeued(calls), replace(store, moves=None)
        found += [
            _named("I4", () if "forget" in case.verbs else jobs.completed_twice(calls, store)),
            _named("I5", jobs.stale(calls), jobs.outdated(calls, store)),
            _named("I5", jobs.unmoved(calls, store), jobs.fallen(store)),
            _named("I6", jobs.overlapping(store), jobs.leased_twice(calls)),
            _named("I6", jobs.overlapping_claims(rest, untouched)),
            _named("I13", log.overtaken(calls, store)),
            _named("I18", _redelivered(case), _abandoned(case)),
        ]
    return list(chain.from_iterable(found))


def _named(invariant: str, *messages: Iterable[str]) -> Iterator[Violation]:
    return (Violation(invariant, message) for message in chain(*messages))


def _lost(case: Case) -> Iterator[str]:
    """Acknowledged, and nowhere: not in the log, or without a job for a consumer that must have one."""
    calls, store = case.calls, case.store
    known, logged = {row.key for row in store.rows}, {event.id for event in store.log}
    ended = {_key(item) for item in accepted(calls, *_ENDED)}
    began = _began(calls)
    trimmed = store.trimmed.get(case.world.channel, "")
    for call in of(calls, "publish"):
        for item, receipt in call.told():
            position = receipt["position"]
            if item["id"] not in logged:
                if position > trimmed:
                    yield f"event {item['id']} was acknowledged and is not in the log"
                continue
            for channel, consumer in store.terms:
                job = channel, consumer, store.job_at(position)
                is_gone = "forget" in case.verbs and (
                    job in ended or case.verbs & {"cancel", "cancel_running"} or consumer == CONSUMER
                )
                must = call.at > began[consumer] and not receipt["duplicate"]
                if job not in known and must and not is_gone:
                    yield f"event {item['id']} was acknowledged and {consumer} has no job for it"


def _began(calls: list[Call]) -> dict[str, int]:
    """By consumer: from when on every event must have a job, whatever else happens. 0: from the beginning."""
    found: dict[str, int] = {}
    for call in of(calls, "subscribe"):
        [item] = call.items
        if call.outcome == "ok":
            moment = 0 if item["start"] == "earliest" or item["consumer"] == CONSUMER else call.ended
            found[item["consumer"]] = min(found.get(item["consumer"], moment), moment)
    return found


def _invented(calls: list[Call], store: FinalState) -> Iterator[str]:
    """A patch is what somebody wrote as well."""
    return (each for each in log.invented(calls, store) if PATCH.decode() not in each)


def _without_requeued(calls: list[Call]) -> list[Call]:
    """Without leases that somebody took away on purpose."""
    taken = {_key(item) for item in accepted(calls, "requeue")}
    return [
        replace(call, answers=[item for item in call.answers if _key(item) not in taken])
        if call.verb == "claim"
        else call
        for call in calls
    ]


def _redelivered(case: Case) -> Iterator[str]:
    """Handed out again, although nobody gave it back, took it back or brought it back."""
    again = {(_key(item), item["token"]) for item in accepted(case.calls, "retry")}
    brought = {_key(item) for item in accepted(case.calls, "requeue", "revive")}
    brought |= {(case.world.channel, CONSUMER, job.id) for job in case.world.overdue}
    leases: dict[Key, list[int]] = defaultdict(list)
    for item in chain.from_iterable(call.answers for call in of(case.calls, "claim")):
        leases[_key(item)].append(item["token"])
    for key, tokens in leases.items():
        for token, later in pairwise(sorted(tokens)):
            if (key, token) not in again and key not in brought:
                yield f"job {key} was handed out under the token {token}, and again under {later}"


def _abandoned(case: Case) -> Iterator[str]:
    """Taken from a worker whose lease had not run out."""
    overdue = {job.id for job in case.world.overdue}
    for row in case.store.rows:
        if row.abandonments and row.job not in overdue:
            yield f"job {row.key} was abandoned {row.abandonments} times within its lease"


async def counted(backend: Backend, case: Case) -> list[Violation]:
    """Where the store's own counts differ from what is there (I3)."""
    return [Violation("I3", message) for message in [each async for each in _miscounted(backend, case)]]


async def _miscounted(backend: Backend, case: Case) -> AsyncIterator[str]:
    channel, rows = case.world.channel, case.store.rows
    dead = Counter((row.consumer, str(row.reason)) for row in rows if row.state == State.DEAD)
    said = {
        (each.consumer, each.reason): each.count
        for each in await backend.deadletters.counts()
        if each.channel == channel
    }
    if said != dict(dead):
        yield f"the dead are {dict(dead)}, and are counted as {said}"
    for _, consumer in case.store.terms:
        found = Counter(State(row.state) for row in rows if row.consumer == consumer)
        told = {
            state: count
            for state, count in (await backend.channels.consumer_stats(channel, consumer)).states.items()
            if count
        }
        if told != dict(found):
            yield f"{consumer} has {dict(found)}, and its counts say {told}"
    if drifts := await backend.deadletters.recount(False, case.world.lock):
        yield f"counts of dead letters drifted: {drifts}"


def _key(item: dict[str, str]) -> Key:
    return item["channel"], item["consumer"], item["job"]
