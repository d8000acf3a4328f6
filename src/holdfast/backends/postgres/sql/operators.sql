-- What operators do to jobs.

-- name: cancel
SELECT holdfast.cancel(%(channel)s, %(source)s, %(id)s, %(consumer)s);

-- name: requeue
SELECT holdfast.requeue(c.id, %(seq)s) FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: stuck
SELECT j.seq, ch.name, c.name, j.state::text, e.id, e.source, j.epoch, j.tx, j.attempts, j.abandonments,
       j.token, j.priority, j.created_at, j.due_at, j.lease_until, NULL::timestamptz, j.worker,
       NULL::text, coalesce(j.errors, '[]')
FROM (
    SELECT * FROM holdfast.jobs WHERE state = 'leased' AND lease_until <= (SELECT holdfast.now())
      AND consumer_id <> ALL (ARRAY(SELECT consumer_id FROM holdfast.removals))
    ORDER BY lease_until LIMIT %(limit)s
) j
JOIN holdfast.consumers c ON c.id = j.consumer_id
JOIN holdfast.channels ch ON ch.id = j.channel_id
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (j.channel_id, j.epoch, j.tx, j.seq)
ORDER BY j.lease_until;

-- name: job
-- One job, wherever it is now.
SELECT t.seq, ch.name, c.name, t.state, coalesce(e.id, x.id), coalesce(e.source, x.source), t.epoch, t.tx,
       t.attempts, t.abandonments, t.token, t.priority, t.created_at, t.due_at, t.lease_until, t.ended_at, t.worker, t.reason, coalesce(t.errors, '[]')
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.job(c.id, %(seq)s::bigint) t
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (c.channel_id, t.epoch, t.tx, t.seq)
LEFT JOIN holdfast.trimmed x ON (x.channel_id, x.epoch, x.tx, x.seq) = (c.channel_id, t.epoch, t.tx, t.seq)
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: find_jobs
-- An event's job for every consumer, wherever it is now.
WITH event AS MATERIALIZED (
    SELECT k.channel_id, k.seq FROM holdfast.keys k
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
      AND k.id = %(id)s AND k.source = %(source)s
)
SELECT t.seq, %(channel)s, c.name, t.state, %(id)s, %(source)s, t.epoch, t.tx, t.attempts,
       t.abandonments, t.token, t.priority, t.created_at, t.due_at, t.lease_until, t.ended_at, t.worker,
       t.reason, coalesce(t.errors, '[]')
FROM event e JOIN holdfast.consumers c ON c.channel_id = e.channel_id
CROSS JOIN LATERAL holdfast.job(c.id, e.seq) t ORDER BY c.name;
