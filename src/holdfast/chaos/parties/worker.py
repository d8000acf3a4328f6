"""A process that works: an app whose handler notes what it sees and what it has done.

Specification: url, history, channel, consumer, options (of the handler). Data that says `poison` kills the
process; data that says `hold` makes the handler block the whole event loop until that file exists.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.bus.client import Bus
from holdfast.chaos.history import History
from holdfast.chaos.recorder import Recorded
from holdfast.wiring import backend


def block_until(file: Path) -> None:
    while not file.exists():
        time.sleep(0.01)


async def main(spec: dict[str, Any]) -> None:
    notes = History(Path(spec["history"]))
    app = holdfast.App()

    @app.handler(spec["channel"], spec["consumer"], start="earliest", **spec["options"])
    async def work(event: holdfast.Event) -> None:
        notes.happened("seen", {"id": event.id})
        data = event.json()
        if "poison" in data:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hold" in data:
            block_until(Path(data["hold"]))
        notes.happened("effect", {"id": event.id})

    watched: Any = Recorded(backend(spec["url"]), notes)
    async with Bus([watched]) as bus:
        await app.serve(bus, idle="200ms", grace="5s")
