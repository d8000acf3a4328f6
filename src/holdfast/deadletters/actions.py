"""Actions: which items an operation comes to next, what it does with them, and the outcome for each."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from typing import Literal, NamedTuple

from holdfast.contracts import Backend
from holdfast.deadletters.items import Count, Filter, ItemId, parse_item
from holdfast.deadletters.messages import republished
from holdfast.deadletters.operation import Canary, Operation
from holdfast.deadletters.payloads import apply_isolated, digest
from holdfast.deadletters.service import DeadLetters
from holdfast.deadletters.sources import Source
from holdfast.model.errors import IdConflict, InvalidInput, NotFound
from holdfast.model.job import JobRecord
from holdfast.model.scopes import Right
from holdfast.model.states import LIVE, State

GONE = "was not dead any more"
_NOT_ALLOWED = "is not for whoever asked for this"
_PUBLISHED_BEFORE = "was published again before"
_REMOVING = ("purge", "delete")
_PAGE = 500
_ITEMS = "items"
_OVER = ""
"""In place of a cursor: nothing follows in this source."""


class ItemOutcome(NamedTuple):
    """The outcome for one item; without a problem it is done."""

    item: ItemId
    problem: str = ""


class Chunk(NamedTuple):
    """Some items, the outcome for those that are left alone, and where to go on."""

    items: list[ItemId]
    left_alone: list[ItemOutcome]
    source: str
    after: str


class Actions:
    """Finds and changes the items of operations."""

    def __init__(self, letters: DeadLetters) -> None:
        self.letters = letters
        self._budgets: dict[tuple[int, str, str], int] = {}
        """The attempts that each consumer allows on each store."""

    # which items

    async def next_chunk(self, operation: Operation, limit: int) -> Chunk | None:
        """Return what comes after the operation's checkpoint, or None where nothing does."""
        if operation.request.items:
            start = int(operation.checkpoint.after or 0)
            taken = [parse_item(each) for each in operation.request.items[start : start + limit]]
            after = str(start + len(taken))
            return await self._chunk(operation, taken, [None] * len(taken), _ITEMS, after) if taken else None
        reached, wanted = operation.checkpoint, operation.request.filter or Filter()
        for source in await self.letters.sources(wanted, Right("operate", operation.rights)):
            if source.name > reached.source:
                chunk = await self._chunk_of(operation, source, None, limit)
            elif source.name == reached.source and reached.after != _OVER:
                chunk = await self._chunk_of(operation, source, reached.after, limit)
            else:
                continue
            if chunk is not None:
                return chunk
        return None

    async def _chunk_of(
        self, operation: Operation, source: Source, after: str | None, limit: int
    ) -> Chunk | None:
        wanted = (operation.request.filter or Filter()).before(operation.asked(source.partition))
        while True:
            page = await source.page(wanted.where, after, limit)
            if page.items:
                items = [parse_item(item.id) for item in page.items]
                attempts = [item.attempts for item in page.items]
                return await self._chunk(operation, items, attempts, source.name, page.after or _OVER)
            if page.after is None:
                return None
            after = page.after

    async def _chunk(
        self,
        operation: Operation,
        items: list[ItemId],
        attempts: Sequence[int | None],
        source: str,
        after: str,
    ) -> Chunk:
        if not operation.request.options.only_exhausted:
            return Chunk(items, [], source, after)
        left = await self._not_exhausted(items, attempts)
        alone = {outcome.item for outcome in left}
        return Chunk([item for item in items if item not in alone], left, source, after)

    async def count_exhausted(self, wanted: Filter, most: int | None, right: Right) -> Count:
        """Return how many that a filter means have no attempt left; about `most` are looked at."""
        number, pages = 0, 0
        for source in await self.letters.sources(wanted, right):
            after = None
            while most is None or pages * _PAGE < most:
                page = await source.page(wanted.where, after, _PAGE)
                items = [parse_item(item.id) for item in page.items]
                left = await self._not_exhausted(items, [item.attempts for item in page.items])
                number, pages, after = number + len(items) - len(left), pages + 1, page.after
                if after is None:
                    break
            else:
                return Count(number, exact=False)
        return Count(number, exact=True)

    async def _not_exhausted(
        self, items: Sequence[ItemId], attempts: Sequence[int | None]
    ) -> list[ItemOutcome]:
        """Those that have attempts left by their consumer's policy."""
        found = []
        for item, spent in zip(items, attempts, strict=True):
            try:
                store = await self.letters.store(item.partition)
                most = await self._budget(store, item)
            except NotFound as error:
                found.append(ItemOutcome(item, str(error)))
                continue
            if spent is None:
                record = await store.leases.job(item.channel, item.consumer, item.local)
                spent = 0 if record is None else record.attempts
            if spent < most:
                found.append(ItemOutcome(item, f"has used {spent} of {most} attempts"))
        return found

    async def _budget(self, store: Backend, item: ItemId) -> int:
        key = item.partition, item.channel, item.consumer
        if key not in self._budgets:
            consumer = await store.channels.consumer(item.channel, item.consumer)
            self._budgets[key] = consumer.policy.max_attempts
        return self._budgets[key]

    # what is done with them

    async def perform(self, operation: Operation, items: Sequence[ItemId]) -> list[ItemOutcome]:
        """Do with the items what the operation is for; returns the outcome for each."""
        groups: dict[ItemId, list[ItemId]] = defaultdict(list)
        for item in items:
            groups[ItemId(item.kind, "", item.channel, item.consumer, item.partition)].append(item)
        outcomes: list[ItemOutcome] = []
        for group, members in groups.items():
            if group.channel and not operation.may("operate", group.channel, group.consumer or None):
                outcomes += [ItemOutcome(item, _NOT_ALLOWED) for item in members]
                continue
            match group.kind:
                case "job":
                    outcomes += await self._jobs(operation, group, members)
                case "ingest":
                    outcomes += [await self._record(operation, each) for each in members]
                case "stream":
                    outcomes += await self._messages(operation, group, members)
        return outcomes

    async def finish(self, operation: Operation, items: Sequence[ItemId]) -> list[ItemOutcome]:
        """Finish a chunk that another runner has begun: what it did counts, the rest is done now."""
        known: list[ItemOutcome] = []
        for item in items:
            if item.kind == "job":
                store = await self.letters.store(item.partition)
                record = await store.leases.job(item.channel, item.consumer, item.local)
                asked = operation.asked(item.partition)
                if record is not None and record.state is State.DEAD and (record.ended_at or asked) < asked:
                    continue  # as it was when it was asked for: nobody has come to it
                known.append(ItemOutcome(item, "" if _is_done(operation, record) else GONE))
        left = [item for item in items if item not in {outcome.item for outcome in known}]
        # A message that was published before was published by this operation.
        return known + [
            ItemOutcome(each.item) if each.problem == _PUBLISHED_BEFORE else each
            for each in await self.perform(operation, left)
        ]

    async def _jobs(self, operation: Operation, group: ItemId, items: Sequence[ItemId]) -> list[ItemOutcome]:
        try:
            store = await self.letters.store(group.partition)
        except NotFound as error:
            return [ItemOutcome(item, str(error)) for item in items]
        if operation.kind == "patch":
            return [await self._patch(operation, store, item) for item in items]
        items = items[::-1]  # what died first becomes ready first
        ids = [item.local for item in items]
        if operation.kind in _REMOVING:
            moved = await store.deadletters.purge(group.channel, group.consumer, ids)
        else:
            moved = await store.deadletters.revive(group.channel, group.consumer, ids)
        return [ItemOutcome(item, "" if done else GONE) for item, done in zip(items, moved, strict=True)]

    async def _patch(self, operation: Operation, store: Backend, item: ItemId) -> ItemOutcome:
        letter = await store.deadletters.letter(item.channel, item.consumer, item.local)
        if letter is None or letter.event is None:
            return ItemOutcome(item, GONE)
        options, data = operation.request.options, letter.event.data
        if options.digest is not None and options.digest != digest(data):
            return ItemOutcome(item, "was changed by somebody since the change was shown")
        try:
            patched = await apply_isolated(str(item), data, options.patch)
        except InvalidInput as error:
            return ItemOutcome(item, str(error))
        [revived] = await store.deadletters.revive(item.channel, item.consumer, [item.local], patched)
        return ItemOutcome(item, "" if revived else GONE)

    async def _record(self, operation: Operation, item: ItemId) -> ItemOutcome:
        records = self.letters.records()
        try:
            channel = (await asyncio.to_thread(records.show, item.local)).channel
            if not operation.may("operate", channel):
                return ItemOutcome(item, _NOT_ALLOWED)
            if operation.kind in _REMOVING:
                notes = f"operation {operation.id}"
                await asyncio.to_thread(records.abandon, item.local, operation.actor, notes)
                return ItemOutcome(item)
            record = await asyncio.to_thread(records.retry, item.local, operation.actor)
        except (InvalidInput, NotFound) as error:
            return ItemOutcome(item, str(error))
        if record.status == "retrying":
            return ItemOutcome(item, "waits for the loader: the warehouse could not be reached")
        return ItemOutcome(item, "" if record.status == "resolved" else f"failed again: {record.last_error}")

    async def _messages(
        self, operation: Operation, group: ItemId, items: Sequence[ItemId]
    ) -> list[ItemOutcome]:
        try:
            source = await self.letters.stream(group)
        except NotFound as error:
            return [ItemOutcome(item, str(error)) for item in items]
        found = {each.position: each for each in await source.messages([item.local for item in items])}
        outcomes = []
        for item in items:
            if item.local not in found:
                outcomes.append(ItemOutcome(item, "left with its retention"))
                continue
            try:
                channel, event = republished(group.channel, found[item.local])
                if not operation.may("publish", channel):
                    raise InvalidInput(f"may not be published on {channel} by whoever asked for this")
                [receipt] = await self.letters.bus.publish_many(channel, [event])
            except (InvalidInput, IdConflict) as error:
                outcomes.append(ItemOutcome(item, str(error)))
            else:
                outcomes.append(ItemOutcome(item, _PUBLISHED_BEFORE if receipt.duplicate else ""))
        return outcomes

    # the canary

    async def canary_result(self, operation: Operation, now: datetime) -> tuple[bool, str] | None:
        """Return whether the canary's items did well enough, and why; None while that is not known."""
        canary = operation.request.options.canary or Canary(0)
        results = []
        for each in operation.checkpoint.trying:
            item = parse_item(each)
            store = await self.letters.store(item.partition)
            results.append(_result(await store.leases.job(item.channel, item.consumer, item.local)))
        tried = operation.checkpoint.tried or now
        return _judge(canary, Counter(results), late=now - tried >= canary.patience)


def _is_done(operation: Operation, record: JobRecord | None) -> bool:
    """Whether a job that is not as it was is where this operation would have put it."""
    if record is None:
        return False
    if operation.kind in _REMOVING:
        return record.state is State.PURGED
    return record.state in LIVE | {State.DONE, State.DEAD}


def _result(record: JobRecord | None) -> Literal["succeeded", "failed", "waits"]:
    """The result of a job that was made ready again."""
    if record is None:
        return "failed"
    if record.state in LIVE:
        return "waits"
    return "succeeded" if record.state is State.DONE else "failed"


def _judge(canary: Canary, count: Counter[str], late: bool) -> tuple[bool, str] | None:
    """What has not ended in time is no success."""
    if count["waits"] and not late:
        return None
    share = count["succeeded"] / count.total()
    why = (
        f"{count['succeeded']} of {count.total()} in the canary succeeded, {canary.share:.0%} were asked for"
    )
    if count["waits"]:
        why += f"; {count['waits']} had not ended in time, so see whether anybody works for this consumer"
    return share >= canary.share, why
