"""Transactions that complete jobs: `Job.transaction`, on connections of their own."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from types import TracebackType
from typing import Any, LiteralString, TypeVar

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from holdfast import failpoints
from holdfast.backends.postgres.pool import ALERT, Connection, Servers
from holdfast.backends.postgres.queries import QUERIES
from holdfast.backends.postgres.session import translate
from holdfast.model.errors import InvalidInput, LeaseLost, Unavailable
from holdfast.model.job import Completion, Job
from holdfast.model.redact import address

T = TypeVar("T")
Steps = Generator[Callable[[], Any], Any, T]
"""One course, for async functions and for threads: each step is a call, whose result comes back."""

_LEASES = 1_000  # of which is known that each of their jobs has a row of its own
_BEGIN: LiteralString = "BEGIN ISOLATION LEVEL READ COMMITTED"
# In one round trip with the end of the transaction: nothing is left in the session for the next handler.
# Behind a pooler that has another session anyway.
_RESET: LiteralString = "; SELECT holdfast.reset_session()"


class OwnConnection(Connection):
    """A handler's connection. Its block ends the transaction, and nobody else by a slip."""

    async def commit(self) -> None:
        raise _ended_by_the_block()

    async def rollback(self) -> None:
        raise _ended_by_the_block()


class PlainConnection(psycopg.Connection[tuple[Any, ...]]):
    """The same for a thread."""

    def commit(self) -> None:
        raise _ended_by_the_block()

    def rollback(self) -> None:
        raise _ended_by_the_block()


def _ended_by_the_block() -> psycopg.ProgrammingError:
    return psycopg.ProgrammingError("the block of job.transaction() commits, or rolls back where it raises")


class Transactions:
    """Connections for handlers: as many as are in a transaction at once, kept for the next ones.

    They have the server's own settings, and none of ours.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.pool, self.plain = OwnPool(url), PlainPool(url)
        self._prepared: dict[tuple[str, str, int], tuple[Any, ...]] = {}

    def prepared(self, job: Job) -> tuple[Any, ...] | None:
        """Return what the preparation of a job's lease returned, if it was done for any job of it."""
        return self._prepared.get((job.channel, job.consumer, job.token))

    def remember(self, job: Job, prepared: tuple[Any, ...]) -> None:
        """Keep what the preparation of a job's lease returned; what is oldest is forgotten."""
        self._prepared[job.channel, job.consumer, job.token] = prepared
        while len(self._prepared) > _LEASES:
            self._prepared.pop(next(iter(self._prepared)), None)

    async def close(self) -> None:
        """Close the connections that are idle. The others are closed when they are given back."""
        self.pool.opened = self.plain.opened = False
        await self.pool.clear()
        self.plain.clear()


class OwnPool:
    """Connections of async handlers; no bound but how many of these run."""

    def __init__(self, url: str) -> None:
        self._servers = Servers(url, OwnConnection)
        self._idle: list[OwnConnection] = []
        self.opened = True

    async def take(self) -> OwnConnection:
        """A connection in autocommit mode; give it back in every case."""
        return self._idle.pop() if self._idle else await self._servers.connect()

    async def give_back(self, connection: OwnConnection) -> None:
        """Keep it for the next one, unless something is still going on in it."""
        if self.opened and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.pgconn.finish()

    async def clear(self) -> None:
        """Drop the idle ones."""
        while self._idle:
            connection = self._idle.pop()
            connection.pgconn.finish()


