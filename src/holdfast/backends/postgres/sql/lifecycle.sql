-- The lifecycle: one bounded read per deadline, then guarded writes.

-- name: due
-- Phase one. Of what has rows, each branch walks one partial index from its oldest deadline, past what is being removed.
-- Of what waits in the log, the first that expired and the special events whose time has come. (Whether there is one: the
-- order makes the planner take the index that has it.)
WITH t AS MATERIALIZED (
    SELECT holdfast.now() AS now, ARRAY(SELECT consumer_id FROM holdfast.removals) AS removed
), special AS MATERIALIZED (
    SELECT c.id, true AS special FROM holdfast.channels ch JOIN holdfast.consumers c ON c.channel_id = ch.id
    WHERE EXISTS (
        SELECT FROM holdfast.log l WHERE l.channel_id = ch.id AND l.special ORDER BY l.epoch, l.tx OFFSET 0)
      AND holdfast.has_special(c)
), expiring AS MATERIALIZED (
    SELECT c.id, false AS special FROM holdfast.consumers c WHERE c.expires_after IS NOT NULL AND EXISTS (
        SELECT FROM holdfast.beyond(c.id, false, 1) f
        CROSS JOIN LATERAL (
            SELECT * FROM holdfast.log x
            WHERE x.channel_id = c.channel_id AND x.epoch = f.epoch AND x.seq = f.seq OFFSET 0) l
        WHERE greatest(l.published_at, c.created_at) + c.expires_after <= (SELECT now FROM t))
), waiting AS MATERIALIZED (
    SELECT c.id AS consumer_id, b.seq, greatest(l.at, l.published_at, c.created_at) AS due_at, c.expires_after,
           l.at > l.published_at AS scheduled
    FROM (SELECT * FROM special UNION ALL SELECT * FROM expiring) w JOIN holdfast.consumers c ON c.id = w.id
    CROSS JOIN LATERAL holdfast.beyond(c.id, w.special, %(limit)s) b
    CROSS JOIN LATERAL (
        SELECT * FROM holdfast.log x
        WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
)
SELECT d.kind, d.consumer_id, d.seq, d.token, d.attempts, d.abandonments, d.expired,
       (c.policy->>'max_attempts')::integer, (c.policy->>'max_abandonments')::integer, d.worker,
       (c.policy->>'max_runs')::integer,
       CASE WHEN c.discard THEN ARRAY[(SELECT name FROM holdfast.channels ch WHERE ch.id = c.channel_id), c.name] END
FROM (
    (SELECT 'lease' AS kind, j.consumer_id, m.seq, j.token, j.attempts, j.abandonments,
            coalesce(CASE WHEN j.members IS NULL THEN j.expires_at ELSE (
                SELECT greatest(l.published_at, o.created_at) + o.expires_after FROM holdfast.log l, holdfast.consumers o
                WHERE (l.channel_id, l.epoch, l.seq) = (j.channel_id, j.epoch, m.seq) AND o.id = j.consumer_id)
            END <= (SELECT now FROM t), false) AS expired, j.worker
     FROM (SELECT * FROM holdfast.jobs WHERE state = 'leased' AND lease_until <= (SELECT now FROM t)
             AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
           ORDER BY lease_until LIMIT %(limit)s) j
     CROSS JOIN LATERAL unnest(coalesce(j.members, ARRAY[j.id])) AS m (seq)
     ORDER BY j.lease_until, m.seq LIMIT %(limit)s)
    UNION ALL
    (SELECT 'expiry', consumer_id, id, token, attempts, abandonments, true, worker
     FROM holdfast.jobs
     WHERE state <> 'leased' AND expires_at IS NOT NULL AND expires_at <= (SELECT now FROM t)
       AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
     ORDER BY expires_at LIMIT %(limit)s)
    UNION ALL
    (SELECT 'schedule', consumer_id, id, token, attempts, abandonments, false, worker
     FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= (SELECT now FROM t)
       AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
       AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
     ORDER BY due_at LIMIT %(limit)s)
    UNION ALL
    (SELECT 'expiry', consumer_id, seq, 0, 0, 0, true, NULL FROM waiting
     WHERE due_at + expires_after <= (SELECT now FROM t) ORDER BY due_at LIMIT %(limit)s)
    UNION ALL
    (SELECT 'schedule', consumer_id, seq, 0, 0, 0, false, NULL FROM waiting
     WHERE scheduled AND due_at <= (SELECT now FROM t) AND (due_at + expires_after > (SELECT now FROM t)) IS NOT FALSE
     ORDER BY due_at LIMIT %(limit)s)
) d JOIN holdfast.consumers c ON c.id = d.consumer_id;

-- name: crowded
-- Consumers with so many special events beyond their frontiers that the read above does not see them all.
WITH special AS MATERIALIZED (
    SELECT c.id FROM holdfast.channels ch JOIN holdfast.consumers c ON c.channel_id = ch.id
    WHERE EXISTS (
        SELECT FROM holdfast.log l WHERE l.channel_id = ch.id AND l.special ORDER BY l.epoch, l.tx OFFSET 0)
      AND holdfast.has_special(c)
)
SELECT id FROM special WHERE holdfast.count_beyond(id, true, %(limit)s) >= %(limit)s ORDER BY id;

-- name: take_up_special
SELECT holdfast.take_up_special(%(consumer)s::integer);

-- name: load
-- How many live jobs there are, about: rows as the statistics system last saw them, and of what waits in the log the
-- first thousand of each of ten consumers.
SELECT coalesce(pg_stat_get_live_tuples('holdfast.jobs'::regclass), 0) + (
    SELECT coalesce(sum(holdfast.count_beyond(c.id, false, 1000)), 0)::bigint
    FROM (SELECT id FROM holdfast.consumers ORDER BY id LIMIT 10) c);

-- name: promote
SELECT holdfast.promote(%(consumers)s::integer[], %(seqs)s::bigint[]);

-- name: abandon
SELECT holdfast.abandon(%(consumers)s::integer[], %(seqs)s::bigint[], %(tokens)s::bigint[], %(errors)s::jsonb[]);

-- name: bury_due
-- Overdue leases, or what expired while it waited, → dead.
SELECT holdfast.bury_due(
    %(consumers)s::integer[], %(seqs)s::bigint[], %(tokens)s::bigint[], %(reasons)s::text[],
    %(errors)s::jsonb[], %(fingerprints)s::text[], %(waiting)s::boolean);
