-- The lifecycle: one bounded read per deadline, then guarded writes.

-- name: due
-- Phase one. Each branch walks one partial index from its oldest deadline, past what is being removed.
WITH t AS MATERIALIZED (
    SELECT holdfast.now() AS now, ARRAY(SELECT consumer_id FROM holdfast.removals) AS removed
)
SELECT d.kind, d.consumer_id, d.seq, d.token, d.attempts, d.abandonments, d.expired,
       (c.policy->>'max_attempts')::integer, (c.policy->>'max_abandonments')::integer, d.worker,
       (c.policy->>'max_runs')::integer,
       CASE WHEN c.discard THEN ARRAY[(SELECT name FROM holdfast.channels ch WHERE ch.id = c.channel_id), c.name] END
FROM (
    (SELECT 'lease' AS kind, consumer_id, seq, token, attempts, abandonments,
            coalesce(expires_at <= (SELECT now FROM t), false) AS expired, worker
     FROM holdfast.jobs WHERE state = 'leased' AND lease_until <= (SELECT now FROM t)
       AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
     ORDER BY lease_until LIMIT %(limit)s)
    UNION ALL
    (SELECT 'expiry', consumer_id, seq, token, attempts, abandonments, true, worker
     FROM holdfast.jobs
     WHERE state <> 'leased' AND expires_at IS NOT NULL AND expires_at <= (SELECT now FROM t)
       AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
     ORDER BY expires_at LIMIT %(limit)s)
    UNION ALL
    (SELECT 'schedule', consumer_id, seq, token, attempts, abandonments, false, worker
     FROM holdfast.jobs WHERE state = 'scheduled' AND due_at <= (SELECT now FROM t)
       AND (expires_at IS NULL OR expires_at > (SELECT now FROM t))
       AND consumer_id <> ALL ((SELECT removed FROM t)::integer[])
     ORDER BY due_at LIMIT %(limit)s)
) d JOIN holdfast.consumers c ON c.id = d.consumer_id;

-- name: backfills
SELECT id FROM holdfast.consumers WHERE backfill_until IS NOT NULL ORDER BY id;

-- name: load
-- How many live jobs there are, as the statistics system last saw it: an estimate that costs nothing. Of the
-- ranges, which are jobs in one row, the first thousand say enough.
SELECT coalesce(pg_stat_get_live_tuples('holdfast.jobs'::regclass), 0) + (
    SELECT coalesce(sum(s.upto - s.seq), 0)::bigint FROM (
        SELECT upto, seq FROM holdfast.jobs WHERE upto IS NOT NULL LIMIT 1000) s);

-- name: promote
-- scheduled → ready, for what is still due.
WITH held AS MATERIALIZED (
    SELECT j.consumer_id, j.seq
    FROM holdfast.jobs j JOIN unnest(%(consumers)s::integer[], %(seqs)s::bigint[]) AS d (consumer_id, seq)
      ON d.consumer_id = j.consumer_id AND d.seq = j.seq
    WHERE j.consumer_id = ANY (%(consumers)s::integer[]) AND j.seq = ANY (%(seqs)s::bigint[])
      AND j.state = 'scheduled' AND j.due_at <= (SELECT holdfast.now())
    ORDER BY j.consumer_id, j.seq FOR NO KEY UPDATE OF j
), promoted AS (
    UPDATE holdfast.jobs j SET state = 'ready' FROM held h
    WHERE j.consumer_id = ANY (%(consumers)s::integer[]) AND j.seq = ANY (%(seqs)s::bigint[])
      AND j.consumer_id = h.consumer_id AND j.seq = h.seq
    RETURNING j.consumer_id, j.channel_id
), wake AS (
    SELECT pg_notify('holdfast', name) FROM holdfast.channels
    WHERE id = ANY (ARRAY(SELECT DISTINCT channel_id FROM promoted))
)
SELECT count(*), (SELECT count(*) FROM wake) FROM promoted;

-- name: abandon
-- leased → ready at the tail, for leases that are still overdue: the attempt is given back and an
-- abandonment is counted.
WITH moment AS MATERIALIZED (
    SELECT holdfast.now() AS now
), held AS MATERIALIZED (
    SELECT j.consumer_id, j.seq FROM holdfast.jobs j
    JOIN unnest(%(consumers)s::integer[], %(seqs)s::bigint[], %(tokens)s::bigint[]) AS d (consumer_id, seq, token)
      ON d.consumer_id = j.consumer_id AND d.seq = j.seq AND d.token = j.token
    WHERE j.consumer_id = ANY (%(consumers)s::integer[]) AND j.seq = ANY (%(seqs)s::bigint[])
      AND j.lease_until <= (SELECT now FROM moment)
    ORDER BY j.consumer_id, j.seq FOR NO KEY UPDATE OF j
), abandoned AS (
    UPDATE holdfast.jobs j
    SET state = 'ready', due_at = n.now, lease_until = NULL, worker = NULL,
        attempts = j.attempts - 1, abandonments = j.abandonments + 1,
        errors = coalesce(j.errors, '[]') || (d.error || jsonb_build_object('at', n.now))
    FROM unnest(%(consumers)s::integer[], %(seqs)s::bigint[], %(tokens)s::bigint[], %(errors)s::jsonb[])
         AS d (consumer_id, seq, token, error), moment n, held h
    WHERE j.consumer_id = ANY (%(consumers)s::integer[]) AND j.seq = ANY (%(seqs)s::bigint[])
      AND j.consumer_id = h.consumer_id AND j.seq = h.seq
      AND j.consumer_id = d.consumer_id AND j.seq = d.seq AND j.token = d.token
    RETURNING j.channel_id
), wake AS (
    SELECT pg_notify('holdfast', name) FROM holdfast.channels
    WHERE id = ANY (ARRAY(SELECT DISTINCT channel_id FROM abandoned))
)
SELECT count(*), (SELECT count(*) FROM wake) FROM abandoned;

-- name: bury_due
-- Overdue leases, or what expired while it waited, → dead.
SELECT count(*) FROM holdfast.bury(
    %(consumers)s::integer[], %(seqs)s::bigint[], %(tokens)s::bigint[], %(reasons)s::text[],
    %(errors)s::jsonb[], %(fingerprints)s::text[], %(waiting)s::boolean, NOT %(waiting)s::boolean);

-- name: backfill
SELECT holdfast.backfill(%(consumer)s::integer, %(limit)s::integer);
