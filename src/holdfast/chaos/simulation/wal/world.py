"""The world of the WAL."""

from __future__ import annotations

from datetime import timedelta
from typing import ClassVar

from holdfast.chaos.simulation.actors import Process, Task
from holdfast.chaos.simulation.chance import Chance
from holdfast.chaos.simulation.stage import Stage
from holdfast.chaos.simulation.wal.judge import WalJudge
from holdfast.chaos.simulation.wal.log import Log, MemoryCursors
from holdfast.chaos.simulation.wal.objects import Objects
from holdfast.chaos.simulation.wal.people import Cleaner, Driver, LoaderAtWork, Mender, Parts, Shop, Weather
from holdfast.chaos.simulation.world import World
from holdfast.pipeline.wal import Wal, WalSettings

_SPANS = (1, 10, 60, 300, 3_600, 14_400)


class WriteAhead(World):
    """Two drivers, two loaders and a cleaner, each a process of its own on one WAL and one warehouse."""

    name: ClassVar[str] = "wal"
    rest, audit_every = timedelta(minutes=10), 1

    def __init__(self, chance: Chance, parts: Parts = Parts()) -> None:  # noqa: B008 - it is immutable
        stage = self.stage = Stage(chance, _SPANS)
        settings = WalSettings(
            max_retries=2 + chance.below(4),
            entry_ttl=timedelta(hours=chance.pick((1, 6, 48))),
            lease_duration=timedelta(minutes=1),
            confirmed_retention=timedelta(hours=chance.pick((1, 12))),
        )
        self._log = Log()
        self._judge = WalJudge(stage, self._log)
        objects = Objects(stage, self._judge)
        self._warehouse = warehouse = parts.warehouse(stage, self._judge.inserted)
        self._judge.look(objects.held, warehouse)
        wal = self._wal = Wal(objects, settings, stage.clock)
        self._cursors = MemoryCursors(stage, self._judge.cursor_moved)
        drivers = [
            Process(f"driver-{n}", Driver(stage, wal, self._cursors, self._log, parts).errand) for n in (1, 2)
        ]
        loaders = [
            Process(name, LoaderAtWork(stage, wal, warehouse, name, parts).errand)
            for name in ("loader-1", "loader-2")
        ]
        cleaner = Process("cleaner", Cleaner(stage, wal, parts).errand)
        mender = Process("mender", Mender(stage, wal, self._log, parts).errand)
        shop = Task("shop", Shop(stage, self._log).errand, heals=False)
        weather = Task("weather", Weather(stage, wal, objects, warehouse).errand, heals=False)
        self.actors = [*drivers, *loaders, *loaders, cleaner, mender, shop, weather]

    def heal(self) -> None:
        """The warehouse is back, too."""
        self._warehouse.down = False
        super().heal()

    def audit(self) -> None:
        """See the world."""
        self._judge.audit()

    def backlog(self) -> str:
        """What no batch holds, and what waits for the warehouse."""
        behind = len(self._log.after(self._cursors.at, len(self._log.events)))
        survey, untold = self._wal.survey(), self._judge.untold(self._wal)
        if not (behind or survey.pending or survey.quarantined or untold):
            return ""
        batches = f"{len(survey.pending)} batches pending and {len(survey.quarantined)} in quarantine"
        return f"{behind} events behind, {batches}, untold failures of {', '.join(untold[:3]) or 'none'}"

    def account(self) -> None:
        """See the world."""
        self._judge.account(self._wal)
