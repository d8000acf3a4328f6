-- Leases: claim, complete, retry, bury, extend. Each is one statement for a whole batch.
--
-- These plans must not depend on statistics: the table goes from empty to full and back within minutes, and a
-- prepared plan outlives that. Hence "seq = ANY" beside each join (it bounds the jobs by the primary key),
-- "lease_until IS NOT NULL" for leased (a constraint makes them equal, and the index of deadlines does not
-- match it), and OFFSET 0 (the log is looked up row by row).
--
-- A statement has one moment: a call of now() beside rows would be made for each of them, and set apart what is alike.
--
-- Whoever waits for locks takes them in the order of the log ("held"): otherwise two batches of the same jobs, as of
-- a heartbeat and of a worker that ends them, could wait for each other. A row that changed before it was locked is
-- found by its number in its new version, which is why the lock is not followed by a look-up by ctid. The most
-- frequent one, complete, needs no such step: without a join, and with the session's settings, it walks the primary key.

-- name: claim
-- Lease a batch of one unordered consumer: by priority, then due time. What comes before the first range, then jobs
-- off its beginning, as rows of their own, and one row for the rest. Small claims make a hundred of it ready at once:
-- otherwise that row would be written again for each. Sorted before the events come to it, which are much wider. The
-- last column tells whether to ask again: there are ranges, or a row was changed between our snapshot and our lock on
-- it. Such a row is locked in its new version, which an update under the old snapshot does not find: nothing is made of
-- it before the next statement sees it as it is.
WITH consumer AS MATERIALIZED (
    SELECT c.id, c.lease, holdfast.now() AS now, holdfast.lowest_token() AS lowest_token
    FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
    WHERE ch.name = %(channel)s AND c.name = %(consumer)s AND NOT c.paused AND NOT c.ordered
), first_range AS MATERIALIZED (
    SELECT j.ctid, j.* FROM holdfast.jobs j
    WHERE j.consumer_id = (SELECT id FROM consumer) AND j.upto IS NOT NULL
    ORDER BY j.priority DESC, j.due_at, j.seq
    LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
), higher AS MATERIALIZED (
    SELECT j.ctid FROM holdfast.jobs j
    WHERE j.consumer_id = (SELECT id FROM consumer) AND j.state = 'ready' AND NOT j.held AND j.upto IS NULL
      AND j.priority > coalesce((SELECT priority FROM first_range), -32769)
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT now FROM consumer))
    ORDER BY j.priority DESC, j.due_at, j.seq
    LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), earlier AS MATERIALIZED (
    SELECT j.ctid FROM holdfast.jobs j
    WHERE j.consumer_id = (SELECT id FROM consumer) AND j.state = 'ready' AND NOT j.held AND j.upto IS NULL
      AND j.priority = (SELECT priority FROM first_range)
      AND (j.due_at, j.seq) < ((SELECT due_at FROM first_range), (SELECT seq FROM first_range))
      AND (j.expires_at IS NULL OR j.expires_at > (SELECT now FROM consumer))
    ORDER BY j.due_at, j.seq
    LIMIT %(limit)s - (SELECT count(*) FROM higher) FOR NO KEY UPDATE SKIP LOCKED
), taken AS MATERIALIZED (
    SELECT s.*, s.seq + t.leased AS first_ready, least(s.upto + 1, s.seq + greatest(t.leased, 100)) AS first_left
    FROM first_range s CROSS JOIN LATERAL (
        SELECT least(s.upto - s.seq + 1, %(limit)s - (SELECT count(*) FROM higher) - (SELECT count(*) FROM earlier))
            AS leased
    ) t WHERE t.leased > 0
), claimed AS (
    UPDATE holdfast.jobs j
    SET state = 'leased', attempts = j.attempts + 1, upto = NULL,
        token = greatest(j.token + 1, (SELECT lowest_token FROM consumer)),
        lease_until = (SELECT now + lease FROM consumer), started_at = (SELECT now FROM consumer), worker = %(worker)s
    WHERE j.ctid = ANY (ARRAY(
        SELECT ctid FROM higher UNION ALL SELECT ctid FROM earlier UNION ALL SELECT ctid FROM taken))
    RETURNING j.channel_id, j.epoch, j.tx, j.seq, j.attempts, j.abandonments, j.token, j.lease_until,
              j.priority, j.due_at, j.data, j.state
), made AS (
    INSERT INTO holdfast.jobs AS j (consumer_id, channel_id, epoch, tx, seq, upto, token, due_at, created_at,
                                    lease_until, started_at, state, priority, attempts, worker)
    SELECT t.consumer_id, t.channel_id, t.epoch, t.tx, n.seq, n.upto,
           n.lease * greatest(1, (SELECT lowest_token FROM consumer)), t.due_at, t.created_at,
           CASE WHEN n.lease = 1 THEN (SELECT now + lease FROM consumer) END,
           CASE WHEN n.lease = 1 THEN (SELECT now FROM consumer) END, n.state::holdfast.job_state, t.priority,
           n.lease, CASE WHEN n.lease = 1 THEN %(worker)s END
    FROM taken t JOIN claimed c ON c.seq = t.seq CROSS JOIN LATERAL (
        SELECT seq, NULL::bigint AS upto, 1 AS lease, 'leased' AS state
        FROM generate_series(t.seq + 1, t.first_ready - 1) AS seq
        UNION ALL
        SELECT seq, NULL, 0, 'ready' FROM generate_series(t.first_ready, t.first_left - 1) AS seq
        UNION ALL
        SELECT t.first_left, t.upto, 0, 'ready' WHERE t.first_left <= t.upto
    ) n
    RETURNING j.channel_id, j.epoch, j.tx, j.seq, j.attempts, j.abandonments, j.token, j.lease_until,
              j.priority, j.due_at, j.data, j.state
)
SELECT f.epoch, f.tx, f.seq, f.attempts, f.abandonments, f.token, f.lease_until, f.data, f.id, f.source, f.type,
       f.key, f.time, f.headers,
       EXISTS (SELECT FROM holdfast.jobs j WHERE j.consumer_id = (SELECT id FROM consumer) AND j.upto IS NOT NULL)
       OR (SELECT count(*) FROM claimed)
          < (SELECT count(*) FROM higher) + (SELECT count(*) FROM earlier) + (SELECT count(*) FROM taken)
