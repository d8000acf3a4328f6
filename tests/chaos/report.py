"""The report of a chaos run: how often was killed where, what was counted in the end, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from holdfast_chaos.checks.pipeline import Violation
from holdfast_chaos.scenario import DELTA_POINTS, HELPER_POINTS, POINTS, SPARK_POINTS

RANDOM = "at a random moment"


@dataclass
class Site:
    """One store with one warehouse."""

    store: str
    warehouse: str
    kills: Counter[str] = field(default_factory=Counter)
    """Of drivers without Spark, by failpoint."""
    spark: Counter[str] = field(default_factory=Counter)
    """Of drivers on Spark and of processes that they started."""
    spread_out: int = 0
    """Of those without Spark, kills of drivers that load as executors do."""
    survived: int = 0
    """Drivers that came to their end before the kill."""
    published: int = 0
    rows: int = 0
    failed: int = 0
    violations: list[Violation] = field(default_factory=list)

    @property
    def killed(self) -> int:
        return self.kills.total() + self.spark.total()

    def to_json(self) -> dict[str, Any]:
        """Counts as plain objects."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return found | {"kills": dict(self.kills), "spark": dict(self.spark)}

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Site:
        """As it was written."""
        lists = {"kills": Counter(found["kills"]), "spark": Counter(found["spark"])}
        return cls(**(found | lists | {"violations": [Violation(*each) for each in found["violations"]]}))

    @property
    def line(self) -> str:
        verdict = "; ".join(f"{v.invariant}: {v.message}" for v in self.violations[:3]) or "holds"
        return (
            f"{self.store:10}{self.warehouse:10}{self.kills.total():8}{self.spark.total():8}"
            f"{self.published:10}{self.rows:8}{self.failed:8}   {verdict}"
        )


class Control(NamedTuple):
    """Events that were doubled, with ids from a counter and with ours."""

    store: str
    counted: int
    derived: int

    @property
    def convinces(self) -> bool:
        return self.counted > 0 and self.derived == 0


@dataclass
class Report:
    """The whole run."""

    seed: int
    sites: list[Site] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    broken_off: dict[str, str] = field(default_factory=dict)
    """By store: why its campaigns came to no end. That is no violation, and no proof either."""
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        return sum(site.killed for site in self.sites)

    @property
    def by_point(self) -> dict[str, tuple[int, int]]:
        """Kills without Spark and with it, for every point that was to be hit."""
        plain = sum((site.kills for site in self.sites), Counter[str]())
        spark = sum((site.spark for site in self.sites), Counter[str]())
        wanted = list(dict.fromkeys([*POINTS, *DELTA_POINTS, *SPARK_POINTS, *HELPER_POINTS, RANDOM]))
        return {point: (plain[point], spark[point]) for point in wanted}

    @property
    def unhit(self) -> list[str]:
        """Points where nothing was killed. Those on Spark are only sought where Spark is."""
        sought = {*POINTS, *DELTA_POINTS} | ({*SPARK_POINTS, *HELPER_POINTS} if self._on_spark else set())
        return [point for point, hits in self.by_point.items() if point in sought and not sum(hits)]

    @property
    def holds(self) -> bool:
        sound = not any(site.violations for site in self.sites)
        shown = not self.unhit and not self.broken_off
        return sound and shown and all(each.convinces for each in self.controls)

    @property
    def _on_spark(self) -> bool:
        return any(site.spark for site in self.sites)

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        points = {name: {"plain": plain, "spark": spark} for name, (plain, spark) in self.by_point.items()}
        return {
            "seed": self.seed,
            "kills": self.kills,
            "seconds": round(self.seconds),
            "holds": self.holds,
            "failpoints": points,
            "unhit": self.unhit,
            "sites": [site.to_json() for site in self.sites],
            "controls": [each._asdict() for each in self.controls],
            "broken_off": self.broken_off,
        }


def show(report: Report) -> str:
    """For people."""
    return "\n".join(_lines(report))


def _lines(report: Report) -> Iterator[str]:
    yield f"seed {report.seed}: {report.kills} kills in {report.seconds:.0f} s\n"
    yield f"{'FAILPOINT':24}{'KILLS':>8}{'SPARK':>8}"
    yield from (f"{name:24}{plain:8}{spark:8}" for name, (plain, spark) in report.by_point.items())
    yield "\nSTORE     WAREHOUSE    KILLS   SPARK    EVENTS    ROWS  FAILED   I9, I10, I11"
    yield from (site.line for site in report.sites)
    yield "\ncontrol, events doubled after one kill"
    for each in report.controls:
        yield f"{each.store:10}{each.counted} with ids from a counter, {each.derived} with ids from the event"
    for site in report.sites:
        for each in site.violations:
            yield f"{site.store} {site.warehouse}: {each.invariant}: {each.what}"
    yield from _verdict(report)


def _verdict(report: Report) -> Iterator[str]:
    for store, error in report.broken_off.items():
        yield f"{store} broke off: {error}"
    if report.unhit:
        yield f"never hit: {', '.join(report.unhit)}"
    if not all(each.convinces for each in report.controls):
        yield "the control did not tell counted ids from ours: the judge cannot be believed"
    if any(site.violations for site in report.sites):
        yield "verdict: VIOLATED"
    else:
        yield "verdict: " + ("nothing lost, nothing doubled, batches whole" if report.holds else "not shown")
