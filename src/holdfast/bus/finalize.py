"""Finalizing: how attempts end, each asked of the job's own store, one by one or gathered in batches."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from holdfast import failpoints, tracing
from holdfast.bus.partitions import Partition, Partitions
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.backoff import backoff_seconds
from holdfast.model.decide import after_failure, describe
from holdfast.model.duration import parse_duration
from holdfast.model.errors import HoldfastError, InvalidInput, NotFound, Snooze, Terminal, Unavailable
from holdfast.model.job import Burial, Completion, Failure, Job, Retry, Transaction
from holdfast.model.policy import Policy
from holdfast.upkeep.lifecycle import announce_discarded

log = logging.getLogger(__name__)

DONE, FAILED, BURIED, GIVEN_BACK = "done", "failed", "buried", "given_back"
CANCELLED, LOST = "cancelled", "lost"
_PAUSES = 0.1, 2.0
_TRIES = 30  # with the pauses between them up to a minute
_FAILURES_IN_A_ROW = 3
_BATCH = 500
_NOT_COMMITTED = describe("the handler returned without committing the transaction that completes its job")


class FailedAttempt(NamedTuple):
    """An attempt that the handler refused. `terminal` means that no retry can help."""

    job: Job
    failure: Failure
    terminal: bool = False


class Unsettled(NamedTuple):
    """An attempt at a job that a transaction completes, committed or not; and how it ends if it was not."""

    job: Job
    otherwise: FailedAttempt | Retry


T = TypeVar("T")
Item = TypeVar("Item", Job, FailedAttempt, Retry, Unsettled)


class AttemptCounters:
    """How many attempts went through this process, and how they ended, by channel and consumer."""

    def __init__(self) -> None:
        self.attempts: Counter[tuple[str, str]] = Counter()
        self.outcomes: Counter[tuple[str, str, str]] = Counter()
        self._turn = threading.Lock()  # handlers in threads count too

    def began(self, channel: str, consumer: str, jobs: int) -> None:
        """Count jobs that were handed out."""
        if jobs:
            self.attempts[channel, consumer] += jobs

    def ended(self, jobs: Iterable[Job], outcomes: Iterable[str], accepted: Iterable[bool]) -> None:
        """Count finalized attempts by outcome, or as lost where the store refused them."""
        with self._turn:
            self.outcomes.update(
                (job.channel, job.consumer, outcome if yes else LOST)
                for job, outcome, yes in zip(jobs, outcomes, accepted, strict=True)
            )


class Finalizer:
    """Ends or extends leases in batches. Each verb returns, per job, whether its token was still the newest.

    Where one of several stores fails, its error is raised after the others have returned.
    """

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.counters = AttemptCounters()
        self._chance = random.Random()  # noqa: S311 - jitter, no secret

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""
        with tracing.finalizing(DONE, jobs):
            accepted = await self._per_store(
                jobs, jobs, lambda at, mine: at.backend.leases.complete(mine), "complete"
            )
        self.counters.ended(jobs, [DONE] * len(jobs), accepted)
        return accepted

    async def complete_within(self, job: Job, connection: Any) -> None:
        """leased → done, as part of the transaction that the connection is in. Raises `LeaseLost`."""

        async def within(at: Partition, mine: Sequence[Job]) -> list[bool]:
            await at.backend.leases.complete_within(job, connection)
            return [True]

        with tracing.finalizing(DONE, [job]):
            await self._per_store([job], [job], within, "complete")
        job.completion = Completion.OPEN
        self.counters.ended([job], [DONE], [True])

    def transaction(self, job: Job) -> Transaction:
        """Return a block whose transaction completes a job; see `Job.transaction`."""
        at = self._partitions.all[job.partition]
        return at.backend.leases.transaction(job, partial(self.counters.ended, [job], [DONE], [True]))

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move deadlines to now plus `by`."""
        return await self._per_store(
            jobs, jobs, lambda at, mine: at.backend.leases.extend(mine, by), "extend"
        )

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""
        jobs = [each.job for each in retries]
        with tracing.finalizing("retry", jobs):
            accepted = await self._per_store(
                retries, jobs, lambda at, mine: at.backend.leases.retry(mine), "retry"
            )
        self.counters.ended(jobs, [FAILED if each.failure else GIVEN_BACK for each in retries], accepted)
        return accepted

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead."""
        jobs = [each.job for each in burials]
        with tracing.finalizing(BURIED, jobs):
            accepted = await self._per_store(
                burials, jobs, lambda at, mine: at.backend.leases.bury(mine), "bury"
            )
        self.counters.ended(jobs, [BURIED] * len(jobs), accepted)
        return accepted

    async def fail(self, failed: Sequence[FailedAttempt]) -> list[bool]:
        """Retry or bury failed attempts, as their consumers' policies say."""
        return await self._per_store(failed, [each.job for each in failed], self._fail)

    async def _fail(self, at: Partition, failed: Sequence[FailedAttempt]) -> list[bool]:
        policies = {
            owner: await self._policy(at, *owner)
            for owner in {(item.job.channel, item.job.consumer) for item in failed}
        }
        decisions = [
            after_failure(job, policy, failure, terminal=terminal, chance=self._chance)
            if (policy := policies[job.channel, job.consumer])
            else None
            for job, failure, terminal in failed
        ]
        retries = {place: each for place, each in enumerate(decisions) if isinstance(each, Retry)}
        burials = {place: each for place, each in enumerate(decisions) if isinstance(each, Burial)}
        accepted = dict(zip(retries, await self.retry(list(retries.values())), strict=True))
        accepted |= dict(zip(burials, await self.bury(list(burials.values())), strict=True))
        discarding = {owner for owner, policy in policies.items() if policy and policy.on_dead == "discard"}
        discarded = [
            (job.channel, job.consumer, job.id)
            for place, (job, _, _) in burials.items()
            if accepted[place] and (job.channel, job.consumer) in discarding
        ]
        await announce_discarded(at.backend, at.namespace, discarded)
        return [accepted.get(place, False) for place in range(len(failed))]

    async def settle(self, unsettled: Sequence[Unsettled]) -> list[bool]:
        """End attempts whose jobs a transaction completes, as far as it was not committed."""
        return await self._per_store(unsettled, [each.job for each in unsettled], self._settle)

    async def _settle(self, at: Partition, unsettled: Sequence[Unsettled]) -> list[bool]:
        completions = await at.backend.leases.completions([each.job for each in unsettled])
        for (job, _), found in zip(unsettled, completions, strict=True):
            if found is Completion.OPEN:
                log.warning(
                    "job %s: its handler has ended, and the transaction that completes it is still open: the "
                    "job is done when that is committed, or comes back when its lease ends",
                    job.id,
                )
        left = {
            place: each.otherwise
            for place, (each, found) in enumerate(zip(unsettled, completions, strict=True))
            if found is Completion.NONE
        }
        retries = {place: each for place, each in left.items() if isinstance(each, Retry)}
        failed = {place: each for place, each in left.items() if isinstance(each, FailedAttempt)}
        accepted = dict(zip(retries, await self.retry(list(retries.values())), strict=True))
        accepted |= dict(zip(failed, await self.fail(list(failed.values())), strict=True))
        return [accepted.get(place, True) for place in range(len(unsettled))]

    async def _policy(self, at: Partition, channel: str, consumer: str) -> Policy | None:
        """Return the policy that failures are judged by; None where the consumer and its jobs are gone."""
        try:
            return (await at.backend.channels.consumer(channel, consumer)).policy
        except NotFound:
            return None
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            at.count_error("consumer", error)
            raise

    async def _per_store(
        self,
        items: Sequence[T],
        jobs: Sequence[Job],
        apply: Callable[[Partition, Sequence[T]], Awaitable[list[bool]]],
        verb: str | None = None,
    ) -> list[bool]:
        """Apply a verb to each item at the store of its job. Errors are counted where `verb` is set."""

        async def ask(at: Partition, mine: Sequence[T]) -> list[bool]:
            try:
                return await apply(at, mine)
            except STORE_ERRORS as error:
                raise_if_cancelled(error)
                if verb is not None:
                    at.count_error(verb, error)
                raise

        if not items:
            return []
        stores = self._partitions.all
        if len(stores) == 1:
            return await ask(stores[0], items)
        places: dict[int, list[int]] = defaultdict(list)
        for place, job in enumerate(jobs):
            places[job.partition].append(place)
        asked = [ask(stores[index], [items[place] for place in mine]) for index, mine in places.items()]
        returned = await asyncio.gather(*asked, return_exceptions=True)
        accepted: dict[int, bool] = {}
        errors: list[BaseException] = []
        for mine, result in zip(places.values(), returned, strict=True):
            if isinstance(result, BaseException):
                errors.append(result)
            else:
                accepted.update(zip(mine, result, strict=True))
        if errors:
            raise errors[0]
        return [accepted[place] for place in range(len(items))]


