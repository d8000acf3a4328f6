"""The roles: who takes part in a run, how many of each, and where each may be killed.

The modules of this package are the programs of the rig's processes: functions that take a specification.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

STORES = ("postgres", "redis", "nats")
"""The names of the kinds of store; `holdfast_chaos.stores` has them."""
CHANNEL, LEDGER, TASKS = "orders", "ledger", "press"
TERMS: dict[str, Any] = {"lease": "2s", "max_abandonments": 1_000, "backoff": ["20ms", "100ms"]}
"""A kill is no fault of an event, and is soon over."""
POLICY: dict[str, Any] = TERMS | {"max_attempts": 4, "max_depth": 400}
"""The rig's own consumers have a bound that keeps producers at their pace."""


PROGRAMS = {
    "producer": "roles.publishers",
    "publisher": "roles.publishers",
    "consumer": "roles.consumers",
    "worker": "roles.consumers",
    "poller": "roles.consumers",
    "follower": "roles.consumers",
    "operator": "roles.operators",
    "live_operator": "roles.operators",
    "late_subscriber": "roles.operators",
    "deadletters": "roles.operators",
    "tasks": "roles.tasks",
    "task_runner": "roles.tasks",
    "sweeper": "roles.upkeep",
    "upkeep": "roles.upkeep",
    "heartbeat": "roles.upkeep",
    "archiver": "roles.pipeline",
    "ingester": "roles.pipeline",
    "control": "controls",
}
"""What a process of the rig can run: the functions of these names, each in its module of this package."""


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of process that is there all the time: one that is killed has a successor."""

    name: str
    program: str
    """What its process runs: a key of `PROGRAMS`."""
    points: tuple[str, ...]
    """The failpoints that its process passes."""
    spec: dict[str, Any] = field(default_factory=dict)
    count: int = 1
    skips: int = 2
    """A point kills at the latest at the hit of this number: some are passed seldom."""
    pipeline: bool = False
    """Whether it needs what the pipeline needs."""


def _points(family: str, *names: str) -> tuple[str, ...]:
    return tuple(f"{family}.{name}" for name in names)


ROLES = (
    Role("producer", "producer", _points("publish", "before_commit", "after_commit"), count=2, skips=8),
    Role("spooler", "producer", _points("spool", "after_append", "after_publish", "after_advance")),
    Role(
        "consumer",
        "consumer",
        _points("worker", "after_claim", "mid_handler", "after_effect", "after_ack")
        + _points("lifecycle", "after_read", "mid_apply"),
        {"policy": POLICY},
        count=2,
        skips=8,
    ),
    Role(
        "operator",
        "operator",
        _points("operation", "after_lock", "after_intent", "after_act", "before_end")
        + _points("dead", "after_revive", "after_purge", "mid_move"),
        skips=1,
    ),
    Role(
        "late-subscriber",
        "late_subscriber",
        _points("remove", "after_mark", "after_step", "before_end") + _points("subscribe", "mid_backfill"),
        {"channel": LEDGER},
    ),
    Role(
        "sweeper",
        "sweeper",
        _points("sweeper", "after_lock", "after_stuck", "after_trim", "between_channels", "before_report")
        + _points("tasks", "before_cursor")
        + 3 * _points("trim", "after_record", "mid_purge"),  # passed seldom, so they have more turns
        {"keep": {CHANNEL: 0.5}, "dead_letters": 86_400.0, "lock_ttl": 1.0, "pause": 0.2},
        skips=1,
    ),
    Role(
        "tasks",
        "tasks",
        _points("tasks", "after_submit", "after_claim", "after_result", "after_finalize", "after_terminal"),
        {"kind": TASKS, "timeout": 1.0},
    ),
    Role(
        "archiver",
        "archiver",
        _points("archive", "before_put", "after_put", "after_manifest", "after_event", "after_cursor"),
        {"rows": 100, "batch_size": 40},
        pipeline=True,
    ),
    Role(
        "ingester",
        "ingester",
        _points("source", "mid_read")
        + _points("wal", "after_stage", "before_plan", "before_pending", "after_pending", "mid_cursors")
        + _points("wal", "after_cursor", "mid_clean")
        + _points("loader", "after_lease", "before_commit", "after_commit", "after_confirm")
        + _points("loader", "after_failed", "after_mirror"),
        pipeline=True,
    ),
)


def _named(name: str) -> Role:
    return next(role for role in ROLES if role.name == name)


FAULTLESS_TERMS: dict[str, Any] = TERMS | {"lease": "1m", "max_abandonments": 3, "max_attempts": 4}
"""Without a fault nobody vanishes: a lease outlasts a machine that stands still for a while."""
FAULTLESS_POLICIES: dict[str, dict[str, Any]] = {
    "billing": FAULTLESS_TERMS | {"max_depth": 1_500},
    "shipping": FAULTLESS_TERMS | {"max_depth": 1_500, "ordered": True},
    "mailing": FAULTLESS_TERMS,
    "packing": FAULTLESS_TERMS | {"ordered": True},
}
"""The consumers of a run without faults: ordered or not, bounded or not."""
_SINGLES: dict[str, Any] = {
    "sizes": (1, 1, 1, 4),
    "keys": 40,
    "pause": 0.03,
    "later": 0.1,
    "urgent": 0.5,
    "full": 1.0,
}
_BULKS: dict[str, Any] = {"sizes": (40, 300, 600), "keys": 40, "pause": 0.01, "full": 1.0}
_APP: dict[str, Any] = {
    "policies": {k: v for k, v in FAULTLESS_POLICIES.items() if k != "billing"},
    "idle": "1s",
    "grace": "1m",
}
"""Billing is left to pollers, which are slower: much of it waits."""
_PATIENT = {"ttl": 60.0, "lock_ttl": 60.0, "timeout": 60.0}
FAULTLESS_ROLES = (
    Role("heartbeat", "heartbeat", ()),
    Role("producer", "producer", (), _SINGLES, count=2),
    Role("bulk-producer", "producer", (), _BULKS, count=2),
    Role("spooler", "producer", (), {"keys": 40, "pause": 0.2}),
    Role("consumer", "consumer", (), _APP, count=2),
    Role("poller", "poller", (), count=2),
    Role("operator", "operator", (), _PATIENT),
    Role("live-operator", "live_operator", (), {"policies": FAULTLESS_POLICIES}, count=2),
    Role("late-subscriber", "late_subscriber", (), {"events": 0, "pause": 4.0, "step": 200}),
    Role("sweeper", "sweeper", (), _named("sweeper").spec | _PATIENT | {"pause": 1.0}),
    Role("tasks", "tasks", (), _named("tasks").spec | _PATIENT | {"pause": 0.5}),
    replace(_named("archiver"), spec={"rows": 1000, "batch_size": 400, "pause": 2.0}),
    replace(_named("ingester"), spec={"portion": 1000, "pause": 2.0}),
)
"""Who takes part in a run without faults: everybody, and operators on live jobs and consumers besides."""


def _pace(producer: float, bulk: float, operator: float) -> dict[str, dict[str, Any]]:
    return {
        "producer": {"pause": producer},
        "bulk-producer": {"pause": bulk},
        "live-operator": {"pause": operator},
    }


PACE: dict[str, dict[str, dict[str, Any]]] = {
    "postgres": _pace(0.3, 0.1, 0.3),
    "redis": _pace(0.06, 0.02, 0.05),
    "nats": _pace(0.12, 0.04, 0.3),
}
"""By store and role: what differs there in a run without faults. If all together ask for more than a store
or two cores can do, all of them wait, and nothing tells that from a stall."""
ONLY: dict[str, frozenset[str]] = {
    "dead.mid_move": frozenset({"nats"}),
    "remove.before_end": frozenset({"nats"}),
    "trim.after_record": frozenset({"nats"}),
    "trim.mid_purge": frozenset({"nats"}),
}
"""Failpoints that exist on some stores only."""


def points(role: Role, store: str) -> tuple[str, ...]:
    """Where a role's process may be killed on a store."""
    return tuple(each for each in role.points if store in ONLY.get(each, {store}))
