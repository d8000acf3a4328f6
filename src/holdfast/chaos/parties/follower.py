"""A process that archives a channel until a file exists and nothing is left to read.

Specification: url, history, channel, consumer, size (of a page), until (the file).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.chaos.history import History
from holdfast.chaos.parties.following import archive
from holdfast.wiring import backend


async def main(spec: dict[str, Any]) -> None:
    notes, store = History(Path(spec["history"])), backend(spec["url"])
    await store.open()
    end = Path(spec["until"])
    await archive(store, notes, spec["channel"], spec["consumer"], spec["size"], is_over=end.exists)
    await store.close()
