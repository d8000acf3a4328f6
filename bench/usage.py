"""What the work costs: CPU time of PostgreSQL and of its clients, and WAL, between two looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psutil
import psycopg

LOOK = "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"


@dataclass(frozen=True)
class Usage:
    """Totals since the server and the clients were started."""

    server: float
    """CPU seconds of all of its processes, those that have ended among them."""
    client: float
    """CPU seconds."""
    wal: int
    """Bytes."""

    def __sub__(self, other: Usage) -> Usage:
        return Usage(self.server - other.server, self.client - other.client, self.wal - other.wal)


class Probe:
    """Looks at a server on this machine and at the processes that use it."""

    def __init__(
        self, connection: psycopg.AsyncConnection, postmaster: psutil.Process, clients: Sequence[int]
    ) -> None:
        self.connection = connection
        self.postmaster = postmaster
        self.clients = [psutil.Process(pid) for pid in clients]

    async def look(self) -> Usage:
        row = await (await self.connection.execute(LOOK, prepare=True)).fetchone()
        assert row is not None
        return Usage(cpu_of_tree(self.postmaster), sum(map(cpu_of_tree, self.clients)), row[0])


@asynccontextmanager
async def probe(url: str, clients: Sequence[int]) -> AsyncIterator[Probe]:
    """A probe of the server behind a URL, and of clients by their process ids."""
    async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
        backend = psutil.Process(connection.info.backend_pid)
        postmaster = backend.parent()
        assert postmaster is not None
        yield Probe(connection, postmaster, clients)


def cpu_of_tree(process: psutil.Process) -> float:
    """CPU seconds of a process and of all below it, ended ones included; exact to some clock ticks."""
    living = 0.0
    for child in process.children(recursive=True):
        try:
            times = child.cpu_times()
        except psutil.NoSuchProcess:
            continue
        living += times.user + times.system
    times = process.cpu_times()
    return living + times.user + times.system + times.children_user + times.children_system
