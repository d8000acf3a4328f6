"""Compaction of an archive: the many small objects of days that are over become few, under one manifest.

    compacted/{channel}/p{partition}/{after}.json     what one manifest replaces, and since when

Neighbouring manifests of a chain become one. It has the name of the first of them, since that says where it
starts; the swap of that one is the commit. Readers see the old ones before it, and the new one after it,
which goes as far as the last one went: the others lie within it and count for nothing (`read_catalog`). They
and their objects are removed after a while, for readers that began before. Every step can be repeated. The
last manifest of a chain is left alone: the cursor may not have followed it yet.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import date, datetime, timedelta
from itertools import groupby
from typing import NamedTuple

import orjson

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound, ObjectConflict
from holdfast.pipeline.archive.manifests import Manifest, decode_manifest, manifest_folder, read_catalog
from holdfast.pipeline.archive.objects import Written, day_folder, sibling_name, text_of
from holdfast.pipeline.archive.writer import compressed
from holdfast.pipeline.stores import ObjectStore, open_store
from holdfast.pipeline.upkeep import CompactionSettings, UpkeepCounts

log = logging.getLogger(__name__)
FOLDER = "compacted"
ROWS, BYTES = 200_000, 32 << 20
"""Events of manifests that become one, and bytes of their objects, at most: they are in memory."""


class Replacement(NamedTuple):
    """What a manifest replaces."""

    name: str
    at: datetime
    sha256: str
    manifests: tuple[str, ...]
    objects: tuple[str, ...]

    def encode(self) -> bytes:
        """As JSON."""
        body = self._asdict() | {"version": 1, "at": self.at.isoformat()}
        del body["name"]
        return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)


def replacements(store: ObjectStore) -> Iterator[Replacement]:
    """What is replaced and not removed yet. One that cannot be read is left alone."""
    for entry in store.list(FOLDER):
        try:
            body = orjson.loads(store.get(entry.name))
            at = datetime.fromisoformat(body["at"])
            yield Replacement(
                entry.name, at, body["sha256"], tuple(body["manifests"]), tuple(body["objects"])
            )
        except NotFound:
            continue
        except (ValueError, LookupError, TypeError) as error:
            log.error("%s/%s cannot be read, and nothing of it is removed: %r", store.url, entry.name, error)


class ArchiveCompaction:
    """The compaction of one archive. `check` raises where this process no longer has the lock."""

    def __init__(
        self,
        store: ObjectStore,
        keep: timedelta,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._store, self._keep, self._check = store, keep, check
        self.url = store.url

    def step(self, now: datetime) -> UpkeepCounts:
        """Compact some neighbours; all zero where nothing is left to do."""
        for group in groups(read_catalog(self._store).manifests, now.date()):
            return self._replace(group, now)
        return UpkeepCounts()

    def clean(self, now: datetime) -> UpkeepCounts:
        """Remove what was replaced a while ago."""
        removed = 0
        for replacement in replacements(self._store):
            if now - replacement.at >= self._keep and self._holds(replacement):
                self._check()
                for name in (*replacement.manifests, *replacement.objects):
                    self._store.delete(name)
                    failpoints.hit("compact.mid_clean")
                    removed += 1
                self._store.delete(replacement.name)
        return UpkeepCounts(removed=removed)

    def _replace(self, group: Sequence[Manifest], now: datetime) -> UpkeepCounts:
        old = [each for manifest in group for each in manifest.objects]
        new = [self._merge(part) for part in parts(old)]
        manifest = Manifest(group[0].spot, group[0].after, tuple(new))
        if (manifest.last, manifest.rows) != (group[-1].last, sum(each.rows for each in group)):
            raise Damaged(f"the objects of {group[0].name} and those after it do not fit together: verify it")
        names = {each.object for each in new}
        replacement = Replacement(
            manifest.name.replace(manifest_folder(), FOLDER, 1),
            now,
            hashlib.sha256(manifest.encode()).hexdigest(),
            tuple(each.name for each in group[1:]),
            tuple(each.object for each in old if each.object not in names),
        )
        overwrite(self._store, replacement.name, replacement.encode())
        failpoints.hit("compact.before_commit")
        self._check()
        found = self._store.tagged(manifest.name)
        if decode_manifest(found.data, manifest.name) != group[0] or not self._store.swap(
            manifest.name, found.tag, manifest.encode()
        ):
            raise ObjectConflict(
                f"{manifest.name} was changed by somebody else meanwhile; nothing is replaced"
            )
        failpoints.hit("compact.after_commit")
        return UpkeepCounts(len(old), len(new))

    def _merge(self, objects: Sequence[Written]) -> Written:
        """One object in place of some of a day, read back and compared line by line."""
        if len(objects) == 1:
            return objects[0]
        first, last, rows = objects[0], objects[-1], sum(each.rows for each in objects)
        text = b"".join(text_of(self._store, each) for each in objects)
        if text.count(b"\n") != rows:
            raise Damaged(f"{first.object} and those after it have other lines than their manifests say")
        name = sibling_name(first.object, first.first, last.last)
        data = compressed(text)
        try:
            self._store.put(name, data)
        except ObjectConflict:  # by another version of the compressor: what counts is what it holds
            data = self._store.get(name)
        failpoints.hit("compact.after_stage")
        sizes = (rows, len(data), hashlib.sha256(data).hexdigest())
        merged = Written(name, first.channel, first.partition, first.first, last.last, *sizes)
        if text_of(self._store, merged).splitlines() != text.splitlines():
            raise Damaged(
                f"{name} does not hold the lines of the objects that it is made of; nothing is replaced"
            )
        return merged

    def _holds(self, replacement: Replacement) -> bool:
        """Whether the manifest that replaces others is in its place."""
        name = f"{manifest_folder()}/{replacement.name.removeprefix(f'{FOLDER}/')}"
        try:
            return hashlib.sha256(self._store.get(name)).hexdigest() == replacement.sha256
        except NotFound:
            return False


def compactions(
    urls: Iterable[str], settings: CompactionSettings, check: Callable[[], None] = lambda: None
) -> list[ArchiveCompaction]:
    """Those of archives. One in a PostgreSQL table has no small files."""
    places = [url for url in dict.fromkeys(urls) if not url.startswith("postgres")]
    return [ArchiveCompaction(open_store(url), settings.keep, check) for url in places]


def groups(manifests: Iterable[Manifest], today: date) -> Iterator[list[Manifest]]:
    """Neighbours in a chain, of a day that is over, that would have fewer objects together."""
    for _, chain in groupby(manifests, key=lambda each: each.spot):
        taken: list[Manifest] = []
        *before, _last = chain
        for manifest in before:
            fits = taken and taken[-1].last == manifest.after and main_day(taken[-1]) == main_day(manifest)
            if taken and (not fits or _too_much([*taken, manifest])):
                yield from _worthwhile(taken)
                taken = []
            if main_day(manifest) < day_folder(today):
                taken.append(manifest)
        yield from _worthwhile(taken)


def parts(objects: Iterable[Written]) -> Iterator[list[Written]]:
    """Objects of one folder, which is a day, in the order of their positions."""

    def folder(each: Written) -> str:
        return each.object.rpartition("/")[0]

    for _, found in groupby(sorted(objects, key=lambda each: (folder(each), each.first)), folder):
        yield list(found)


def main_day(manifest: Manifest) -> str:
    """The folder of the day that most of its events have: some are late, and some ahead of their time."""
    rows: dict[str, int] = {}
    for each in manifest.objects:
        day = "/".join(each.object.split("/")[-4:-1])
        rows[day] = rows.get(day, 0) + each.rows
    return max(sorted(rows), key=lambda day: rows[day])


def overwrite(store: ObjectStore, name: str, data: bytes) -> None:
    """Put an object in the place of whatever is there."""
    try:
        tag = store.tagged(name).tag
    except NotFound:
        store.put(name, data)
        return
    if not store.swap(name, tag, data):
        raise ObjectConflict(f"{name} was changed by somebody else meanwhile; run it again")


def _too_much(group: Sequence[Manifest]) -> bool:
    size = sum(each.bytes for manifest in group for each in manifest.objects)
    return sum(each.rows for each in group) > ROWS or size > BYTES


def _worthwhile(group: list[Manifest]) -> Iterator[list[Manifest]]:
    objects = [each for manifest in group for each in manifest.objects]
    if group and len(list(parts(objects))) < len(objects) and not _too_much(group):
        yield group


def superseded(store: ObjectStore) -> set[str]:
    """Objects that were replaced and wait to be removed."""
    return {name for replacement in replacements(store) for name in replacement.objects}
