"""A process that archives a channel until a file exists and nothing is left to read.

Specification: url, history, channel, consumer, size (of a page), until (the file).
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from archiving import archive
from history import History

from holdfast.wiring import backend


async def main(spec: dict[str, Any]) -> None:
    notes, store = History(Path(spec["history"])), backend(spec["url"])
    await store.open()
    end = Path(spec["until"])
    await archive(store, notes, spec["channel"], spec["consumer"], spec["size"], is_over=end.exists)
    await store.close()


asyncio.run(main(json.loads(sys.argv[1])))
