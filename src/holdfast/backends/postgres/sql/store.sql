-- The store itself: its clock, its epoch, its settings.

-- name: now
SELECT holdfast.now();

-- name: epoch
SELECT holdfast.current_epoch(s) FROM holdfast.store s;

-- name: advance
UPDATE holdfast.store SET clock_offset = clock_offset + %(by)s::interval;

-- name: renew_epoch
-- A restored or promoted server is another life of the store: its positions must sort after the old ones.
SELECT epoch, timeline FROM holdfast.renew_epoch();

-- name: last_epoch
SELECT epoch, timeline, began_at FROM holdfast.epochs
WHERE began_at > (SELECT holdfast.now()) - interval '7 days' ORDER BY epoch DESC LIMIT 1;

-- name: settings
SELECT name, setting FROM pg_settings
WHERE name IN ('fsync', 'synchronous_commit', 'full_page_writes', 'synchronous_standby_names', 'server_version_num');

-- name: blockers
-- Who holds the log's readers back: the oldest transaction that has written.
SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::float8 FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - interval '1 minute'
ORDER BY xact_start LIMIT 5;
