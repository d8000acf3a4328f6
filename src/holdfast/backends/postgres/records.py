"""State records: small, written whole, each change under the revision that was read."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import orjson

from holdfast.backends.postgres.session import Session
from holdfast.model.names import check_stored
from holdfast.model.upkeep import StateRecord


class Records:
    """Writes and finds state records."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        check_stored("a record's field", key, *fields, *fields.values())
        values = {"key": key, "fields": orjson.dumps(dict(fields)).decode(), "due": due}
        if expected == 0:
            row = await self._session.row("create_record", **values)
        else:
            row = await self._session.row("change_record", expected=expected, **values)
        return row[0] if row else None

    async def get(self, key: str) -> StateRecord | None:
        row = await self._session.row("record", key=key)
        return StateRecord(*row) if row else None

    async def remove(self, key: str, expected: int) -> bool:
        return await self._session.row("remove_record", key=key, expected=expected) is not None

    async def due(
        self,
        prefix: str,
        limit: int,
        *,
        newest: bool = False,
        after: tuple[datetime, str] | None = None,
        until: datetime | None = None,
    ) -> list[StateRecord]:
        query = "newest_records" if newest else "due_records"
        time, key = after or (None, "")
        values = {"prefix": prefix, "limit": limit, "time": time, "key": key, "until": until}
        return [StateRecord(*row) for row in await self._session.rows(query, **values)]
