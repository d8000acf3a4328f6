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
SELECT b.channel_id, b.epoch, b.now, b.seqs[1]
FROM holdfast.begin_bulk(%(channel)s, %(count)s::integer)
    AS b (channel_id integer, epoch integer, now timestamptz, bounded boolean, seqs bigint[]);

-- name: copy_keys
COPY holdfast.keys (channel_id, epoch, published_at, seq, id, source, content_hash)
FROM STDIN (FORMAT binary);

-- name: copy_log
COPY holdfast.log (channel_id, epoch, published_at, at, priority, seq, id, source, type, key, time, headers,
                   data) FROM STDIN (FORMAT binary);

-- name: notify
SELECT pg_notify('holdfast', channel) FROM unnest(%(channels)s::text[]) AS channel;

-- name: horizons
-- Up to where channels can be read. Whatever reads the log is told to end there, or before it.
SELECT channel, epoch, seq, entering FROM holdfast.horizons(%(channels)s::text[]);

-- name: read
-- A page of the log.
SELECT e.epoch, e.seq, e.data, e.id, e.source, e.type, e.key, coalesce(e.time, e.published_at), e.headers
FROM holdfast.log e
WHERE e.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
  AND (e.epoch, e.seq) > (%(epoch)s::integer, %(seq)s::bigint)
  AND (e.epoch, e.seq) <= (%(until_epoch)s::integer, %(until_seq)s::bigint)
ORDER BY e.epoch, e.seq LIMIT %(limit)s;

-- The log in bulk: its extent, where to cut it, pages of it.

-- name: extent
SELECT c.trimmed_epoch, c.trimmed_seq, f.epoch, f.seq, l.epoch, l.seq
FROM holdfast.channels c
LEFT JOIN LATERAL (
    SELECT e.epoch, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.seq) <= (%(until_epoch)s::integer, %(until_seq)s::bigint)
    ORDER BY e.epoch, e.seq LIMIT 1
) f ON true
LEFT JOIN LATERAL (
    SELECT e.epoch, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.seq) <= (%(until_epoch)s::integer, %(until_seq)s::bigint)
    ORDER BY e.epoch DESC, e.seq DESC LIMIT 1
) l ON true
WHERE c.name = %(channel)s;

-- name: seek
SELECT s.epoch, s.seq FROM holdfast.channels c
CROSS JOIN LATERAL holdfast.seek(
    c.id, %(time)s::timestamptz, ROW(%(until_epoch)s, %(until_seq)s)::holdfast.place) s
WHERE c.name = %(channel)s;

-- name: cuts
SELECT s.epoch, s.seq, s.events, s.bytes FROM holdfast.channels c
CROSS JOIN LATERAL holdfast.cuts(
    c.id, ROW(%(epoch)s, %(seq)s)::holdfast.place,
    ROW(%(until_epoch)s, %(until_seq)s)::holdfast.place,
    %(limit)s::bigint, %(every)s::bigint) s
WHERE c.name = %(channel)s;

-- name: page
-- The time as a number: that is what the page holds, and a datetime for each row would cost as much as the rest.
SELECT e.epoch, e.seq, e.id, e.source, e.type, e.key,
       (extract(epoch FROM coalesce(e.time, e.published_at)) * 1000000)::bigint, e.headers, e.data
FROM holdfast.log e
WHERE e.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
  AND (e.epoch, e.seq) > (%(epoch)s::integer, %(seq)s::bigint)
  AND (e.epoch, e.seq) <= (%(until_epoch)s::integer, %(until_seq)s::bigint)
ORDER BY e.epoch, e.seq LIMIT %(limit)s;

-- name: waiting
-- Counted in the index alone. Up to 1,000 rows are weighed, so that nobody reads more at once than planned: few are
-- weighed exactly, and many by a sample. The size of a large value is known without reading it.
SELECT c.name, c.trimmed_epoch, c.trimmed_seq, l.epoch, l.seq, coalesce(w.events, 0),
       coalesce(g.bytes * w.events / g.events, 0), f.published_at
FROM unnest(%(channels)s::text[], %(epochs)s::integer[], %(seqs)s::bigint[],
            %(until_epochs)s::integer[], %(until_seqs)s::bigint[])
     AS a (channel, epoch, seq, until_epoch, until_seq)
