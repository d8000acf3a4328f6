"""PostgreSQL as a Holdfast backend: one session, and one object per noun of the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from holdfast.backends.postgres import checks, migrate
from holdfast.backends.postgres.channels import Channels
from holdfast.backends.postgres.cursors import Cursors
from holdfast.backends.postgres.deadletters import DeadLetters
from holdfast.backends.postgres.groups import Groups
from holdfast.backends.postgres.leases import Leases
from holdfast.backends.postgres.lifecycle import Lifecycle
from holdfast.backends.postgres.locks import Locks
from holdfast.backends.postgres.log import Log
from holdfast.backends.postgres.records import Records
from holdfast.backends.postgres.retention import Retention
from holdfast.backends.postgres.session import Session
from holdfast.backends.postgres.transactions import Transactions
from holdfast.backends.postgres.wakeups import PostgresListener
from holdfast.contracts import Capabilities, Finding


class PostgresBackend:
    """One PostgreSQL database."""

    capabilities = Capabilities(joins_transactions=True)

    def __init__(self, url: str, *, connections: int = 4) -> None:
        self.url = url
        self._session = session = Session(url, connections)
        self.channels = Channels(session)
        self.log = Log(session)
        self._transactions = Transactions(url)
        self.leases = Leases(session, self.channels, self._transactions)
        self.deadletters = DeadLetters(session)
        self.lifecycle = Lifecycle(session)
        self.cursors = Cursors(session)
        self.locks = Locks(session)
        self.retention = Retention(session)
        self.groups = Groups()
        self.records = Records(session)

    async def open(self) -> list[str]:
        await self._session.open()
        async with self._session.connection(patience=600) as connection:
            applied = await migrate.apply(connection)
            await self._session.recognise(connection)
        return applied

    async def close(self) -> None:
        await self.log.close()
        await self._transactions.close()
        await self._session.close()

    def fork(self) -> PostgresBackend:
        return PostgresBackend(self.url, connections=1)

    async def now(self) -> datetime:
        row = await self._session.row("now")
        assert row is not None  # noqa: S101 - the store's row always exists
        return row[0]  # type: ignore[no-any-return]

    async def epoch(self) -> int:
        row = await self._session.row("epoch")
        assert row is not None  # noqa: S101 - the store's row always exists
        return int(row[0])

    async def advance(self, by: timedelta) -> None:
        await self._session.run("advance", by=by)

    async def check(self) -> list[Finding]:
        return await checks.check(self._session)

    async def listen(
        self,
        channels: Sequence[str],
        wake: Callable[[str], None],
        failed: Callable[[BaseException], None] = lambda _: None,
        cancelled: Callable[[str, str, str], None] = lambda *_: None,
    ) -> PostgresListener:
        return PostgresListener(self._session, channels, wake, failed, cancelled)
