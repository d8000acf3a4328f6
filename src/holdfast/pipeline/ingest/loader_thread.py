"""The loader's thread: it takes fresh batches at once, as many as wait together, and the others when they are
due."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial

from holdfast.model.errors import HoldfastError
from holdfast.pipeline.failed.service import FailedEvents
from holdfast.pipeline.ingest.metrics import Freshness, IngestMetrics
from holdfast.pipeline.ingest.repair import Repairs
from holdfast.pipeline.loader.decisions import Result
from holdfast.pipeline.loader.loader import Loader
from holdfast.pipeline.wal import Wal, WalBatch
from holdfast.pipeline.wal.upkeep import WalUpkeep

log = logging.getLogger(__name__)
UNSETTLED = (Result.RETRY, Result.WAITING, Result.HELD)


class LoaderThread:
    """The loader of one driver."""

    def __init__(
        self,
        wal: Wal,
        loader: Loader,
        failed: FailedEvents,
        repairs: Repairs,
        metrics: IngestMetrics,
        freshness: Freshness,
    ) -> None:
        self._wal, self._loader, self._failed, self._metrics = wal, loader, failed, metrics
        self._repairs, self._upkeep, self._freshness = repairs, WalUpkeep(wal), freshness
        self._due = 0.0
        self._fresh: queue.SimpleQueue[WalBatch | None] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-loader", daemon=True)

    def start(self) -> None:
        """Begin to load."""
        self._thread.start()

    def add(self, batch: WalBatch) -> None:
        """Load it next."""
        self._fresh.put(batch)

    def stop(self, timeout: timedelta | None = None) -> bool:
        """Finish the batch at hand; returns whether that was done in time."""
        self._stopping.set()
        self._fresh.put(None)
        self._thread.join(None if timeout is None else timeout.total_seconds())
        return not self._thread.is_alive()

    def drain(self) -> list[WalBatch]:
        """Load what is there, wait for leases of others to end, and return what could not be loaded now."""
        while True:
            results = self.round()
            held = [batch.name for batch, result in results if result is Result.HELD]
            if not held:
                return [batch for batch, result in results if result in UNSETTLED]
            leases = [lease for name in held if (lease := self._wal.leases.latest(name))]
            # None is left where its holder has ended meanwhile, and what it loaded was cleaned away.
            left = [self._wal.leases.left(lease).total_seconds() for lease in leases]
            time.sleep(max(0.0, min(left, default=0.0)))

    def round(self) -> list[tuple[WalBatch, Result]]:
        """Everything that is due, once: batches, also repaired ones, failed events, cleanup, the gauge."""
        results = self._load_due()
        if repaired := self._repairs.run_once():
            self._metrics.repairs.inc(sum(each.events for each in repaired))
            results |= self._load_repaired({each.batch for each in repaired}) | self._load_due()
        self._upkeep.run_once()
        pending = self._wal.pending()
        self._metrics.pending.set(sum(batch.rows for batch in pending))
        self._metrics.pending_batches.set(len(pending))
        self._freshness.found(pending)
        return list(results.values())

    def _load_due(self) -> dict[str, tuple[WalBatch, Result]]:
        """Load batches, and retry failed events, that are due. What is found damaged goes into quarantine."""
        results = {batch.name: (batch, result) for batch, result in self._loader.run_once()}
        self._failed.resume()
        self._failed.mirror()
        return results

    def _load_repaired(self, names: set[str]) -> dict[str, tuple[WalBatch, Result]]:
        """Load them now, and not when they are due: why they failed before is gone."""
        batches = [batch for batch in self._wal.pending() if batch.name in names]
        return {batch.name: (batch, result) for batch, result in self._loader.load(batches, at_once=True)}

    def _run(self) -> None:
        """Load until told to stop. The warehouse is closed while there is nothing to do, so that others can
        read it."""
        interval = self._wal.settings.retry_interval.total_seconds()
        while not self._stopping.is_set():
            try:
                batch = self._fresh.get(timeout=max(0.01, self._due - time.monotonic()))
            except queue.Empty:
                self._due = time.monotonic() + interval
                _guarded(self.round)
            else:
                if batch is not None and not self._stopping.is_set():
                    _guarded(partial(self._load, [batch, *self._others()]))
            if self._fresh.empty():
                self._loader.warehouse.close()

    def _others(self) -> Iterator[WalBatch]:
        """Whatever else is fresh."""
        with suppress(queue.Empty):
            while (batch := self._fresh.get_nowait()) is not None:
                yield batch

    def _load(self, batches: Sequence[WalBatch]) -> None:
        if any(result is Result.QUARANTINED for _, result in self._loader.load(batches)):
            self._due = 0.0  # the next round repairs it


def _guarded(step: Callable[[], object]) -> None:
    """Log what a step raises. The WAL's own store may be away, too: what is in it is tried again."""
    try:
        step()
    except HoldfastError as error:
        log.warning("loading: %s; trying again later", error)
    except Exception:
        log.exception("loading failed; trying again later")
