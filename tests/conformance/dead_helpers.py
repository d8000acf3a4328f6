"""Helpers for dead letters: dying, listing to the end, and counting by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast.contracts import Backend
from holdfast.model.deadletters import DeadFilter, DeadLetter
from holdfast.model.decide import describe
from holdfast.model.job import Burial, Job, Reason
from kit import BOOM, CHANNEL, CONSUMER, claim, publish

EVERYTHING = DeadFilter()
Tally = dict[tuple[str, str, str], int]


async def die(
    backend: Backend,
    *event_ids: str,
    error: BaseException | str | None = None,
    reason: Reason = Reason.TERMINAL,
    consumer: str = CONSUMER,
    channel: str = CHANNEL,
) -> list[Job]:
    """Publish events, whose jobs are then the only ones to claim, and bury them in one step."""
    await publish(backend, *event_ids, channel=channel)
    jobs = await claim(backend, len(event_ids), consumer=consumer, channel=channel)
    assert [job.event.id for job in jobs] == list(event_ids)
    await bury_all(backend, jobs, error, reason)
    return jobs


async def bury_all(
    backend: Backend,
    jobs: Sequence[Job],
    error: BaseException | str | None = None,
    reason: Reason = Reason.TERMINAL,
) -> None:
    """Bury leased jobs in one step; each burial must be accepted."""
    failure = BOOM if error is None else describe(error)
    assert all(await backend.leases.bury([Burial(job, reason, failure) for job in jobs]))


async def listed(backend: Backend, wanted: DeadFilter = EVERYTHING, page: int = 100) -> list[DeadLetter]:
    """What a filter means, page by page to the end."""
    letters: list[DeadLetter] = []
    after = None
    for _ in range(1000):
        found = await backend.deadletters.page(wanted, after, page)
        assert len(found.letters) <= page
        letters += found.letters
        after = found.after
        if after is None:
            return letters
    raise AssertionError("the list does not end")


async def names(backend: Backend, wanted: DeadFilter = EVERYTHING, page: int = 100) -> list[str]:
    """The ids of the events that died."""
    return [letter.record.event_id for letter in await listed(backend, wanted, page)]


async def counts(backend: Backend) -> Tally:
    """The store's own counts by reason, none of them zero."""
    answer = await backend.deadletters.counts()
    assert all(each.count > 0 for each in answer)
    tally = {(each.channel, each.consumer, each.reason): each.count for each in answer}
    assert len(tally) == len(answer), "one for each consumer and reason"
    return tally


async def clustered(backend: Backend, channel: str | None = None, consumer: str | None = None) -> Tally:
    """The store's own counts by fingerprint, none of them zero."""
    answer = await backend.deadletters.clusters(channel, consumer, 1000)
    assert all(each.count > 0 for each in answer)
    sizes = [each.count for each in answer]
    assert sizes == sorted(sizes, reverse=True), "the largest first"
    for each in answer:
        record = each.sample.record
        assert (record.channel, record.consumer) == (each.channel, each.consumer)
        assert each.sample.fingerprint == each.fingerprint
    tally = {(each.channel, each.consumer, each.fingerprint): each.count for each in answer}
    assert len(tally) == len(answer), "one for each consumer and fingerprint"
    return tally


async def check_counts(backend: Backend) -> int:
    """I3: the counts by reason and by fingerprint equal a recount by listing; answers how many there are."""
    letters = await listed(backend)
    records = [letter.record for letter in letters]
    assert len({(each.channel, each.consumer, each.id) for each in records}) == len(records), "each once"
    assert await counts(backend) == Counter((r.channel, r.consumer, r.reason) for r in records)
    assert await clustered(backend) == Counter(
        (each.record.channel, each.record.consumer, each.fingerprint) for each in letters
    )
    return len(letters)
