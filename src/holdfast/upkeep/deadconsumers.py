"""Dead consumers: groups that left entries pending with members who are gone; reported, helped, removed."""

from __future__ import annotations

from holdfast.contracts import Backend
from holdfast.model.upkeep import Group, Lock
from holdfast.upkeep.announcements import Alert, DeadGroup
from holdfast.upkeep.rules import Rules

STEP = 1_000


class DeadConsumers:
    """Looks after the foreign groups of one store."""

    def __init__(self, backend: Backend, rules: Rules) -> None:
        self._backend, self._rules = backend, rules

    async def run_once(self, lock: Lock | None) -> list[DeadGroup]:
        """Every group that needs attention, and what was done about it; without a lock, what would be."""
        found = []
        for group in await self._backend.groups(self._rules.dead_consumers.alive):
            if not group.stale:  # nothing is lost with it; and a server may not see who waits for news
                continue
            reclaimed = removed = 0
            if group.members:
                reclaimed = group.stale if lock is None else await self._reclaim(group, lock)
            elif self._is_removable(group):
                removed = await self._backend.remove_group(group, self._rules.dead_consumers.after, lock)
            found.append(
                DeadGroup(
                    channel=group.channel,
                    group=group.name,
                    pending=group.pending,
                    reclaimed=reclaimed,
                    removed=bool(removed),
                )
            )
        return found

    async def _reclaim(self, group: Group, lock: Lock) -> int:
        reclaimed = 0
        while step := await self._backend.reclaim(group, self._rules.dead_consumers.alive, STEP, lock):
            reclaimed += step
        return reclaimed

    def _is_removable(self, group: Group) -> bool:
        """Dead for long enough, and nobody has said that it guards the channel."""
        rule = self._rules.dead_consumers
        gone = group.idle is not None and group.idle >= rule.after
        return rule.action == "remove" and gone and group.name not in self._rules.guards(group.channel)


def alerts(groups: list[DeadGroup]) -> list[Alert]:
    """What a person should know about dead groups."""
    return [
        Alert(
            kind="dead_consumer",
            message=f"group {each.group} of {each.channel} has no living member and {each.pending} pending "
            f"entries: {'it was removed' if each.removed else 'start a member, or remove the group'}",
            channel=each.channel,
            consumer=each.group,
            count=each.pending,
        )
        for each in groups
        if not each.reclaimed
    ]
