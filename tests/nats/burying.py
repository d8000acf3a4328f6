"""Dead letters in bulk, for what is special to NATS."""

from __future__ import annotations

from holdfast.backends.nats import NatsBackend
from holdfast.model.job import Burial, Failure, Reason
from kit import claim, publish


async def die(backend: NatsBackend, count: int, prefix: str = "e", clusters: int = 1) -> list[str]:
    """So many more dead letters; answers their ids."""
    ids: list[str] = []
    for start in range(0, count, 450):
        await publish(backend, *(f"{prefix}-{n}" for n in range(start, min(start + 450, count))))
        jobs = await claim(backend, 450)
        failures = [Failure("no", "E", f"{n % clusters:016x}") for n in range(start, start + len(jobs))]
        burials = [Burial(job, Reason.TERMINAL, each) for job, each in zip(jobs, failures, strict=True)]
        assert all(await backend.leases.bury(burials))
        ids += [job.id for job in jobs]
    return ids


async def counted(backend: NatsBackend) -> tuple[int, int]:
    """The dead by reason, and by fingerprint."""
    clusters = await backend.deadletters.clusters(None, None, 100)
    return sum(c.count for c in await backend.deadletters.counts()), sum(c.count for c in clusters)