class FinalizeQueues:
    """Gathers how a worker's attempts ended, in one queue for each store: none waits for another store.

    `forget` is told which jobs have ended; `on_finalized` gets the index of a store after each batch.
    """

    def __init__(
        self,
        finalizer: Finalizer,
        stores: int,
        forget: Callable[[Iterable[Job]], None],
        on_finalized: Callable[[int], None],
    ) -> None:
        self._queues = [
            FinalizeQueue(finalizer, forget, partial(on_finalized, index)) for index in range(stores)
        ]

    def done(self, job: Job) -> None:
        """The handler returned."""
        queue = self._queues[job.partition]
        if job.completion is Completion.DONE:
            queue.completed(job)
        elif job.completion is Completion.OPEN:
            queue.add(FailedAttempt(job, _NOT_COMMITTED))
        else:
            queue.done.append(job)
            queue.start()

    def failed(self, job: Job, error: BaseException) -> None:
        """The handler raised an error: it failed, or it snoozes."""
        queue = self._queues[job.partition]
        if job.completion is Completion.DONE:
            log.warning(
                "%s/%s: job %s is done, its transaction was committed; after that its handler raised %r",
                *(job.channel, job.consumer, job.id, error),
                exc_info=error,
            )
            queue.completed(job)
            return
        if isinstance(error, Snooze):
            try:
                queue.add(Retry(job, parse_duration(error.delay, what="snooze")))
                return
            except InvalidInput as unusable:
                error = unusable
        failure = describe(error)
        log.warning(
            "%s/%s: attempt %s at event %s failed: %s: %s",
            *(job.channel, job.consumer, job.attempt, job.event.id, failure.kind, failure.error),
            exc_info=None if isinstance(error, HoldfastError) else error,
        )
        queue.add(FailedAttempt(job, failure, isinstance(error, Terminal)))

    def release(self, jobs: Iterable[Job]) -> None:
        """Give back jobs that were not begun, or not ended; no budget is spent."""
        for job in jobs:
            queue = self._queues[job.partition]
            if job.completion is Completion.DONE:
                queue.completed(job)
            else:
                queue.add(Retry(job, None))

    def pending(self, store: int) -> int:
        """Return how many attempts a store's next batch will take."""
        return self._queues[store].pending

    async def close(self, patience: float) -> None:
        """Wait until every queue is empty, or give up: what is left comes back when its lease ends."""
        await asyncio.gather(*(queue.close(patience) for queue in self._queues))


