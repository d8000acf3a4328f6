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
