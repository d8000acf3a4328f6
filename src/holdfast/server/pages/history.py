"""History: the last minutes of every figure, for sparklines and rates."""

from __future__ import annotations

from collections import defaultdict, deque

from holdfast.model.job import LIVE, State
from holdfast.server.pages.figures import Figures, WorkerFigures

KEPT = 150
Series = tuple[str, ...]


class History:
    """Rates and levels over time, one value for each look."""

    def __init__(self, kept: int = KEPT) -> None:
        self._values: dict[Series, deque[float]] = defaultdict(lambda: deque(maxlen=kept))
        self.latest: Figures | None = None

    def add(self, figures: Figures) -> None:
        """Take a look in; the first one has no rates yet."""
        before, self.latest = self.latest, figures
        if before is None:
            return
        seconds = max(figures.taken - before.taken, 1e-3)
        for channel, each in figures.channels.items():
            self._values["published", channel].append(each.published / seconds)
        for name, worker in figures.workers.items():
            came = figures.channels[name[0]].published if name[0] in figures.channels else 0
            done = max(came - _grown(before.workers.get(name), worker), 0)
            self._values["done", *name].append(done / seconds)
            self._values["waiting", *name].append(worker.waiting)
            self._values["dead", *name].append(worker.states[State.DEAD])
        for name, stream in figures.streams.items():
            self._values["lag", *name].append(stream.lag)

    def series(self, *name: str) -> list[float]:
        """The values of one series, oldest first."""
        return list(self._values.get(name, ()))

    def total(self, kind: str) -> list[float]:
        """The sum of all series of a kind, look by look, as far back as the longest goes."""
        found = [list(values) for name, values in self._values.items() if name[0] == kind]
        longest = max(map(len, found), default=0)
        padded = [[0.0] * (longest - len(values)) + values for values in found]
        return [sum(column) for column in zip(*padded, strict=True)]

    def now(self, *name: str) -> float:
        """The mean of the last few values: one look alone jumps."""
        values = self.series(*name)[-5:]
        return sum(values) / len(values) if values else 0.0


def _grown(before: WorkerFigures | None, after: WorkerFigures) -> int:
    """By how much a consumer's live jobs and dead letters grew."""
    kept = (*LIVE, State.DEAD)
    earlier = sum(before.states[state] for state in kept) if before is not None else 0
    return sum(after.states[state] for state in kept) - earlier
