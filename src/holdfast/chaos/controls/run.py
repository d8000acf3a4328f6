"""Runs controls: on one kind of store after the other, each with a server of its own."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from holdfast.chaos.controls import CONTROLS
from holdfast.chaos.controls.control import Control, Finding, tried
from holdfast.chaos.evidence import Store
from holdfast.chaos.stores import STORES
from holdfast.model.errors import InvalidInput


async def run_controls(
    stores: Sequence[str] = (),
    names: Sequence[str] = (),
    told: Callable[[Finding], object] = lambda finding: None,
) -> list[Finding]:
    """Those controls, or all, on those stores, or all; each finding is also told at once."""
    _check("store", stores, list(STORES))
    _check("control", names, [control.name for control in CONTROLS])
    found = []
    for name in stores or STORES:
        here = [each for each in CONTROLS if name in each.stores and (not names or each.name in names)]
        if not here:
            continue
        store = await asyncio.to_thread(STORES[name])
        try:
            for control in here:
                found.append(await _tried(control, name, store))
                told(found[-1])
        finally:
            await asyncio.to_thread(store.server.stop)
    return found


async def _tried(control: Control, name: str, store: Store) -> Finding:
    """One that breaks off has shown nothing."""
    with tempfile.TemporaryDirectory(prefix="holdfast-controls-") as folder:
        try:
            return await tried(control, name, store, Path(folder))
        except Exception as error:
            return Finding(control.name, name, "missed", f"it broke off: {type(error).__name__}: {error}")


def _check(what: str, names: Sequence[str], known: Sequence[str]) -> None:
    for name in names:
        if name not in known:
            raise InvalidInput(f"{what} {name!r} is unknown; there are {', '.join(known)}")
