"""The ledgers that a server is given: failed records and traces, without a Spark session of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from holdfast.cli import failed
from holdfast.cli.reconcile import books_of
from holdfast.model.errors import NotFound

if TYPE_CHECKING:
    from holdfast.config.config import Config
    from holdfast.pipeline.failed.service import FailedEvents
    from holdfast.pipeline.trace.steps import Life


class PipelineLedgers:
    """What `holdfast.server.ledgers.Ledgers` asks for."""

    def __init__(self, config: Config, urls: Sequence[str], records: FailedEvents | None) -> None:
        self._config, self._urls, self.records = config, list(urls), records

    def trace(self, event_id: str, channel: str | None, source: str | None) -> Sequence[Life]:
        """As far as the jobs, the archive, the WAL and the warehouse tell; nothing is searched for."""
        from holdfast.pipeline.trace.job import Question, Tracer

        def refuse() -> NoReturn:
            raise NotFound(
                f"neither a consumer nor the warehouse knows an event {event_id!r}; "
                f"'holdfast trace {event_id}' searches the log and the archive for it"
            )

        tracer = Tracer(self._urls, books_of(self._config, self._urls, None), refuse)
        return tracer.trace(Question(event_id, channel, source))

    async def query(self, sql: str, *, rows: int, size: int, audit: bool) -> bytes:
        """On the warehouse of the configuration."""
        from holdfast.pipeline.query import Limits, ask

        return await ask(self._config.ingest.warehouse, sql, Limits(rows=rows, bytes=size), audit=audit)


@contextmanager
def ledgers(config: Config, file: Path | None, urls: Sequence[str]) -> Iterator[PipelineLedgers | None]:
    """The ledgers of a configuration, for the length of a block; None where nothing can read them."""
    from holdfast.config.embedded import has_spark

    if not has_spark():
        yield None
        return
    with ExitStack() as stack:
        records = stack.enter_context(failed.service(file, None, None)) if config.ingest.channels else None
        yield PipelineLedgers(config, urls, records)
