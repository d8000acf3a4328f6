"""Pauses: who lost a race steps aside, so that the same ones do not meet again and again."""

from __future__ import annotations

import asyncio
import random

_FIRST, _LONGEST = 0.02, 0.4
_HEAD_START, _EACH = 0.12, 0.001


async def step_aside(turn: int) -> None:
    """Wait before the next turn: longer after each that was lost, and never as long as the others."""
    longest = min(_FIRST * 2 ** min(turn, 10), _LONGEST)
    await asyncio.sleep(random.uniform(0, longest))  # noqa: S311 - it only keeps them apart


def head_start(entries: int) -> float:
    """Seconds that another process may take to make jobs of so many entries."""
    return _HEAD_START + min(entries * _EACH, _LONGEST)
