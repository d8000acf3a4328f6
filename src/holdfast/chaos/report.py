"""The report of a run: how often what was done where, what was counted in the end, and the verdict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from holdfast.chaos.account import Account
from holdfast.chaos.roles import ROLES, points


@dataclass
class Report:
    """The whole run."""

    seed: int
    faults: list[str]
    impossible: dict[str, str] = field(default_factory=dict)
    """Faults that could not be dealt here, with the reason."""
    accounts: list[Account] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """SIGKILLs of our processes."""
        return sum(account.killed for account in self.accounts)

    @property
    def server_kills(self) -> int:
        """kill -9 of servers."""
        return sum(account.server_kills for account in self.accounts)

    @property
    def holds(self) -> bool:
        return bool(self.accounts) and all(account.holds for account in self.accounts)

    @property
    def conclusive(self) -> bool:
        """Whether it proves something: a run without faults on a machine that was too slow does not."""
        return all(account.conclusive for account in self.accounts)

    @property
    def bound(self) -> float | None:
        """With 95 % confidence, a kill breaks an invariant less often than this: the rule of three."""
        kills = self.kills + self.server_kills
        return 3 / kills if kills and self.holds else None

    @property
    def hits(self) -> Counter[str]:
        """How often each failpoint was passed."""
        return sum((account.hits for account in self.accounts), Counter[str]())

    @property
    def killed_at(self) -> Counter[str]:
        """How often a process was killed at each failpoint."""
        return sum((account.kills for account in self.accounts), Counter[str]())

    @property
    def unhit(self) -> list[str]:
        """Failpoints of the roles that took part where nobody was killed."""
        stores = [account.store for account in self.accounts if self.faults]
        sought = {point for role in ROLES for store in stores for point in points(role, store)}
        return sorted(sought - self.killed_at.keys())

    def kinds(self, name: str) -> list[str]:
        """What a count of the accounts tells apart, the most frequent first."""
        together: Counter[str] = Counter()
        for account in self.accounts:
            together.update(getattr(account, name))
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
            "stores": [account.to_json() for account in self.accounts],
        }
