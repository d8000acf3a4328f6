"""A campaign against one store and one warehouse: rounds of publish, kill and check, then the totals."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from holdfast_chaos.checks.pipeline import Violation, check_ingest, doubled
from holdfast_chaos.controls.pipeline_defects import count_transactions
from holdfast_chaos.scenario import DELTA_POINTS, POINTS, IngestScenario
from report import RANDOM, Site

SPREAD_OUT = 0.75
"""How many of the drivers load into Delta as executors do."""
TRIES = 5
"""Rounds that one kill may take: a driver may come to its end before it."""


class Kill(NamedTuple):
    """One kill to come."""

    point: str
    on_spark: bool = False


class Campaign:
    """One of them. What it does follows from the random numbers it is given; only moments vary."""

    def __init__(
        self, site: Site, url: str, folder: Path, chance: random.Random, save: Callable[[], None]
    ) -> None:
        self._site, self._chance, self._save = site, chance, save
        self._scenario = IngestScenario(url, folder, site.warehouse)
        self._length = 0.0
        """How long a driver takes that nobody kills."""

    def run(self, kills: int, spark: list[str], until: float) -> None:
        """So many kills without Spark, one at each of these points with it, and the account. What an earlier
        run has done of it is left out; after a moment no more are begun."""
        self._undisturbed()
        for kill in self._schedule(kills, spark)[self._site.killed :]:
            if time.monotonic() > until:
                break
            self._kill(kill)
            self._save()
        self._account(self._scenario.drive())
        self._save()

    def _undisturbed(self) -> None:
        for _ in range(2):  # the first one also waits for imports
            self._scenario.publish(8)
            began = time.monotonic()
            self._scenario.drive()
            self._length = time.monotonic() - began

    def _schedule(self, kills: int, spark: list[str]) -> list[Kill]:
        """Two of three kills at points in turn, the others at random moments; Spark in between."""
        points = POINTS + (DELTA_POINTS if self._site.warehouse == "delta" else [])
        turns = [
            Kill(RANDOM if turn % 3 == 2 else points[(turn - turn // 3) % len(points)])
            for turn in range(kills)
        ]
        for point in spark:
            turns.insert(self._chance.randrange(len(turns) + 1), Kill(point, on_spark=True))
        return turns

    def _kill(self, kill: Kill) -> None:
        for attempt in range(TRIES):
            self._scenario.publish(self._chance.randrange(7, 20))
            spread_out = self._site.warehouse == "delta" and self._chance.random() < SPREAD_OUT
            plain = not kill.on_spark
            scenario = self._scenario
            code = self._plain(kill.point, attempt, spread_out) if plain else scenario.drive_spark(kill.point)
            self._site.violations += check_ingest(scenario.history, scenario.state(), drained=False)
            if code == -signal.SIGKILL:
                (self._site.spark if kill.on_spark else self._site.kills)[kill.point] += 1
                self._site.spread_out += plain and spread_out
                return
            self._site.survived += 1

    def _plain(self, point: str, attempt: int, spread_out: bool) -> int | None:
        """At the first hit of the point or the second; at random moments, anywhere in a driver's life."""
        if point == RANDOM:
            return self._scenario.drive(moment=self._chance.uniform(0, self._length), spread_out=spread_out)
        skip = 0 if attempt else self._chance.randrange(2)
        return self._scenario.drive(kill=point, skip=skip, spread_out=spread_out)

    def _account(self, code: int | None) -> None:
        """What is there in the end, after a last driver that nobody killed and that ended so."""
        found = self._scenario.state()
        if code != 0:
            self._site.violations.append(Violation("I15", f"the last driver ended with {code}"))
        self._site.violations += check_ingest(self._scenario.history, found, drained=True)
        self._site.published += len(self._scenario.history)
        self._site.rows += len(found.rows)
        self._site.failed += found.failed.total()


def control(url: str, folder: Path, *, counted: bool) -> int:
    """How many events are doubled after one kill, when the next driver reads the same events once more:
    with the seed's ids, which come from a counter, or with ours."""
    scenario, defect = IngestScenario(url, folder), count_transactions if counted else None
    scenario.publish(6)
    scenario.drive(kill="wal.after_pending", defect=defect)
    scenario.publish(6)
    scenario.drive(defect=defect, follow=False)
    found = scenario.state()
    broken = {violation.invariant for violation in check_ingest(scenario.history, found, drained=True)}
    return len(doubled(found)) if "I10" in broken else 0
