"""Bounds of a reconciliation: which stretch of each log is compared, and what may still be on its way.

    floor │ trimmed, proven by manifests │ in the log │ until

They are read in an order that keeps a running system honest: first where the log ends, then the cursors, then
the WAL, and only then the sides. So whatever is at or below a cursor must be found.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from holdfast.contracts import Backend
from holdfast.pipeline.archive.catalog import intact_catalog
from holdfast.pipeline.archive.manifest import Manifest, Written
from holdfast.pipeline.archive.naming import manifest_folder
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.ingest.commit import CONSUMER
from holdfast.pipeline.ingest.plan import IngestPlan
from holdfast.pipeline.offsets import later
from holdfast.pipeline.reconcile.report import Difference
from holdfast.pipeline.stores import open_store
from holdfast.pipeline.wal import Part, Wal

BEFORE_ALL, AFTER_ALL = "", "~"
"""Sort before and after every position."""
ByPartition = dict[int, str]


@dataclass(frozen=True, slots=True)
class Books:
    """Where a channel's books are kept."""

    channel: str
    urls: Sequence[str]
    archive: str | None = None
    """The object store of its archive. None: nobody archives it."""
    archiver: str = "archiver"
    """The consumer under whose cursor it is archived."""
    plan: IngestPlan | None = None
    """None: nobody ingests it."""
    namespace: str = "gbe"
    """Under which the outcome is kept."""

    def wal(self) -> Wal | None:
        """The ingest's WAL."""
        return None if self.plan is None else Wal(open_store(self.plan.wal.path), self.plan.wal)


@dataclass(frozen=True, slots=True)
class Bounds:
    """By partition. What a side does not have yet is no loss where it is behind or pending."""

    until: ByPartition
    archived: ByPartition
    """The archiver's cursor."""
    ingested: ByPartition
    """The ingest's cursor."""
    pending: Sequence[Part] = ()


@dataclass(frozen=True, slots=True)
class Chain:
    """The manifests of a channel, store by store."""

    manifests: Sequence[Manifest] = ()

    @property
    def objects(self) -> list[Written]:
        return [each for manifest in self.manifests for each in manifest.objects]

    def floors(self, trimmed: ByPartition) -> ByPartition:
        """Up to where neither the log nor the manifests prove anything."""
        return {place: min(end, self._begin(place, end)) for place, end in trimmed.items()}

    def gaps(self, trimmed: ByPartition) -> Iterator[Difference]:
        """Stretches that were trimmed, and that no manifest covers although the archive had begun."""
        for place, after, _, name in self._breaks(trimmed):
            yield Difference("archive", "gap", place, after, None, name)

    def unproven(self, trimmed: ByPartition, unreadable: Collection[str]) -> list[tuple[int, str, str]]:
        """Partitions with first and last positions of which neither log nor archive say what was published:
        gaps, and objects that cannot be read."""
        found = [(place, after + " ", until) for place, after, until, _ in self._breaks(trimmed)]
        for each in self.objects:
            end = min(each.last, trimmed.get(each.partition, BEFORE_ALL))
            if each.object in unreadable and each.first <= end:
                found.append((each.partition, each.first, end))
        return found

    def _breaks(self, trimmed: ByPartition) -> Iterator[tuple[int, str, str, str]]:
        """Partition, after and up to which position, and the manifest that follows, or where it should be."""
        for place, end in trimmed.items():
            chain = [each for each in self.manifests if each.spot.partition == place]
            for one, other in pairwise(chain):
                if (other.after or BEFORE_ALL) > one.last and one.last < end:
                    yield place, one.last, other.after or BEFORE_ALL, other.name
            if chain and chain[-1].last < end:
                yield place, chain[-1].last, end, manifest_folder(chain[-1].spot.channel, place)

    def _begin(self, place: int, default: str) -> str:
        begins = [each.after or BEFORE_ALL for each in self.manifests if each.spot.partition == place]
        return min(begins, default=default)


def bounds(connection: Connection, books: Books) -> Bounds:
    """Take them now, before the sides are read."""
    until = ends(connection, books.channel)
    cursors = {
        place: connection.run(_cursors(store, books.channel))
        for place, store in enumerate(connection.backends)
    }
    wal = books.wal()
    pending = [] if wal is None else wal.pending()
    return Bounds(
        until,
        {place: found.get(books.archiver, BEFORE_ALL) for place, found in cursors.items()},
        {place: found.get(CONSUMER, BEFORE_ALL) for place, found in cursors.items()},
        [part for batch in pending for part in batch.parts if part.channel == books.channel],
    )


def ends(connection: Connection, channel: str) -> ByPartition:
    """Where each store's log ends now."""
    return {place: connection.run(_end(store, channel)) for place, store in enumerate(connection.backends)}


def trimmed(connection: Connection, channel: str) -> ByPartition:
    """Up to where each store's log is gone."""
    found = {
        place: connection.run(store.extent(channel)).trimmed
        for place, store in enumerate(connection.backends)
    }
    return {place: position for place, position in found.items() if position is not None}


def chain(books: Books) -> Chain:
    """The manifests of the channel. One that cannot be read is an error: nothing could be proven."""
    if books.archive is None:
        return Chain()
    return Chain(intact_catalog(open_store(books.archive), books.channel).manifests)


async def _end(store: Backend, channel: str) -> str:
    """An empty log bounds nothing: what others have of it is surplus."""
    extent = await store.extent(channel)
    return later(extent.last, extent.trimmed) or AFTER_ALL


async def _cursors(store: Backend, channel: str) -> dict[str, str]:
    return {cursor.name: cursor.position or BEFORE_ALL for cursor in await store.cursors(channel)}
