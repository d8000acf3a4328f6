"""A burial costs what it buries, not what is dead already, also on a store without statistics."""

from __future__ import annotations

import psycopg

from holdfast.backends.postgres import PostgresBackend
from holdfast.model.event import Event
from holdfast.model.job import Burial, Reason
from kit import BOOM, CHANNEL, claim, subscribe, until

BATCH, BATCHES = 1000, 4


async def test_a_burial_reads_no_other_dead_letter(database: str) -> None:
    backend = PostgresBackend(database)
    await backend.open()
    await subscribe(backend)
    await backend.log.publish(CHANNEL, [Event({}, f"o-{number}") for number in range(BATCH * BATCHES)])
    for _ in range(BATCHES):
        burials = [Burial(job, Reason.TERMINAL, BOOM) for job in await claim(backend, BATCH)]
        assert all(await backend.leases.bury(burials))
    await backend.close()  # the statistics of a connection are complete when it ends
    read = await until(lambda: _read(database))
    assert read < 10 * BATCH * BATCHES, "a join over all dead letters would read millions"


async def _read(database: str) -> int:
    """Entries that were read from the indexes of the dead letters."""
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as connection:
        answer = await connection.execute(
            "SELECT sum(idx_tup_read)::bigint FROM pg_stat_user_indexes WHERE relname = 'dead_letters'"
        )
        row = await answer.fetchone()
        return 0 if row is None else int(row[0] or 0)
