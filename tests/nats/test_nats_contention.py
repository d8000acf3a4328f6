"""Many at once: whoever loses a race for the same message steps aside, and all of them get on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.state.ingest import JobIngest
from holdfast.backends.nats.state.registry import Member
from holdfast.backends.nats.wire import stream, subjects
from holdfast.backends.nats.wire.batches import Batches, BatchMessage, Stale
from holdfast.backends.nats.wire.connection import NatsConnection
from holdfast.backends.nats.wire.stream import Capacity
from holdfast.embedded import Nats
from holdfast.model.event import Event
from holdfast.model.policy import Policy
from kit import CHANNEL, CONSUMER, MINUTE, bury, claim, claim_one, complete, ids, publish, read_all, subscribe

pytestmark = pytest.mark.concurrency
LONG = 3600.0


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the server has refused since somebody else came first."""
    told: list[str] = []
    commit = Batches.commit

    async def watched(self: Batches, messages: Sequence[BatchMessage]) -> int:
        try:
            return await commit(self, messages)
        except Stale as error:
            told.append(str(error))
            raise

    monkeypatch.setattr(Batches, "commit", watched)
    return told


async def test_channels_that_many_make_at_once_are_captured_once_each(
    backend: NatsBackend, relaxed_nats: Nats, client: Client
) -> None:
    """Of two updates of a stream at once the server may subscribe to a subject twice."""
    connections = [NatsConnection(relaxed_nats.url) for _ in range(8)]
    for connection in connections:
        await connection.open()

    async def add(number: int) -> None:
        for turn in range(8):
            await stream.capture(connections[number], [f"made.by-{number}.{turn}"])

    await asyncio.gather(*map(add, range(len(connections))))
    for connection in connections:
        await connection.close()
    before = (await client.jetstream().stream_info(subjects.STREAM)).state.messages
    for name in (f"made.by-{number}.{turn}" for number in range(8) for turn in range(8)):
        await client.request(name, b"{}")
    stored = (await client.jetstream().stream_info(subjects.STREAM)).state.messages - before
    assert stored == 64


async def test_many_processes_make_channels_at_once(backend: NatsBackend) -> None:
    """Each one changes the stream's subjects, which the server lets everybody overwrite, and the registry."""
    others = [backend.fork() for _ in range(8)]
    for other in others:
        await other.open()

    async def begin(number: int) -> None:
        for turn in range(4):
            await publish(others[number], "a", channel=f"made.by-{number}.{turn}")

    try:
        await asyncio.gather(*map(begin, range(len(others))))
        channels = await backend.channels.names()
        assert len(channels) == 4 * len(others)
        assert [len(await read_all(backend, channel)) for channel in channels] == [1] * len(channels)
    finally:
        for other in others:
            await other.close()


async def test_consumers_that_appear_and_go_disturb_no_trim_and_no_list(backend: NatsBackend) -> None:
    """A reader of cursors learns of a new consumer from the registry before it knows where it begins."""
    await publish(backend, "a")
    other = backend.fork()
    await other.open()
    lock = await backend.locks.acquire("sweeper", "tester", MINUTE)
    assert lock is not None
    before = await backend.now()

    async def come_and_go() -> None:
        for turn in range(12):
            await other.channels.subscribe(CHANNEL, f"consumer{turn}", Policy.of(), "earliest")

    try:
        working = asyncio.create_task(come_and_go())
        while not working.done():
            await asyncio.gather(
                backend.retention.trim(CHANNEL, before, 10, lock),
                backend.cursors.all(),
                backend.channels.consumers(),
            )
        await working
        assert len(await backend.channels.consumers(CHANNEL)) == 12
    finally:
        await other.close()


async def test_a_key_whose_later_jobs_are_cancelled_is_claimed_at_once(
    backend: NatsBackend, refusals: list[str]
) -> None:
    """The end of each of them offers the first one again, which must not be twice in one batch."""
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, name, key="k") for name in "abcd"])
    for name in "bc":
        assert await backend.leases.cancel(CHANNEL, "default", name, None) == 1
    assert ids(await claim(backend)) == ["a"]
    assert refusals == []


