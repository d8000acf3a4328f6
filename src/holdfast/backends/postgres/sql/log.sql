-- The log: publish and read.

-- name: publish
SELECT * FROM holdfast.publish_many(
    %(channel)s, %(ids)s::text[], %(data)s::bytea[], %(sources)s::text[], %(types)s::text[],
    %(keys)s::text[], %(times)s::timestamptz[], %(headers)s::jsonb[], %(at)s::timestamptz,
    %(priority)s::smallint, wake => %(wake)s::boolean);

-- name: publish_one
SELECT * FROM holdfast.publish_one(
    %(channel)s, %(id)s, %(data)b, %(source)s, %(type)s, %(key)s, %(time)s::timestamptz,
    %(headers)s::jsonb, %(at)s::timestamptz, %(priority)s::smallint, %(wake)s::boolean);

-- name: begin_bulk
SELECT b.channel_id, b.epoch, b.tx, b.now, b.seqs[1]
FROM holdfast.begin_bulk(%(channel)s, %(count)s::integer)
    AS b (channel_id integer, epoch integer, tx bigint, now timestamptz, bounded boolean, seqs bigint[]);

-- name: bulk_consumers
-- A statement of its own, so that it sees the consumers that were created before the lock was granted.
SELECT id, ordered, (extract(epoch FROM expires_after) * 1000000)::bigint FROM holdfast.consumers
WHERE channel_id = %(channel_id)s;

-- name: copy_keys
COPY holdfast.keys (channel_id, epoch, tx, published_at, seq, id, source, content_hash)
FROM STDIN (FORMAT binary);

-- name: copy_log
COPY holdfast.log (channel_id, epoch, tx, published_at, at, priority, seq, id, source, type, key, time, headers,
                   data) FROM STDIN (FORMAT binary);

-- name: copy_jobs
COPY holdfast.jobs (channel_id, epoch, tx, created_at, state, priority, due_at, expires_at, consumer_id, seq,
                    order_key, upto) FROM STDIN (FORMAT binary);

-- name: notify
SELECT pg_notify('holdfast', channel) FROM unnest(%(channels)s::text[]) AS channel;

-- name: read
-- A page of the log. Only what is below the oldest running transaction is read: whatever commits later
-- has a position above it. Events of an earlier epoch are settled.
SELECT e.epoch, e.tx, e.seq, e.data, e.id, e.source, e.type, e.key, coalesce(e.time, e.published_at), e.headers
FROM holdfast.log e
WHERE e.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
  AND (e.epoch, e.tx, e.seq) > (%(epoch)s::integer, %(tx)s::bigint, %(seq)s::bigint)
  AND (e.epoch, e.tx) < (
      SELECT holdfast.current_epoch(s), pg_snapshot_xmin(pg_current_snapshot())::text::bigint FROM holdfast.store s)
ORDER BY e.epoch, e.tx, e.seq LIMIT %(limit)s;

-- The log in bulk: its extent, where to cut it, pages of it. All of it stays at or below the horizon.

-- name: extent
WITH h AS MATERIALIZED (SELECT * FROM holdfast.horizon())
SELECT c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq,
       f.epoch, f.tx, f.seq, l.epoch, l.tx, l.seq
FROM holdfast.channels c
LEFT JOIN LATERAL (
    SELECT e.epoch, e.tx, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.tx, e.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
    ORDER BY e.epoch, e.tx, e.seq LIMIT 1
) f ON true
LEFT JOIN LATERAL (
    SELECT e.epoch, e.tx, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.tx, e.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
    ORDER BY e.epoch DESC, e.tx DESC, e.seq DESC LIMIT 1
) l ON true
WHERE c.name = %(channel)s;

-- name: seek
SELECT s.epoch, s.tx, s.seq FROM holdfast.channels c
CROSS JOIN LATERAL holdfast.seek(c.id, %(time)s::timestamptz) s WHERE c.name = %(channel)s;

-- name: cuts
SELECT s.epoch, s.tx, s.seq, s.events, s.bytes FROM holdfast.channels c
CROSS JOIN LATERAL holdfast.cuts(
    c.id, ROW(%(epoch)s, %(tx)s, %(seq)s)::holdfast.place,
    ROW(%(until_epoch)s, %(until_tx)s, %(until_seq)s)::holdfast.place,
    %(limit)s::bigint, %(every)s::bigint) s
WHERE c.name = %(channel)s;

-- name: page
-- The time as a number: that is what the page holds, and a datetime for each row would cost as much as the rest.
WITH h AS MATERIALIZED (SELECT * FROM holdfast.horizon())
SELECT e.epoch, e.tx, e.seq, e.id, e.source, e.type, e.key,
       (extract(epoch FROM coalesce(e.time, e.published_at)) * 1000000)::bigint, e.headers, e.data
