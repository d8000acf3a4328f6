-- Leases: claim, complete, retry, bury, extend. Each is one call for a whole batch.
--
-- Inside, plans must not depend on statistics: the tables go from empty to full and back within minutes, and a prepared
-- plan outlives that. Hence "id = ANY" beside each join (it bounds the jobs by the primary key), and OFFSET 0 (the log is
-- looked up row by row).
--
-- A statement has one moment: a call of now() beside rows would be made for each of them, and set apart what is alike.
--
-- Whoever waits for locks takes them in one order: frontiers by consumer, then rows by consumer and id. Otherwise two
-- batches of the same jobs, as of a heartbeat and of a worker that ends them, could wait for each other. What a lock
-- guards is read in a statement after the one that took it.

-- name: claim
SELECT * FROM holdfast.claim(%(channel)s, %(consumer)s, %(limit)s::integer, %(worker)s);

-- name: complete
-- Returns what was refused.
SELECT * FROM holdfast.complete(
    %(channel)s, %(consumer)s, %(tokens)s::bigint[], %(counts)s::integer[], %(seqs)s::bigint[]);

-- name: retry
SELECT * FROM holdfast.retry(
    %(channel)s, %(consumer)s, %(seqs)s::bigint[], %(tokens)s::bigint[], %(delays)s::interval[], %(errors)s::jsonb[]);

-- name: bury
-- leased → dead, in one transaction with the dead letter, its count and the dead-letter channel.
SELECT b.seq, b.token FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.bury(
    array_fill(c.id, ARRAY[cardinality(%(seqs)s::bigint[])]), %(seqs)s, %(tokens)s::bigint[],
    %(reasons)s::text[], %(errors)s::jsonb[], %(fingerprints)s::text[], false, false) b
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: extend
SELECT * FROM holdfast.extend(
    %(channel)s, %(consumer)s, %(seqs)s::bigint[], %(tokens)s::bigint[], %(by)s::interval);

-- name: prepare_completion
SELECT * FROM holdfast.prepare_completion(%(channel)s, %(consumer)s, %(seq)s::bigint, %(token)s::bigint);

-- name: complete_within
-- In a transaction that the caller ends.
SELECT holdfast.complete_within(
    %(consumer)s::integer, %(seq)s::bigint, %(token)s::bigint, %(store)s::text)::text;

-- name: complete_within_ours
-- The same in a transaction of our own. Should its client vanish before the commit, the job is not held for long.
SELECT set_config('idle_in_transaction_session_timeout', '10s', true), holdfast.complete_within(
    %(consumer)s::integer, %(seq)s::bigint, %(token)s::bigint, %(store)s::text)::text;

-- name: completions
SELECT * FROM holdfast.completions(%(channel)s, %(consumer)s, %(seqs)s::bigint[], %(tokens)s::bigint[]);

-- What operators do to jobs.

-- name: cancel
SELECT holdfast.cancel(%(channel)s, %(source)s, %(id)s, %(consumer)s, %(running)s, %(by)s, %(reason)s);

-- name: cancel_waiting
SELECT * FROM holdfast.cancel_waiting(%(channel)s, %(consumer)s, %(limit)s::integer);

-- name: requeue
SELECT holdfast.requeue(%(channel)s, %(consumer)s, %(seq)s);

-- name: stuck
SELECT m.seq, ch.name, c.name, j.state::text, e.id, e.source, j.epoch, j.attempts, j.abandonments,
       j.token, j.priority, coalesce(j.created_at, greatest(e.published_at, c.created_at)),
       coalesce(j.due_at, greatest(e.published_at, c.created_at)), j.lease_until, NULL::timestamptz, j.worker,
       NULL::text, coalesce(j.errors, '[]')
FROM (
    SELECT * FROM holdfast.jobs WHERE state = 'leased' AND lease_until <= (SELECT holdfast.now())
      AND consumer_id <> ALL (ARRAY(SELECT consumer_id FROM holdfast.removals))
    ORDER BY lease_until LIMIT %(limit)s
) j
CROSS JOIN LATERAL unnest(coalesce(j.members, ARRAY[j.id])) AS m (seq)
JOIN holdfast.consumers c ON c.id = j.consumer_id
JOIN holdfast.channels ch ON ch.id = j.channel_id
LEFT JOIN LATERAL (
    SELECT * FROM holdfast.log l WHERE l.channel_id = j.channel_id AND l.epoch = j.epoch AND l.seq = m.seq OFFSET 0) e ON true
ORDER BY j.lease_until, m.seq LIMIT %(limit)s;

-- name: job
-- One job, wherever it is now.
SELECT t.seq, ch.name, c.name, t.state, coalesce(e.id, x.id), coalesce(e.source, x.source), t.epoch,
       t.attempts, t.abandonments, t.token, t.priority, t.created_at, t.due_at, t.lease_until, t.ended_at, t.worker, t.reason, coalesce(t.errors, '[]'),
       t.cancelled_by
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.job(c.id, %(seq)s::bigint) t
LEFT JOIN LATERAL (
    SELECT * FROM holdfast.log l WHERE l.channel_id = c.channel_id AND l.epoch = t.epoch AND l.seq = t.seq OFFSET 0) e ON true
LEFT JOIN LATERAL (
    SELECT * FROM holdfast.trimmed r WHERE r.channel_id = c.channel_id AND r.epoch = t.epoch AND r.seq = t.seq OFFSET 0) x ON true
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: find_jobs
-- An event's job for every consumer, wherever it is now.
WITH event AS MATERIALIZED (
    SELECT k.channel_id, k.seq FROM holdfast.keys k
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
      AND k.id = %(id)s AND k.source = %(source)s
)
SELECT t.seq, %(channel)s, c.name, t.state, %(id)s, %(source)s, t.epoch, t.attempts,
       t.abandonments, t.token, t.priority, t.created_at, t.due_at, t.lease_until, t.ended_at, t.worker,
       t.reason, coalesce(t.errors, '[]'), t.cancelled_by
FROM event e JOIN holdfast.consumers c ON c.channel_id = e.channel_id
CROSS JOIN LATERAL holdfast.job(c.id, e.seq) t ORDER BY c.name;
