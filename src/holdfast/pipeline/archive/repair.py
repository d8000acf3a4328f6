"""Repair of an archive: manifests made anew from objects, objects written again from the log. Needs no Spark.

Nothing is listed that is not proven: a manifest is put in place of a missing one only where its objects hold
exactly the events that the log has there.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, DataLost, HoldfastError, NotFound, ObjectConflict
from holdfast.pipeline.archive.compaction import overwrite, superseded
from holdfast.pipeline.archive.manifests import Manifest, manifest_folder, manifest_name, read_catalog
from holdfast.pipeline.archive.objects import ObjectContent, Written, decompressed, read_object
from holdfast.pipeline.archive.verify import Origin, begins_late, check
from holdfast.pipeline.archive.writer import Draft, ObjectWriter, compressed, write_object
from holdfast.pipeline.offsets import ChannelPartition, before
from holdfast.pipeline.stores import ObjectStore

log = logging.getLogger(__name__)
_ROWS = 1000
"""Events of an object that is written anew."""


class RepairedObject(NamedTuple):
    """An object or manifest that was repaired, or could not be, and how or why."""

    object: str
    message: str
    proven: bool = True
    """Whether the log has shown that it is exact."""


class Gap(NamedTuple):
    """A part of a channel's log that no manifest covers, and that was archived."""

    spot: ChannelPartition
    after: str | None
    last: str


