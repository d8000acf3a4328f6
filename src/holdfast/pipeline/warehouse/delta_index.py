"""The index of a Delta table: in which data files a transaction hash stands, without reading them.

    _holdfast/index/{table}/state.json      which files are covered, and the pieces in their levels
    _holdfast/index/{table}/{piece}         hashes in order, each with the number of its file

It is an optimisation and can be lost: a live file that it does not cover is scanned instead. An entry whose
file is no longer live means nothing, since whoever rewrites a file makes another one.

Pieces of the first level are as they came and overlap; those of every other level do not, and a level holds
ten times as much as the one before it. So a look-up reads a block for each hash and level, however large the
table is, and a step of merging rewrites about a dozen pieces.
"""

from __future__ import annotations

import logging
import secrets
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from holdfast import failpoints
from holdfast.model.errors import Damaged, NotFound
from holdfast.pipeline.stores import ObjectStore

log = logging.getLogger(__name__)
Hashes = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.uint32]

FOLDER = "_holdfast/index"
VERSION = 1
BLOCK, PIECE, FAN, FRESH = 256, 1 << 19, 10, 4
"""Entries of a block and of a piece; how many times a level is larger than the one before; pieces that the
first level has at most."""
_ENTRY, _CHECKSUM = 12, 4
_STAMP = "%Y%m%dT%H%M%SZ"
_ABANDONED = timedelta(days=1)


