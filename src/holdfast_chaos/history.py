"""Histories: what each process of a run asked for and was told, kept apart from the store.

One append-only file per process, one line per step, each line one write: a SIGKILL loses nothing that was
noted. A call is noted as invoked before it is made; without a later answer its outcome is unknown. A second
file per process counts how often it passed each failpoint.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from holdfast import failpoints

Outcome = Literal["ok", "failed", "unknown"]
Item = dict[str, Any]


class History:
    """The notes of one process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._numbers = itertools.count(1)

    def invoked(self, verb: str, items: list[Item], **about: Any) -> int:
        """A call is about to be made. Returns its number. `about` is what holds for all of its items."""
        number = next(self._numbers)
        said = {"about": about} if about else {}
        self._note({"call": number, "verb": verb, "items": items, "at": time.monotonic_ns()} | said)
        return number

    def answered(self, number: int, outcome: Outcome, answers: list[Any] | None = None) -> None:
        """The call came back."""
        self._note({"call": number, "outcome": outcome, "answers": answers or [], "at": time.monotonic_ns()})

    def happened(self, verb: str, *items: Item) -> None:
        """Something that is no call: it was seen, or had its effect."""
        now = time.monotonic_ns()
        line = {"call": next(self._numbers), "verb": verb, "items": list(items), "at": now}
        self._note(line | {"outcome": "ok", "answers": []})

    def sync(self) -> None:
        """What was noted so far is on the disk."""
        os.fsync(self._file)

    def _note(self, line: dict[str, Any]) -> None:
        os.write(self._file, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        """No more notes."""
        os.close(self._file)


@dataclass(slots=True)
class Call:
    """One call of one process, with what it was told."""

    process: str
    verb: str
    items: list[Item]
    at: int = 0
    """When it was invoked, on the one monotonic clock of the machine, in nanoseconds."""
    outcome: Outcome = "unknown"
    answers: list[Any] = field(default_factory=list)
    ended: int = 0
    """When its answer was there, on the same clock; 0 while there is none."""
    about: Item = field(default_factory=dict)
    """What holds for all of its items."""

    def told(self) -> list[tuple[Item, Any]]:
        """Each item with its answer; nothing while the outcome is unknown."""
        return list(zip(self.items, self.answers, strict=True)) if self.answers else []


def read(folder: Path, process: str = "*") -> list[Call]:
    """Every call of every process, or of one, process by process, in the order in which they were made."""
    return [call for path in sorted(folder.glob(f"{process}.jsonl")) for call in _calls(path)]


def _calls(path: Path) -> list[Call]:
    with path.open() as lines:  # of a line that is being written, the end may lack
        return calls_of(path.stem, (_line(line) for line in lines if line.endswith("\n")))


def _line(text: str) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(text, object_hook=shared)
    return line


def shared(found: Item) -> Item:
    """Each text once in memory: a history of twenty minutes names every job about ten times."""
    return {name: sys.intern(value) if type(value) is str else value for name, value in found.items()}


def calls_of(process: str, lines: Iterable[dict[str, Any]]) -> list[Call]:
    """The calls of one process from its notes."""
    calls: dict[int, Call] = {}
    for line in lines:
        if "verb" in line:
            about = line.get("about", {})
            calls[line["call"]] = Call(process, line["verb"], line["items"], line["at"], about=about)
        if "outcome" in line:
            call = calls[line["call"]]
            call.outcome, call.answers, call.ended = line["outcome"], line["answers"], line["at"]
    return list(calls.values())


def of(calls: list[Call], *verbs: str, process: str = "") -> list[Call]:
    """The calls of those verbs, of all processes or of those whose name contains `process`."""
    return [call for call in calls if call.verb in verbs and process in call.process]


def refused(calls: list[Call], *verbs: str, process: str = "") -> list[Item]:
    """What the store refused for a stale token."""
    return [item for call in of(calls, *verbs, process=process) for item, yes in call.told() if yes is False]


def accepted(calls: list[Call], *verbs: str, process: str = "") -> list[Item]:
    """What the store accepted."""
    return [item for call in of(calls, *verbs, process=process) for item, yes in call.told() if yes is True]


def acknowledged(calls: list[Call]) -> Iterator[tuple[Item, Item]]:
    """Every event whose publish was acknowledged, with its receipt."""
    return (pair for call in of(calls, "publish") for pair in call.told())


def job_key(item: Item) -> tuple[str, str, str]:
    """The job that an item is about: its channel, its consumer and its number."""
    return item["channel"], item["consumer"], item["job"]


_NAMES = tuple(failpoints.KNOWN)
_WIDTH = 8


def count_hits(file: Path) -> None:
    """Count every hit of this process in a file of its own."""
    file.write_bytes(bytes(_WIDTH * len(_NAMES)))
    with file.open("r+b") as opened:
        counters = mmap.mmap(opened.fileno(), 0)
    places = {name: slice(n * _WIDTH, (n + 1) * _WIDTH) for n, name in enumerate(_NAMES)}

    def note(name: str) -> None:
        place = places[name]
        counters[place] = (int.from_bytes(counters[place], "big") + 1).to_bytes(_WIDTH, "big")

    failpoints.watch(note)


def hits_of(file: Path) -> Counter[str]:
    """What one process counted."""
    data = file.read_bytes() if file.exists() else b""
    numbers = (int.from_bytes(data[n : n + _WIDTH], "big") for n in range(0, len(data), _WIDTH))
    return Counter(dict(zip(_NAMES, numbers, strict=False)))


def hits(folder: Path) -> Counter[str]:
    """What all processes of a folder counted together."""
    return sum(map(hits_of, folder.glob("*.hits")), Counter[str]())