JOIN holdfast.channels c ON c.name = a.channel
LEFT JOIN LATERAL (
    SELECT e.epoch, e.seq FROM holdfast.log e WHERE e.channel_id = c.id
      AND (e.epoch, e.seq) <= (a.until_epoch, a.until_seq)
    ORDER BY e.epoch DESC, e.seq DESC LIMIT 1
) l ON true
LEFT JOIN LATERAL (
    SELECT e.published_at FROM holdfast.log e
    WHERE e.channel_id = c.id AND (e.epoch, e.seq) > (a.epoch, a.seq)
      AND (e.epoch, e.seq) <= (l.epoch, l.seq)
    ORDER BY e.epoch, e.seq LIMIT 1
) f ON true
LEFT JOIN LATERAL (
    SELECT count(*) AS events FROM (
        SELECT FROM holdfast.log e
        WHERE e.channel_id = c.id AND (e.epoch, e.seq) > (a.epoch, a.seq)
          AND (e.epoch, e.seq) <= (l.epoch, l.seq)
        ORDER BY e.epoch, e.seq LIMIT %(limit)s) t
) w ON f.published_at IS NOT NULL
LEFT JOIN LATERAL (
    SELECT count(*) AS events, sum(octet_length(t.data)) AS bytes FROM (
        SELECT e.data FROM holdfast.log e
        WHERE e.channel_id = c.id AND (e.epoch, e.seq) > (a.epoch, a.seq)
          AND (e.epoch, e.seq) <= (l.epoch, l.seq)
        ORDER BY e.epoch, e.seq LIMIT least(%(limit)s, 1000)) t
) g ON f.published_at IS NOT NULL;

-- name: parts
-- The limit has no end in sight: it only keeps each part a walk of its own along the index.
SELECT a.number, e.epoch, e.seq, e.id, e.source, e.type, e.key,
       (extract(epoch FROM coalesce(e.time, e.published_at)) * 1000000)::bigint, e.headers, e.data
FROM unnest(%(channels)s::text[], %(epochs)s::integer[], %(seqs)s::bigint[],
            %(until_epochs)s::integer[], %(until_seqs)s::bigint[])
     WITH ORDINALITY AS a (channel, epoch, seq, until_epoch, until_seq, number)
JOIN holdfast.channels c ON c.name = a.channel
CROSS JOIN LATERAL (
    SELECT l.* FROM holdfast.log l
    WHERE l.channel_id = c.id AND (l.epoch, l.seq) > (a.epoch, a.seq)
      AND (l.epoch, l.seq) <= (a.until_epoch, a.until_seq)
    ORDER BY l.epoch, l.seq LIMIT 1000000000
) e
ORDER BY a.number, e.epoch, e.seq;

-- name: all_trimmed
SELECT name, trimmed_epoch, trimmed_seq FROM holdfast.channels WHERE name = ANY(%(channels)s::text[]);

-- name: lost
-- Whether a position of an earlier epoch names an event that this server never had. What was trimmed was there.
SELECT NOT EXISTS (
    SELECT FROM holdfast.log l WHERE l.channel_id = c.id AND l.epoch = %(epoch)s AND l.seq = %(seq)s
) AND (%(epoch)s::integer, %(seq)s::bigint) > (c.trimmed_epoch, c.trimmed_seq)
FROM holdfast.channels c WHERE c.name = %(channel)s;

-- name: trimmed
SELECT trimmed_epoch, trimmed_seq FROM holdfast.channels WHERE name = %(channel)s;

-- name: behind
WITH e AS (
    SELECT l.channel_id, l.epoch, l.seq FROM holdfast.log l
    WHERE l.channel_id = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)
      AND (l.epoch, l.seq) > (%(epoch)s::integer, %(seq)s::bigint)
      AND (l.epoch, l.seq) <= (%(until_epoch)s::integer, %(until_seq)s::bigint)
    ORDER BY l.epoch, l.seq LIMIT %(limit)s
)
SELECT (SELECT count(*) FROM e), l.published_at
FROM (SELECT * FROM e ORDER BY epoch, seq LIMIT 1) f
JOIN holdfast.log l ON (l.channel_id, l.epoch, l.seq) = (f.channel_id, f.epoch, f.seq);