class Overtaken:
    """The next batch of a consumer's jobs comes too late: right before it, somebody else acts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.may_go_on = asyncio.Event(), asyncio.Event()
        self.act: Callable[[], Awaitable[Any]] | None = None
        commit = Batches.commit

        async def late(batches: Batches, messages: Sequence[BatchMessage]) -> int:
            act, self.act = self.act, None
            if act is not None:
                await act()
            return await commit(batches, messages)

        async def wait(turn: int) -> None:
            self.waits.set()
            await self.may_go_on.wait()

        monkeypatch.setattr(Batches, "commit", late)
        monkeypatch.setattr("holdfast.backends.nats.state.store.backoff", wait)


async def claims(backend: NatsBackend) -> int:
    return len(await claim(backend))


async def cancels(backend: NatsBackend) -> int:
    return await backend.leases.cancel(CHANNEL, "default", "b", None)


async def counts(backend: NatsBackend) -> int:
    return sum((await backend.channels.consumer_stats(CHANNEL, CONSUMER)).states.values())


async def looks(backend: NatsBackend) -> int:
    return len((await backend.lifecycle.due(10)).due)


@pytest.mark.parametrize("verb", [claims, cancels])
async def test_who_was_overtaken_waits_without_keeping_anybody_else_from_the_consumer(
    backend: NatsBackend,
    other: NatsBackend,
    verb: Callable[[NatsBackend], Awaitable[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    job = await claim_one(backend)
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: claims(other)
    waiting = asyncio.create_task(verb(backend))
    try:
        async with asyncio.timeout(30):
            await overtaken.waits.wait()
            assert await complete(backend, job)
    finally:
        overtaken.may_go_on.set()  # whoever waits holds what closing the store needs
    assert await waiting == 0


@pytest.mark.parametrize(("verb", "result"), [(claims, 3), (cancels, 1), (counts, 3), (looks, 0)])
async def test_whoever_finds_the_jobs_made_by_another_process_goes_on_at_once(
    backend: NatsBackend,
    other: NatsBackend,
    verb: Callable[[NatsBackend], Awaitable[int]],
    result: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend)
    await publish(other, "a", "b", "c")  # which have no jobs yet
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: counts(other)
    overtaken.may_go_on.set()
    assert await verb(backend) == result
    assert overtaken.act is None, "nobody came between"
    assert not overtaken.waits.is_set()


async def test_a_claim_that_lost_a_race_asks_for_jobs_behind_those_that_others_take(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randint", lambda least, most: most)
    await subscribe(backend)
    await publish(backend, *"abcdefgh")
    assert await counts(other) == 8
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()

    async def twice() -> None:
        assert ids(await claim(other, 2)) == ["a", "b"]
        overtaken.act = lambda: claim(other, 2)

    overtaken.act = twice
    assert ids(await claim(backend, 4)) == list("fgh"), "half of those that it has found"
    assert len(refusals) == 1
    assert ids(await claim(backend)) == ["e"]


async def test_a_claim_that_lost_a_race_looks_at_the_log_only_where_no_job_is_left(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has seen of the jobs would grow old meanwhile, and the next race be lost as well."""
    await subscribe(backend)
    await publish(backend, *"abc")
    assert await counts(other) == 3
    overtaken, looked, catch_up = Overtaken(monkeypatch), list[JobIngest](), JobIngest.catch_up
    overtaken.may_go_on.set()

    async def watched(self: JobIngest, *given: Any, **options: Any) -> None:
        looked.append(self)
        await catch_up(self, *given, **options)

    async def takes_all() -> None:
        assert len(await claim(other)) == 1
        await publish(other, "d")

    monkeypatch.setattr(JobIngest, "catch_up", watched)
    overtaken.act = lambda: claim(other, 1)
    assert len(await claim(backend, 1)) == 1
    looks = len([each for each in looked if each is not looked[-1]])
    assert (len(looked), looks) == (2, 1), "each of them once"
    overtaken.act = takes_all
    assert ids(await claim(backend)) == ["d"]
    assert len(refusals) == 2