class PlainPool:
    """The same for threads."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._idle: deque[PlainConnection] = deque()
        self.opened = True

    def take(self) -> PlainConnection:
        """A connection in autocommit mode; give it back in every case."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._connect()

    def give_back(self, connection: PlainConnection) -> None:
        """Keep it for the next one, unless something is still going on in it."""
        if self.opened and connection.info.transaction_status is TransactionStatus.IDLE:
            self._idle.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        """Drop the idle ones."""
        while self._idle:
            self._idle.pop().close()

    def _connect(self) -> PlainConnection:
        connection: PlainConnection = PlainConnection.connect(self._url, autocommit=True, **ALERT)
        found = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
        if found != (connection.info.backend_pid,):  # as Pool does
            connection.prepare_threshold = None
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
        return await _run(self._exit(error))

    def __enter__(self) -> PlainConnection:
        return _run_plain(self._enter(self._store.plain))  # type: ignore[no-any-return]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return _run_plain(self._exit(error))

    def _enter(self, pool: OwnPool | PlainPool) -> Steps[Any]:
        job = self._job
        if job.completion is Completion.BEGUN:
            raise InvalidInput(f"job {job.id} is in a transaction already; use the connection of that one")
        if job.completion is Completion.DONE:
            raise InvalidInput(
                f"job {job.id} was completed by its transaction; what follows needs a connection of your own"
            )
        # Another transaction may be ending it, unless this is the usual case.
        known = self._store.prepared(job) if job.completion is Completion.NONE else None
        job.completion, self._pool = Completion.BEGUN, pool
        try:
            yield from self._take(known)
        except BaseException:
            job.completion = Completion.NONE
            raise
        return self._connection

    def _take(self, known: tuple[Any, ...] | None) -> Steps[None]:
        """Take a connection, and give the job a row of its own on it, unless it is known to have one."""
        for last in (False, True):
            try:
                self._connection = connection = yield self._pool.take
            except psycopg.Error as error:
                raise self._no_connection(error) from error
            try:
                prepared = known or (yield from self._prepare())
                self._parameters = completion(self._job, prepared)
                yield partial(connection.execute, _BEGIN, prepare=False)
                return
            except BaseException as error:
                yield partial(self._pool.give_back, connection)
                if not isinstance(error, psycopg.Error):
                    raise
                if last or not isinstance(error, psycopg.OperationalError):
                    raise translate(error, self._store.url) from error
                yield self._pool.clear  # an idle one may have ended with the server before

    def _prepare(self) -> Steps[tuple[Any, ...]]:
        cursor = yield partial(self._connection.execute, QUERIES["prepare_completion"], lease(self._job))
        prepared = tuple((yield cursor.fetchone))
        if prepared[1] is not None:
            self._store.remember(self._job, prepared)
        return prepared

    def _exit(self, error: BaseException | None) -> Steps[bool]:
        completed = False
        try:
            if error is None:
                yield from self._complete()
                # Where the commit is not acknowledged, its outcome is unknown: the job stays OPEN.
                completed = True
                cursor = yield partial(self._connection.execute, self._ending("COMMIT"), prepare=False)
                if cursor.statusmessage != "COMMIT":  # what the server says of one that had failed
                    raise psycopg.errors.InFailedSqlTransaction(
                        f"a statement failed after the block of job {self._job.id}: all of it was rolled back"
                    )
                self._job.completion = Completion.DONE
                self._completed()
                failpoints.hit("transaction.after_commit")
        except psycopg.Error as failed:
            if failed.sqlstate == "HF007":
                raise LeaseLost([self._job.id]) from failed
            raise
        finally:
            yield from self._give_back()
            if not completed:
                self._job.completion = Completion.NONE
        return False

    def _complete(self) -> Steps[None]:
        """The last statement. Its lock is the fence until the transaction ends."""
        failpoints.hit("transaction.before_completion")
        if self._connection.info.transaction_status is TransactionStatus.IDLE:
            raise InvalidInput(
                f"the transaction of job {self._job.id} was ended inside its block, without the job; leave "
                "COMMIT and ROLLBACK to the block"
            )
        self._job.completion = Completion.OPEN
        yield partial(self._connection.execute, QUERIES["complete_within_ours"], self._parameters)
        failpoints.hit("transaction.before_commit")

    def _give_back(self) -> Steps[None]:
        """Keep the connection for the next handler, after a rollback where it was not committed."""
        connection = self._connection
        connection.row_factory = tuple_row
        try:
            if self._job.completion is not Completion.DONE:
                yield partial(connection.execute, self._ending("ROLLBACK"), prepare=False)
        except psycopg.Error:
            yield connection.close
        finally:
            yield partial(self._pool.give_back, connection)

    def _ending(self, how: LiteralString) -> LiteralString:
        return how if self._connection.prepare_threshold is None else how + _RESET

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


def completion(job: Job, prepared: tuple[Any, ...]) -> dict[str, Any]:
    """The parameters of the completion of a job that was prepared. Raises `LeaseLost`."""
    consumer, store = prepared
    if store is None:
        raise LeaseLost([job.id])
    names = lease(job)
    return {"consumer": consumer, "seq": names["seq"], "token": job.token, "store": store}


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
