"""Policies: how a worker consumer leases, retries and gives up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import timedelta
from typing import Any, Literal

from holdfast.model.backoff import Backoff, Exponential, Steps
from holdfast.model.duration import LONGEST, format_duration, parse_duration
from holdfast.model.errors import Duration, InvalidInput, InvalidPolicy
from holdfast.model.names import check_name

MIN_LEASE = timedelta(milliseconds=100)
MAX_BUDGET = 10_000
UNLIMITED = 2**31 - 1
"""What `max_attempts: unlimited` is in a store: a number that no count of attempts reaches."""
Unlimited = Literal["unlimited"]
MAX_DEPTH = 2**53
OnDead = Literal["keep", "discard"]


@dataclass(frozen=True, slots=True)
class Policy:
    """Everything that a worker consumer decides by. Build it with `Policy.of`, which validates."""

    max_attempts: int = 5
    """`UNLIMITED` where there is no end to them."""
    max_abandonments: int = 3
    lease: timedelta = timedelta(minutes=5)
    backoff: Backoff = field(default_factory=Exponential)
    expires_after: timedelta | None = None
    dead_letter: str | None = None
    on_dead: OnDead = "keep"
    ordered: bool = False
    max_depth: int | None = None
    max_runs: int | None = None
    """The most attempts and abandonments together; None: each has its own budget only."""

    @classmethod
    def of(
        cls,
        *,
        max_attempts: int | Unlimited = 5,
        max_abandonments: int = 3,
        lease: Duration = "5m",
        backoff: Backoff | Sequence[Duration] | Duration | None = None,
        expires_after: Duration | None = None,
        dead_letter: str | None = None,
        on_dead: OnDead = "keep",
        ordered: bool = False,
        max_depth: int | None = None,
        max_runs: int | None = None,
    ) -> Policy:
        """Return a policy from what people write. Raises `InvalidPolicy`, which says what to do."""
        try:
            policy = cls(
                max_attempts=_attempts(max_attempts),
                max_abandonments=_budget("max_abandonments", max_abandonments),
                lease=parse_duration(lease, what="lease"),
                backoff=_backoff(backoff),
                expires_after=None if expires_after is None else parse_duration(expires_after),
                dead_letter=None if dead_letter is None else check_name(dead_letter, "dead-letter channel"),
                on_dead=on_dead,
                ordered=bool(ordered),
                max_depth=max_depth,
                max_runs=None if max_runs is None else _budget("max_runs", max_runs),
            )
        except InvalidPolicy:
            raise
        except InvalidInput as error:
            raise InvalidPolicy(str(error)) from None
        return _checked(policy)

    def to_json(self) -> dict[str, Any]:
        """Return the policy as plain JSON values, in the words that `Policy.of` takes.

        `max_runs` is there only where it is set: programs that do not know it read all other policies.
        """
        plain = {f.name: _plain(getattr(self, f.name)) for f in fields(self)}
        if self.max_runs is None:
            del plain["max_runs"]
        if self.max_attempts == UNLIMITED:
            plain["max_attempts"] = "unlimited"
        return plain

    def stored(self) -> dict[str, Any]:
        """Return `to_json` with a number for each budget, so that a store can compare them."""
        return self.to_json() | {"max_attempts": self.max_attempts}

    @classmethod
    def from_json(cls, stored: dict[str, Any]) -> Policy:
        """Return the policy that `to_json` or `stored` made.

        Raises `InvalidPolicy` where another version, or other software, wrote it.
        """
        backoff = stored.get("backoff")
        try:
            if isinstance(backoff, dict):
                waits = {name: parse_duration(backoff[name]) for name in ("base", "limit")}
                stored = stored | {"backoff": Exponential(**(backoff | waits))}
            return cls.of(**stored)
        except (KeyError, TypeError) as error:
            raise InvalidPolicy(f"the stored policy is none that this version knows: {error}") from None


def _checked(policy: Policy) -> Policy:
    if policy.lease < MIN_LEASE:
        raise InvalidPolicy(f"lease {format_duration(policy.lease)} is too short; use at least 100ms")
    if policy.expires_after is not None and not policy.expires_after:
        raise InvalidPolicy("expires_after 0s would bury every job at once; use a longer one or None")
    if policy.on_dead not in ("keep", "discard"):
        raise InvalidPolicy(f"on_dead {policy.on_dead!r} is unknown; use 'keep' or 'discard'")
    if policy.on_dead == "discard" and policy.dead_letter is not None:
        raise InvalidPolicy("on_dead 'discard' and a dead_letter contradict each other; choose one")
    depth = policy.max_depth
    if depth is not None and not (_whole(depth) and 1 <= depth <= MAX_DEPTH):
        raise InvalidPolicy(f"max_depth {depth!r} is not a whole number from 1; use None for unbounded")
    return policy


def _attempts(value: int | str) -> int:
    if value == "unlimited" or value == UNLIMITED:
        return UNLIMITED
    if isinstance(value, str):
        raise InvalidPolicy(
            f"max_attempts {value!r} is neither a whole number from 1 to {MAX_BUDGET} nor 'unlimited'"
        )
    return _budget("max_attempts", value)


def _budget(name: str, value: int) -> int:
    if not _whole(value) or not 1 <= value <= MAX_BUDGET:
        raise InvalidPolicy(f"{name} {value!r} is not a whole number from 1 to {MAX_BUDGET}")
    return value


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _backoff(value: Backoff | Sequence[Duration] | Duration | None) -> Backoff:
    if value is None:
        return Exponential()
    if isinstance(value, Exponential):
        if not (
            1 <= value.factor < math.inf
            and 0 <= value.jitter <= 1
            and timedelta(0) <= value.base <= value.limit <= LONGEST
        ):
            raise InvalidPolicy(
                f"backoff {value!r}: factor from 1, jitter from 0 to 1, 0 <= base <= limit <= {LONGEST.days}d"
            )
        return value
    if isinstance(value, Steps):
        return value
    if isinstance(value, list | tuple):
        if not value:
            raise InvalidPolicy("backoff [] has no step; give at least one, or None for exponential")
        return Steps(tuple(parse_duration(step, what="backoff step") for step in value))
    return Steps((parse_duration(value, what="backoff"),))  # type: ignore[arg-type]  # the rest is a Duration, or refused


def _plain(value: object) -> Any:
    match value:
        case timedelta():
            return format_duration(value)
        case Steps():
            return [format_duration(wait) for wait in value.waits]
        case Exponential():
            return {name: _plain(part) for name, part in asdict(value).items()}
        case _:
            return value
