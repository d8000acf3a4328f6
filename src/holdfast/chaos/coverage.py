"""Coverage: how often each failpoint was passed, counted in files that outlive whoever is killed."""

from __future__ import annotations

import mmap
from collections import Counter
from pathlib import Path

from holdfast import failpoints

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