async def test_claims_stay_behind_those_of_others_while_races_are_lost(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.randint", lambda least, most: most)
    await subscribe(backend)
    await publish(backend, *"abcdefgh")
    assert await counts(other) == 8
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()
    overtaken.act = lambda: claim(other, 1)
    assert ids(await claim(backend, 2)) == ["d", "e"], "behind b and c, which others may be taking"
    assert len(refusals) == 1
    assert ids(await claim(backend, 1)) == ["c"], "the next one as well"
    assert ids(await claim(backend, 1)) == ["b"], "and then no more"


async def test_claims_of_different_keys_do_not_refuse_each_other(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each job has a fence of its own; one for all keys let a single claim through at a time."""
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, "a", key="k")])
    assert await counts(other) == 1
    overtaken, came = Overtaken(monkeypatch), list[str]()
    overtaken.may_go_on.set()

    async def urgent() -> None:
        await other.log.publish(CHANNEL, [Event(1, "b", key="l")], priority=9)
        came.extend(ids(await claim(other, 1)))

    overtaken.act = urgent
    assert ids(await claim(backend, 1)) == ["a"]
    assert came == ["b"]
    assert refusals == []


@pytest.mark.parametrize("verb", ["requeue", "revive"])
async def test_a_claim_does_not_overtake_an_older_job_of_its_key_that_becomes_ready(
    backend: NatsBackend,
    other: NatsBackend,
    verb: str,
    refusals: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend, ordered=True)
    await backend.log.publish(CHANNEL, [Event(1, name, key="k") for name in "ab"])
    dead = await claim_one(backend)
    assert await bury(backend, dead)
    assert await counts(other) > 0
    overtaken = Overtaken(monkeypatch)
    overtaken.may_go_on.set()

    async def comes_back() -> None:
        if verb == "requeue":
            assert await other.leases.requeue(CHANNEL, CONSUMER, dead.id)
        else:
            assert await other.deadletters.revive(CHANNEL, CONSUMER, [dead.id]) == [True]

    overtaken.act = comes_back
    assert ids(await claim(backend)) == ["a"]
    assert len(refusals) == 1


@pytest.fixture
def others_first(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Awaitable[Any]]]:
    """What others do while they have a head start; each wait takes the next one."""
    acts: list[Callable[[], Awaitable[Any]]] = []
    sleep = asyncio.sleep

    async def act(seconds: float) -> None:
        await (acts.pop(0)() if seconds == LONG else sleep(seconds))

    monkeypatch.setattr("holdfast.backends.nats.state.ingest.head_start", lambda entries: LONG)
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    monkeypatch.setattr(asyncio, "sleep", act)
    return acts


def made_jobs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The subjects of all jobs that are written from now on."""
    made, commit = list[str](), Batches.commit

    async def watched(batches: Batches, messages: Sequence[BatchMessage]) -> int:
        made.extend(message.subject for message in messages if message.subject.startswith("HF.S.job."))
        return await commit(batches, messages)

    monkeypatch.setattr(Batches, "commit", watched)
    return made


async def test_who_moved_the_cursor_last_makes_the_jobs_and_nobody_else_does(
    backend: NatsBackend,
    other: NatsBackend,
    others_first: list[Callable[[], Awaitable[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    await subscribe(backend)
    await publish(other, "a", "b", "c")
    made = made_jobs(monkeypatch)
    others_first.append(lambda: counts(backend))
    assert await counts(other) == 3
    assert others_first == []
    assert len(made) == 3, "once"


async def test_who_moved_the_cursor_last_is_not_waited_for_twice(
    backend: NatsBackend, other: NatsBackend, others_first: list[Callable[[], Awaitable[Any]]]
) -> None:
    """It may be gone; the one that makes the jobs instead goes first from then on."""
    await subscribe(backend)
    others_first.append(backend.now)
    for turn in range(3):
        await publish(backend, f"e-{turn}")
        assert len(await claim(other)) == 1
    assert others_first == []


async def test_a_look_at_what_is_due_leaves_the_jobs_to_who_is_at_them(
    backend: NatsBackend,
    other: NatsBackend,
    others_first: list[Callable[[], Awaitable[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where nobody is, it makes them."""
    await subscribe(backend)
    await publish(other, "a", "b", "c")
    made = made_jobs(monkeypatch)
    others_first.append(lambda: counts(backend))
    assert (await other.lifecycle.due(10)).load == 3
    assert len(made) == 3, "once"
    await publish(other, "d")
    others_first.append(backend.now)
    assert (await other.lifecycle.due(10)).load == 4
    assert others_first == []


async def test_who_has_enough_waits_for_nobody(
    backend: NatsBackend,
    other: NatsBackend,
    others_first: list[Callable[[], Awaitable[Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """But what is urgent comes first as soon as the head start is over."""
    await subscribe(backend)
    await publish(backend, "a", "b", "c")
    assert await counts(backend) == 3
    monkeypatch.setattr("holdfast.backends.nats.state.ingest.head_start", lambda entries: 0)
    await publish(backend, "urgent", priority=9)
    assert ids(await claim(other, 1)) == ["a"]
    assert ids(await claim(other, 1)) == ["urgent"]


async def test_a_large_publish_that_others_overtake_is_not_repeated_whole(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(backend, max_depth=5_000)
    overtaken, names = Overtaken(monkeypatch), ["x", "y", "z"]

    async def overtake() -> None:
        await publish(other, names.pop(0))
        overtaken.act = overtake if names else None

    overtaken.act = overtake
    await publish(backend, *(f"e-{n}" for n in range(600)))
    assert names == []
    assert len(refusals) == 1, "only who comes right before its end matters"
    assert await counts(other) == 603
    assert (await backend.channels.stats(CHANNEL)).events == 603, "nothing of it was appended in vain"


async def test_a_large_publish_is_not_held_up_by_its_own_events(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as it is under way nobody gets what comes behind it. It is weighed by what others have."""
    await subscribe(backend, max_depth=400)
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: publish(other, "z")
    levelled = list[str]()

    async def level(_: JobIngest, member: Member) -> None:
        levelled.append(member.name)

    monkeypatch.setattr(JobIngest, "level", level)
    await publish(backend, *(f"e-{n}" for n in range(600)))
    assert levelled == []
    monkeypatch.undo()
    assert await counts(other) == 601


async def test_a_publish_is_overtaken_only_once_it_is_on_its_way(
    backend: NatsBackend, other: NatsBackend, refusals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has more to prepare would lose to all others."""
    await subscribe(backend, max_depth=100)
    acts, use = [lambda: publish(other, "z")], Capacity.use

    async def slowly(self: Capacity, *given: Any, **options: Any) -> None:
        while acts:
            await acts.pop()()
        await use(self, *given, **options)

    monkeypatch.setattr(Capacity, "use", slowly)
    await publish(backend, *"abc")
    assert await counts(backend) == 4
    assert refusals == []


async def test_the_past_of_a_consumer_is_left_to_who_is_at_it(
    backend: NatsBackend, other: NatsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(backend, "a", "b")
    await backend.channels.subscribe(CHANNEL, CONSUMER, Policy.of(), "earliest")
    [ref] = (await backend.lifecycle.due(10)).backfills
    overtaken = Overtaken(monkeypatch)
    overtaken.act = lambda: other.lifecycle.backfill(ref, 10)
    async with asyncio.timeout(30):
        assert await backend.lifecycle.backfill(ref, 10) == 0, "and it does not wait either"
    assert ids(await claim(backend)) == ["a", "b"]
