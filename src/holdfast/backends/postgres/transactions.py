"""Transactions that complete jobs: `Job.transaction`, on connections of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast import failpoints
from holdfast.backends.postgres.pool import ALERT, Connection, Pool
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import translate
from holdfast.model.errors import InvalidInput, LeaseLost, Unavailable
from holdfast.model.job import Completion, Job
from holdfast.model.redact import address

T = TypeVar("T")
Steps = Generator[Callable[[], Any], Any, T]
"""One course, for async functions and for threads: each step is a call, whose result comes back."""
Plain = psycopg.Connection[tuple[Any, ...]]

_MOST = 10_000  # in effect, as many as handlers run
# What a handler may have left in the session. Behind a pooler the next transaction has another one.
_RESET = "RESET ALL; RESET SESSION AUTHORIZATION; UNLISTEN *; SELECT pg_advisory_unlock_all(); DISCARD TEMP"


class Transactions:
    """Connections for handlers: as many as are in a transaction at once, kept for the next ones.

    They have the server's own settings, and none of ours.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.pool = Pool(url, _MOST, _configure)
        self.plain = PlainPool(url)
        self.pool.opened = True

    async def close(self) -> None:
        """Close the connections that are idle. The others are closed when they are given back."""
        self.pool.opened = self.plain.opened = False
        await self.pool.clear()
        self.plain.clear()


class PlainPool:
    """The same as `Pool` for threads: connections without await, and no bound."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: deque[Plain] = deque()
        self.opened = True

    def take(self) -> Plain:
        """A connection in autocommit mode; give it back in every case."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def give_back(self, connection: Plain) -> None:
        """Keep it for the next one, unless something is still going on in it."""
        if self.opened and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        """Drop the idle ones."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> Plain:
        connection: Plain = psycopg.Connection.connect(self._url, autocommit=True, **ALERT)
        found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
        if found != (connection.info.backend_pid,):  # as Pool does
            connection.prepare_threshold = None
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection


class JobTransaction:
    """A transaction on a connection of its own that completes a job as its last statement."""

    def __init__(self, store: Transactions, job: Job, completed: Callable[[], None]) -> None:
        self._store, self._job, self._completed = store, job, completed

    async def __aenter__(self) -> Connection:
        return await _run(self._enter(self._store.pool))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await _run(self._exit(kind, error, trace))

    def __enter__(self) -> Plain:
        return _run_plain(self._enter(self._store.plain))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return _run_plain(self._exit(kind, error, trace))

    def _enter(self, pool: Pool | PlainPool) -> Steps[Any]:
        job = self._job
        if job.completion is Completion.BEGUN:
            raise InvalidInput(f"job {job.id} is in a transaction already; use the connection of that one")
        if job.completion is Completion.DONE:
            raise InvalidInput(
                f"job {job.id} was completed by its transaction; what follows needs a connection of your own"
            )
        job.completion, self._pool = Completion.BEGUN, pool
        try:
            yield from self._take()
            self._block = self._connection.transaction()
            try:
                yield getattr(self._block, "__aenter__", None) or self._block.__enter__
            except BaseException:
                yield partial(pool.give_back, self._connection)
                raise
        except BaseException:
            job.completion = Completion.NONE
            raise
        return self._connection

    def _take(self) -> Steps[None]:
        """Take a connection, and give the job a row of its own on it."""
        for last in (False, True):
            try:
                self._connection = connection = yield self._pool.take
            except psycopg.Error as error:
                raise self._no_connection(error) from error
            try:
                cursor = yield partial(connection.execute, QUERIES["prepare_completion"], lease(self._job))
                [self._identity] = yield cursor.fetchone
                if self._identity is None:
                    raise LeaseLost([self._job.id])
                return
            except BaseException as error:
                yield partial(self._pool.give_back, connection)
                if not isinstance(error, psycopg.Error):
                    raise
                if last or not isinstance(error, psycopg.OperationalError):
                    raise translate(error, self._store.url) from error
                yield self._pool.clear  # an idle one may have ended with the server before

    def _exit(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Steps[bool]:
        leave = getattr(self._block, "__aexit__", None) or self._block.__exit__
        try:
            if error is not None:
                return bool((yield partial(leave, kind, error, trace)))
            try:
                yield from self._complete()
            except BaseException as failed:
                yield partial(leave, type(failed), failed, failed.__traceback__)
                self._job.completion = Completion.NONE
                if getattr(failed, "sqlstate", None) == "HF007":
                    raise LeaseLost([self._job.id]) from failed
                raise
            # Where this is not acknowledged, the outcome is unknown: the job stays OPEN.
            yield partial(leave, None, None, None)
            self._job.completion = Completion.DONE
            self._completed()
            failpoints.hit("transaction.after_commit")
            return False
        finally:
            if self._job.completion is Completion.BEGUN:
                self._job.completion = Completion.NONE
            yield from self._give_back()

    def _complete(self) -> Steps[None]:
        """The last statement. Its lock is the fence until the transaction ends."""
        failpoints.hit("transaction.before_completion")
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            raise InvalidInput(
                f"the transaction of job {self._job.id} was ended inside its block, without the job; leave "
                "COMMIT and ROLLBACK to the block"
            )
        self._job.completion = Completion.OPEN
        parameters = lease(self._job) | {"identity": self._identity}
        yield partial(self._connection.execute, QUERIES["complete_within_ours"], parameters)
        failpoints.hit("transaction.before_commit")

    def _give_back(self) -> Steps[None]:
        """Keep the connection for the next handler, without what this one has left in it."""
        connection = self._connection
        idle = connection.info.transaction_status is TransactionStatus.IDLE
        if idle and connection.prepare_threshold is not None:
            connection.row_factory = tuple_row
            try:
                yield partial(connection.execute, _RESET)
            except psycopg.Error:
                yield connection.close
        yield partial(self._pool.give_back, connection)

    def _no_connection(self, error: psycopg.Error) -> Unavailable:
        return Unavailable(
            f"PostgreSQL at {address(self._store.url, 5432)} gives no connection for the transaction of job "
            f"{self._job.id}: {str(error).strip()}; each handler in a transaction has one of its own: if "
            "these are too many, lower the handler's concurrency, or raise max_connections"
        )


def lease(job: Job) -> dict[str, Any]:
    """The parameters that name a lease. Of an id that this store never gave, the number is one of no job."""
    number = int(job.id) if job.id.isascii() and job.id.isdigit() and len(job.id) <= 18 else 0
    return {"channel": job.channel, "consumer": job.consumer, "seq": number, "token": job.token}


async def _configure(connection: Connection) -> None:
    await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)


async def _run(steps: Steps[T]) -> T:
    """Take steps that return awaitables, or nothing to wait for."""
    send, given = steps.send, None
    while True:
        try:
            step = send(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            given = step()
            if isinstance(given, Awaitable):
                given = await given
            send = steps.send
        except GeneratorExit:
            raise
        except BaseException as error:
            send, given = steps.throw, error


def _run_plain(steps: Steps[T]) -> T:
    """Take steps in a thread."""
    send, given = steps.send, None
    while True:
        try:
            step = send(given)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
        try:
            send, given = steps.send, step()
        except BaseException as error:
            send, given = steps.throw, error
