"""The timeline of a run: the store's time at each moment, and how much work the machine let anybody do.

A process of the rig notes both: the store's clock, and a heartbeat with a little work for CPU and disk and
none for the store. On a machine that is several times slower than an idle one a second counts for less, and
while it stands still for nothing: the store cannot be blamed for that. Workers beat too: one that was not
let run was not idle.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import defaultdict
from datetime import datetime
from itertools import accumulate, pairwise

from holdfast_chaos.history import Call, of

Span = tuple[float, float]
HEARTBEAT = "heartbeat"
"""In the name of the process that beats for the machine."""
GAP = 0.7
"""Seconds without a beat, of which five come in a second, after which a process stood still."""
SLOW, _SMOOTH = 3.0, 5
"""So many times slower than an idle machine, over so many beats, it is as slow as tests may make it."""


class Timeline:
    """Moments of the machine's monotonic clock in seconds of the store's time.

    Without notes of either, the two clocks are one, and the machine was never slow.
    """

    def __init__(self, calls: list[Call]) -> None:
        read = [item for call in of(calls, "clock") for item in call.items]
        known = sorted((item["at"], datetime.fromisoformat(item["now"]).timestamp()) for item in read)
        self._clock = _Curve([at / 1e9 for at, _ in known], [now for _, now in known])
        beats: dict[str, list[tuple[float, float]]] = defaultdict(list)
        for call in of(calls, "beat"):
            beats[call.process].append((self.time(call.at), call.items[0]["slow"]))
        self._gaps = {
            process: _gaps([moment for moment, _ in sorted(each)]) for process, each in beats.items()
        }
        machine = next((sorted(each) for process, each in beats.items() if HEARTBEAT in process), [])
        self._worth = _Curve([moment for moment, _ in machine], [0.0, *accumulate(_worths(machine))])
        self.seconds = machine[-1][0] - machine[0][0] if machine else 0.0
        """Between the first beat and the last."""
        self.lost = self.seconds - self._worth.values[-1] if machine else 0.0
        """How many of them did not count."""

    def time(self, moment: int) -> float:
        """Of a moment in nanoseconds."""
        return self._clock.at(moment / 1e9)

    def parsed(self, time: str | None) -> float:
        """Of a time of the store as it was noted; without one, long ago."""
        return -math.inf if time is None else datetime.fromisoformat(time).timestamp()

    def worth(self, span: Span) -> float:
        """How many seconds of a span count, in which the machine was as it should be."""
        return self._worth.at(span[1]) - self._worth.at(span[0])

    def gaps(self, process: str) -> list[Span]:
        """When a process stood still, or may have: also before its first beat and after its last."""
        machine = self._worth.moments
        known = [(-math.inf, machine[0]), (machine[-1], math.inf)] if machine else []
        return sorted(known + self._gaps.get(process, []))

    def was_slow(self, began: int, ended: int) -> bool:
        """Whether most of the time between two moments does not count."""
        first, last = self.time(began), self.time(ended)
        return self.worth((first, last)) < (last - first) / 2


class _Curve:
    """A rising line through points, and on at its ends with the slope of 1."""

    def __init__(self, moments: list[float], values: list[float]) -> None:
        self.moments, self.values = moments, values

    def at(self, moment: float) -> float:
        if not self.moments or math.isinf(moment):
            return moment
        after = bisect_right(self.moments, moment)
        if after in (0, len(self.moments)):
            nearest = min(after, len(self.moments) - 1)
            return self.values[nearest] + moment - self.moments[nearest]
        (a, b), (x, y) = self.moments[after - 1 : after + 1], self.values[after - 1 : after + 1]
        return x + (y - x) * (moment - a) / (b - a)


def _worths(beats: list[tuple[float, float]]) -> list[float]:
    """What the time before each beat but the first is worth."""
    found = []
    for number, ((before, _), (moment, _)) in enumerate(pairwise(beats), 1):
        recent = [slow for _, slow in beats[max(number + 1 - _SMOOTH, 0) : number + 1]]
        slow = max(sum(recent) / len(recent) / SLOW, 1.0)
        found.append(0.0 if moment - before > GAP else (moment - before) / slow)
    return found


def _gaps(moments: list[float]) -> list[Span]:
    return [
        (-math.inf, moments[0]),
        *((a, b) for a, b in pairwise(moments) if b - a > GAP),
        (moments[-1], math.inf),
    ]
