"""After a power cut messages that were replaced last are there again, behind their successors."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta

import pytest
from nats.aio.client import Client

from holdfast.backends.nats import NatsBackend
from holdfast.backends.nats.wire import leftovers, subjects
from holdfast.embedded import Nats
from kit import CHANNEL, CONSUMER, bury, claim, claim_one, complete, fail, publish, read_all, subscribe

HOUR = timedelta(hours=1)


async def numbers(backend: NatsBackend) -> Counter[str]:
    """How many messages each subject has that should have one."""
    found = (await backend._store.connection.read({"seq": 1, "next_by_subj": subjects.OURS, "batch": 1000}))[
        0
    ]
    return Counter(each.subject for each in found if each.subject.startswith(subjects.REPLACED))


async def leave(client: Client, subject: str, *bodies: bytes) -> None:
    """Messages of which none has removed the one before it."""
    for body in bodies:
        await client.jetstream().publish(subject, body, stream=subjects.STREAM)


@pytest.fixture(params=[2000, 8])
def reach(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether what was replaced is among the newest messages as well, or before them."""
    monkeypatch.setattr(leftovers, "_NEWEST", request.param)


@pytest.mark.usefixtures("reach")
async def test_they_are_removed_when_the_server_is_another_one(
    backend: NatsBackend, client: Client, relaxed_nats: Nats
) -> None:
    await subscribe(backend)
    await publish(backend, "a", "b")
    job, dead = await claim(backend)
    assert await fail(backend, job)
    assert await bury(backend, dead)
    job = await claim_one(backend)
    record = subjects.job("1", int(job.id))
    [leased] = await backend._store.connection.exact([record])
    assert await complete(backend, job)
    [ended] = await backend._store.connection.exact([subjects.ended("1", int(job.id))])
    letter, entry = subjects.dead("1", int(dead.id)), subjects.index("1", seq=int(dead.id))
    [died, *_] = await backend._store.connection.exact([letter])
    [listed] = await backend._store.connection.last([entry])
    await backend.deadletters.purge(CHANNEL, CONSUMER, [dead.id])
    assert await numbers(backend) == Counter(dict.fromkeys(await numbers(backend), 1))
    frontier = (await backend._store.connection.exact([subjects.frontier("1")]))[0]
    await leave(client, record, leased.data)
    await leave(client, ended.subject, ended.data)
    await leave(client, letter, died.data)
    await leave(client, listed.subject, listed.data)
    await leave(client, subjects.left("1"), b"[%s]" % dead.id.encode())
    await leave(client, subjects.frontier("1"), frontier.data, frontier.data)
    assert max((await numbers(backend)).values()) == 3
    relaxed_nats.restart()
    other = backend.fork()
    await other.open()
    found = await numbers(other)
    assert max(found.values()) == 1
    assert not {letter, listed.subject} & found.keys()
    assert record not in found
    assert found[ended.subject] == 1
    assert await claim(other) == []
    assert len(await read_all(other)) == 2
    await other.close()
