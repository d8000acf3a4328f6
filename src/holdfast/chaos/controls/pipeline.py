"""The controls of the pipeline, which is imported only where one of them is played (I7 to I12)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec

from holdfast.chaos.controls.control import Control, Play
from holdfast.chaos.rig import Rig


def _missing() -> str | None:
    return None if find_spec("pyspark") else "the pipeline is not installed"


def _play(part: str) -> Play:
    module, _, name = part.partition(".")

    async def play(rig: Rig, sound: bool) -> set[str]:
        chosen: Play = getattr(importlib.import_module(f"holdfast.chaos.controls.{module}"), name)
        return await chosen(rig, sound)

    return play


_LIST = [
    ("archive-cursor-first", "The archiver's cursor moves before the object.", "I7", "archive.cursor_first"),
    ("write-behind", "Objects are acknowledged before they are stored.", "I8", "archive.write_behind"),
    ("rotten-object", "A byte of an archived object changes.", "I8", "archive.rotten_object"),
    ("wal-cursor-first", "The ingest's cursor moves before the WAL.", "I9", "ingest.cursor_before_pending"),
    ("counted-ids", "Transaction ids come from a counter.", "I10", "ingest.counted_ids"),
    ("two-transactions", "Rows and ledger commit one after the other.", "I11", "ingest.two_transactions"),
    ("unchecked-segment", "Segments are read without their checksums.", "I12", "ingest.damaged_segment"),
]
CONTROLS = [
    Control(name, defect, breaks, _play(part), missing=_missing) for name, defect, breaks, part in _LIST
]
