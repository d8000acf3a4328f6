"""Removals: the end of a worker consumer and of everything it had, in bounded steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from holdfast import failpoints
from holdfast.backends.nats import stream, subjects
from holdfast.backends.nats.batch import Message, state
from holdfast.backends.nats.mirror import TOMBSTONE_SECONDS
from holdfast.backends.nats.registry import Registry
from holdfast.backends.nats.store import Store
from holdfast.model.deadletters import Removal

_PAGE = 1000


class Removals:
    """Takes a consumer out of the registry first, then away what is left of it.

    With its cursor gone nobody makes jobs for it, and without its jobs nobody moves any: a step of another
    process that had begun before is refused, or is found by the next pass.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def remove(self, channel: str, consumer: str, limit: int) -> Removal:
        """One step, of at most `limit` jobs, dead letters and records of ended jobs together."""
        await self._store.fresh()
        ref = await self._mark(channel, consumer)
        failpoints.hit("remove.after_mark")
        taken: Counter[str] = Counter()
        while (left := limit - taken.total()) > 0:
            step = await self._pass(ref, left)
            if not step.total():
                await self._end(ref)
                return Removal(taken["jobs"], taken["dead"], taken["history"], done=True)
            taken += step
        return Removal(taken["jobs"], taken["dead"], taken["history"], done=False)

    async def _mark(self, channel: str, consumer: str) -> str:
        """From here on it is in no list. Whoever reads on with its cursor finds that it is gone."""

        def change(known: Registry) -> Registry:
            leaver = known.leaver(channel, consumer)
            return known if leaver is not None else known.without(known.member(channel, consumer))

        async def also(wanted: Registry) -> Sequence[Message]:
            leaver = wanted.leaver(channel, consumer)
            cursor = None if leaver is None else self._store.mirror.cursors.get(leaver.ref)
            if leaver is None or cursor is None:
                return []
            return [state(subjects.cursor(leaver.ref), b"", cursor.revision, TOMBSTONE_SECONDS)]

        await self._store.change_registry(change, also)
        leaver = self._store.registry.leaver(channel, consumer)
        return "" if leaver is None else leaver.ref

    async def _pass(self, ref: str, limit: int) -> Counter[str]:
        """Jobs first: without one nobody dies or ends any more."""
        graves = subjects.dead(ref, "*"), subjects.index(ref), subjects.copies(ref), subjects.patches(ref)
        taken = Counter(jobs=await self._take([subjects.job(ref, "*")], limit))
        taken["dead"] = await self._take(graves, limit - taken.total())
        taken["history"] = await self._take([subjects.ended(ref, "*")], limit - taken.total())
        return taken

    async def _take(self, wanted: Sequence[str], limit: int) -> int:
        """Purge the oldest that the first filter matches, and of the others what stands before them."""
        count, link = 0, self._store.link
        while count < limit:
            query = {"seq": 1, "next_by_subj": wanted[0], "batch": min(limit - count, _PAGE)}
            found, _ = await link.read(query)
            if not found:
                break
            for subject in reversed(wanted):  # what is counted goes last: a step that dies is taken again
                await stream.purge(link, subject, found[-1].seq)
            count += sum(bool(message.data) for message in found)
            failpoints.hit("remove.after_step")
        return count

    async def _end(self, ref: str) -> None:
        """What nobody counts: copies of live jobs' events, counts, marks of what has gone."""
        last = int((await self._store.info())["state"]["last_seq"])
        for subject in (
            subjects.index(ref),
            subjects.left(ref),
            subjects.copies(ref),
            subjects.patches(ref),
            subjects.count(ref, "*"),
            subjects.cluster(ref, "*", "*"),
            subjects.lane(ref),
            subjects.heed(ref),
            subjects.cursor(ref),
        ):
            await stream.purge(self._store.link, subject, last)
        failpoints.hit("remove.before_end")
        await self._store.change_registry(lambda known: known.after(ref))
