-- The store itself: its clock, its epoch, its settings.

-- name: configure
-- The settings of a session, or of one transaction. Every statement of ours walks an index in order, whatever the
-- statistics say at the moment: the tables go from empty to full and back within minutes. So that is planned once, and
-- not again for every call. The server ends a statement whose client has hung up, where its system can tell.
SELECT set_config(name, value, %(local)s)
FROM (VALUES
    ('application_name', 'holdfast'), ('jit', 'off'), ('enable_seqscan', 'off'), ('enable_bitmapscan', 'off'),
    ('enable_mergejoin', 'off'), ('plan_cache_mode', 'force_generic_plan'), ('timezone', 'UTC'),
    ('idle_in_transaction_session_timeout', '60s'), ('default_transaction_isolation', 'read committed'),
    ('client_connection_check_interval', CASE WHEN version() ~ 'linux|apple|bsd' THEN '500ms' ELSE '0' END)
) AS setting (name, value);

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
-- Who holds the log's readers back, and on which channels: publishes that are open for long.
SELECT a.pid, extract(epoch FROM statement_timestamp() - a.xact_start)::float8, array_agg(c.name ORDER BY c.name)
FROM pg_locks l
JOIN pg_stat_activity a ON a.pid = l.pid
JOIN holdfast.channels c ON c.id = l.objid::bigint
WHERE l.locktype = 'advisory' AND l.classid = holdfast.publish_lock()::oid AND l.objsubid = 2 AND l.granted
  AND l.mode = 'ShareLock' AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
  AND a.xact_start < statement_timestamp() - interval '1 minute'
GROUP BY a.pid, a.xact_start ORDER BY a.xact_start LIMIT 5;
