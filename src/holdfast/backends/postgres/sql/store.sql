-- The store itself: its clock, its epoch, its settings.

-- name: configure
-- The settings of a session. Every statement of ours walks an index in order, whatever the statistics say at the moment:
-- the tables go from empty to full and back within minutes. So that is planned once, and not again for every call. The
-- server ends a statement whose client has hung up, where its system can tell.
SET application_name = 'holdfast'; SET jit = off; SET enable_seqscan = off; SET enable_bitmapscan = off;
SET enable_mergejoin = off; SET plan_cache_mode = force_generic_plan; SET timezone = 'UTC';
SET idle_in_transaction_session_timeout = '60s'; SET default_transaction_isolation = 'read committed';
SET statement_timeout = 0; SET lock_timeout = 0; SET idle_session_timeout = 0;
SET search_path = pg_catalog, pg_temp; SET enable_indexscan = on; SET enable_nestloop = on;
SET datestyle = 'ISO'; SET intervalstyle = 'postgres'; SET array_nulls = on; SET transform_null_equals = off;
SELECT set_config('client_connection_check_interval', '500ms', false) WHERE version() ~ 'linux|apple|bsd';

-- name: configure_locally
-- The same for one transaction.
SET LOCAL application_name = 'holdfast'; SET LOCAL jit = off; SET LOCAL enable_seqscan = off;
SET LOCAL enable_bitmapscan = off; SET LOCAL enable_mergejoin = off; SET LOCAL plan_cache_mode = force_generic_plan;
SET LOCAL timezone = 'UTC'; SET LOCAL idle_in_transaction_session_timeout = '60s';
SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;
SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL enable_indexscan = on; SET LOCAL enable_nestloop = on;
SET LOCAL datestyle = 'ISO'; SET LOCAL intervalstyle = 'postgres'; SET LOCAL array_nulls = on;
SET LOCAL transform_null_equals = off;
SELECT set_config('client_connection_check_interval', '500ms', true) WHERE version() ~ 'linux|apple|bsd';

-- name: server_crowded
-- Whether more than two thirds of the connections are taken; how many are, and how many there can be.
SELECT sum(numbackends) > current_setting('max_connections')::integer * 2 / 3, sum(numbackends)::integer,
       current_setting('max_connections')::integer FROM pg_stat_database;

-- name: listen
LISTEN holdfast;

-- name: unlisten
UNLISTEN holdfast;

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

-- name: report_lost
-- Of events that were acknowledged before a failover, record those that are not there: neither at their position nor
-- published again. What was trimmed was there.
WITH old AS (DELETE FROM holdfast.lost WHERE reported_at < (SELECT holdfast.now()) - interval '90 days')
INSERT INTO holdfast.lost (channel, epoch, seq, id)
SELECT a.channel, a.epoch, a.seq, a.id
FROM unnest(%(channels)s::text[], %(epochs)s::bigint[], %(seqs)s::bigint[], %(ids)s::text[]) a (channel, epoch, seq, id)
LEFT JOIN holdfast.channels c ON c.name = a.channel
WHERE NOT EXISTS (
    SELECT FROM holdfast.log l WHERE (l.channel_id, l.epoch, l.seq) = (c.id, a.epoch::integer, a.seq)
) AND NOT EXISTS (
    SELECT FROM holdfast.keys k WHERE k.id = a.id COLLATE "C" AND k.channel_id = c.id
) AND (c.id IS NULL OR (a.epoch, a.seq) > (c.trimmed_epoch, c.trimmed_seq))
ON CONFLICT DO NOTHING RETURNING channel, epoch, seq;

-- name: known_lost
-- What is lost and was not published again since, by channel.
SELECT l.channel, count(*), min(ARRAY[l.epoch, l.seq]), max(ARRAY[l.epoch, l.seq])
FROM holdfast.lost l LEFT JOIN holdfast.channels c ON c.name = l.channel
WHERE l.reported_at > (SELECT holdfast.now()) - interval '7 days' AND NOT EXISTS (
    SELECT FROM holdfast.keys k WHERE k.id = l.id AND k.channel_id = c.id
) GROUP BY l.channel ORDER BY l.channel;

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
