"""Declared schemas: those of the channels that a warehouse is filled with, read from the store."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from holdfast.bus.schemas import Schemas
from holdfast.pipeline.connection import Connection
from holdfast.pipeline.warehouse.tables import Tables

log = logging.getLogger(__name__)
FRESH = 60.0
"""Seconds for which a schema that was read is taken as the last one."""


class DeclaredSchemas:
    """Puts the schemas that were declared for channels into `tables`, and keeps them there as they change."""

    def __init__(self, connection: Connection, namespace: str, tables: Tables) -> None:
        self._connection, self._stored = connection, tables.stored
        self._schemas = Schemas(connection.backends[0], namespace)
        self._read_at: dict[str, float] = {}

    def refresh(self, channels: Iterable[str]) -> None:
        """Read those of these channels that were not read within a minute. What cannot be read stays as it
        was: columns are not worth a stop."""
        now = time.monotonic()
        for channel in channels:
            if now - self._read_at.get(channel, -FRESH) < FRESH:
                continue
            self._read_at[channel] = now
            try:
                found = self._connection.run(self._schemas.get(channel))
            except Exception as error:
                log.warning("the schema of %s was not read: %r", channel, error)
                continue
            if found is not None:
                self._stored[channel] = found.text
            else:
                self._stored.pop(channel, None)