class IndexPiece(NamedTuple):
    """A run of hashes in order."""

    object: str
    rows: int
    low: int
    high: int

    @property
    def blocks(self) -> int:
        return -(-self.rows // BLOCK)

    def place(self, block: int) -> tuple[int, int]:
        """Where a block is in the object; the one after the last are the first hashes of all blocks."""
        start = block * (BLOCK * _ENTRY + _CHECKSUM) if block < self.blocks else self._end
        rows = min(BLOCK, self.rows - block * BLOCK)
        size = rows * _ENTRY if block < self.blocks else self.blocks * 8
        return start, start + size + _CHECKSUM

    @property
    def _end(self) -> int:
        return self.rows * _ENTRY + self.blocks * _CHECKSUM


@dataclass(frozen=True)
class IndexState:
    """What the index covers. Nothing, where there is none."""

    numbers: Mapping[str, int] = field(default_factory=dict)
    """By file."""
    levels: Sequence[Sequence[IndexPiece]] = ()
    next: int = 1
    tag: str | None = None

    def encode(self) -> bytes:
        """As JSON."""
        levels = [[list(piece) for piece in level] for level in self.levels]
        body = {"version": VERSION, "next": self.next, "files": self.numbers, "levels": levels}
        return orjson.dumps(body, option=orjson.OPT_SORT_KEYS)

    @property
    def pieces(self) -> Iterator[IndexPiece]:
        return (piece for level in self.levels for piece in level)


class HashIndex:
    """The index of one table. Several processes may read it; of several that change it one comes through."""

    def __init__(self, store: ObjectStore, table: str) -> None:
        self._store, self._folder = store, f"{FOLDER}/{table}"
        self._firsts: dict[str, Hashes] = {}

    def find(self, hashes: Hashes, live: Collection[str]) -> tuple[set[str], set[str]]:
        """Of the live files, those that have some of the hashes, and those that the index does not cover."""
        wanted = np.unique(hashes)
        while True:
            state = self.state()
            names = {number: name for name, number in state.numbers.items() if name in live}
            try:
                found = {number for piece in state.pieces for number in self._numbers(piece, wanted)}
            except NotFound:  # merged meanwhile
                if self.state().tag != state.tag:
                    continue
                self._drop("a piece is missing")
            except Damaged as damage:
                self._drop(str(damage))
            else:
                hits = {names[number] for number in found if number in names}
                return hits, set(live) - state.numbers.keys()

    def state(self) -> IndexState:
        """As it is now. One that cannot be read is dropped: it is built again."""
        try:
            data, tag = self._store.tagged(f"{self._folder}/state.json")
        except NotFound:
            return IndexState()
        try:
            body = orjson.loads(data)
            if body["version"] != VERSION:
                raise ValueError(body["version"])
            levels = [[IndexPiece(*piece) for piece in level] for level in body["levels"]]
            return IndexState(body["files"], levels, body["next"], tag)
        except (ValueError, LookupError, TypeError) as error:
            self._drop(repr(error))
            return IndexState()

    def add(self, files: Mapping[str, Hashes], live: Collection[str]) -> bool:
        """Cover files; False where somebody else changed the index meanwhile."""
        state = self.state()
        fresh = {name: hashes for name, hashes in files.items() if name not in state.numbers}
        numbers = {name: state.next + place for place, name in enumerate(fresh)}
        owners = [np.full(len(hashes), numbers[name], np.uint32) for name, hashes in fresh.items()]
        if not fresh:
            return True
        pieces = list(self._write(np.concatenate(list(fresh.values())), np.concatenate(owners)))
        kept = {name: number for name, number in state.numbers.items() if name in live}
        first, *rest = state.levels or [[]]
        levels = [[*first, *pieces], *rest]
        return self._replace(state, IndexState({**kept, **numbers}, levels, state.next + len(fresh)))

    def merge(self) -> bool:
        """Merge some pieces into the next level where a level is too large; returns whether one was."""
        state = self.state()
        place, chosen = _overdue(state.levels)
        if not chosen:
            return False
        levels = [list(level) for level in state.levels] + ([[]] if place + 1 == len(state.levels) else [])
        low, high = min(piece.low for piece in chosen), max(piece.high for piece in chosen)
        below = [piece for piece in levels[place + 1] if piece.low <= high and low <= piece.high]
        parts = [self._whole(piece) for piece in (*chosen, *below)]
        hashes = np.concatenate([part[0] for part in parts])
        owners = np.concatenate([part[1] for part in parts])
        alive = np.isin(owners, np.fromiter(state.numbers.values(), np.uint32, len(state.numbers)))
        merged = list(self._write(hashes[alive], owners[alive]))
        levels[place] = [piece for piece in levels[place] if piece not in chosen]
        rest = [piece for piece in levels[place + 1] if piece not in below]
        levels[place + 1] = sorted([*rest, *merged], key=lambda piece: piece.low)
        failpoints.hit("compact.before_index")
        if self._replace(state, IndexState(state.numbers, levels, state.next)):
            for piece in (*chosen, *below):
                self._store.delete(piece.object)
        return True

    def clean(self, now: datetime) -> int:
        """Remove pieces that nobody lists and that are old: whoever wrote them died. Returns how many."""
        named = {piece.object for piece in self.state().pieces}
        orphans = [
            entry.name
            for entry in self._store.list(self._folder)
            if entry.name not in named and _is_before(entry.name, now - _ABANDONED)
        ]
        for name in orphans:
            self._store.delete(name)
        return len(orphans)

    def _replace(self, old: IndexState, new: IndexState) -> bool:
        name = f"{self._folder}/state.json"
        if old.tag is not None:
            return self._store.swap(name, old.tag, new.encode())
        try:
            return self._store.put(name, new.encode())
        except Exception:
            if self.state().tag is not None:
                return False
            raise

    def _drop(self, reason: str) -> None:
        log.error("the index %s/%s is dropped, and built again: %s", self._store.url, self._folder, reason)
        self._store.delete(f"{self._folder}/state.json")

    def _write(self, hashes: Hashes, owners: Numbers) -> Iterator[IndexPiece]:
        """Pieces of these entries, in order."""
        order = np.argsort(hashes, kind="stable")
        hashes, owners = hashes[order], owners[order]
        for start in range(0, len(hashes), PIECE):
            part, numbers = hashes[start : start + PIECE], owners[start : start + PIECE]
            stamp = datetime.now(UTC).strftime(_STAMP)
            name = f"{self._folder}/{stamp}-{secrets.token_hex(8)}"
            self._store.put(name, _encode(part, numbers))
            yield IndexPiece(name, len(part), int(part[0]), int(part[-1]))

    def _numbers(self, piece: IndexPiece, wanted: Hashes) -> Iterator[int]:
        """The numbers of the files in which a piece has some of the wanted hashes, which are in order."""
        start, end = np.searchsorted(wanted, [piece.low, piece.high], side="left")
        wanted = wanted[start : end + 1]
        if not len(wanted):
            return
        firsts = self._firsts_of(piece)
        # A hash may stand at the end of a block and at the beginning of the next one.
        edges = np.zeros(piece.blocks + 1, np.int64)
        np.add.at(edges, np.maximum(np.searchsorted(firsts, wanted, side="left") - 1, 0), 1)
        np.add.at(edges, np.maximum(np.searchsorted(firsts, wanted, side="right"), 1), -1)
        blocks = np.flatnonzero(np.cumsum(edges[:-1]) > 0)
        parts = self._blocks(piece, blocks.tolist())
        hashes = np.concatenate([part[0] for part in parts])
        owners = np.concatenate([part[1] for part in parts])
        yield from np.unique(owners[np.isin(hashes, wanted)]).tolist()

    def _firsts_of(self, piece: IndexPiece) -> Hashes:
        """The first hashes of a piece's blocks. They are kept: a piece does not change."""
        found = self._firsts.get(piece.object)
        if found is None:
            place = piece.place(piece.blocks)
            [data] = self._store.parts(piece.object, [place])
            found = self._firsts[piece.object] = np.frombuffer(_checked(piece, place, data), "<i8")
        return found

    def _blocks(self, piece: IndexPiece, blocks: Sequence[int]) -> list[tuple[Hashes, Numbers]]:
        places = [piece.place(block) for block in blocks]
        if 2 * len(blocks) > piece.blocks:
            data = self._store.get(piece.object)
            parts = [data[start:end] for start, end in places]
        else:
            parts = self._store.parts(piece.object, places)
        return [_decode(_checked(piece, *each)) for each in zip(places, parts, strict=True)]

    def _whole(self, piece: IndexPiece) -> tuple[Hashes, Numbers]:
        self._firsts.pop(piece.object, None)
        parts = self._blocks(piece, range(piece.blocks))
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])


