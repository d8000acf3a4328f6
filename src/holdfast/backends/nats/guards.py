"""Guards: who still needs the log of a channel, and from where on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import NamedTuple

from holdfast.backends.nats.cursors import Cursors
from holdfast.backends.nats.floors import Floor
from holdfast.backends.nats.groups import Groups
from holdfast.backends.nats.store import Store
from holdfast.model.decide import Ref

_EVERYTHING = 0


class Guard(NamedTuple):
    """A consumer that needs what stands behind `after`."""

    after: int
    consumer: str


class Guards:
    """Looks every guard of a channel up."""

    def __init__(self, store: Store, cursors: Cursors, groups: Groups) -> None:
        self._store, self._cursors, self._groups = store, cursors, groups

    async def of(
        self, floor: Floor, ignore: Sequence[str], groups: Sequence[str], ended: Sequence[Ref]
    ) -> list[Guard]:
        """Everybody who needs something of the channel, the lowest first. Jobs in `ended` are taken as dead.

        What a consumer needs only ever shrinks, and whoever is new writes the floor again. So what is found
        here holds as long as the floor has not been written since it was read.
        """
        cursors = await self._cursors.cursors(floor.channel)
        acknowledged = await self._groups.acknowledged(floor.channel, groups)
        await self._store.fresh()
        place = self._store.place  # None: a position from a life that this store does not know
        found = [*self._workers(floor, set(ended))]
        found += [Guard(place(c.position) or _EVERYTHING, c.name) for c in cursors if c.name not in ignore]
        found += [Guard(acknowledged.get(name, _EVERYTHING), name) for name in groups]
        return sorted(found)

    def _workers(self, floor: Floor, ended: Set[Ref]) -> Iterator[Guard]:
        """Before its cursor a worker consumer needs what has not ended, behind it everything.

        A live job whose event was trimmed has been a dead letter, and has a copy.
        """
        mirror = self._store.mirror
        for member in self._store.registry.by_channel.get(floor.channel, ()):
            mine = (job for job in mirror.queues.jobs if job[0] == member.ref and job not in ended)
            live = (seq for _, seq in mine if seq > floor.seq)
            after = min(live, default=None)
            at = mirror.cursors[member.ref].at
            yield Guard(at if after is None else min(after - 1, at), member.name)
