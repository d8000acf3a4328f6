"""Sparklines: a row of values as the points of an SVG line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

WIDTH, HEIGHT, MOST = 120, 28, 60


class Sparkline(NamedTuple):
    """A line, the area below it, and its top value."""

    line: str
    area: str
    top: float


def sparkline(values: Sequence[float], width: int = WIDTH, height: int = HEIGHT) -> Sparkline | None:
    """The last values from left to right, scaled from zero to the largest; None where there are none yet."""
    shown = values[-MOST:]
    if len(shown) < 2:
        return None
    top = max(shown)
    step, scale = width / (len(shown) - 1), (height - 3) / (top or 1)
    points = [f"{index * step:.1f},{height - 1.5 - value * scale:.1f}" for index, value in enumerate(shown)]
    return Sparkline(" ".join(points), f"0,{height} {' '.join(points)} {width},{height}", top)
