"""Opening: the store as a party sees it, with its history and, where it is told so, with noise."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from holdfast.chaos.history import History
from holdfast.chaos.noise import Noisy
from holdfast.chaos.recorder import Recorded
from holdfast.contracts import Backend
from holdfast.wiring import backend


def opened(spec: dict[str, Any]) -> tuple[Backend, History]:
    """A backend whose calls are noted, and the notes. `noise` in the specification is its seed."""
    notes = History(Path(spec["history"]))
    inner: Any = backend(spec["url"])
    if "noise" in spec:
        inner = Noisy(inner, random.Random(spec["noise"]))
    watched: Any = Recorded(inner, notes)
    return watched, notes
