"""Spark's checkpoint beside the cursors: the cursors decide.

A checkpoint whose last batch ends before a cursor was overtaken by another driver: its batches are archived,
and their events may be trimmed. One that takes a batch for done which ends beyond a cursor would skip what
lies between. In both cases the query starts afresh at the cursors. Otherwise it repeats, exactly as it was,
the batch that was under way.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import orjson

from holdfast.pipeline.offsets import Spot, load

log = logging.getLogger(__name__)

Ends = dict[Spot, str]
_STORES = 10_000
"""More than there can be: which of them are listed is not asked here."""


def discard_if_at_odds(folder: Path, cursors: Mapping[Spot, str | None]) -> bool:
    """Remove a checkpoint that is of no use any more; answers whether it was."""
    if not folder.exists() or agrees(_ends(folder, "offsets"), _ends(folder, "commits"), cursors):
        return False
    log.warning("the checkpoint %s does not agree with the cursors: starting at the cursors", folder)
    shutil.rmtree(folder)
    return True


def agrees(planned: Ends | None, done: Ends | None, cursors: Mapping[Spot, str | None]) -> bool:
    """Whether every cursor is between what is done and what is planned. None stands for unreadable."""
    if planned is None or done is None:
        return False
    behind = any((cursors.get(spot) or "") > end for spot, end in planned.items())
    ahead = any((cursors.get(spot) or "") < end for spot, end in done.items())
    return not behind and not ahead


def _ends(folder: Path, log_name: str) -> Ends | None:
    """Where the last batch ends that Spark has planned (`offsets`) or done (`commits`)."""
    numbers = [int(path.name) for path in (folder / log_name).glob("*") if path.name.isdigit()]
    if not numbers:
        return {}
    try:
        # A line for the version, one for Spark's own notes, one for the only source.
        stored = orjson.loads((folder / "offsets" / str(max(numbers))).read_bytes().splitlines()[2])
        return {spot: end or "" for spot, end in load(stored, _STORES).items()}
    except (OSError, ValueError, IndexError):
        return None