FROM (SELECT) AS always LEFT JOIN (
    SELECT j.epoch, j.tx, j.seq, j.attempts, j.abandonments, j.token, j.lease_until, j.priority, j.due_at,
           coalesce(j.data, e.data) AS data, e.id, e.source, e.type, e.key, e.time, e.headers
    FROM (SELECT * FROM claimed UNION ALL SELECT * FROM made WHERE state = 'leased'
          ORDER BY priority DESC, due_at, seq) j
    CROSS JOIN LATERAL (
        SELECT l.data, l.id, l.source, l.type, l.key, coalesce(l.time, l.published_at) AS time, l.headers
        FROM holdfast.log l
        WHERE l.channel_id = j.channel_id AND l.epoch = j.epoch AND l.tx = j.tx AND l.seq = j.seq OFFSET 0
    ) e
) f ON true
ORDER BY f.priority DESC, f.due_at, f.seq;

-- name: claim_ordered
-- Lease a batch of one ordered consumer: only the first live job of each key. The function looks up the events itself:
-- it sees jobs that were published after this statement's snapshot.
SELECT j.epoch, j.tx, j.seq, j.attempts, j.abandonments, j.token, j.lease_until, j.data, j.id, j.source, j.type,
       j.key, j.time, j.headers
FROM holdfast.claim_ordered((
    SELECT c.id FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
    WHERE ch.name = %(channel)s AND c.name = %(consumer)s AND c.ordered
), %(worker)s, %(limit)s) j
ORDER BY j.priority DESC, j.due_at, j.seq;

-- name: complete
-- leased → done, for the jobs whose token is still the newest.
WITH ended AS (
    DELETE FROM holdfast.jobs j
    WHERE j.consumer_id = (
        SELECT c.id FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
        WHERE ch.name = %(channel)s AND c.name = %(consumer)s)
      AND j.seq = ANY (%(seqs)s::bigint[]) AND j.lease_until IS NOT NULL
      AND ((j.seq, j.token) IN (SELECT * FROM unnest(%(seqs)s::bigint[], %(tokens)s::bigint[]))) IS TRUE
    RETURNING j.*
), logged AS (
    INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
                                  outcome, priority, attempts, abandonments, worker, errors)
    SELECT consumer_id, channel_id, epoch, tx, seq, token, created_at, (SELECT holdfast.now()), 'done',
           priority, attempts, abandonments, worker, errors FROM ended
)
SELECT seq, token FROM ended;

