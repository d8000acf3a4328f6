"""State records: hashes that a client which knows only the server can read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from holdfast.backends.redis import keys
from holdfast.backends.redis.codec import pairs, to_micros
from holdfast.backends.redis.session import Session
from holdfast.model.errors import InvalidInput
from holdfast.model.names import check_stored
from holdfast.model.upkeep import StateRecord

REVISION = "holdfast:revision"
"""The field of a record's hash that holds its revision. A hash that somebody else made counts as 1."""


class Records:
    """One hash each."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def put(
        self, key: str, fields: Mapping[str, str], expected: int, due: datetime | None = None
    ) -> int | None:
        check_stored("a record's field", *fields, *fields.values())
        if REVISION in fields:
            raise InvalidInput(f"a record's field can not be {REVISION!r}: its revision is kept there")
        when = "" if due is None else to_micros(due)
        flat = [text for field in fields.items() for text in field]
        written = await self._session.run("records/put", _checked(key), REVISION, expected, when, *flat)
        return None if written is None else int(written)

    async def get(self, key: str) -> StateRecord | None:
        flat = await self._session.call("HGETALL", keys.record(_checked(key)))
        return _record(key, flat) if flat else None

    async def remove(self, key: str, expected: int) -> bool:
        return bool(await self._session.run("records/remove", _checked(key), REVISION, expected))

    async def due(
        self,
        prefix: str,
        limit: int,
        *,
        newest: bool = False,
        after: tuple[datetime, str] | None = None,
        until: datetime | None = None,
    ) -> list[StateRecord]:
        place = () if after is None else (to_micros(after[0]), after[1])
        end = "" if until is None else to_micros(until)
        rows = await self._session.run("records/due", prefix, limit, int(newest), end, *place)
        return [_record(name.decode(), flat) for name, flat in rows]


def _checked(key: str) -> str:
    if ":" in key or not key:
        raise InvalidInput(
            f"record key {key!r} can not be used; write it with dots, as in gbe.state.tasks.t-1"
        )
    return key


def _record(key: str, flat: Sequence[bytes]) -> StateRecord:
    fields = {name: value.decode("utf-8", "replace") for name, value in pairs(flat).items()}
    return StateRecord(key, fields, int(fields.pop(REVISION, 1)))
