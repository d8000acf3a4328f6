"""The archiver without Spark: the same writer and the same commit, over a backend's own pages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pyarrow as pa

from holdfast.contracts import Backend
from holdfast.pipeline.archive.commit import Committer
from holdfast.pipeline.archive.leftovers import Leftovers
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.archive.writer import ObjectWriter
from holdfast.pipeline.arrow import to_batch
from holdfast.pipeline.offsets import Spot
from holdfast.pipeline.stores import ObjectStore


async def archive(backends: Sequence[Backend], store: ObjectStore, policy: ArchivePolicy, rows: int) -> int:
    """Everything that is there, `rows` of each channel to a commit; answers how many commits there were."""
    committer = Committer(backends, store, policy)
    await committer.attach()
    await committer.recover()
    leftovers = Leftovers(store, await committer.cursors())
    count = 0
    while True:
        cursors = await committer.cursors()
        batches = [batch async for batch in _next(backends, cursors, rows)]
        written = list(ObjectWriter(store, policy.batch_size, cursors).write(batches))
        if not written:
            return count
        committed = await committer.commit(cursors, written)
        leftovers.remove(committed)
        count += len(committed)


async def _next(
    backends: Sequence[Backend], cursors: dict[Spot, str | None], rows: int
) -> AsyncIterator[pa.RecordBatch]:
    for spot, after in cursors.items():
        backend = backends[spot.partition]
        for cut in (await backend.cuts(spot.channel, after, rows, rows))[:1]:
            async for page in backend.pages(spot.channel, after, cut.position, 50):
                yield to_batch(spot, page)
