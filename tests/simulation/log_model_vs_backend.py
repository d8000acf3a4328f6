"""The model of the log beside a backend: cursors, locks and trimming, simulated beside real ones."""

from __future__ import annotations

from datetime import timedelta

from model_vs_backend import WAIT, ModelVsBackend, finish

from holdfast.contracts import Backend
from holdfast.model.errors import LockLost
from holdfast.model.policy import Policy
from holdfast.model.upkeep import Lock
from holdfast_chaos.simulation.jobs.store import CHANNEL
from holdfast_chaos.simulation.retention.checks import RetentionChecks
from holdfast_chaos.simulation.retention.store import LogStore

POLICIES = {"billing": Policy.of(max_attempts=10_000, max_abandonments=10_000, lease=WAIT)}
READERS = ("archiver", "ingest")
# Time passes in multiples of ten minutes: no event is just as old as that when it is looked at.
AGE, ALL = timedelta(minutes=25), 10_000


class LogModelVsBackend(ModelVsBackend):
    """Nothing dies here: how the event of a dead letter is kept is the store's own affair."""

    ids = 80
    verbs = ("complete", "complete", "snooze", "release", "extend")
    _store: LogStore

    def __init__(self, real: Backend, seed: int, store: type[LogStore] = LogStore) -> None:
        policies = self._begin(real, seed, POLICIES)
        self._checks = RetentionChecks(self._scheduler, policies)
        self._store = store(self._scheduler, self._checks, policies)
        self._locks: list[tuple[Lock, Lock]] = []
        self._acts = [act for act in self._acts if act != self.do_operate]

    async def do_work_off(self) -> None:
        """Whatever is ready is done: then only the readers hold the log back."""
        mine = finish(self._store.leases.claim(CHANNEL, "billing", ALL, "w"))
        theirs = await self._real.leases.claim(CHANNEL, "billing", ALL, "w")
        assert finish(self._store.leases.complete(mine)) == await self._real.leases.complete(theirs)

    async def do_read(self) -> None:
        """A page, from both cursors; then both move."""
        name, limit = self._chance.choice(READERS), 1 + self._chance.randrange(4)
        mine = finish(self._store.cursors.attach(CHANNEL, name)).position
        theirs = (await self._real.cursors.attach(CHANNEL, name)).position
        page = finish(self._store.log.read(CHANNEL, mine, limit))
        rows = await self._real.log.read(CHANNEL, theirs, limit)
        assert [row.event.id for row in rows] == [row.event.id for row in page]
        if page:
            self._checks.stored(name, [row.position for row in page])
            moved = finish(self._store.cursors.move(CHANNEL, name, mine, page[-1].position))
            assert moved == await self._real.cursors.move(CHANNEL, name, theirs, rows[-1].position)
            again = finish(self._store.cursors.move(CHANNEL, name, mine, page[-1].position))
            assert again == await self._real.cursors.move(CHANNEL, name, theirs, rows[-1].position)

    do_read_more = do_read

    async def do_lock(self) -> None:
        """Whoever comes gets it once it is free or over."""
        mine = finish(self._store.locks.acquire("sweep", "me", WAIT))
        theirs = await self._real.locks.acquire("sweep", "me", WAIT)
        assert (mine is None) == (theirs is None)
        if mine is not None and theirs is not None:
            self._locks.append((mine, theirs))

    async def do_unlock(self) -> None:
        """What was given back is not used again: the contract does not say what comes of that."""
        if self._locks:
            pair = mine, theirs = self._chance.choice(self._locks)
            freed = finish(self._store.locks.release(mine))
            assert freed == await self._real.locks.release(theirs)
            if freed:
                self._locks.remove(pair)

    async def do_trim(self) -> None:
        """Under one of the locks, perhaps one that is another's by now."""
        if not self._locks:
            return
        mine, theirs = self._locks[-1] if self._chance.randrange(3) else self._chance.choice(self._locks)
        try:
            trim = finish(self._store.retention.trim(CHANNEL, self._scheduler.now - AGE, ALL, mine))
            asked: tuple[int, bool] | None = (trim.removed, trim.hold is None)
        except LockLost:
            asked = None
        before = await self._real.now() - AGE
        try:
            done = await self._real.retention.trim(CHANNEL, before, ALL, theirs)
            answered: tuple[int, bool] | None = (done.removed, done.hold is None)
        except LockLost:
            answered = None
        assert asked == answered, (asked, answered)

    do_trim_more = do_trim

    async def compare(self) -> None:
        """Where every job is, and how much of the log is left."""
        await super().compare()
        left = await self._real.log.behind(CHANNEL, None, ALL)
        assert left.events == len(self._store.entries)
