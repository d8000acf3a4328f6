"""PostgreSQL under the rig: evidence straight from the tables, and a witness of every change of a job."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from psycopg.rows import class_row

import holdfast
from holdfast.chaos.evidence import Evidence, Logged, Move, Row, Sabotage, Store, Terms
from holdfast.embedded import Postgres
from holdfast.model.policy import Policy

_TEMPLATE = "witnessed"
_LOG = """
    SELECT ch.name AS channel, l.id, l.seq::text AS job,
           holdfast.format_position(l.epoch, l.tx, l.seq) AS position, convert_from(l.data, 'UTF8') AS data
    FROM holdfast.log l JOIN holdfast.channels ch ON ch.id = l.channel_id ORDER BY l.seq
"""
_ROWS = """
    SELECT ch.name AS channel, c.name AS consumer, t.seq::text AS job, t.state, t.attempts, t.abandonments,
           t.token, t.reason
    FROM (
        SELECT consumer_id, seq, state::text, attempts, abandonments, token, NULL AS reason
        FROM holdfast.jobs
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
    FROM rig.moves m JOIN holdfast.consumers c ON c.id = m.consumer_id
    JOIN holdfast.channels ch ON ch.id = c.channel_id ORDER BY m.id
"""
_TERMS = """
    SELECT ch.name, c.name, c.policy,
           coalesce((SELECT jsonb_object_agg('dead:' || t.reason, t.dead) FROM holdfast.dead_totals t
                     WHERE t.consumer_id = c.id AND t.dead <> 0), '{}')
    FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
"""
_TRIMMED = """
    SELECT name, holdfast.format_position(trimmed_epoch, trimmed_tx, trimmed_seq) FROM holdfast.channels
"""
_CURSORS = """
    SELECT ch.name, c.name FROM holdfast.cursors c JOIN holdfast.channels ch ON ch.id = c.channel_id
"""


def _sql(statement: str) -> Sabotage:
    async def execute(connection: psycopg.AsyncConnection[Any]) -> None:
        assert (await connection.execute(statement)).rowcount > 0

    return execute


class PostgresStore(Store):
    """Each store is a database, copied from a template that the rig's witness watches."""

    sabotage: ClassVar[Mapping[str, tuple[str, Sabotage]]] = {
        "a done job vanishes": ("I3", _sql("DELETE FROM holdfast.job_log WHERE seq = 1")),
        "a done job is live again": (
            "I3",
            _sql(
                "INSERT INTO holdfast.jobs"
                " (consumer_id, channel_id, epoch, tx, seq, due_at, created_at, state)"
                " SELECT consumer_id, channel_id, epoch, tx, seq, ended_at, created_at, 'ready'"
                " FROM holdfast.job_log"
            ),
        ),
        "a dead letter goes uncounted": ("I3", _sql("DELETE FROM holdfast.dead_deltas")),
        "an event is lost with its job": ("I1", _sql("DELETE FROM holdfast.log WHERE seq = 2")),
        "an event changes": ("I1", _sql("UPDATE holdfast.log SET data = '{}' WHERE seq = 2")),
        "an attempt too many": ("I4", _sql("UPDATE holdfast.job_log SET attempts = 6")),
        "nobody completed it": (
            "I4",
            _sql(
                "WITH j AS (DELETE FROM holdfast.jobs RETURNING *)"
                " INSERT INTO holdfast.job_log SELECT consumer_id, channel_id, epoch, tx, seq, token,"
                " created_at, due_at, 'done', priority, attempts, abandonments FROM j"
            ),
        ),
        "a token falls": ("I5", _sql("UPDATE holdfast.jobs SET token = 0")),
        "a running lease is given to another": ("I6", _sql("UPDATE holdfast.jobs SET token = token + 1")),
        "a running job loses its event": (
            "I7",
            _sql(
                "WITH gone AS (DELETE FROM holdfast.log WHERE seq = 5 RETURNING *)"
                " UPDATE holdfast.channels SET trimmed_epoch = epoch, trimmed_tx = tx, trimmed_seq = seq"
                " FROM gone"
            ),
        ),
        "a running lease is taken back": (
            "I6",
            _sql(
                "UPDATE holdfast.jobs"
                " SET state = 'ready', lease_until = NULL, abandonments = abandonments + 1"
            ),
        ),
    }

    def __init__(self) -> None:
        self.postgres = Postgres().start()
        super().__init__(self.postgres)
        self._names = (f"crash_{number}" for number in count(1))
        url = self.postgres.create_database(_TEMPLATE)
        with holdfast.connect_sync(url):
            pass
        with psycopg.connect(url) as connection:
            connection.execute((Path(__file__).parent / "witness.sql").read_text())

    async def empty(self) -> str:
        return self.postgres.create_database(next(self._names), template=_TEMPLATE)

    async def gather(self, url: str) -> Evidence:
        """In one snapshot."""
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")

            async def fetch(kind: type[Any], query: str) -> list[Any]:
                cursor = connection.cursor(row_factory=class_row(kind))
                return await (await cursor.execute(query)).fetchall()

            async def pairs(query: str) -> list[Any]:
                return await (await connection.execute(query)).fetchall()

            return Evidence(
                await fetch(Logged, _LOG),
                await fetch(Row, _ROWS),
                {(channel, name): _terms(*rest) for channel, name, *rest in await pairs(_TERMS)},
                _job_at,
                {channel: position for channel, position in await pairs(_TRIMMED) if position},
                await pairs(_CURSORS),
                await fetch(Move, _MOVES),
            )

    async def vandalise(self, url: str, what: str) -> None:
        async with await psycopg.AsyncConnection.connect(url) as connection:
            await self.sabotage[what][1](connection)


def _terms(stored: dict[str, Any], counted: dict[str, int]) -> Terms:
    policy = Policy.from_json(stored)
    return Terms(policy.max_attempts, policy.max_abandonments, policy.lease, counted)


def _job_at(position: str) -> str:
    return str(int(position.rpartition("-")[2], 16))
