-- Stream consumers.

-- name: attach
SELECT holdfast.attach(%(channel)s, %(consumer)s, %(start)s::timestamptz,
                       ROW(%(until_epoch)s, %(until_seq)s)::holdfast.place);

-- name: cursors
SELECT ch.name, c.name, c.epoch, c.seq, c.moved_at
FROM holdfast.cursors c JOIN holdfast.channels ch ON ch.id = c.channel_id
WHERE (%(channel)s::text IS NULL OR ch.name = %(channel)s)
  AND (%(consumer)s::text IS NULL OR c.name = %(consumer)s)
ORDER BY ch.name, c.name;

-- name: move
-- Forward from where it is expected to stand; no row where it stands elsewhere.
UPDATE holdfast.cursors c
SET epoch = %(epoch)s, seq = %(seq)s, moved_at = (SELECT holdfast.now())
FROM holdfast.channels ch
WHERE ch.id = c.channel_id AND ch.name = %(channel)s AND c.name = %(consumer)s
  AND (c.epoch, c.seq) = (%(from_epoch)s, %(from_seq)s)
  AND (%(epoch)s::integer, %(seq)s::bigint) > (c.epoch, c.seq)
RETURNING 1;

-- name: detach
DELETE FROM holdfast.cursors c USING holdfast.channels ch
WHERE ch.id = c.channel_id AND ch.name = %(channel)s AND c.name = %(consumer)s RETURNING 1;
