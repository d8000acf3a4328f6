"""The report of a run: what was done to each store, what was counted in the end, and whether all holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast_chaos.checks import Violation
from holdfast_chaos.roles import ROLES, points

MOST_EXCUSED = 0.05
"""The share of a run without faults that may be excused, a slow machine, before it proves nothing."""
_JSON = {"server_faults": "blows"}
"""Fields that have another name in the report."""


@dataclass
class Summary:
    """What was done to one store, and what is left in the end."""

    store: str
    seconds: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    """SIGKILLs of our processes, by failpoint."""
    moments: Counter[str] = field(default_factory=Counter)
    """SIGKILLs at random moments, by role."""
    pauses: int = 0
    """Processes that were stopped past their leases and resumed."""
    survived: int = 0
    """Processes that came to their end before their kill."""
    server_faults: Counter[str] = field(default_factory=Counter)
    """Faults of the server and of the network before it, by kind. In JSON: `blows`."""
    shifted: int = 0
    noisy: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    """Processes that a fault made give up, by the error they gave up with."""
    findings: list[str] = field(default_factory=list)
    """What no fault explains: an unexpected error, a process that does not end."""
    calls: Counter[str] = field(default_factory=Counter)
    """Recorded calls, by verb and outcome."""
    events: int = 0
    """Events that were acknowledged."""
    refused: int = 0
    """Answers that were refused since their token was stale."""
    effects: int = 0
    """Handlers that came to their end."""
    states: Counter[str] = field(default_factory=Counter)
    """Jobs, by how they ended."""
    trimmed: int = 0
    archived: int = 0
    ingested: int = 0
    failed: int = 0
    claims: int = 0
    """Jobs that were handed out, in a run without faults."""
    operations: Counter[str] = field(default_factory=Counter)
    """What operators did in it, by verb."""
    longest_wait: float = 0.0
    """The most seconds that a ready job waited in it beside an idle worker."""
    slow: float = 0.0
    """Seconds of it that did not count in waits, since the machine itself was slow or stood still."""
    excused: float = 0.0
    """The same as a share of all."""
    spared: int = 0
    """Jobs whose lease may have lapsed, and errors, that were not held against the store for that reason."""
    memory: dict[str, int] = field(default_factory=dict)
    """The most MiB that a process of a role had."""
    hits: Counter[str] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)
    excerpts: dict[str, list[str]] = field(default_factory=dict)
    """By message of a violation: the smallest history around it."""

    @property
    def killed(self) -> int:
        """SIGKILLs of our processes."""
        return self.kills.total() + self.moments.total()

    @property
    def server_kills(self) -> int:
        """kill -9 of the server, with and without its power."""
        return self.server_faults["server"] + self.server_faults["power"]

    @property
    def holds(self) -> bool:
        return not self.violations and not self.findings

    @property
    def conclusive(self) -> bool:
        """Whether enough of a run without faults counted that it proves something."""
        return self.excused <= MOST_EXCUSED

    def to_json(self) -> dict[str, Any]:
        """Counts as plain objects."""
        found = {_JSON.get(name, name): getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in found.items()}
        violations = [{"invariant": each.invariant, "message": each.message} for each in self.violations]
        checked = {"violations": violations, "conclusive": self.conclusive}
        return plain | {"killed": self.killed, "server_kills": self.server_kills} | checked


@dataclass
class Report:
    """The whole run."""

    seed: int
    faults: list[str]
    impossible: dict[str, str] = field(default_factory=dict)
    """Faults that are not possible here, with the reason."""
    summaries: list[Summary] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """SIGKILLs of our processes."""
        return sum(summary.killed for summary in self.summaries)

    @property
    def server_kills(self) -> int:
        """kill -9 of servers."""
        return sum(summary.server_kills for summary in self.summaries)

    @property
    def holds(self) -> bool:
        return bool(self.summaries) and all(summary.holds for summary in self.summaries)

    @property
    def conclusive(self) -> bool:
        """Whether it proves something: a run without faults on a machine that was too slow does not."""
        return all(summary.conclusive for summary in self.summaries)

    @property
    def bound(self) -> float | None:
        """With 95 % confidence, a kill breaks an invariant less often than this: the rule of three."""
        kills = self.kills + self.server_kills
        return 3 / kills if kills and self.holds else None

    @property
    def hits(self) -> Counter[str]:
        """How often each failpoint was passed."""
        return sum((summary.hits for summary in self.summaries), Counter[str]())

    @property
    def killed_at(self) -> Counter[str]:
        """How often a process was killed at each failpoint."""
        return sum((summary.kills for summary in self.summaries), Counter[str]())

    @property
    def unhit(self) -> list[str]:
        """Failpoints of the roles that took part where nobody was killed."""
        stores = [summary.store for summary in self.summaries if self.faults]
        sought = {point for role in ROLES for store in stores for point in points(role, store)}
        return sorted(sought - self.killed_at.keys())

    def kinds(self, name: str) -> list[str]:
        """The kinds that a count of the summaries tells apart, the most frequent first."""
        together: Counter[str] = Counter()
        for summary in self.summaries:
            together.update(getattr(summary, name))
        return [kind for kind, _ in together.most_common()]

    def to_json(self) -> dict[str, Any]:
        """All of it."""
        return {
            "seed": self.seed,
            "faults": self.faults,
            "impossible": self.impossible,
            "seconds": round(self.seconds),
            "kills": self.kills,
            "server_kills": self.server_kills,
            "holds": self.holds,
            "conclusive": self.conclusive,
            "bound": self.bound,
            "failpoints": {
                name: {"hits": count, "kills": self.killed_at[name]}
                for name, count in sorted(self.hits.items())
            },
            "unhit": self.unhit,
            "stores": [summary.to_json() for summary in self.summaries],
        }


def write_page(report: Report, file: Path) -> None:
    """Write the report as a page of one file. Raises `ImportError` without Jinja."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("holdfast_chaos", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    file.write_text(environment.get_template("report.html").render(report=report))
