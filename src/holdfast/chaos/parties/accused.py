"""A process that plays a part of a control: something with a guard switched off, or its sound twin.

Specification: url, history, part (the control's module and its function, `counting.bury`), and whatever that
function takes.
"""

from __future__ import annotations

import importlib
from typing import Any


async def main(spec: dict[str, Any]) -> None:
    module, _, name = spec["part"].rpartition(".")
    await getattr(importlib.import_module(f"holdfast.chaos.controls.{module}"), name)(spec)