FROM holdfast.log e
WHERE e.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
  AND (e.epoch, e.tx, e.seq) > (%(epoch)s::integer, %(tx)s::bigint, %(seq)s::bigint)
  AND (e.epoch, e.tx, e.seq) <= (%(until_epoch)s::integer, %(until_tx)s::bigint, %(until_seq)s::bigint)
  AND (e.epoch, e.tx, e.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
ORDER BY e.epoch, e.tx, e.seq LIMIT %(limit)s;

-- name: waiting
-- Counted in the index alone. Up to 1,000 rows are weighed, so that nobody reads more at once than planned: few are
-- weighed exactly, and many by a sample. The size of a large value is known without reading it.
WITH h AS MATERIALIZED (SELECT * FROM holdfast.horizon())
SELECT c.name, c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq, l.epoch, l.tx, l.seq, coalesce(w.events, 0),
       coalesce(g.bytes * w.events / g.events, 0), f.published_at
FROM unnest(%(channels)s::text[], %(epochs)s::integer[], %(txs)s::bigint[], %(seqs)s::bigint[])
     AS a (channel, epoch, tx, seq)
JOIN holdfast.channels c ON c.name = a.channel
LEFT JOIN LATERAL (
    SELECT e.epoch, e.tx, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.tx, e.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
    ORDER BY e.epoch DESC, e.tx DESC, e.seq DESC LIMIT 1
) l ON true
LEFT JOIN LATERAL (
    SELECT e.published_at FROM holdfast.log e
    WHERE e.channel_id = c.id AND (e.epoch, e.tx, e.seq) > (a.epoch, a.tx, a.seq)
      AND (e.epoch, e.tx, e.seq) <= (l.epoch, l.tx, l.seq)
    ORDER BY e.epoch, e.tx, e.seq LIMIT 1
) f ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS events FROM (
        SELECT FROM holdfast.log e
        WHERE e.channel_id = c.id AND (e.epoch, e.tx, e.seq) > (a.epoch, a.tx, a.seq)
          AND (e.epoch, e.tx, e.seq) <= (l.epoch, l.tx, l.seq)
        ORDER BY e.epoch, e.tx, e.seq LIMIT %(limit)s) t
) w ON f.published_at IS NOT NULL
LEFT JOIN LATERAL (
    SELECT count(*) AS events, sum(octet_length(t.data)) AS bytes FROM (
        SELECT e.data FROM holdfast.log e
        WHERE e.channel_id = c.id AND (e.epoch, e.tx, e.seq) > (a.epoch, a.tx, a.seq)
          AND (e.epoch, e.tx, e.seq) <= (l.epoch, l.tx, l.seq)
        ORDER BY e.epoch, e.tx, e.seq LIMIT least(%(limit)s, 1000)) t
) g ON f.published_at IS NOT NULL;

-- name: parts
-- The limit has no end in sight: it only keeps each part a walk of its own along the index.
WITH h AS MATERIALIZED (SELECT * FROM holdfast.horizon())
SELECT a.number, e.epoch, e.tx, e.seq, e.id, e.source, e.type, e.key,
       (extract(epoch FROM coalesce(e.time, e.published_at)) * 1000000)::bigint, e.headers, e.data
FROM unnest(%(channels)s::text[], %(epochs)s::integer[], %(txs)s::bigint[], %(seqs)s::bigint[],
            %(until_epochs)s::integer[], %(until_txs)s::bigint[], %(until_seqs)s::bigint[])
     WITH ORDINALITY AS a (channel, epoch, tx, seq, until_epoch, until_tx, until_seq, number)
JOIN holdfast.channels c ON c.name = a.channel
CROSS JOIN LATERAL (
    SELECT l.* FROM holdfast.log l
    WHERE l.channel_id = c.id AND (l.epoch, l.tx, l.seq) > (a.epoch, a.tx, a.seq)
      AND (l.epoch, l.tx, l.seq) <= (a.until_epoch, a.until_tx, a.until_seq)
      AND (l.epoch, l.tx, l.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
    ORDER BY l.epoch, l.tx, l.seq LIMIT 1000000000
) e
ORDER BY a.number, e.epoch, e.tx, e.seq;

-- name: all_trimmed
SELECT name, trimmed_epoch, trimmed_tx, trimmed_seq FROM holdfast.channels WHERE name = ANY(%(channels)s::text[]);

-- name: lost
-- Whether a position of an earlier epoch names an event that this server never had. What was trimmed was there.
SELECT NOT EXISTS (
    SELECT FROM holdfast.log l WHERE l.channel_id = c.id AND l.epoch = %(epoch)s AND l.tx = %(tx)s AND l.seq = %(seq)s
) AND (%(epoch)s::integer, %(tx)s::bigint, %(seq)s::bigint) > (c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq)
FROM holdfast.channels c WHERE c.name = %(channel)s;

-- name: trimmed
SELECT trimmed_epoch, trimmed_tx, trimmed_seq FROM holdfast.channels WHERE name = %(channel)s;

-- name: behind
WITH h AS MATERIALIZED (SELECT * FROM holdfast.horizon()), e AS (
    SELECT l.channel_id, l.epoch, l.tx, l.seq FROM holdfast.log l
    WHERE l.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
      AND (l.epoch, l.tx, l.seq) > (%(epoch)s::integer, %(tx)s::bigint, %(seq)s::bigint)
      AND (l.epoch, l.tx, l.seq) <= ((SELECT epoch FROM h), (SELECT tx FROM h), (SELECT seq FROM h))
    ORDER BY l.epoch, l.tx, l.seq LIMIT %(limit)s
)
SELECT (SELECT count(*) FROM e), l.published_at
FROM (SELECT * FROM e ORDER BY epoch, tx, seq LIMIT 1) f
JOIN holdfast.log l ON (l.channel_id, l.epoch, l.tx, l.seq) = (f.channel_id, f.epoch, f.tx, f.seq);
