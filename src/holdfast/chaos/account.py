"""The account of a siege: what was done to everybody, and what is left in the end."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.chaos.judge import Violation

MOST_EXCUSED = 0.05
"""The share of a run without faults that may be excused, a slow machine, before it proves nothing."""


@dataclass
class Account:
    """One store."""

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
    blows: Counter[str] = field(default_factory=Counter)
    """What was done to the server and to the way to it, by kind."""
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
        return self.blows["server"] + self.blows["power"]

    @property
    def holds(self) -> bool:
        return not self.violations and not self.findings

    @property
    def conclusive(self) -> bool:
        """Whether enough of a run without faults counted that it proves something."""
        return self.excused <= MOST_EXCUSED

    def to_json(self) -> dict[str, Any]:
        """Counts as plain objects."""
        found = {name: getattr(self, name) for name in self.__dataclass_fields__}
        plain = {name: dict(value) if isinstance(value, Counter) else value for name, value in found.items()}
        verdicts = [{"invariant": each.invariant, "message": each.message} for each in self.violations]
        judged = {"violations": verdicts, "conclusive": self.conclusive}
        return plain | {"killed": self.killed, "server_kills": self.server_kills} | judged
