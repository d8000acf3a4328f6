-- Dead letters: counts, clusters, pages, one of them, and the moves out of dead.

-- name: dead_counts
-- The folded counts and the deltas that wait; dead letters themselves are not looked at.
SELECT ch.name, c.name, t.reason, t.dead FROM holdfast.dead_totals t
JOIN holdfast.consumers c ON c.id = t.consumer_id
JOIN holdfast.channels ch ON ch.id = c.channel_id
WHERE t.dead > 0 ORDER BY ch.name, c.name, t.reason;

-- name: clusters
-- The largest ones, each with its latest death.
WITH largest AS MATERIALIZED (
    SELECT c.id, ch.name AS channel, c.name AS consumer, t.fingerprint, t.dead
    FROM holdfast.cluster_totals t
    JOIN holdfast.consumers c ON c.id = t.consumer_id
    JOIN holdfast.channels ch ON ch.id = c.channel_id
    WHERE t.dead > 0
      AND (%(channel)s::text IS NULL OR ch.name = %(channel)s)
      AND (%(consumer)s::text IS NULL OR c.name = %(consumer)s)
    ORDER BY t.dead DESC, ch.name, c.name, t.fingerprint LIMIT %(limit)s
)
SELECT d.seq, g.channel, g.consumer, 'dead', e.id, e.source, d.epoch, d.attempts, d.abandonments, d.token,
       d.priority, d.created_at, NULL::timestamptz, NULL::timestamptz, d.died_at, d.worker, d.reason, d.errors,
       d.fingerprint, g.dead
FROM largest g CROSS JOIN LATERAL (
    SELECT * FROM holdfast.dead_letters d WHERE d.consumer_id = g.id AND d.fingerprint = g.fingerprint
    ORDER BY d.died_at DESC, d.seq DESC LIMIT 1
) d LEFT JOIN LATERAL (
    SELECT l.id, l.source FROM holdfast.log l
    WHERE l.channel_id = d.channel_id AND l.epoch = d.epoch AND l.seq = d.seq OFFSET 0
) e ON true
ORDER BY g.dead DESC, g.channel, g.consumer, g.fingerprint;

-- name: dead_page
-- The latest deaths before one of them, over all consumers that are meant: from each as many as the page may have.
WITH page AS MATERIALIZED (
    SELECT c.id, ch.name AS channel, c.name AS consumer, d.died_at, d.seq
    FROM holdfast.consumers c
    JOIN holdfast.channels ch ON ch.id = c.channel_id
    CROSS JOIN LATERAL holdfast.dead_before(
        c.id, %(reason)s, %(fingerprint)s, coalesce(%(since)s::timestamptz, '-infinity'),
        coalesce(%(died_at)s::timestamptz, 'infinity'),
        CASE WHEN c.id < %(consumer_id)s::integer THEN 9223372036854775807
             WHEN c.id = %(consumer_id)s::integer THEN %(seq)s::bigint ELSE 0 END,
        %(limit)s) d
    WHERE (%(channel)s::text IS NULL OR ch.name = %(channel)s)
      AND (%(consumer)s::text IS NULL OR c.name = %(consumer)s)
    ORDER BY d.died_at DESC, c.id DESC, d.seq DESC LIMIT %(limit)s
)
SELECT d.seq, p.channel, p.consumer, 'dead', e.id, e.source, d.epoch, d.attempts, d.abandonments, d.token,
       d.priority, d.created_at, NULL::timestamptz, NULL::timestamptz, d.died_at, d.worker, d.reason, d.errors,
       d.fingerprint, p.id
FROM page p CROSS JOIN LATERAL (
    SELECT * FROM holdfast.dead_letters d WHERE d.consumer_id = p.id AND d.seq = p.seq OFFSET 0
) d LEFT JOIN LATERAL (
    SELECT l.id, l.source FROM holdfast.log l
    WHERE l.channel_id = d.channel_id AND l.epoch = d.epoch AND l.seq = d.seq OFFSET 0
) e ON true
ORDER BY p.died_at DESC, p.id DESC, p.seq DESC;

-- name: dead_letter
SELECT d.seq, ch.name, c.name, 'dead', e.id, e.source, d.epoch, d.attempts, d.abandonments, d.token,
       d.priority, d.created_at, NULL::timestamptz, NULL::timestamptz, d.died_at, d.worker, d.reason, d.errors,
       d.fingerprint, d.data, e.data, e.id, e.source, e.type, e.key, coalesce(e.time, e.published_at), e.headers
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
JOIN holdfast.dead_letters d ON d.consumer_id = c.id AND d.seq = %(seq)s::bigint
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.seq) = (d.channel_id, d.epoch, d.seq)
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: revive
SELECT r.seq FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.revive(c.id, %(seqs)s::bigint[], %(data)s::bytea) AS r (seq)
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: purge
SELECT p.seq FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL holdfast.purge(c.id, %(seqs)s::bigint[]) AS p (seq)
WHERE ch.name = %(channel)s AND c.name = %(consumer)s;

-- name: would_fold_dead
SELECT holdfast.would_fold_dead(%(fresh)s::interval, %(most)s::bigint);

-- name: fold_dead
SELECT * FROM holdfast.fold_dead(%(fresh)s::interval, %(most)s::bigint, %(lock)s, %(token)s::bigint);

-- name: recount_dead
SELECT * FROM holdfast.recount_dead(%(repair)s::boolean, %(lock)s, %(token)s::bigint);
