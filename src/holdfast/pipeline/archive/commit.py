"""The commit: a manifest, an announcement, the cursor. Plain steps, without Spark.

The manifest decides: what it lists is archived. Its name is the cursor position that it starts from, and it
is put if absent, so each position has one successor. A driver from the past finds the name taken. A driver
that died in between is followed up by `recover`, which walks the chain from the cursor on. The announcement
comes before the cursor and has an id of its own, so that it is made once and never missed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import orjson

from holdfast import failpoints
from holdfast.contracts import Backend
from holdfast.model.errors import HoldfastError, IdConflict, NotFound, ObjectConflict, Overloaded
from holdfast.model.names import selects
from holdfast.pipeline.archive.manifests import Manifest, by_partition, decode_manifest, manifest_name
from holdfast.pipeline.archive.objects import Written, domain, object_folder, parse_object, text_of
from holdfast.pipeline.archive.policy import ArchivePolicy
from holdfast.pipeline.offsets import ChannelPartition, is_after
from holdfast.pipeline.stores import ObjectStore
from holdfast.upkeep.announcements import Archived, announce

log = logging.getLogger(__name__)
T = TypeVar("T")


_PARALLEL = 16


class Superseded(HoldfastError):
    """Another archiver has committed in this one's place: nothing was changed."""


class Committer:
    """Commits what was written for one policy."""

    def __init__(self, backends: Sequence[Backend], store: ObjectStore, policy: ArchivePolicy) -> None:
        self._backends, self._store, self._policy = backends, store, policy

    async def cursors(self) -> dict[ChannelPartition, str | None]:
        """Where the archive ends, for every channel of the policy that it has begun."""
        return {
            ChannelPartition(partition, cursor.channel): cursor.position
            for partition, backend in enumerate(self._backends)
            for cursor in await backend.cursors.all()
            if cursor.name == self._policy.consumer and selects(self._policy.stream, cursor.channel)
        }

    async def attach(self) -> None:
        """Make sure that nothing is trimmed before it is archived, on every channel that is there."""
        for backend in self._backends:
            for channel in await backend.channels.names():
                if selects(self._policy.stream, channel):
                    await backend.cursors.attach(channel, self._policy.consumer)

    async def commit(
        self, cursors: dict[ChannelPartition, str | None], written: Iterable[Written]
    ) -> list[Manifest]:
        """`cursors` are those that were the floors when the objects were written."""
        manifests = [Manifest(spot, cursors.get(spot), objects) for spot, objects in by_partition(written)]
        await _for_each(manifests, self._commit)
        return manifests

    async def _commit(self, manifest: Manifest) -> None:
        await self._put(manifest)
        failpoints.hit("archive.after_manifest")
        await self._conclude(manifest)

    async def recover(self) -> list[Manifest]:
        """Conclude what another driver, or this one before it died, had put into the archive."""
        concluded: list[Manifest] = []

        async def follow(cursor: tuple[ChannelPartition, str | None]) -> None:
            spot, after = cursor
            while (manifest := await self._following(spot, after)) is not None:
                await self._conclude(manifest)
                concluded.append(manifest)
                after = manifest.last

        await _for_each((await self.cursors()).items(), follow)
        return concluded

    async def _put(self, manifest: Manifest) -> None:
        try:
            await asyncio.to_thread(self._store.put, manifest.name, manifest.encode())
        except ObjectConflict:
            raise Superseded(
                f"another archiver has committed {manifest.spot.channel!r} after "
                f"{manifest.after or 'its beginning'}; this one steps back"
            ) from None

    async def _conclude(self, manifest: Manifest) -> None:
        """What follows from a manifest. To do it again changes nothing."""
        backend, policy, spot = self._backends[manifest.spot.partition], self._policy, manifest.spot
        await self._announce(backend, manifest)
        failpoints.hit("archive.after_event")
        moved = await backend.cursors.move(spot.channel, policy.consumer, manifest.after, manifest.last)
        if not moved and (await self.cursors()).get(spot) != manifest.last:
            raise Superseded(
                f"the cursor of {policy.consumer!r} on {spot.channel!r} is no longer at "
                f"{manifest.after or 'its beginning'}; another archiver is at work, and this one steps back"
            )
        failpoints.hit("archive.after_cursor")

    async def _announce(self, backend: Backend, manifest: Manifest) -> None:
        policy, spot = self._policy, manifest.spot
        if spot.channel == policy.announced_on:
            return  # or each batch of announcements would be news again
        news = Archived(
            stream=domain(spot.channel),
            channel=spot.channel,
            count=manifest.rows,
            destination=self._store.url,
            objects=len(manifest.objects),
            first=manifest.first,
            last=manifest.last,
        )
        name = f"{policy.consumer}:{spot.channel}:{spot.partition}:{manifest.first}"
        try:
            await announce(backend, policy.namespace, news, name)
        except IdConflict:
            log.info("%s was announced before, in other words", manifest.name)
        except Overloaded as error:  # an archive that cannot be heard of must still go on
            log.warning("%s is archived and not announced: %s", manifest.name, error)

    async def _following(self, spot: ChannelPartition, after: str | None) -> Manifest | None:
        """The manifest that starts where a cursor stands, if there is one."""
        name = manifest_name(spot.channel, spot.partition, after)
        with contextlib.suppress(NotFound):
            manifest = decode_manifest(await asyncio.to_thread(self._store.get, name), name)
            await self._check_origin(manifest)
            return manifest
        return None

    async def _check_origin(self, manifest: Manifest) -> None:
        """A manifest of another store's channel with the same name must not move our cursor.

        Ours begins with the event that follows the cursor. Only where the store was restored or failed over
        since, so that all it has there is of a later epoch, or has dropped that event, there is nothing left
        to compare, and nothing that the cursor could pass over.
        """
        spot, backend = manifest.spot, self._backends[manifest.spot.partition]
        entries = await backend.log.read(spot.channel, manifest.after, 1)
        if entries and entries[0].position == manifest.first:
            comparable, ours = True, await self._first_id(manifest) == entries[0].event.id
        else:
            trimmed = (await backend.log.extent(spot.channel)).trimmed or ""
            epoch = _epoch(entries[0].position) if entries else await backend.epoch()
            reborn = epoch > _epoch(manifest.last)
            comparable, ours = not reborn and trimmed < manifest.first, False
        if ours or not comparable:
            return
        raise ObjectConflict(
            f"{self._store.url}/{manifest.name} describes other events than channel {spot.channel!r} holds: "
            "the destination belongs to another store; archive this one to a place of its own"
        )

    async def _first_id(self, manifest: Manifest) -> object:
        first = min(manifest.objects, key=lambda each: each.first)
        text = await asyncio.to_thread(text_of, self._store, first)
        return orjson.loads(text.partition(b"\n")[0])["message_id"]


