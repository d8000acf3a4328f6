"""The table of states, cell by cell: from every state every verb is played, and does what the table says.

A refused verb changes nothing. A verb that carries a token is played with the newest one: only the state can
refuse it. What time does is played as phase two of the lifecycle, by an action that phase one had read while
it still held, as if the job had moved on in between.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

import pytest

from holdfast.contracts import Backend
from holdfast.model.decide import Action, DueKind, Move, when_due
from holdfast.model.event import DEFAULT_SOURCE, Event
from holdfast.model.job import Burial, Cancellation, Job, JobRecord, Reason, Retry
from holdfast.model.policy import Policy
from holdfast.model.states import NEXT, State, Verb, follows
from kit import BOOM, CHANNEL, CONSUMER, MINUTE, claim, record

LEASE, EXPIRES, LATER = timedelta(minutes=5), timedelta(minutes=30), timedelta(minutes=10)
KINDS = {
    Verb.PROMOTE: DueKind.SCHEDULE,
    Verb.ABANDON: DueKind.LEASE,
    Verb.CRASH_LOOP: DueKind.LEASE,
    Verb.EXPIRE: DueKind.EXPIRY,
}
"""What time does, and as what phase one finds it."""


@dataclass
class Played:
    """One job, and what is done to it."""

    backend: Backend
    name: str
    discards: bool
    action: Action | None = None

    async def job(self) -> JobRecord:
        return await record(self.backend, self.name)

    async def lease(self) -> Job:
        """As its holder has it, under the newest token, whether or not anybody holds it."""
        kept = await self.job()
        spent = (kept.attempts, kept.abandonments, kept.token)
        return Job(kept.id, CHANNEL, CONSUMER, Event({}, self.name), kept.position, *spent, kept.created_at)

    async def play(self, verb: Verb) -> bool:
        """Whether the store says that it was accepted."""
        if verb in KINDS:
            assert self.action is not None
            return (await self.backend.lifecycle.apply([self.action])).total == 1
        return await VERBS[verb](self)

    async def reach(self, target: State) -> None:
        """By the shortest way that the table knows."""
        for verb in way((await self.job()).state, target, self.discards):
            assert await self.play(verb), (verb, target)
        assert (await self.job()).state is target

    async def read_due(self, verb: Verb) -> None:
        """Let the time come at which phase one finds the job, and keep what it decides."""
        if verb in (Verb.ABANDON, Verb.CRASH_LOOP):
            await self.reach(State.LEASED)
        await self.backend.advance(2 * (EXPIRES if verb is Verb.EXPIRE else LATER))
        [due] = [each for each in (await self.backend.lifecycle.due(100)).due if each.kind is KINDS[verb]]
        self.action = when_due(due)
        assert self.action.move is {Verb.PROMOTE: Move.PROMOTE, Verb.ABANDON: Move.ABANDON}.get(
            verb, Move.BURY
        )


async def _claim(played: Played) -> bool:
    return len(await claim(played.backend)) == 1


async def _cancel(played: Played) -> bool:
    return await played.backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, played.name, CONSUMER) == 1


async def _cancel_running(played: Played) -> bool:
    how = Cancellation(running=True)
    return await played.backend.leases.cancel(CHANNEL, DEFAULT_SOURCE, played.name, CONSUMER, how) == 1


async def _requeue(played: Played) -> bool:
    return await played.backend.leases.requeue(CHANNEL, CONSUMER, (await played.job()).id)


async def _retry(played: Played, delay: timedelta | None) -> bool:
    return (await played.backend.leases.retry([Retry(await played.lease(), delay, BOOM)]))[0]


async def _bury(played: Played) -> bool:
    return (await played.backend.leases.bury([Burial(await played.lease(), Reason.TERMINAL, BOOM)]))[0]


async def _complete(played: Played) -> bool:
    return (await played.backend.leases.complete([await played.lease()]))[0]


async def _extend(played: Played) -> bool:
    return (await played.backend.leases.extend([await played.lease()], LEASE))[0]


async def _revive(played: Played) -> bool:
    return (await played.backend.deadletters.revive(CHANNEL, CONSUMER, [(await played.job()).id]))[0]


async def _purge(played: Played) -> bool:
    return (await played.backend.deadletters.purge(CHANNEL, CONSUMER, [(await played.job()).id]))[0]


VERBS: dict[Verb, Callable[[Played], Awaitable[bool]]] = {
    Verb.CLAIM: _claim,
    Verb.COMPLETE: _complete,
    Verb.RETRY: lambda played: _retry(played, LATER),
    Verb.RELEASE: lambda played: _retry(played, None),
    Verb.BURY: _bury,
    Verb.EXTEND: _extend,
    Verb.CANCEL: _cancel,
    Verb.CANCEL_RUNNING: _cancel_running,
    Verb.REQUEUE: _requeue,
    Verb.REVIVE: _revive,
    Verb.PURGE: _purge,
}


def way(start: State, target: State, discards: bool) -> list[Verb]:
    """The fewest verbs from one state to another, without waiting."""
    ways: dict[State, list[Verb]] = {start: []}
    open_ends = deque([start])
    while open_ends:
        state = open_ends.popleft()
        for verb in (verb for verb in NEXT[state] if verb in VERBS):
            after = follows(state, verb, discards=discards)
            if after is not None and after not in ways:
                ways[after] = [*ways[state], verb]
                open_ends.append(after)
    return ways[target]


async def played_to(backend: Backend, state: State, verb: Verb) -> Played:
    """A job in that state; for a verb of time, one that phase one had found before."""
    played = Played(backend, f"{state}-{verb}", discards=state is State.DISCARDED)
    policy = Policy.of(
        lease=LEASE,
        max_attempts=9,
        max_abandonments=1 if verb is Verb.CRASH_LOOP else 9,
        expires_after=EXPIRES,
        on_dead="discard" if played.discards else "keep",
    )
    await backend.channels.subscribe(CHANNEL, CONSUMER, policy)
    at = await backend.now() + MINUTE if state is State.SCHEDULED or verb is Verb.PROMOTE else None
    await backend.log.publish(CHANNEL, [Event({}, played.name)], at=at)
    if verb in KINDS:
        await played.read_due(verb)
        if verb is Verb.EXPIRE and state not in (State.SCHEDULED, State.READY):
            assert await played.play(Verb.REQUEUE), "what expired is handed out no more"
    await played.reach(state)
    return played


@pytest.mark.parametrize("state", list(State))
async def test_every_verb_does_what_the_table_says(backend: Backend, state: State) -> None:
    found, expected = {}, {}
    for verb in Verb:
        played = await played_to(backend, state, verb)
        before = await played.job()
        accepted = await played.play(verb)
        after = await played.job()
        found[verb] = after.state if accepted else None
        expected[verb] = follows(state, verb, discards=played.discards)
        if not accepted:
            assert after == before, f"{verb} was refused, and changed something"
        await finish(played)
    assert found == expected


async def finish(played: Played) -> None:
    """Out of the way of the next one."""
    if (await played.job()).state is State.LEASED:
        await played.play(Verb.COMPLETE)
    await played.play(Verb.CANCEL)
