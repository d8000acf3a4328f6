"""Admission: whether a consumer may be made or changed as somebody asks."""

from __future__ import annotations

from holdfast.backends.nats.registry import Member, Registry
from holdfast.model.errors import InvalidPolicy, Outdated
from holdfast.model.policy import Policy


def admitted(known: Registry, channel: str, name: str, policy: Policy, revision: int | None) -> Member | None:
    """The consumer as it is, None where it is to be made; raises what keeps it from being changed so."""
    old = known.by_name.get((channel, name))
    _check_target(known, channel, policy.dead_letter)
    if old is not None and old.policy.ordered != policy.ordered:
        raise InvalidPolicy(
            f"consumer {name!r} of channel {channel!r} was created with ordered={old.policy.ordered}; "
            "create another consumer"
        )
    if known.leaver(channel, name) is not None:
        raise Outdated(f"consumer {name!r} of channel {channel!r} is being removed; wait until that is done")
    there = 0 if old is None else old.revision
    if revision not in (None, there):
        raise Outdated(
            f"consumer {name!r} of channel {channel!r} has revision {there}, not {revision}; "
            "read it again and decide anew"
        )
    return old


def _check_target(known: Registry, channel: str, target: str | None) -> None:
    """Refuse a dead-letter channel that is missing or leads back."""
    if target is None:
        return
    if target != channel and target not in known.channels:
        raise InvalidPolicy(f"dead-letter channel {target!r} does not exist; create it first")
    if channel in _downstream(known, target):
        raise InvalidPolicy(
            f"dead-letter channel {target!r} leads back to {channel!r}; choose one outside the cycle"
        )


def _downstream(known: Registry, channel: str) -> set[str]:
    seen, todo = set[str](), [channel]
    while todo:
        each = todo.pop()
        if each not in seen:
            seen.add(each)
            todo += [m.policy.dead_letter for m in known.by_channel.get(each, ()) if m.policy.dead_letter]
    return seen
