"""Foreign consumer groups: a PostgreSQL log has no readers that Holdfast does not know."""

from __future__ import annotations

from datetime import timedelta

from holdfast.model.upkeep import Group, Lock


class Groups:
    """None."""

    async def all(self, alive: timedelta) -> list[Group]:
        return []

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        return 0

    async def remove(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        return False
