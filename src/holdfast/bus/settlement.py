"""Settlement: how leases end or go on, each asked of the job's own store."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from holdfast import tracing
from holdfast.bus.partitions import Partition, Partitions
from holdfast.bus.tally import BURIED, DONE, FAILED, GIVEN_BACK, Tally
from holdfast.contracts import STORE_ERRORS, raise_if_cancelled
from holdfast.model.decide import after_failure
from holdfast.model.errors import NotFound
from holdfast.model.job import Burial, Failure, Job, Retry
from holdfast.model.policy import Policy
from holdfast.upkeep.discards import tell_discarded

T = TypeVar("T")


class Failed(NamedTuple):
    """An attempt that the handler refused. `terminal` means that no retry can help."""

    job: Job
    failure: Failure
    terminal: bool = False


class Settlement:
    """Ends leases in batches; answers per job whether its token was still the newest."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self.tally = Tally()
        self._chance = random.Random()  # noqa: S311 - jitter, no secret

    async def complete(self, jobs: Sequence[Job]) -> list[bool]:
        """leased → done."""
        with tracing.settling(DONE, jobs):
            answers = await self._spread(
                jobs, lambda job: job, lambda at, mine: at.backend.complete(mine), "complete"
            )
        self.tally.ended((job, DONE, yes) for job, yes in zip(jobs, answers, strict=True))
        return answers

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move deadlines to now plus `by`."""
        return await self._spread(
            jobs, lambda job: job, lambda at, mine: at.backend.extend(mine, by), "extend"
        )

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""
        with tracing.settling("retry", [each.job for each in retries]):
            answers = await self._spread(
                retries, lambda r: r.job, lambda at, mine: at.backend.retry(mine), "retry"
            )
        self.tally.ended(
            (each.job, FAILED if each.failure else GIVEN_BACK, yes)
            for each, yes in zip(retries, answers, strict=True)
        )
        return answers

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead."""
        with tracing.settling(BURIED, [each.job for each in burials]):
            answers = await self._spread(
                burials, lambda b: b.job, lambda at, mine: at.backend.bury(mine), "bury"
            )
        self.tally.ended((each.job, BURIED, yes) for each, yes in zip(burials, answers, strict=True))
        return answers

    async def fail(self, failed: Sequence[Failed]) -> list[bool]:
        """Judge failed attempts by their consumers' policies, then retry or bury them."""
        return await self._spread(failed, lambda f: f.job, self._fail)

    async def _fail(self, at: Partition, failed: Sequence[Failed]) -> list[bool]:
        policies = {
            owner: await self._policy(at, *owner)
            for owner in {(item.job.channel, item.job.consumer) for item in failed}
        }
        verdicts = [
            after_failure(job, policy, failure, terminal=terminal, chance=self._chance)
            if (policy := policies[job.channel, job.consumer])
            else None
            for job, failure, terminal in failed
        ]
        retries = {place: v for place, v in enumerate(verdicts) if isinstance(v, Retry)}
        burials = {place: v for place, v in enumerate(verdicts) if isinstance(v, Burial)}
        answers = dict(zip(retries, await self.retry(list(retries.values())), strict=True))
        answers |= dict(zip(burials, await self.bury(list(burials.values())), strict=True))
        gone = [burial.job for place, burial in burials.items() if answers[place]]
        discarding = {owner for owner, policy in policies.items() if policy and policy.on_dead == "discard"}
        dropped = [
            (job.channel, job.consumer, job.id) for job in gone if (job.channel, job.consumer) in discarding
        ]
        await tell_discarded(at.backend, at.namespace, dropped)
        return [answers.get(place, False) for place in range(len(failed))]

    async def _policy(self, at: Partition, channel: str, consumer: str) -> Policy | None:
        """By which failures are judged; None where the consumer is gone, and its jobs with it."""
        try:
            return (await at.backend.consumer(channel, consumer)).policy
        except NotFound:
            return None
        except STORE_ERRORS as error:
            raise_if_cancelled(error)
            at.count_error("consumer", error)
            raise

    async def _spread(
        self,
        items: Sequence[T],
        job_of: Callable[[T], Job],
        apply: Callable[[Partition, Sequence[T]], Awaitable[list[bool]]],
        verb: str | None = None,
    ) -> list[bool]:
        """Ask each job's own store; the answers come back in the order of the items.

        Where one of several stores fails, that is raised after the others have answered. Errors of a `verb`
        are counted.
        """

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
        for place, item in enumerate(items):
            places[job_of(item).partition].append(place)
        asked = [ask(stores[index], [items[place] for place in mine]) for index, mine in places.items()]
        answers: dict[int, bool] = {}
        errors: list[BaseException] = []
        for mine, accepted in zip(
            places.values(), await asyncio.gather(*asked, return_exceptions=True), strict=True
        ):
            if isinstance(accepted, BaseException):
                errors.append(accepted)
            else:
                answers.update(zip(mine, accepted, strict=True))
        if errors:
            raise errors[0]
        return [answers[place] for place in range(len(items))]
