"""Settlement: how leases end or go on, each asked of the job's own store."""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from holdfast import tracing
from holdfast.bus.partitions import Partitions
from holdfast.bus.tally import BURIED, DONE, FAILED, GIVEN_BACK, Tally
from holdfast.contracts import Backend
from holdfast.model.decide import after_failure
from holdfast.model.job import Burial, Failure, Job, Retry
from holdfast.model.policy import Policy

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
            answers = await self._spread(jobs, lambda job: job, lambda backend, mine: backend.complete(mine))
        self.tally.ended((job, DONE, yes) for job, yes in zip(jobs, answers, strict=True))
        return answers

    async def extend(self, jobs: Sequence[Job], by: timedelta) -> list[bool]:
        """Move deadlines to now plus `by`."""
        return await self._spread(jobs, lambda job: job, lambda backend, mine: backend.extend(mine, by))

    async def retry(self, retries: Sequence[Retry]) -> list[bool]:
        """leased → scheduled | ready."""
        with tracing.settling("retry", [each.job for each in retries]):
            answers = await self._spread(retries, lambda r: r.job, lambda backend, mine: backend.retry(mine))
        self.tally.ended(
            (each.job, FAILED if each.failure else GIVEN_BACK, yes)
            for each, yes in zip(retries, answers, strict=True)
        )
        return answers

    async def bury(self, burials: Sequence[Burial]) -> list[bool]:
        """leased → dead."""
        with tracing.settling(BURIED, [each.job for each in burials]):
            answers = await self._spread(burials, lambda b: b.job, lambda backend, mine: backend.bury(mine))
        self.tally.ended((each.job, BURIED, yes) for each, yes in zip(burials, answers, strict=True))
        return answers

    async def fail(self, failed: Sequence[Failed]) -> list[bool]:
        """Judge failed attempts by their consumers' policies, then retry or bury them."""
        return await self._spread(failed, lambda f: f.job, lambda _, mine: self._fail(mine))

    async def _fail(self, failed: Sequence[Failed]) -> list[bool]:
        policies = await self._policies([item.job for item in failed])
        verdicts = [
            after_failure(job, policies[_owner(job)], failure, terminal=terminal, chance=self._chance)
            for job, failure, terminal in failed
        ]
        retries = {place: v for place, v in enumerate(verdicts) if isinstance(v, Retry)}
        burials = {place: v for place, v in enumerate(verdicts) if isinstance(v, Burial)}
        answers = dict(zip(retries, await self.retry(list(retries.values())), strict=True))
        answers |= dict(zip(burials, await self.bury(list(burials.values())), strict=True))
        return [answers[place] for place in range(len(failed))]

    async def _policies(self, jobs: Sequence[Job]) -> dict[tuple[int, str, str], Policy]:
        owners = {_owner(job) for job in jobs}
        backends = self._partitions.all
        return {
            (index, channel, consumer): (await backends[index].backend.consumer(channel, consumer)).policy
            for index, channel, consumer in owners
        }

    async def _spread(
        self,
        items: Sequence[T],
        job_of: Callable[[T], Job],
        apply: Callable[[Backend, Sequence[T]], Awaitable[list[bool]]],
    ) -> list[bool]:
        """Ask each job's own store; the answers come back in the order of the items.

        Where one of several stores fails, that is raised after the others have answered.
        """
        if not items:
            return []
        backends = self._partitions.all
        if len(backends) == 1:
            return await apply(backends[0].backend, items)
        places: dict[int, list[int]] = defaultdict(list)
        for place, item in enumerate(items):
            places[job_of(item).partition].append(place)
        asked = [
            apply(backends[index].backend, [items[place] for place in mine]) for index, mine in places.items()
        ]
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


def _owner(job: Job) -> tuple[int, str, str]:
    return job.partition, job.channel, job.consumer
