"""What can be done to PostgreSQL behind the back of the bus: one statement each."""

from __future__ import annotations

from collections.abc import Mapping

import psycopg

from holdfast.chaos.controls.sabotage.contract import Sabotage, had_effect


def _sql(statement: str) -> Sabotage:
    async def execute(url: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            had_effect((await connection.execute(statement)).rowcount > 0)

    return execute


SABOTAGE: Mapping[str, Sabotage] = {
    "an event is lost with its job": _sql("DELETE FROM holdfast.log WHERE seq = 2"),
    "an event changes": _sql("UPDATE holdfast.log SET data = '{}' WHERE seq = 2"),
    "a done job vanishes": _sql("DELETE FROM holdfast.job_log WHERE seq = 1"),
    "a done job is live again": _sql(
        "INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, due_at, created_at, state)"
        " SELECT consumer_id, channel_id, epoch, tx, seq, ended_at, created_at, 'ready' FROM holdfast.job_log"
    ),
    "a dead letter goes uncounted": _sql("DELETE FROM holdfast.dead_deltas"),
    "a job gets an attempt too many": _sql("UPDATE holdfast.job_log SET attempts = 6"),
    "a job is done that nobody completed": _sql(
        "WITH j AS (DELETE FROM holdfast.jobs RETURNING *)"
        " INSERT INTO holdfast.job_log SELECT consumer_id, channel_id, epoch, tx, seq, token,"
        " created_at, due_at, 'done', priority, attempts, abandonments FROM j"
    ),
    "a token falls": _sql("UPDATE holdfast.jobs SET token = 0"),
    "a running lease is given to another": _sql("UPDATE holdfast.jobs SET token = token + 1"),
    "a running lease is taken back": _sql(
        "UPDATE holdfast.jobs SET state = 'ready', lease_until = NULL, abandonments = abandonments + 1"
    ),
    "a running job loses its event": _sql(
        "WITH gone AS (DELETE FROM holdfast.log WHERE seq = 5 RETURNING *)"
        " UPDATE holdfast.channels SET trimmed_epoch = epoch, trimmed_tx = tx, trimmed_seq = seq FROM gone"
    ),
}
