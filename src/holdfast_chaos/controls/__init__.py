"""Positive controls: the same rig and the same checks, with one guard switched off, must find the loss.

A run without violations is believable only as far as these are found.
"""

from __future__ import annotations

import asyncio
import importlib
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from holdfast.model.errors import InvalidInput
from holdfast_chaos.controls import deadletters, faultless, frontiers, leases, log, mutations, serving
from holdfast_chaos.controls.control import Control, ControlResult, Play, try_control
from holdfast_chaos.final_state import ServerUnderTest
from holdfast_chaos.rig import Rig
from holdfast_chaos.stores import STORES


def _of_pipeline(name: str) -> Play:
    """A scenario of the pipeline, which is imported only when one of them is played."""

    async def play(rig: Rig, sound: bool) -> set[str]:
        from holdfast_chaos.controls import pipeline_defects

        chosen: Play = getattr(pipeline_defects, name)
        return await chosen(rig, sound)

    return play


_PIPELINE = [
    Control(
        name,
        defect,
        breaks,
        _of_pipeline(scenario),
        missing=lambda: None if find_spec("pyspark") else "the pipeline is not installed",
    )
    for name, defect, breaks, scenario in (
        ("archive-cursor-first", "The archiver's cursor moves before the object.", "I7", "cursor_first"),
        ("write-behind", "Objects are acknowledged before they are stored.", "I8", "write_behind"),
        ("rotten-object", "A byte of an archived object changes.", "I8", "rotten_object"),
        ("wal-cursor-first", "The ingest's cursor moves before the WAL.", "I9", "cursor_before_pending"),
        ("counted-ids", "Transaction ids come from a counter.", "I10", "counted_ids"),
        ("two-transactions", "Rows and ledger commit one after the other.", "I11", "two_transactions"),
        ("unchecked-segment", "Segments are read without their checksums.", "I12", "damaged_segment"),
    )
]
_LISTS = (module.CONTROLS for module in (log, deadletters, leases, frontiers, serving))
CONTROLS: list[Control] = sorted(
    chain(*_LISTS, _PIPELINE, mutations.CONTROLS, faultless.CONTROLS),
    key=lambda control: int(control.breaks[1:]),
)
"""In the order of the invariants that they break."""


async def run_controls(
    stores: Sequence[str] = (),
    names: Sequence[str] = (),
    told: Callable[[ControlResult], object] = lambda finding: None,
) -> list[ControlResult]:
    """Those controls, or all, on those stores, or all; each finding is also told at once."""
    _check_names("store", stores, list(STORES))
    _check_names("control", names, [control.name for control in CONTROLS])
    found = []
    for name in stores or STORES:
        here = [each for each in CONTROLS if name in each.stores and (not names or each.name in names)]
        if not here:
            continue
        store = await asyncio.to_thread(STORES[name])
        try:
            for control in here:
                found.append(await _try_in_folder(control, name, store))
                told(found[-1])
        finally:
            await asyncio.to_thread(store.server.stop)
    return found


async def _try_in_folder(control: Control, name: str, store: ServerUnderTest) -> ControlResult:
    """One that breaks off has shown nothing."""
    with tempfile.TemporaryDirectory(prefix="holdfast-controls-") as folder:
        try:
            return await try_control(control, name, store, Path(folder))
        except Exception as error:
            return ControlResult(
                control.name, name, "missed", f"it broke off: {type(error).__name__}: {error}"
            )


def _check_names(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidInput(f"{what} {name!r} is unknown; there are {', '.join(known)}")


async def control(spec: dict[str, Any]) -> None:
    """A process that plays a part of a control: something with a guard switched off, or the sound one.

    Specification: url, history, part (the control's module and its function, `deadletters.bury`), and
    whatever that function takes.
    """
    module, _, name = spec["part"].rpartition(".")
    await getattr(importlib.import_module(f"{__name__}.{module}"), name)(spec)
