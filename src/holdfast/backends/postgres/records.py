"""State records: small, written whole, each change under the revision that was read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import orjson

from holdfast.backends.postgres.session import Session
from holdfast.model.text import check_stored
from holdfast.model.upkeep import Record


class Records:
    """Writes and finds state records."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None
    ) -> int | None:
        """Write a record if it still has the revision `expected`; 0: if there is none."""
        check_stored("a record's field", key, *fields, *fields.values())
        values = {"key": key, "fields": orjson.dumps(dict(fields)).decode(), "due": due}
        if expected == 0:
            row = await self._session.row("create_record", **values)
        else:
            row = await self._session.row("change_record", expected=expected, **values)
        return row[0] if row else None

    async def get(self, key: str) -> Record | None:
        """One record."""
        row = await self._session.row("record", key=key)
        return Record(*row) if row else None

    async def remove(self, key: str, expected: int) -> bool:
        """Remove a record if it still has the revision `expected`."""
        return await self._session.row("remove_record", key=key, expected=expected) is not None

    async def due(
        self, prefix: str, limit: int, newest: bool, after: tuple[datetime, str] | None
    ) -> list[Record]:
        """Records under a prefix whose due time has passed."""
        query = "newest_records" if newest else "due_records"
        time, key = after or (None, "")
        values = {"prefix": prefix, "limit": limit, "time": time, "key": key}
        return [Record(*row) for row in await self._session.rows(query, **values)]
