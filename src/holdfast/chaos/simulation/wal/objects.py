"""Objects in memory: put if absent, with a turn before and after each write, and before some reads."""

from __future__ import annotations

import bisect
import io
from collections.abc import Iterator, Sequence
from typing import BinaryIO, Protocol

from holdfast.chaos.simulation.actors import Process
from holdfast.chaos.simulation.stage import Stage
from holdfast.model.errors import NotFound, ObjectConflict
from holdfast.pipeline.stores.contract import Entry, Tagged, content_tag

_READS = 0.2
"""The share of reads that wait for their turn: a history of reads would be long and dull."""


class Watcher(Protocol):
    """Is told of every write as it happens."""

    def put(self, name: str, data: bytes) -> None:
        """A new object."""

    def deleted(self, name: str) -> None:
        """An object is about to go."""


class Objects:
    """An object store. Whoever is no actor (a thread of one, or the judge) does not wait."""

    url = "memory://wal"

    def __init__(self, stage: Stage, watcher: Watcher) -> None:
        self._stage, self._watcher = stage, watcher
        self.held: dict[str, bytes] = {}
        """For the judge, who takes no turns."""
        self._names: list[str] = []

    def put(self, name: str, data: bytes) -> bool:
        """See the contract."""
        folder = name.partition("/")[0]
        self._ask(f"put {folder}")
        known = self.held.get(name)
        if known is not None and known != data:
            self._stage.count("put refused")
            raise ObjectConflict(f"{name} is there with other content")
        if known is None:
            self.held[name] = data
            bisect.insort(self._names, name)
            self._watcher.put(name, data)
        self._answer(f"put {folder}")
        return known is None

    def swap(self, name: str, tag: str, data: bytes) -> bool:
        """See the contract."""
        self._ask("swap")
        found = self.held.get(name)
        fits = found is not None and content_tag(found) in (tag, content_tag(data))
        if fits:
            self.held[name] = data
        return fits

    def get(self, name: str) -> bytes:
        """See the contract."""
        self._look("get")
        try:
            return self.held[name]
        except KeyError:
            raise NotFound(f"there is no object {name!r}") from None

    def parts(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """See the contract."""
        data = self.get(name)
        return [data[start:end] for start, end in ranges]

    def reader(self, name: str) -> BinaryIO:
        """See the contract."""
        return io.BytesIO(self.get(name))

    def tagged(self, name: str) -> Tagged:
        """See the contract."""
        data = self.get(name)
        return Tagged(data, content_tag(data))

    def size(self, name: str) -> int | None:
        """See the contract."""
        self._look("size")
        data = self.held.get(name)
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """See the contract."""
        self._look("list")
        folder = f"{prefix}/" if prefix else ""
        first = bisect.bisect_left(self._names, folder)
        for name in self._names[first:]:
            if not name.startswith(folder):
                return
            yield Entry(name, len(self.held[name])) if name in self.held else Entry(name, 0)

    def delete(self, name: str) -> None:
        """See the contract."""
        self._ask("delete")
        if name in self.held:
            self._watcher.deleted(name)
            del self.held[name]
            self._names.remove(name)
        self._answer("delete")

    def damage(self, name: str) -> None:
        """Change a byte of an object, as a disk does."""
        data = self.held[name]
        self.held[name] = data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]

    def _ask(self, verb: str) -> None:
        if Process.turn(verb):
            self._stage.refuse(verb)

    def _answer(self, verb: str) -> None:
        if Process.turn(f"answer to {verb}"):
            self._stage.lose(verb)

    def _look(self, verb: str) -> None:
        if Process.acting() and self._stage.happens(_READS):
            self._ask(verb)
