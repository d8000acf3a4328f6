-- Retention: trim, size, full channels, forget, purge.

-- name: trim
SELECT * FROM holdfast.trim(
    %(channel)s, %(before)s::timestamptz, ROW(%(until_epoch)s, %(until_seq)s)::holdfast.place, %(limit)s::integer,
    %(lock)s, %(token)s::bigint, %(ignore)s::text[], %(groups)s::text[]);

-- name: would_trim
SELECT * FROM holdfast.would_trim(
    %(channel)s, %(before)s::timestamptz, ROW(%(until_epoch)s, %(until_seq)s)::holdfast.place,
    %(ignore)s::text[], %(groups)s::text[],
    %(owners)s::integer[], %(ended)s::bigint[]);

-- name: size
SELECT s.events, s.bytes FROM holdfast.channels c CROSS JOIN LATERAL holdfast.size(c.id) s
WHERE c.name = %(channel)s;

-- name: set_full
SELECT holdfast.set_full(%(channel)s, %(full)s);

-- name: forget
SELECT * FROM holdfast.forget(
    %(keys)s::timestamptz, %(jobs)s::timestamptz, %(limit)s::integer, %(lock)s, %(token)s::bigint);

-- name: would_forget
SELECT * FROM holdfast.would_forget(%(keys)s::timestamptz, %(jobs)s::timestamptz, %(limit)s::integer);

-- name: purge_dead
SELECT * FROM holdfast.purge_dead(
    %(channel)s, %(before)s::timestamptz, %(limit)s::integer, %(lock)s, %(token)s::bigint);