class FinalizeQueue:
    """Attempts of one store. While one batch is on its way, the next one gathers: none waits for a timer."""

    def __init__(
        self,
        finalizer: Finalizer,
        forget: Callable[[Iterable[Job]], None],
        on_finalized: Callable[[], None],
    ) -> None:
        self._finalizer, self._forget, self._on_finalized = finalizer, forget, on_finalized
        self.done: list[Job] = []
        self.failed: list[FailedAttempt] = []
        self.retries: list[Retry] = []
        self.unsettled: list[Unsettled] = []
        self._task: asyncio.Task[None] | None = None
        self._tries: dict[int, int] = {}

    @property
    def pending(self) -> int:
        """Attempts that no batch has taken yet."""
        return len(self.done) + len(self.failed) + len(self.retries) + len(self.unsettled)

    def add(self, ended: FailedAttempt | Retry) -> None:
        """Finalize an attempt; where a transaction completes its job, look at that first."""
        if ended.job.completion is Completion.OPEN:
            self.unsettled.append(Unsettled(ended.job, ended))
        elif isinstance(ended, Retry):
            self.retries.append(ended)
        else:
            self.failed.append(ended)
        self.start()

    def completed(self, job: Job) -> None:
        """Its transaction has completed a job: there is nothing to finalize."""
        self._forget([job])
        self._on_finalized()

    def start(self) -> None:
        """Finalize what was added, in a task."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._flush())

    async def close(self, patience: float) -> None:
        """Wait until everything is finalized, or give up."""
        if self._task is None:
            return
        self.start()
        await asyncio.wait([self._task], timeout=patience)
        if not self._task.done():
            log.warning("the store did not answer in time: some jobs come back when their leases end")
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _flush(self) -> None:
        failures = 0
        while self.pending:
            await self._gather()
            done, failed, retries, unsettled = self.done, self.failed, self.retries, self.unsettled
            self.done, self.failed, self.retries, self.unsettled = [], [], [], []
            left_done = await self._apply(done, lambda job: job, self._finalizer.complete)
            failpoints.hit("worker.after_ack")
            left_failed = await self._apply(failed, lambda item: item.job, self._finalizer.fail)
            left_retries = await self._apply(retries, lambda item: item.job, self._finalizer.retry)
            left_unsettled = await self._apply(unsettled, lambda item: item.job, self._finalizer.settle)
            self._on_finalized()
            if not (left_done or left_failed or left_retries or left_unsettled):
                failures = 0
                continue
            self.done += left_done
            self.failed += left_failed
            self.retries += left_retries
            self.unsettled += left_unsettled
            failures += 1
            await asyncio.sleep(backoff_seconds(failures, *_PAUSES))

    async def _gather(self) -> None:
        """Wait while each turn of the event loop ends more attempts, up to a batch."""
        pending = 0
        while pending < self.pending < _BATCH:
            pending = self.pending
            await asyncio.sleep(0)

    async def _apply(
        self,
        items: Sequence[Item],
        job_of: Callable[[Item], Job],
        verb: Callable[[Sequence[Item]], Awaitable[list[bool]]],
    ) -> list[Item]:
        """Ask the store once. Returns what must be asked again: a repeat is refused, never applied twice."""
        if not items:
            return []
        try:
            accepted = await verb(items)
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            if isinstance(error, Unavailable):
                log.warning("finalize waits for the store: %s", error)
                return list(items)
            if len(items) == 1:
                return [] if self._gives_up(job_of(items[0]), error) else list(items)
            log.warning("finalize of %s jobs failed, each is tried by itself: %r", len(items), error)
            return await self._apply_each(items, job_of, verb)
        jobs = [job_of(item) for item in items]
        self._forget(jobs)
        for job in jobs if self._tries else ():
            self._tries.pop(id(job), None)
        refused = [job.id for job, yes in zip(jobs, accepted, strict=True) if not yes]
        if refused:
            log.warning(
                "lease lost on job %s: its effects may run again, unless it was cancelled",
                ", ".join(refused[:10]),
            )
        return []

    async def _apply_each(
        self,
        items: Sequence[Item],
        job_of: Callable[[Item], Job],
        verb: Callable[[Sequence[Item]], Awaitable[list[bool]]],
    ) -> list[Item]:
        """One job that the store cannot finalize holds up no other. After some failures in a row it is the
        store that fails: what was not tried comes first the next time."""
        left: list[Item] = []
        in_a_row = 0
        for place, item in enumerate(items, 1):
            again = await self._apply([item], job_of, verb)
            left += again
            in_a_row = in_a_row + 1 if again else 0
            if in_a_row == _FAILURES_IN_A_ROW:
                return list(items[place:]) + left
        return left

    def _gives_up(self, job: Job, error: BaseException) -> bool:
        """Count an undocumented error. Returns True after many: the job is left to the end of its lease."""
        tries = self._tries.pop(id(job), 0) + 1
        log.warning("finalize of job %s failed: %r", job.id, error, exc_info=error if tries == 1 else None)
        if tries < _TRIES:
            self._tries[id(job)] = tries
            return False
        self._forget([job])
        log.error("job %s cannot be finalized: it comes back when its lease ends", job.id)
        return True
