-- Channels and consumers.

-- name: create_channel
SELECT holdfast.ensure_channel(%(channel)s);

-- name: channels
SELECT name FROM holdfast.channels ORDER BY name;

-- name: channel_stats
SELECT ch.name, ch.created_at,
       (SELECT count(*) FROM holdfast.log l WHERE l.channel_id = ch.id),
       (SELECT l.published_at FROM holdfast.log l WHERE l.channel_id = ch.id
        ORDER BY l.epoch DESC, l.tx DESC, l.seq DESC LIMIT 1),
       ARRAY(SELECT c.name FROM holdfast.consumers c WHERE c.channel_id = ch.id ORDER BY c.name),
       coalesce(ch.display_name, '')
FROM holdfast.channels ch WHERE ch.name = %(channel)s;

-- name: subscribe
SELECT holdfast.subscribe(
    %(channel)s, %(consumer)s, %(policy)s::jsonb, %(lease)s::interval, %(expires_after)s::interval,
    %(ordered)s::boolean, %(discard)s::boolean, %(dead_letter)s, %(max_depth)s::bigint,
    %(start)s::timestamptz, %(revision)s::bigint);

-- name: consumers
SELECT ch.name, c.name, c.policy, c.paused, c.created_at, c.backfill_until IS NOT NULL,
       coalesce(c.display_name, ''), c.revision, coalesce(ch.display_name, ''), c.id
FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
WHERE (%(channel)s::text IS NULL OR ch.name = %(channel)s)
  AND (%(consumer)s::text IS NULL OR c.name = %(consumer)s)
ORDER BY ch.name, c.name;

-- name: set_paused
UPDATE holdfast.consumers c SET paused = %(paused)s,
       revision = CASE WHEN c.paused = %(paused)s THEN c.revision ELSE holdfast.next_revision(c.revision) END
FROM holdfast.channels ch
WHERE ch.id = c.channel_id AND ch.name = %(channel)s AND c.name = %(consumer)s RETURNING c.id;

-- name: display_channel
UPDATE holdfast.channels SET display_name = nullif(%(display)s, '') WHERE name = %(channel)s RETURNING id;

-- name: display_consumer
UPDATE holdfast.consumers c SET display_name = nullif(%(display)s, ''),
       revision = holdfast.next_revision(c.revision)
FROM holdfast.channels ch
WHERE ch.id = c.channel_id AND ch.name = %(channel)s AND c.name = %(consumer)s RETURNING c.id;

-- name: begin_removal
SELECT holdfast.begin_removal(%(channel)s, %(consumer)s);

-- name: remove_step
SELECT jobs, dead, history, done FROM holdfast.remove_step(%(consumer)s::integer, %(limit)s::bigint);

-- name: states
-- One statement, so that a job in motion is counted once.
SELECT j.state::text, sum(coalesce(j.upto - j.seq, 0) + 1)::bigint, min(j.due_at) FROM holdfast.jobs j
WHERE j.consumer_id = %(consumer)s GROUP BY j.state
UNION ALL
SELECT outcome, count(*), NULL FROM holdfast.job_log WHERE consumer_id = %(consumer)s GROUP BY outcome
UNION ALL
SELECT 'dead', coalesce(sum(dead), 0)::bigint, NULL FROM holdfast.dead_totals
WHERE consumer_id = %(consumer)s;

-- name: publishers
-- Who holds publishes to a channel open, longest first.
SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.classid = holdfast.publish_lock()::oid AND l.granted
  AND l.objid = (SELECT id FROM holdfast.channels WHERE name = %(channel)s)::oid
  AND l.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 5;
