"""The rest of a batch that failed as a whole: its rows that have no failure of their own.

A batch can be many times what a list shows of it. So the names of its rows are read first, and rows only with
the segments that are reached, of which no more are held than `HELD` bytes, or one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.failed.view import UNREADABLE, rest_of
from holdfast.pipeline.wal import Wal, segments
from holdfast.pipeline.wal.batch import Batch
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.records import Failure, GaveUp
from holdfast.pipeline.wal.rows import names

HELD = 64 << 20
_AT_ONCE = 1_000
_NONE = pa.table({"name": pa.array([], pa.string()), "segment": pa.array([], pa.int64())})


def rest(
    wal: Wal, batch: str, wanted: Callable[[str], bool], after: str | None
) -> Iterator[tuple[str, Failure | Damaged]]:
    """In the order of their names those of the channels that are wanted, after a name where one is given.

    What cannot be read is one entry for each channel of each store, named after its last row.
    """
    try:
        gave_up = wal.gave_up(batch)
        if gave_up is not None:
            yield from _Rest(wal, _batch(wal, batch), gave_up).each(wanted, after)
    except Damaged as damage:  # of the records, before anything else is read
        for group in sorted(_groups(wal, batch)):
            if wanted(group.partition("@")[0]) and (after is None or group + REST > after):
                yield group + REST, damage


@dataclass
class _Rest:
    wal: Wal
    batch: Batch
    gave_up: GaveUp
    held: dict[int, pa.Table] = field(default_factory=dict)
    """Segments that were read, by number, the last one last."""

    def each(
        self, wanted: Callable[[str], bool], after: str | None
    ) -> Iterator[tuple[str, Failure | Damaged]]:
        """By group: the rows of one channel on one store."""
        found, unnamed = self._names()
        groups = {*found} if not unnamed else {*found, *_groups(self.wal, self.batch.name)}
        for group in sorted(groups):
            if wanted(group.partition("@")[0]) and (after is None or group + REST > after):
                its = found.get(group, _NONE)
                yield from self._rows(its if after is None else its.filter(pc.field("name") > after))
                # Last, and not where it is met: so a page that begins behind it has it, too.
                if (damage := self._damage({*its["segment"].unique().to_pylist(), *unnamed})) is not None:
                    yield group + REST, damage

    def _names(self) -> tuple[dict[str, pa.Table], list[int]]:
        """By group the names of its rows in order, each with its segment; and segments that do not tell."""
        out = pa.array(self.wal.left_out(self.batch.name), pa.string())
        found: dict[str, list[pa.Table]] = defaultdict(list)
        unnamed = []
        for number, segment in enumerate(self.batch.segments):
            try:
                places = segments.places(self.wal.store, segment)
            except Damaged:
                unnamed.append(number)
                continue
            partition = places["partition"].cast(pa.string())
            groups = pc.binary_join_element_wise(places["channel"], partition, "", "@")
            for group in groups.unique().to_pylist():
                its = names(places.filter(pc.equal(groups, group)))
                its = its.filter(pc.invert(pc.is_in(its, out)))
                found[group].append(pa.table([its, pa.repeat(number, len(its))], ["name", "segment"]))
        return {group: pa.concat_tables(its).sort_by("name") for group, its in found.items()}, unnamed

    def _rows(self, its: pa.Table) -> Iterator[tuple[str, Failure]]:
        """The rows of one group that can be read."""
        start = 0
        for number, run in groupby(its["segment"].to_pylist()):
            end = start + sum(1 for _ in run)
            for at in range(start, end, _AT_ONCE):
                try:
                    rows = self._read(number)
                except Damaged:
                    break
                wanted = its["name"].slice(at, min(_AT_ONCE, end - at)).combine_chunks()
                chosen = rows.filter(pc.is_in(names(rows), wanted)).sort_by("position")
                for row in chosen.to_batches(max_chunksize=1):
                    [failure] = rest_of(row.to_pylist(), self.gave_up, self.batch.created_at)
                    yield failure.name, failure
            start = end

    def _damage(self, its: set[int]) -> Damaged | None:
        """What is wrong with the first of these segments that cannot be read."""
        for number in sorted(its):
            try:
                self._read(number)
            except Damaged as damage:
                return damage
        return None

    def _read(self, number: int) -> pa.Table:
        if number not in self.held:
            rows = segments.read(self.wal.store, self.batch.segments[number])
            while self.held and sum(each.nbytes for each in self.held.values()) + rows.nbytes > HELD:
                del self.held[next(iter(self.held))]
            self.held[number] = rows
        return self.held[number]


def _batch(wal: Wal, name: str) -> Batch:
    try:
        return wal.batch(name)
    except NotFound:
        raise Damaged(f"the record of batch {name}, which has failed, is missing") from None


def _groups(wal: Wal, batch: str) -> list[str]:
    """The groups of a batch, as far as that can be read."""
    try:
        return [f"{part.channel}@{part.partition}@" for part in wal.parts(batch)]
    except (Damaged, NotFound):
        return [f"{UNREADABLE}@0@"]
