"""PostgreSQL under the rig: the final state from its tables, and a witness of every change of a job."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import kwargs_row

import holdfast
from holdfast.embedded import Postgres
from holdfast.model.policy import Policy
from holdfast_chaos.final_state import FinalState, JobMove, JobState, Logged, ServerUnderTest, terms
from holdfast_chaos.history import shared

_TEMPLATE = "witnessed"
_WEAK = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
"""Commits are acknowledged before they are on the disk."""
_LOG = """
    SELECT ch.name AS channel, l.id, l.seq::text AS job,
           holdfast.format_position(l.epoch, l.seq) AS position, convert_from(l.data, 'UTF8') AS data
    FROM holdfast.log l JOIN holdfast.channels ch ON ch.id = l.channel_id ORDER BY l.seq
"""
_ROWS = """
    SELECT ch.name AS channel, c.name AS consumer, t.seq::text AS job, t.state, t.attempts, t.abandonments,
           t.token, t.reason
    FROM (
        SELECT consumer_id, seq, state::text, attempts, abandonments, token, NULL AS reason
        FROM holdfast.live_jobs
        UNION ALL
        SELECT consumer_id, seq, outcome, attempts, abandonments, token, reason FROM holdfast.job_log
        UNION ALL
        SELECT consumer_id, seq, 'dead', attempts, abandonments, token, reason FROM holdfast.dead_letters
    ) t JOIN holdfast.consumers c ON c.id = t.consumer_id JOIN holdfast.channels ch ON ch.id = c.channel_id
    ORDER BY t.seq
"""
_MOVES = """
    SELECT m.at, ch.name AS channel, c.name AS consumer, m.seq::text AS job, m.before, m.after, m.old_token,
           m.token, m.old_lease, m.lease, m.abandonments
    FROM (
        SELECT * FROM rig.moves
        UNION ALL
        -- What never had a row was created by its publish.
        SELECT 0, p.published_at, p.consumer_id, p.seq, NULL, 'ready', NULL, 0, NULL, NULL, 0
        FROM rig.published p WHERE NOT EXISTS (
            SELECT FROM rig.moves o WHERE o.consumer_id = p.consumer_id AND o.seq = p.seq)
    ) m JOIN holdfast.consumers c ON c.id = m.consumer_id
    JOIN holdfast.channels ch ON ch.id = c.channel_id ORDER BY m.id
"""
_TERMS = """
    SELECT ch.name, c.name, c.policy,
           coalesce((SELECT jsonb_object_agg('dead:' || t.reason, t.dead) FROM holdfast.dead_totals t
                     WHERE t.consumer_id = c.id AND t.dead <> 0), '{}')
    FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
"""
_TRIMMED = """
    SELECT name, holdfast.format_position(trimmed_epoch, trimmed_seq) FROM holdfast.channels
"""
_CURSORS = """
    SELECT ch.name, c.name, holdfast.format_position(c.epoch, c.seq)
    FROM holdfast.cursors c JOIN holdfast.channels ch ON ch.id = c.channel_id
"""


class PostgresStore(ServerUnderTest):
    """Each store is a database, copied from a template that the rig's witness watches."""

    def __init__(self, folder: str | os.PathLike[str] | None = None, *, durable: bool = True) -> None:
        self.postgres = Postgres(folder, {} if durable else _WEAK).start()
        super().__init__(self.postgres)
        self._names = (f"crash_{number}" for number in count(1))
        url = self.postgres.create_database(_TEMPLATE)
        with holdfast.connect_sync(url):
            pass
        with psycopg.connect(url) as connection:
            connection.execute((Path(__file__).parent / "witness.sql").read_text())

    async def empty(self) -> str:
        return self.postgres.create_database(next(self._names), template=_TEMPLATE)

    async def final_state(self, url: str) -> FinalState:
        """In one snapshot."""
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

            async def fetch(kind: type[Any], query: str) -> list[Any]:
                def make(**fields: Any) -> Any:
                    return kind(**shared(fields))

                cursor = connection.cursor(row_factory=kwargs_row(make))
                return await (await cursor.execute(query)).fetchall()

            async def pairs(query: str) -> list[Any]:
                return await (await connection.execute(query)).fetchall()

            return FinalState(
                await fetch(Logged, _LOG),
                await fetch(JobState, _ROWS),
                {
                    (channel, name): terms(Policy.from_json(policy), counted)
                    for channel, name, policy, counted in await pairs(_TERMS)
                },
                _job_at,
                {channel: position for channel, position in await pairs(_TRIMMED) if position},
                {(channel, name): position for channel, name, position in await pairs(_CURSORS)},
                await fetch(JobMove, _MOVES),
            )


def _job_at(position: str) -> str:
    return str(int(position.rpartition("-")[2], 16))