-- name: retry
-- leased → scheduled or ready. Without an error the attempt is given back; without a delay the job
-- returns to its old place. What is ready at once wakes the listeners.
WITH moment AS MATERIALIZED (
    SELECT holdfast.now() AS now
), held AS MATERIALIZED (
    SELECT j.consumer_id, j.seq FROM holdfast.jobs j
    JOIN unnest(%(seqs)s::bigint[], %(tokens)s::bigint[]) AS l (seq, token) ON l.seq = j.seq AND l.token = j.token
    WHERE j.consumer_id = (
        SELECT c.id FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
        WHERE ch.name = %(channel)s AND c.name = %(consumer)s)
      AND j.seq = ANY (%(seqs)s::bigint[]) AND j.lease_until IS NOT NULL
    ORDER BY j.seq FOR NO KEY UPDATE OF j
), back AS (
    UPDATE holdfast.jobs j
    SET state = (CASE WHEN l.delay > '0' THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
        due_at = CASE WHEN l.delay IS NULL THEN j.due_at ELSE n.now + l.delay END,
        -- A smallint: the next claim adds one to it, and must not fail after tens of thousands of attempts.
        attempts = CASE WHEN l.error IS NULL THEN j.attempts - 1 ELSE least(j.attempts, 32766) END,
        -- Of very many errors the first five and the latest are kept.
        errors = CASE WHEN l.error IS NULL THEN j.errors
                 ELSE coalesce(CASE WHEN jsonb_array_length(j.errors) >= 1000 THEN j.errors - 5 ELSE j.errors END,
                               '[]') || (l.error || jsonb_build_object('at', n.now)) END,
        lease_until = NULL, worker = NULL
    FROM unnest(%(seqs)s::bigint[], %(tokens)s::bigint[], %(delays)s::interval[], %(errors)s::jsonb[])
         AS l (seq, token, delay, error), moment n, held h
    WHERE j.consumer_id = h.consumer_id AND j.seq = ANY (%(seqs)s::bigint[]) AND j.seq = h.seq
      AND j.seq = l.seq AND j.token = l.token
    RETURNING j.seq, j.token, j.state
), wake AS MATERIALIZED (
    SELECT pg_notify('holdfast', %(channel)s) WHERE EXISTS (SELECT FROM back WHERE state = 'ready')
)
SELECT b.seq, b.token, (SELECT count(*) FROM wake) FROM back b;

-- name: bury
-- leased → dead, in one transaction with the dead letter, its count and the dead-letter channel.
SELECT b.seq, b.token FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.bury(
    array_fill(c.id, ARRAY[cardinality(%(seqs)s::bigint[])]), %(seqs)s, %(tokens)s::bigint[],
    %(reasons)s::text[], %(errors)s::jsonb[], %(fingerprints)s::text[], false, false) b
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: extend
-- Move the deadline of leases that are still held.
WITH moment AS MATERIALIZED (
    SELECT holdfast.now() AS now
), held AS MATERIALIZED (
    SELECT j.consumer_id, j.seq FROM holdfast.jobs j
    JOIN unnest(%(seqs)s::bigint[], %(tokens)s::bigint[]) AS l (seq, token) ON l.seq = j.seq AND l.token = j.token
    WHERE j.consumer_id = (
        SELECT c.id FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
        WHERE ch.name = %(channel)s AND c.name = %(consumer)s)
      AND j.seq = ANY (%(seqs)s::bigint[]) AND j.lease_until IS NOT NULL
    ORDER BY j.seq FOR NO KEY UPDATE OF j
)
UPDATE holdfast.jobs j SET lease_until = n.now + %(by)s::interval, renewed_at = n.now
FROM held h, moment n
WHERE j.consumer_id = h.consumer_id AND j.seq = ANY (%(seqs)s::bigint[]) AND j.seq = h.seq
RETURNING j.seq, j.token;

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
