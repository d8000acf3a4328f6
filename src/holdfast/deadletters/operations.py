"""Operations: asked for, looked at, cancelled and resumed. The runner does the work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from holdfast.contracts import Backend
from holdfast.deadletters.actions import Actions
from holdfast.deadletters.audit import Audit
from holdfast.deadletters.items import Count, Filter, Item
from holdfast.deadletters.operation import (
    ACTIVE,
    ON_CONSUMERS,
    Checkpoint,
    Operation,
    Progress,
    Request,
    check_actor,
    check_request,
    fields_of,
    operation_of,
)
from holdfast.deadletters.payloads import Change, change_isolated
from holdfast.deadletters.service import DeadLetters
from holdfast.model.errors import InvalidInput, NotFound, Outdated, Overloaded
from holdfast.model.event import new_id
from holdfast.model.names import check_token
from holdfast.model.scopes import ADMIN, Right, Scope
from holdfast.model.states import NEXT, State, Verb
from holdfast.model.upkeep import StateRecord

LOOK = 10_000
"""Dead letters that are looked at to know how many are meant, where no count says so."""
CANCELLABLE = frozenset(state for state in State if Verb.CANCEL in NEXT[state])
_SAMPLE = 5
_RECORDS = 8
"""Records that one call of the store brings to a list: a patch makes one of up to four megabytes."""
_EPOCH, _MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
_LOOKED = 400
"""Records that are looked at for one page of the list, at least."""
_UNFINISHED, _UNFINISHED_EACH = 1_000, 100
"""Operations that may be unfinished, in all and of one asker."""
_LEFT = timedelta(minutes=1)
_AT_ONCE = 2
"""Patches that are tried at the same time: large ones are processes of their own."""


@dataclass(frozen=True, slots=True)
class Preview:
    """What an operation would do. Nothing was changed."""

    count: int
    exact: bool
    """False: at least so many."""
    sample: list[Item]
    """Some of them, the latest first."""
    changes: list[Change]
    """What a patch makes of these."""
    seen: tuple[datetime, ...] = ()
    """When this was looked up, by the clock of each partition."""
    jobs: dict[State, int] = field(default_factory=dict)
    """By state, where it is about a consumer with its jobs."""


class Unfinished(NamedTuple):
    """Marks an operation as unfinished, now or a moment ago."""

    id: str
    actor: str
    """Who has asked for it."""


@dataclass(frozen=True, slots=True)
class OperationPage:
    """Some operations, the latest first."""

    operations: list[Operation]
    after: str | None
    """Where the next page goes on; None where there is none. It names no operation that is not shown."""


class Operations:
    """The operations of one deployment: records on its first store."""

    def __init__(self, letters: DeadLetters) -> None:
        self.letters = letters
        self._prefix = f"{letters.namespace}.state.operations."
        self._marks = f"{letters.namespace}.state.unfinished."
        self._patching = asyncio.Semaphore(_AT_ONCE)

    async def audit(self) -> Audit:
        """The audit log."""
        return Audit(await self.first(), self.letters.namespace)

    async def preview(
        self, request: Request, scopes: tuple[Scope, ...] = (ADMIN,), *, exact: bool = False
    ) -> Preview:
        """What the request means of what the scopes let its asker operate on: how many, a sample of them, and
        what a patch would change.

        `exact` counts to the end, however long it takes.
        """
        seen = await self._times()
        request = check_request(request, max(seen))
        right = Right("operate", (scopes,))
        count = await self._count(request, None if exact else LOOK, right)
        sample = await self._sample(request, right)
        changes = await self._changes(request, sample) if request.options.patch else []
        jobs = await self.jobs_of(request) if request.kind in ON_CONSUMERS else {}
        return Preview(count.number, count.exact, sample, changes, seen, jobs)

    async def change(self, item_id: str, patch: tuple[dict[str, object], ...]) -> Change:
        """What a patch makes of one job's data, or `InvalidInput` where it does not fit."""
        detail = await self.letters.show(item_id)
        async with self._patching:
            return await change_isolated(item_id, detail.event.data, patch)

    async def ask(
        self,
        request: Request,
        actor: str,
        scopes: tuple[Scope, ...] = (ADMIN,),
        *,
        preview: Preview | None = None,
    ) -> Operation:
        """Write down what is to be done; whoever runs operations will do it. Nothing is done yet.

        It will do what the scopes of its asker allow; whoever has the store at hand is an admin. Only what
        died before this moment is meant, or before the preview that somebody has agreed to. Raises
        `Overloaded` where too many are unfinished.
        """
        now, store = await self._times(), await self.first()
        request, actor = check_request(request, max(now)), check_actor(actor)
        asked = preview.seen if preview is not None else now
        known = Count(preview.count, preview.exact) if preview is not None else None
        count = known or await self._count(request, LOOK, Right("operate", (scopes,)))
        operation = Operation(
            id=new_id(),
            request=request,
            actor=actor,
            created_at=await store.now(),
            progress=Progress(expected=count.number, exact=count.exact),
            rights=(scopes,),
            checkpoint=Checkpoint(asked=asked),
        )
        await self._check_room(actor)
        await self._mark(operation.id, actor)
        revision = await store.records.put(
            self._key(operation.id), fields_of(operation), 0, operation.created_at
        )
        operation = replace(operation, revision=revision or 1)
        await (await self.audit()).asked(operation, actor)
        return operation

    async def show(self, operation_id: str) -> Operation:
        """One operation, or `NotFound`."""
        found = await self.find(operation_id)
        if found is None:
            raise no_operation(operation_id)
        return found

    async def find(self, operation_id: str) -> Operation | None:
        """One operation, if it is there."""
        record = await (await self.first()).records.get(self._key(operation_id))
        return None if record is None else operation_of(record)

    async def latest(self, limit: int = 100) -> list[Operation]:
        """The latest operations first."""
        records = await (await self.first()).records.due(self._prefix, limit, newest=True)
        return [operation_of(record) for record in records]

    async def page(
        self, wanted: Callable[[Operation], bool], after: str | None, limit: int, size: int
    ) -> OperationPage:
        """The latest that are wanted, up to `limit`. Ends early after 400 records or `size` bytes of them,
        wanted or not: a page can be empty, and not be the last one. `InvalidInput` for a bad `after`."""
        found: list[Operation] = []
        last: Operation | None = None
        looked, shown = 0, False
        async for operation, weight in self._newest(after):
            if last is not None:
                spent = looked >= _LOOKED or size <= 0
                if len(found) == limit or (spent and (shown or operation.created_at < last.created_at)):
                    return OperationPage(found, _place_of(last, shown))
            last, shown = operation, wanted(operation)
            looked, size = looked + 1, size - weight
            if shown:
                found.append(operation)
        return OperationPage(found, None)

    async def _newest(self, after: str | None) -> AsyncIterator[tuple[Operation, int]]:
        """Every operation after a place, the latest first, with about the bytes that it takes."""
        store, place = await self.first(), self._place(after)
        while page := await self._page(store, place):
            for record in page:
                operation = operation_of(record)
                place = operation.created_at, record.key
                yield operation, sum(map(len, record.fields.values()))

    async def _page(self, store: Backend, place: tuple[datetime, str] | None) -> list[StateRecord]:
        return await store.records.due(self._prefix, _RECORDS, newest=True, after=place)

    def _place(self, after: str | None) -> tuple[datetime, str] | None:
        """What `_place_of` wrote, as a due time and a key."""
        if after is None:
            return None
        micros, _, operation_id = after.partition(".")
        try:
            return _EPOCH + int(micros) * _MICROSECOND, self._key(operation_id) if operation_id else ""
        except (ValueError, OverflowError):
            raise InvalidInput(f"{after!r} is no place in this list; take one that a page gave you") from None

    async def unfinished(self) -> list[Operation]:
        """Those that somebody should run, the oldest first."""
        found = [await self.find(mark.id) for mark in await self.marks()]
        return [each for each in found if each is not None and each.active]

    async def marks(self) -> list[Unfinished]:
        """The marks of those that may be unfinished, the oldest first. They are small, and operations are
        not: whoever looks for work looks at these."""
        found = await (await self.first()).records.due(self._marks, _UNFINISHED)
        return [Unfinished(each.key.removeprefix(self._marks), each.fields["actor"]) for each in found]

    async def mark_of(self, operation_id: str) -> StateRecord | None:
        """The mark of an operation."""
        return await (await self.first()).records.get(self._marks + operation_id)

    async def unmark(self, mark: StateRecord | None) -> None:
        """Take the mark of an operation that has ended; one that was made anew meanwhile stays."""
        if mark is not None:
            await (await self.first()).records.remove(mark.key, mark.revision)

    async def forget(self, operation_id: str) -> None:
        """Take the mark of an operation that is not active, or not there, if somebody who died has left it: a
        new one is made before its operation is."""
        mark, now = await self.mark_of(operation_id), await (await self.first()).now()
        if mark is not None and now - datetime.fromisoformat(mark.fields["marked_at"]) > _LEFT:
            await self.unmark(mark)

    async def adopt(self) -> None:
        """Mark the unfinished among the latest that have no mark: an older version has made none."""
        store, known = await self.first(), {each.id for each in await self.marks()}
        place, looked = None, 0
        while looked < _UNFINISHED and (page := await self._page(store, place)):
            for record in page:
                name = record.key.removeprefix(self._prefix)
                if record.fields["state"] in ACTIVE and name not in known:
                    await self._mark(name, record.fields["actor"])
            looked += len(page)
            place = datetime.fromisoformat(page[-1].fields["created_at"]), page[-1].key

    async def _mark(self, operation_id: str, actor: str) -> None:
        """Before an operation begins to wait; a mark that is there gets another revision."""
        store, key = await self.first(), self._marks + operation_id
        while True:
            there = await store.records.get(key)
            expected, now = 0 if there is None else there.revision, await store.now()
            fields = {"actor": actor, "marked_at": now.isoformat()}
            if await store.records.put(key, fields, expected, now) is not None:
                return

    async def _check_room(self, actor: str) -> None:
        marks = await self.marks()
        mine = sum(each.actor == actor for each in marks)
        if mine >= _UNFINISHED_EACH or len(marks) >= _UNFINISHED:
            raise Overloaded(
                f"{mine} operations of {actor} are unfinished, and {len(marks)} in all; at most "
                f"{_UNFINISHED_EACH} and {_UNFINISHED} may be: wait for them, or cancel some"
            )

    async def save(self, operation: Operation) -> Operation | None:
        """Write it if nobody has changed it since it was read; else None."""
        store = await self.first()
        key, due = self._key(operation.id), operation.created_at
        revision = await store.records.put(key, fields_of(operation), operation.revision, due)
        return None if revision is None else replace(operation, revision=revision)

    async def cancel(self, operation_id: str, actor: str) -> Operation:
        """Nothing more is begun; what is under way is finished. A resume goes on from there."""
        while True:
            mark, operation = await self.mark_of(operation_id), await self.show(operation_id)
            if not operation.active:
                raise Outdated(f"operation {operation_id} is {operation.state} already")
            ended = await (await self.first()).now()
            outcome = f"cancelled by {check_actor(actor)}; {done_so_far(operation)}"
            cancelled = replace(operation, state="cancelled", ended_at=ended, outcome=outcome)
            saved = await self.save(cancelled)
            if saved is not None:
                await self.unmark(mark)
                await (await self.audit()).asked(saved, actor, "cancelled")
                return saved

    async def resume(self, operation_id: str, actor: str, scopes: tuple[Scope, ...] = (ADMIN,)) -> Operation:
        """Let one that was cancelled, stopped or failed go on where it was, and past its canary. From then on
        it does what both its asker and whoever resumes it may do."""
        while True:
            operation = await self.show(operation_id)
            if operation.state == "done":
                raise Outdated(f"operation {operation_id} is done; ask for another one")
            if operation.active:
                return operation
            check_actor(actor)
            cleared = operation.checkpoint.cleared or operation.state == "stopped"
            checkpoint = replace(operation.checkpoint, cleared=cleared)
            rights = tuple(dict.fromkeys((*operation.rights, scopes)))
            await self._mark(operation_id, operation.actor)
            saved = await self.save(
                replace(
                    operation,
                    state="waiting",
                    ended_at=None,
                    outcome="",
                    rights=rights,
                    checkpoint=checkpoint,
                )
            )
            if saved is not None:
                await (await self.audit()).asked(saved, actor, "resumed")
                return saved

    async def first(self) -> Backend:
        """The store that keeps the records."""
        return await self.letters.store(0)

    async def _times(self) -> tuple[datetime, ...]:
        return tuple([await store.now() for store in await self.letters.stores()])

    def _key(self, operation_id: str) -> str:
        return self._prefix + check_token(operation_id, "operation id")

    async def _count(self, request: Request, most: int | None, right: Right) -> Count:
        if request.items:
            return Count(len(request.items), True)
        wanted = request.filter or Filter()
        if request.kind in ON_CONSUMERS:
            return Count(sum((await self.jobs_of(request)).values()), True)
        if request.options.only_exhausted:
            return await Actions(self.letters).count_exhausted(wanted, most, right)
        return await self.letters.count(wanted, most, right)

    async def jobs_of(self, request: Request) -> dict[State, int]:
        """The jobs of a consumer that are to be removed or cancelled, by state, all partitions together; or
        `NotFound`."""
        where = (request.filter or Filter()).where
        channel, consumer = where.channel or "", where.consumer or ""
        found, missing = dict.fromkeys(State, 0), None
        known = 0
        for store in await self.letters.stores():
            try:
                stats = await store.channels.consumer_stats(channel, consumer)
            except NotFound as error:
                missing = error
                continue
            known += 1
            for state, count in stats.states.items():
                found[state] += count
        if not known and missing is not None:
            raise missing
        chosen = CANCELLABLE if request.kind == "empty_consumer" else State
        return {state: count for state, count in found.items() if count and state in chosen}

    async def _changes(self, request: Request, sample: list[Item]) -> list[Change]:
        """What the patch makes of those that it fits; `InvalidInput` where it fits none."""
        changes, wrong = [], None
        for item in sample:
            try:
                changes.append(await self.change(item.id, request.options.patch))
            except InvalidInput as error:
                wrong = error
        if wrong is not None and not changes:
            raise wrong
        return changes

    async def _sample(self, request: Request, right: Right) -> list[Item]:
        if request.items:
            return [(await self.letters.show(each)).item for each in request.items[:_SAMPLE]]
        if request.kind in ON_CONSUMERS or request.filter is None:
            return []
        return (await self.letters.find(request.filter, None, _SAMPLE, right)).items


def _place_of(operation: Operation, shown: bool) -> str:
    """Where the list goes on after it. One that is not shown is not named: its time ends what was asked for
    at that time."""
    micros = (operation.created_at - _EPOCH) // _MICROSECOND
    return f"{micros}.{operation.id if shown else ''}"


def no_operation(operation_id: str) -> NotFound:
    """That there is none; said of one that is none of the caller's business in the same words."""
    return NotFound(f"there is no operation {operation_id}; the list of operations has those that there are")


def done_so_far(operation: Operation) -> str:
    """The progress in words."""
    progress = operation.progress
    of = (
        ""
        if progress.expected is None
        else f" of {'' if progress.exact else 'at least '}{progress.expected:,}"
    )
    return f"{progress.done:,}{of} done, {progress.skipped:,} skipped"
