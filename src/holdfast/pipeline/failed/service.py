"""Failed events: the one service behind the command line, REST and the pages.

The WAL is the authority. What an operator does is written there first, then into `failed_events`, at once or
when the warehouse is back.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace

from holdfast import failpoints
from holdfast.model.errors import Damaged, InvalidInput, NotFound, Terminal, Transient
from holdfast.pipeline.failed.failures import (
    ABANDON,
    BY_RETRY,
    RESOLVE,
    RETRY,
    RETRY_FAILED,
    apply_act,
    by_folder,
    damaged_event,
    data_of,
    event_of,
    failures,
    known_since,
    readable,
    segment_row,
)
from holdfast.pipeline.loader.decisions import CONSUMER_WAL
from holdfast.pipeline.wal import Wal
from holdfast.pipeline.wal.batch import failed_id
from holdfast.pipeline.wal.log import REST
from holdfast.pipeline.wal.records import Acceptance, Act, Failure, GaveUp
from holdfast.pipeline.warehouse import FailedEvent, Load, Tables, Warehouse
from holdfast.pipeline.warehouse.contract import Status

log = logging.getLogger(__name__)
Validate = Callable[[str, bytes], str | None]
"""From a channel and data to what is wrong with it."""
_OVER = ("resolved", "abandoned")
_ORDER: tuple[Status, ...] = ("pending", "retrying", "abandoned", "resolved")
LOST = "lost"
"""The reason of a batch that was damaged and could not be repaired."""
_LOOKED = 1_000
"""Records that are read for one page of the list."""
_EACH = 1_000
"""About what a failed event takes besides its payload and its error, in bytes."""
_Listed = tuple[Failure | None, FailedEvent]


def accept(channel: str, data: bytes) -> str | None:
    """No validation."""
    return None


class FailedEvents:
    """What failed, and what can be done about it."""

    def __init__(self, wal: Wal, warehouse: Warehouse, tables: Tables, validate: Validate = accept) -> None:
        self._wal, self._warehouse, self._tables, self._validate = wal, warehouse, tables, validate
        self._retry_lock = threading.Lock()

    def find(
        self,
        *,
        status: Status | None = None,
        channel: str | None = None,
        limit: int = 100,
        pending_first: bool = False,
    ) -> list[FailedEvent]:
        """Failed events, from the WAL, batch by batch; with `pending_first` by status, the latest first.

        What cannot be read is one entry for each damaged record, with the reason `damaged` and the error.
        """
        found = self.each(lambda name: channel is None or name == channel)
        chosen = (event for event in found if status is None or event.status == status)
        if pending_first:
            return heapq.nsmallest(limit, chosen, key=_pending_first)
        return list(itertools.islice(chosen, limit))

    def each(self, wanted: Callable[[str], bool], after: str | None = None) -> Iterator[FailedEvent]:
        """The failed events of the channels that are wanted, batch by batch, after a place in that order.

        One record is read at a time, and one segment of a batch that failed as a whole.
        """
        first, place = _place_of(after)
        for batch in sorted(by_folder(self._wal.records.names("failed"))):
            if batch >= first:
                for _, event in self._listed(batch, wanted, place if batch == first else None):
                    yield event

    def page(
        self, wanted: Callable[[str], bool], status: Status | None, after: str | None, limit: int, size: int
    ) -> tuple[list[FailedEvent], str | None]:
        """Up to `limit` of `each`, and where the next page goes on; None where there is none.

        Ends early after 1,000 records or `size` bytes of them, of whatever status: a page can be empty, and
        not be the last one. Raises `InvalidInput` for a bad `after`.
        """
        found: list[FailedEvent] = []
        last: FailedEvent | None = None
        for looked, event in enumerate(self.each(wanted, after)):
            if last is not None and (len(found) == limit or looked >= _LOOKED or size <= 0):
                return found, f"{last.batch}/{last.channel}@{last.partition}@{last.position}"
            last, size = event, size - len(event.event_payload) - len(event.last_error or "") - _EACH
            if status is None or event.status == status:
                found.append(event)
        return found, None

    def of(self, batch: str) -> Iterator[FailedEvent]:
        """The failed events of one batch, by channel; `Damaged` where it cannot be read."""
        acts = by_folder(self._wal.records.names(f"acts/{batch}"))
        for failure in sorted(failures(self._wal, batch), key=lambda each: each.name):
            yield self._event(batch, failure, acts.get(failed_id(batch, failure.name), ()))

    def _listed(
        self, batch: str, wanted: Callable[[str], bool] = lambda _: True, after: str | None = None
    ) -> Iterator[_Listed]:
        """The failed events of one batch, of the channels that are wanted, and an entry for what cannot be
        read; those after a name, where one is given."""
        acts = by_folder(self._wal.records.names(f"acts/{batch}"))
        for name, failure in readable(self._wal, batch, wanted, after):
            if isinstance(failure, Failure):
                entry = self._event(batch, failure, acts.get(failed_id(batch, failure.name), ()))
                yield failure, entry
                continue
            failed = failed_id(batch, name)
            done, _ = self._acts(batch, failed, acts.get(failed, ()))
            yield None, damaged_event(batch, name, known_since(self._wal, batch), str(failure), done)

    def _event(self, batch: str, failure: Failure, numbers: Iterable[str]) -> FailedEvent:
        """A failure after the acts on it. Where one of these cannot be read, that is its last error."""
        done, damage = self._acts(batch, failed_id(batch, failure.name), numbers)
        event = event_of(batch, failure, done, self._tables.of(failure.channel))
        return event if damage is None else replace(event, last_error=str(damage))

    def show(self, failed: str) -> FailedEvent:
        """One failed event. Raises `NotFound`."""
        return self._locate(failed)[1]

    def retry(self, failed: str, by: str) -> FailedEvent:
        """Try to put it into the warehouse: `resolved`, or `pending` with the new error.

        Where the warehouse is away or in another process's hands it stays `retrying`, for the loader.
        """
        with self._retry_lock:
            failure, event = self._open(failed)
            if failure is None:
                raise InvalidInput(
                    f"failed event {failed} can be retried when it is repaired: {event.last_error}"
                )
            event = self._act(event, RETRY, by)
            try:
                return self._try(failure, event, by)
            except Transient as error:
                log.info("failed event %s is left to the loader: %s", failed, error)
                return event
            finally:
                self._warehouse.close()  # one process at a time has it, and the loader needs it

    def resume(self) -> int:
        """Try what was left `retrying`; returns how many. The loader does so in each of its rounds."""
        left = [(failed, act) for _, failed, act in self._last_acts() if act.act == RETRY]
        for failed, act in left:
            failure, event = self._locate(failed)
            with suppress(InvalidInput):  # somebody else was faster
                if failure is not None:
                    self._try(failure, event, act.by)
        return len(left)

    def reload(self) -> int:
        """Load into a rebuilt warehouse what retries had put into the old one; returns how many."""
        resolved = self.find(status="resolved", limit=sys.maxsize)
        again = [event for event in resolved if event.resolution_notes == BY_RETRY]
        for event in again:
            failure, _ = self._locate(event.id)
            if failure is not None:
                self._load(event, failure)
        return len(again)

    def resolve(self, failed: str, by: str, notes: str) -> FailedEvent:
        """Mark it `resolved`: somebody dealt with it in another way, which the notes describe."""
        return self._act(self._open(failed)[1], RESOLVE, by, notes)

    def abandon(self, failed: str, by: str, notes: str) -> FailedEvent:
        """Mark it `abandoned`: nothing will be done about it."""
        return self._act(self._open(failed)[1], ABANDON, by, notes)

    def accept_loss(self, batch: str, by: str, notes: str) -> int:
        """Record that a damaged batch is lost, and abandon what it held; returns how many events.

        The ledger is told first, so that nobody can load it any more. Raises `InvalidInput` where the batch
        is not damaged.
        """
        damage = self._wal.damage(batch)
        if damage is None or self._wal.is_confirmed(batch):
            raise InvalidInput(f"batch {batch!r} is not damaged; holdfast ingest repair lists those that are")
        channels = self._wal.channels(batch)
        known = self._warehouse.refuse(batch, channels, LOST)
        # A ledger in the tables cannot be told of a batch without channels; without them nobody loads it.
        if known.refused is None and (channels or known.inserted or known.duplicates):
            raise InvalidInput(f"batch {batch!r} is in the warehouse: nothing is lost")
        rows = self._wal.rows(batch)
        self._wal.give_up(batch, GaveUp(self._wal.clock(), LOST, CONSUMER_WAL, damage.error, 0))
        for _, event in self._listed(batch):
            if event.status not in _OVER:
                self._act(event, ABANDON, by, notes)
        failpoints.hit("wal.before_lost")
        self._wal.accept_loss(batch, Acceptance(self._wal.clock(), by, notes, damage.error, rows))
        return rows

    def unresolved(self) -> int:
        """How many events have failed and nobody has dealt with; without reading their records.

        What is left of a batch whose record cannot be read counts as one.
        """
        open_ = 0
        for batch, names in by_folder(self._wal.records.names("failed")).items():
            if self._wal.is_lost(batch):
                continue
            own = sum(1 for name in names if name != REST)
            open_ += own if REST not in names else max(self._wal.rows(batch), own + 1)
        closed = [batch for batch, _, act in self._last_acts() if act.act in (RESOLVE, ABANDON)]
        return open_ - sum(1 for batch in closed if not self._wal.is_lost(batch))

    def mirror(self, *, everything: bool = False) -> int:
        """Write what changed, or everything, into `failed_events`; returns how many events were written.

        What was written is marked in the WAL after it: a crash in between writes it again. A batch that was
        given up and cannot be read goes into quarantine, and is written once it is repaired.
        """
        records, written = self._wal.records, 0
        for batch, what in sorted(self._unmirrored(everything).items()):
            try:
                lost = self._wal.is_lost(batch)
                events = [event for _, event in self._listed(batch)] if lost else list(self.of(batch))
            except Damaged as damage:
                log.error("the failed events of batch %s cannot be read: %s", batch, damage)
                self._wal.quarantine(batch, str(damage))
                continue
            self._warehouse.put_failed(events)
            failpoints.hit("loader.after_mirror")
            written += len(events)
            for each in what:
                records.add(f"mirrored/{batch}/{each}", {"mirrored": each})
        return written

    def _unmirrored(self, everything: bool) -> dict[str, list[str]]:
        """By batch the markers of what `failed_events` lacks."""
        records, survey = self._wal.records, self._wal.survey()
        known = set() if everything else set(records.names("mirrored"))
        news: dict[str, list[str]] = defaultdict(list)
        for batch, names in by_folder(records.names("failed")).items():
            # Failures of a batch under way are written at once, the rest when it is confirmed or has failed.
            settled = batch in survey.failed or f"{batch}/settled" in known or self._wal.is_confirmed(batch)
            marker = "settled" if settled else f"{len(names)}"
            if f"{batch}/{marker}" not in known:
                news[batch].append(marker)
        for name in records.names("acts"):
            batch, failed, number = name.split("/")
            if f"{batch}/{failed}-{number}" not in known:
                news[batch].append(f"{failed}-{number}")
        return news

    def _try(self, failure: Failure, event: FailedEvent, by: str) -> FailedEvent:
        error = self._validate(failure.channel, data_of(failure)) or self._load(event, failure)
        return self._act(event, RESOLVE if error is None else RETRY_FAILED, by, error or BY_RETRY)

    def _last_acts(self) -> Iterator[tuple[str, str, Act]]:
        """The batch, the id and the last act of each failed event that has one, as far as it can be read."""
        latest = {name.split("/")[1]: name for name in self._wal.records.names("acts")}
        for failed, name in latest.items():
            batch, _, number = name.split("/")
            done, _ = self._acts(batch, failed, [number])
            if done:
                yield batch, failed, done[0]

    def _load(self, event: FailedEvent, failure: Failure) -> str | None:
        """Put one record into the warehouse, under a key of its own; returns what was wrong."""
        number = event.retry_count
        key = f"{event.batch}#{failure.name}#{number}"
        try:
            [outcome] = self._warehouse.load([Load(key, (failure.channel,), segment_row(failure))])
        except Terminal as error:
            return str(error)
        return "the warehouse holds this id with other content" if outcome.conflicts else None

    def _act(self, event: FailedEvent, act: str, by: str, notes: str | None = None) -> FailedEvent:
        folder = f"acts/{event.batch}/{event.id}"
        number = len(list(self._wal.records.names(folder))) + 1
        record = Act(act, by, self._wal.clock(), notes)
        if not self._wal.records.add(f"{folder}/{number:06}", record.to_json()):
            raise InvalidInput(f"failed event {event.id} was changed by somebody else; look at it again")
        return apply_act(event, record)

    def _open(self, failed: str) -> tuple[Failure | None, FailedEvent]:
        failure, event = self._locate(failed)
        if event.status in _OVER:
            raise InvalidInput(f"failed event {failed} is {event.status}; nothing is left to do about it")
        return failure, event

    def _locate(self, failed: str) -> tuple[Failure | None, FailedEvent]:
        """A failed event, and its failure unless that cannot be read. Raises `NotFound`."""
        for batch, names in by_folder(self._wal.records.names("failed")).items():
            if REST in names or failed in {failed_id(batch, each) for each in names}:
                for failure, event in self._listed(batch):
                    if event.id == failed:
                        return failure, event
        raise NotFound(f"there is no failed event {failed}")

    def _acts(self, batch: str, failed: str, numbers: Iterable[str]) -> tuple[list[Act], Damaged | None]:
        """The acts on it, and what is wrong with the last one that cannot be read."""
        folder, done, damaged = f"acts/{batch}/{failed}", [], None
        for number in numbers:
            try:
                done.append(Act.from_json(self._wal.records.read(f"{folder}/{number}")))
            except Damaged as damage:
                log.error("%s", damage)
                damaged = damage
        return done, damaged


def _pending_first(event: FailedEvent) -> tuple[int, float, str]:
    return _ORDER.index(event.status), -event.failed_at.timestamp(), event.id


def _place_of(after: str | None) -> tuple[str, str | None]:
    """A batch, and the name of a record in it, from the `after` that a page returned."""
    if after is None:
        return "", None
    match after.split("/"):
        case [batch, name] if name.count("@") == 2:
            return batch, name
    raise InvalidInput(f"{after!r} is no place in this list; take one that a page gave you")