class ArchiveRepair:
    """The repair of one archive, while no archiver is at work."""

    def __init__(self, store: ObjectStore, origin: Origin, *, unproven: bool = False) -> None:
        self._store, self._origin, self._unproven = store, origin, unproven
        self.done: list[RepairedObject] = []
        self.left: list[RepairedObject] = []
        """What could not be repaired, with why."""

    def run(self) -> None:
        """Repair what can be repaired."""
        there = [entry.name for entry in self._store.list("archive")]
        cursors, catalog = self._origin.cursors(), read_catalog(self._store)
        chains: dict[ChannelPartition, list[Manifest]] = {}
        for manifest in catalog.manifests:
            chains.setdefault(manifest.spot, []).append(manifest)
        listed = {each.object for each in catalog.objects} | superseded(self._store)
        loose = self._loose(name for name in there if name not in listed)
        for manifest in catalog.manifests:
            self.done += self._objects(manifest)
        for spot in sorted({*chains, *loose, *filter(self._origin.belongs, cursors)}):
            chain, candidates = chains.get(spot, []), loose.get(spot, [])
            broken = [name for name in catalog.broken if name.startswith(_folder(spot))]
            late = bool(chain) and begins_late(self._origin, chain[0])
            for gap in _gaps(spot, chain, candidates, broken, cursors.get(spot), late=late):
                if self._is_ours(chain):
                    self.done += self._fill(gap, candidates, broken)
                else:
                    message = "the channel of this name in the store holds other events: it is another one"
                    self.left.append(RepairedObject(_folder(spot).rstrip("/"), message))

    def _is_ours(self, chain: Sequence[Manifest]) -> bool:
        """Whether the log holds what the last manifest of a chain lists, if it still can."""
        for manifest in chain[-1:]:
            written = min(manifest.objects, key=lambda each: each.first)
            lines = read_object(self._store, written.object)
            if lines is not None and before(written.first) >= self._origin.extent(manifest.spot)[0]:
                found = self._origin.rows(manifest.spot, before(written.first), written.first)
                return [name for rows in found for name in rows["id"].to_pylist()] == [lines.events[0][1]]
        return True

    def _loose(self, names: Iterable[str]) -> dict[ChannelPartition, list[ObjectContent]]:
        """Objects that are in no manifest and can be read, by channel."""
        found: dict[ChannelPartition, list[ObjectContent]] = {}
        for name in names:
            lines = read_object(self._store, name)
            if lines is not None:
                found.setdefault(lines.written.spot, []).append(lines)
        return found

    # objects that a manifest lists

    def _objects(self, manifest: Manifest) -> Iterator[RepairedObject]:
        """Write the objects of a manifest again that are missing or damaged."""
        for written in manifest.objects:
            problem = check(self._store, written)
            if problem is None:
                continue
            try:
                now = self._rewrite(written)
            except HoldfastError as error:
                self.left.append(RepairedObject(written.object, f"{problem.message}; {error}"))
                continue
            if now != written:  # the same lines, compressed by another version
                objects = tuple(now if each == written else each for each in manifest.objects)
                manifest = replace(manifest, objects=objects)
                overwrite(self._store, manifest.name, manifest.encode())
            yield RepairedObject(written.object, f"{written.rows} events written again from the log")

    def _rewrite(self, written: Written) -> Written:
        """Put the object in its place from the log. `DataLost` or `Damaged` where the log cannot prove it."""
        draft = self._draft(written)
        text = draft.text
        data = compressed(text)
        try:
            stored = self._store.get(written.object)
            if decompressed(written.object, stored, len(text) + 1) == text:
                data = stored
        except (NotFound, Damaged):
            pass
        overwrite(self._store, written.object, data)
        return written._replace(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())

    def _draft(self, written: Written) -> Draft:
        floor = before(written.first)
        writer = ObjectWriter(self._store, written.rows, {written.spot: floor})
        for draft in writer.drafts(self._origin.rows(written.spot, floor, written.last)):
            if (draft.name, draft.rows) == (written.object, written.rows):
                return draft
        raise Damaged("the log holds other events there")

    # manifests that are missing

    def _fill(
        self, gap: Gap, candidates: Sequence[ObjectContent], broken: Sequence[str]
    ) -> list[RepairedObject]:
        """Put a manifest over a gap."""
        within = [
            each
            for each in candidates
            if (gap.after or "") < each.written.first and each.written.last <= gap.last
        ]
        try:
            objects, how, proven = self._proven(gap, within)
        except HoldfastError as error:
            name = manifest_name(gap.spot.channel, gap.spot.partition, gap.after)
            span = f"what follows {gap.after or 'the beginning'} up to {gap.last}"
            self.left.append(RepairedObject(name, f"nothing covers {span}: {error}"))
            return []
        manifest = Manifest(gap.spot, gap.after, objects)
        overwrite(self._store, manifest.name, manifest.encode())
        for name in broken:  # what this one stands for now
            if name != manifest.name and (gap.after or "") <= _after(name) < gap.last:
                self._store.delete(name)
        return [
            RepairedObject(manifest.name, f"{manifest.rows} events in {len(objects)} objects, {how}", proven)
        ]

    def _proven(self, gap: Gap, within: Sequence[ObjectContent]) -> tuple[tuple[Written, ...], str, bool]:
        """The objects that hold the events of a gap, how that is known, and whether it is proven."""
        held = sorted(event for each in within for event in each.events)
        try:
            wanted = [
                event
                for rows in self._origin.rows(gap.spot, gap.after, gap.last)
                for event in zip(rows["position"].to_pylist(), rows["id"].to_pylist(), strict=True)
            ]
        except DataLost as error:
            ends = bool(held) and held[-1][0] == gap.last and len(set(held)) == len(held)
            if not (self._unproven and ends):
                raise DataLost(f"{error}, so that nothing proves which objects belong there") from None
            return tuple(each.written for each in within), "not proven: the log no longer has them", False
        if not wanted or wanted[-1][0] != gap.last:
            raise Damaged(f"the log does not end with {gap.last} there: it is that of another store")
        if held == wanted:
            return tuple(each.written for each in within), "the same as in the log", True
        fitting = len(set(held)) == len(held) and set(held) <= set(wanted)
        kept = tuple(each.written for each in within) if fitting else ()
        return (*kept, *self._write(gap, held if fitting else [])), "some written again from the log", True

    def _write(self, gap: Gap, held: Sequence[tuple[str, str]]) -> Iterator[Written]:
        """Write what a gap holds from the log, but for events that are `held` by objects already."""
        there = pa.array([position for position, _ in held], pa.string())
        batches = self._origin.rows(gap.spot, gap.after, gap.last)
        missing = (rows.filter(pc.invert(pc.is_in(rows["position"], there))) for rows in batches)
        for draft in ObjectWriter(self._store, _ROWS, {gap.spot: gap.after}).drafts(missing):
            try:
                yield write_object(self._store, draft)
            except ObjectConflict:
                if read_object(self._store, draft.name) is not None:
                    raise
                overwrite(self._store, draft.name, compressed(draft.text))  # a damaged one was in its place
                yield write_object(self._store, draft)


def _gaps(
    spot: ChannelPartition,
    chain: Sequence[Manifest],
    loose: Sequence[ObjectContent],
    broken: Sequence[str],
    cursor: str | None,
    *,
    late: bool,
) -> Iterator[Gap]:
    """What no manifest of a chain covers, up to the cursor. Before the first one only where something shows
    that there was one: an archive may begin anywhere."""
    if chain and chain[0].after is not None:
        first = chain[0].after
        shown = any(each.written.last <= first for each in loose)
        if late or shown or any(_after(name) < first for name in broken):
            yield Gap(spot, None, first)
    for one, other in pairwise(chain):
        if other.after is not None and one.last < other.after:
            yield Gap(spot, one.last, other.after)
    end = chain[-1].last if chain else None
    if cursor is not None and cursor > (end or ""):
        yield Gap(spot, end, cursor)


def _folder(spot: ChannelPartition) -> str:
    return manifest_folder(spot.channel, spot.partition) + "/"


def _after(name: str) -> str:
    """From which position the manifest of that name starts; it sorts as the position does."""
    return name.rpartition("/")[2].removesuffix(".json")
