"""Evidence: the final state of a store, as the judge reads it, straight from the tables."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import psycopg
from psycopg.rows import class_row

Owner = tuple[str, str]
"""A channel and a consumer."""


class Row(NamedTuple):
    """A job in one of the three places where it can be."""

    place: str
    channel: str
    consumer: str
    job: int
    state: str
    attempts: int
    abandonments: int
    token: int
    reason: str | None


class Logged(NamedTuple):
    """An event in the log."""

    channel: str
    id: str
    job: int
    position: str
    data: str


class Move(NamedTuple):
    """A change of a job, from the witness."""

    at: datetime
    channel: str
    consumer: str
    job: int
    before: str | None
    after: str | None
    old_token: int | None
    token: int | None
    old_lease: datetime | None
    lease: datetime | None
    abandonments: int


class Terms(NamedTuple):
    """What a consumer's policy allows, and what its counters of dead letters say, by reason."""

    channel: str
    consumer: str
    max_attempts: int
    max_abandonments: int
    dead: dict[str, int]


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that the store can say."""

    log: list[Logged]
    rows: list[Row]
    moves: list[Move]
    terms: dict[Owner, Terms]


_LOG = """
    SELECT ch.name AS channel, l.id, l.seq AS job, holdfast.format_position(l.epoch, l.tx, l.seq) AS position,
           convert_from(l.data, 'UTF8') AS data
    FROM holdfast.log l JOIN holdfast.channels ch ON ch.id = l.channel_id ORDER BY l.seq
"""
_ROWS = """
    SELECT t.place, ch.name AS channel, c.name AS consumer, t.seq AS job, t.state, t.attempts,
           t.abandonments, t.token, t.reason
    FROM (
        SELECT 'jobs' AS place, consumer_id, seq, state::text, attempts, abandonments, token, NULL AS reason
        FROM holdfast.jobs
        UNION ALL
        SELECT 'job_log', consumer_id, seq, outcome, attempts, abandonments, token, reason
        FROM holdfast.job_log
        UNION ALL
        SELECT 'dead_letters', consumer_id, seq, 'dead', attempts, abandonments, token, reason
        FROM holdfast.dead_letters
    ) t JOIN holdfast.consumers c ON c.id = t.consumer_id JOIN holdfast.channels ch ON ch.id = c.channel_id
    ORDER BY t.seq
"""
_MOVES = """
    SELECT m.at, ch.name AS channel, c.name AS consumer, m.seq AS job, m.before, m.after, m.old_token,
           m.token, m.old_lease, m.lease, m.abandonments
    FROM rig.moves m JOIN holdfast.consumers c ON c.id = m.consumer_id
    JOIN holdfast.channels ch ON ch.id = c.channel_id ORDER BY m.id
"""
_TERMS = """
    SELECT ch.name AS channel, c.name AS consumer, (c.policy->>'max_attempts')::integer AS max_attempts,
           (c.policy->>'max_abandonments')::integer AS max_abandonments,
           coalesce((SELECT jsonb_object_agg(t.reason, t.dead) FROM holdfast.dead_totals t
                     WHERE t.consumer_id = c.id AND t.dead <> 0), '{}') AS dead
    FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
"""


def gather(url: str) -> Evidence:
    """Read the store in one snapshot."""
    with psycopg.connect(url) as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        terms = connection.cursor(row_factory=class_row(Terms)).execute(_TERMS).fetchall()
        return Evidence(
            connection.cursor(row_factory=class_row(Logged)).execute(_LOG).fetchall(),
            connection.cursor(row_factory=class_row(Row)).execute(_ROWS).fetchall(),
            connection.cursor(row_factory=class_row(Move)).execute(_MOVES).fetchall(),
            {(each.channel, each.consumer): each for each in terms},
        )