async def _for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Some channels at once. All are tried; then the first error is raised."""
    gate = asyncio.Semaphore(_PARALLEL)

    async def one(item: T) -> None:
        async with gate:
            await work(item)

    for outcome in await asyncio.gather(*map(one, items), return_exceptions=True):
        if isinstance(outcome, BaseException):
            raise outcome


def _epoch(position: str) -> int:
    return int(position.partition("-")[0], 16)


class Orphans:
    """Objects that an archiver wrote and never committed, because it died or was replaced.

    Most are taken over: the next driver writes the same objects again and finds them there. Where it cuts the
    log elsewhere (a lost checkpoint, another batch size), they stay behind. An orphan may be removed once the
    cursor has passed it: from then on no manifest can list it any more.
    """

    def __init__(self, store: ObjectStore, cursors: Mapping[ChannelPartition, str | None]) -> None:
        self._store = store
        self._suspects = {
            entry.name: named
            for folder in sorted({object_folder(spot.channel) for spot in cursors})
            for entry in store.list(folder)
            if (named := parse_object(entry.name)) is not None
            and named.spot in cursors
            and is_after(named.last, cursors[named.spot])
        }

    def remove(self, committed: Iterable[Manifest]) -> list[str]:
        """Remove those that the commits passed over; returns their names."""
        removed = []
        for manifest in committed:
            for each in manifest.objects:
                self._suspects.pop(each.object, None)
            for name, named in list(self._suspects.items()):
                if named.spot == manifest.spot and named.last <= manifest.last:
                    self._store.delete(name)
                    del self._suspects[name]
                    removed.append(name)
        return removed
