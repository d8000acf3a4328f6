-- Locks: leases on names, with a token that only ever rises.

-- name: lock
-- Take a lock that is free or past its deadline.
INSERT INTO holdfast.locks AS l (name, owner, token, until)
VALUES (%(lock)s, %(owner)s, greatest(1, (SELECT holdfast.lowest_token())),
        (SELECT holdfast.now()) + %(ttl)s::interval)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, token = greatest(l.token + 1, excluded.token),
    until = excluded.until
WHERE (l.until > holdfast.now()) IS NOT TRUE
RETURNING token, until;

-- name: renew
-- Even past the deadline, while nobody else took it.
UPDATE holdfast.locks SET until = (SELECT holdfast.now()) + %(ttl)s::interval
WHERE name = %(lock)s AND owner = %(owner)s AND token = %(token)s AND until IS NOT NULL
RETURNING until;

-- name: unlock
UPDATE holdfast.locks SET until = NULL
WHERE name = %(lock)s AND owner = %(owner)s AND token = %(token)s AND until IS NOT NULL RETURNING 1;
