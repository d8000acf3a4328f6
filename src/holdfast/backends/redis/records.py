"""State records: hashes that a client which knows only the server can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import pairs, to_micros
from holdfast.backends.redis.session import Session
from holdfast.model.errors import InvalidInput
from holdfast.model.text import check_stored
from holdfast.model.upkeep import Record

REVISION = "holdfast:revision"
"""The field of a record's hash that holds its revision. A hash that somebody else made counts as 1."""


class Records:
    """Written whole, and only over the revision that the writer has seen."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put_record(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        """Write a record, or answer None where it has changed since."""
        check_stored("a record's field", *fields, *fields.values())
        if REVISION in fields:
            raise InvalidInput(f"a record's field can not be {REVISION!r}: its revision is kept there")
        when = "" if due is None else to_micros(due)
        flat = [text for field in fields.items() for text in field]
        written = await self._session.run("put_record", _checked(key), REVISION, expected, when, *flat)
        return None if written is None else int(written)

    async def record(self, key: str) -> Record | None:
        """One record."""
        flat = await self._session.call("HGETALL", keys.record(_checked(key)))
        return _record(key, flat) if flat else None

    async def remove_record(self, key: str, expected: int) -> bool:
        """Remove a record, or answer False where it has changed since."""
        return bool(await self._session.run("remove_record", _checked(key), REVISION, expected))

    async def due_records(
        self, prefix: str, limit: int, newest: bool, after: tuple[datetime, str] | None
    ) -> list[Record]:
        """Records whose due time has passed, oldest or newest first."""
        place = () if after is None else (to_micros(after[0]), after[1])
        rows = await self._session.run("due_records", prefix, limit, int(newest), *place)
        return [_record(name.decode(), flat) for name, flat in rows]


def _checked(key: str) -> str:
    if ":" in key or not key:
        raise InvalidInput(
            f"record key {key!r} can not be used; write it with dots, as in gbe.state.tasks.t-1"
        )
    return key


def _record(key: str, flat: Sequence[bytes]) -> Record:
    fields = {name: value.decode("utf-8", "replace") for name, value in pairs(flat).items()}
    return Record(key, fields, int(fields.pop(REVISION, 1)))
