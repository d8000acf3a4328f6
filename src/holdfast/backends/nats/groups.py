"""Foreign groups: JetStream consumers on our stream that other software has made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

from holdfast.backends.nats.locks import Locks
from holdfast.backends.nats.state.store import NatsStore
from holdfast.backends.nats.wire import subjects
from holdfast.backends.nats.wire.codec import format_stamp, parse_stamp
from holdfast.model.errors import HoldfastError, InvalidName
from holdfast.model.names import matches
from holdfast.model.upkeep import Group, Lock

_API = "$JS.API.CONSUMER"
_NOT_FOUND = 10014
_Info = Mapping[str, Any]


class Groups:
    """Describes foreign consumers, and removes those that nobody uses."""

    def __init__(self, store: NatsStore, locks: Locks) -> None:
        self._store, self._locks = store, locks

    async def all(self, alive: timedelta) -> list[Group]:
        now = await self._store.clock()
        channels = sorted(self._store.registry.channels)
        return [
            await self._shown(channel, info, alive, now)
            for info in await self._list()
            for channel in channels
            if _reads(info, channel)
        ]

    async def acknowledged(self, channel: str, names: Sequence[str]) -> dict[str, int]:
        """Return up to where each of these that reads the channel has acknowledged everything."""
        if not names:
            return {}
        found = {str(info["name"]): info for info in await self._list()}
        return {
            name: int(info["ack_floor"]["stream_seq"])
            for name, info in found.items()
            if name in names and _reads(info, channel)
        }

    async def reclaim(self, group: Group, alive: timedelta, limit: int, lock: Lock) -> int:
        """Nothing: JetStream delivers again by itself what was not acknowledged within `ack_wait`."""
        await self._locks.fence(lock)
        return 0

    async def remove(self, group: Group, alive: timedelta, lock: Lock | None) -> bool:
        now = await self._store.clock()
        if lock is not None:
            await self._locks.fence(lock)
        info = await self._store.connection.request(f"{_API}.INFO.{subjects.STREAM}.{group.name}")
        if info.get("error") or not _reads(info, group.channel):
            return False
        if (await self._shown(group.channel, info, alive, now)).members:
            return False
        if lock is None:
            return True
        reply = await self._store.connection.request(f"{_API}.DELETE.{subjects.STREAM}.{group.name}")
        error = reply.get("error", {})
        if error and error.get("err_code") != _NOT_FOUND:
            raise HoldfastError(f"NATS refused to remove consumer {group.name!r}: {error.get('description')}")
        return not error

    async def _list(self) -> list[_Info]:
        found: list[_Info] = []
        while True:
            reply = await self._store.connection.request(
                f"{_API}.LIST.{subjects.STREAM}", {"offset": len(found)}
            )
            if "error" in reply:
                raise HoldfastError(f"NATS refused to list consumers: {reply['error'].get('description')}")
            found += reply.get("consumers") or []
            if len(found) >= reply["total"] or not reply.get("consumers"):
                return found

    async def _shown(self, channel: str, info: _Info, alive: timedelta, now: int) -> Group:
        """The server knows no members: whoever waits for messages is one, and so is whoever came lately."""
        waiting = int(info.get("num_waiting", 0)) or int(bool(info.get("push_bound")))
        idle = timedelta(0) if waiting else timedelta(microseconds=now - await self._seen(info))
        members = waiting or int(idle <= alive)
        pending, delivered = int(info["num_ack_pending"]), info["delivered"]
        return Group(
            channel,
            str(info["name"]),
            members,
            idle,
            pending,
            0 if members else pending,
            self._store.registry.position(delivered["stream_seq"]) if delivered["consumer_seq"] else None,
        )

    async def _seen(self, info: _Info) -> int:
        """Return when anybody was last seen to read, to acknowledge or to make it, in the store's time."""
        stamps = [info["created"], *(info[place].get("last_active") for place in ("delivered", "ack_floor"))]
        stamp = max(parse_stamp(each) for each in stamps if each)
        registry = self._store.registry
        if len(registry.offsets) == 1:
            return stamp + registry.offset
        query = {"start_time": format_stamp(stamp), "next_by_subj": ">", "batch": 1}
        found, _ = await self._store.connection.read(query)  # the clock was moved: by how much at that time?
        return stamp + (registry.offset_at(found[0].seq - 1) if found else registry.offset)


def _reads(info: _Info, channel: str) -> bool:
    config = info["config"]
    filters = config.get("filter_subjects") or [config.get("filter_subject") or ">"]
    return any(_matches(each, channel) for each in filters)


def _matches(pattern: str, channel: str) -> bool:
    try:
        return matches(pattern, channel)
    except InvalidName:  # a subject that is no channel
        return False
