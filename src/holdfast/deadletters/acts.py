"""Acts: what an operation does with some items at once, and what became of each."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.contracts import Backend
from holdfast.deadletters.ids import ItemId
from holdfast.deadletters.messages import again
from holdfast.deadletters.operation import Operation
from holdfast.deadletters.patch_process import apply_apart
from holdfast.deadletters.patching import digest
from holdfast.deadletters.service import DeadLetters
from holdfast.model.errors import IdConflict, InvalidInput, NotFound
from holdfast.model.job import LIVE, JobRecord, State

GONE = "was not dead any more"
NOT_ALLOWED = "is not for whoever asked for this"
_REMOVING = ("purge", "delete")


class Fate(NamedTuple):
    """What became of one item; without a problem it is done."""

    item: ItemId
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Acts:
    """Acts on dead letters. Each item of a chunk gets a fate."""

    letters: DeadLetters
    budgets: dict[tuple[str, str], int] = field(default_factory=dict)
    """The attempts that each consumer allows."""

    async def act(self, operation: Operation, items: Sequence[ItemId]) -> list[Fate]:
        """Do it."""
        groups: dict[ItemId, list[ItemId]] = defaultdict(list)
        for item in items:
            groups[ItemId(item.kind, "", item.channel, item.consumer, item.partition)].append(item)
        fates: list[Fate] = []
        for group, members in groups.items():
            if group.channel and not operation.may("operate", group.channel, group.consumer or None):
                fates += [Fate(item, NOT_ALLOWED) for item in members]
                continue
            match group.kind:
                case "job":
                    fates += await self._jobs(operation, group, members)
                case "ingest":
                    fates += [await self._record(operation, each) for each in members]
                case "stream":
                    fates += await self._messages(operation, group, members)
        return fates

    async def settle(self, operation: Operation, items: Sequence[ItemId]) -> list[Fate]:
        """Finish a chunk that somebody else has begun: what they did counts, the rest is done now."""
        known: list[Fate] = []
        for item in items:
            if item.kind == "job":
                store = await self.letters.store(item.partition)
                record = await store.job(item.channel, item.consumer, item.local)
                asked = operation.asked(item.partition)
                if record is not None and record.state is State.DEAD and (record.ended_at or asked) < asked:
                    continue  # as it was when it was asked for: nobody has come to it
                known.append(Fate(item, "" if _done(operation, record) else GONE))
        left = [item for item in items if item not in {fate.item for fate in known}]
        return known + [_repeated(each) for each in await self.act(operation, left)]

    async def not_exhausted(self, items: Sequence[ItemId], attempts: Sequence[int | None]) -> list[Fate]:
        """Those that have attempts left by their consumer's policy."""
        found = []
        for item, spent in zip(items, attempts, strict=True):
            try:
                store = await self.letters.store(item.partition)
                most = await self._budget(store, item)
            except NotFound as error:
                found.append(Fate(item, str(error)))
                continue
            if spent is None:
                record = await store.job(item.channel, item.consumer, item.local)
                spent = 0 if record is None else record.attempts
            if spent < most:
                found.append(Fate(item, f"has used {spent} of {most} attempts"))
        return found

    async def _budget(self, store: Backend, item: ItemId) -> int:
        key = item.channel, item.consumer
        if key not in self.budgets:
            self.budgets[key] = (await store.consumer(*key)).policy.max_attempts
        return self.budgets[key]

    async def _jobs(self, operation: Operation, group: ItemId, items: Sequence[ItemId]) -> list[Fate]:
        try:
            store = await self.letters.store(group.partition)
        except NotFound as error:
            return [Fate(item, str(error)) for item in items]
        if operation.kind == "patch":
            return [await self._patch(operation, store, item) for item in items]
        verb: Callable[..., Awaitable[list[bool]]]
        verb = store.purge if operation.kind in _REMOVING else store.revive
        items = items[::-1]  # what died first becomes ready first
        answers = await verb(group.channel, group.consumer, [item.local for item in items])
        return [Fate(item, "" if answer else GONE) for item, answer in zip(items, answers, strict=True)]

    async def _patch(self, operation: Operation, store: Backend, item: ItemId) -> Fate:
        letter = await store.dead_letter(item.channel, item.consumer, item.local)
        if letter is None or letter.event is None:
            return Fate(item, GONE)
        options, data = operation.request.options, letter.event.data
        if options.digest is not None and options.digest != digest(data):
            return Fate(item, "was changed by somebody since the change was shown")
        try:
            patched = await apply_apart(str(item), data, options.patch)
        except InvalidInput as error:
            return Fate(item, str(error))
        [revived] = await store.revive(item.channel, item.consumer, [item.local], patched)
        return Fate(item, "" if revived else GONE)

    async def _record(self, operation: Operation, item: ItemId) -> Fate:
        records = self.letters.records()
        try:
            channel = (await asyncio.to_thread(records.show, item.local)).channel
            if not operation.may("operate", channel):
                return Fate(item, NOT_ALLOWED)
            if operation.kind in _REMOVING:
                notes = f"operation {operation.id}"
                await asyncio.to_thread(records.abandon, item.local, operation.actor, notes)
                return Fate(item)
            record = await asyncio.to_thread(records.retry, item.local, operation.actor)
        except (InvalidInput, NotFound) as error:
            return Fate(item, str(error))
        if record.status == "retrying":
            return Fate(item, "waits for the loader: the warehouse could not be reached")
        return Fate(item, "" if record.status == "resolved" else f"failed again: {record.last_error}")

    async def _messages(self, operation: Operation, group: ItemId, items: Sequence[ItemId]) -> list[Fate]:
        try:
            source = await self.letters.stream(group)
        except NotFound as error:
            return [Fate(item, str(error)) for item in items]
        found = {each.position: each for each in await source.messages([item.local for item in items])}
        fates = []
        for item in items:
            if item.local not in found:
                fates.append(Fate(item, "left with its retention"))
                continue
            try:
                channel, event = again(group.channel, found[item.local])
                if not operation.may("publish", channel):
                    raise InvalidInput(f"may not be published on {channel} by whoever asked for this")
                [receipt] = await self.letters.bus.publish_many(channel, [event])
            except (InvalidInput, IdConflict) as error:
                fates.append(Fate(item, str(error)))
            else:
                fates.append(Fate(item, BEFORE if receipt.duplicate else ""))
        return fates


BEFORE = "was published again before"


def _repeated(fate: Fate) -> Fate:
    """In a chunk that is done again, a message that was published before was published by this operation."""
    return Fate(fate.item) if fate.problem == BEFORE else fate


def _done(operation: Operation, record: JobRecord | None) -> bool:
    """Whether a job that is not as it was stands where this operation would have put it."""
    if record is None:
        return False
    if operation.kind in _REMOVING:
        return record.state is State.PURGED
    return record.state in LIVE | {State.DONE, State.DEAD}
