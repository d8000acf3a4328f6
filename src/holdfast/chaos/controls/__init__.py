"""Positive controls: the same rig and the same judge, with one guard switched off, must find the loss.

A run without violations is believable only as far as these are found.
"""

from __future__ import annotations

from itertools import chain

from holdfast.chaos.controls import (
    counting,
    damage,
    leases,
    locking,
    pipeline,
    power,
    publishing,
    reading,
    serving,
    undisturbed,
)
from holdfast.chaos.controls.control import Control

_MODULES = (power, publishing, counting, leases, locking, reading, serving, pipeline, damage, undisturbed)
CONTROLS: list[Control] = sorted(
    chain.from_iterable(module.CONTROLS for module in _MODULES), key=lambda control: int(control.breaks[1:])
)
"""In the order of the invariants that they break."""