def _overdue(levels: Sequence[Sequence[IndexPiece]]) -> tuple[int, Sequence[IndexPiece]]:
    """A level that is too large, and which of its pieces go down: all of the first, otherwise the one that
    meets the least."""
    if not levels:
        return 0, ()
    if len(levels[0]) >= FRESH:
        return 0, levels[0]
    for place, level in enumerate(levels[1:], 1):
        if sum(piece.rows for piece in level) > PIECE * FAN**place:
            below = levels[place + 1] if place + 1 < len(levels) else ()
            return place, [min(level, key=lambda piece: _met(piece, below))]
    return 0, ()


def _met(piece: IndexPiece, others: Iterable[IndexPiece]) -> int:
    return sum(other.rows for other in others if other.low <= piece.high and piece.low <= other.high)


def _encode(hashes: Hashes, owners: Numbers) -> bytes:
    """Blocks of hashes and numbers, then the first hashes of the blocks; each part with its checksum."""
    hashes, owners = hashes.astype("<i8"), owners.astype("<u4")
    blocks = [slice(start, start + BLOCK) for start in range(0, len(hashes), BLOCK)]
    parts = [hashes[block].tobytes() + owners[block].tobytes() for block in blocks]
    parts.append(hashes[::BLOCK].tobytes())
    return b"".join(part + zlib.crc32(part).to_bytes(_CHECKSUM, "little") for part in parts)


def _decode(block: bytes) -> tuple[Hashes, Numbers]:
    rows = len(block) // _ENTRY
    return np.frombuffer(block, "<i8", rows), np.frombuffer(block, "<u4", rows, rows * 8)


def _checked(piece: IndexPiece, place: tuple[int, int], part: bytes) -> bytes:
    body, found = part[:-_CHECKSUM], int.from_bytes(part[-_CHECKSUM:], "little")
    if len(part) != place[1] - place[0] or zlib.crc32(body) != found:
        raise Damaged(f"{piece.object} is torn, or a block of it has a wrong checksum")
    return body


def _is_before(name: str, when: datetime) -> bool:
    """Whether a piece was written before a time. What is no piece was not."""
    stamp: Any = name.rpartition("/")[2].partition("-")[0]
    try:
        return datetime.strptime(stamp, _STAMP).replace(tzinfo=UTC) < when
    except ValueError:
        return False
