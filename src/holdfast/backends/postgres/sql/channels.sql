-- Channels and consumers.

-- name: create_channel
SELECT holdfast.ensure_channel(%(channel)s);

-- name: channels
SELECT name FROM holdfast.channels ORDER BY name;

-- name: channel_stats
SELECT ch.name, ch.created_at,
       (SELECT count(*) FROM holdfast.log l WHERE l.channel_id = ch.id),
       (SELECT l.published_at FROM holdfast.log l WHERE l.channel_id = ch.id
        ORDER BY l.epoch DESC, l.seq DESC LIMIT 1),
       ARRAY(SELECT c.name FROM holdfast.consumers c WHERE c.channel_id = ch.id ORDER BY c.name),
       coalesce(ch.display_name, '')
FROM holdfast.channels ch WHERE ch.name = %(channel)s;

-- name: subscribe
SELECT holdfast.subscribe(
    %(channel)s, %(consumer)s, %(policy)s::jsonb, %(lease)s::interval, %(expires_after)s::interval,
    %(ordered)s::boolean, %(discard)s::boolean, %(dead_letter)s, %(max_depth)s::bigint,
    %(start)s::timestamptz, %(revision)s::bigint);

-- name: consumers
SELECT ch.name, c.name, c.policy, c.paused, c.created_at,
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
SELECT j.state::text, sum(j.n)::bigint, min(j.due_at) FROM holdfast.jobs j
WHERE j.consumer_id = %(consumer)s GROUP BY j.state
UNION ALL
SELECT 'ready', holdfast.count_beyond(%(consumer)s, false, NULL), (
    SELECT greatest(l.published_at, c.created_at) FROM holdfast.consumers c
    CROSS JOIN LATERAL holdfast.beyond(c.id, false, 1) b
    CROSS JOIN LATERAL (
        SELECT * FROM holdfast.log x
        WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l WHERE c.id = %(consumer)s)
UNION ALL
SELECT CASE WHEN l.at > l.published_at THEN 'scheduled' ELSE 'ready' END, count(*),
       min(greatest(l.at, l.published_at, c.created_at))
FROM holdfast.consumers c
CROSS JOIN LATERAL holdfast.beyond(c.id, true, NULL) b
CROSS JOIN LATERAL (
    SELECT * FROM holdfast.log x
    WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
WHERE c.id = %(consumer)s GROUP BY 1
UNION ALL
SELECT outcome, sum(n), NULL FROM (
    SELECT outcome, n FROM holdfast.history WHERE consumer_id = %(consumer)s AND members IS NULL
    UNION ALL SELECT outcome, n FROM holdfast.history WHERE consumer_id = %(consumer)s AND members IS NOT NULL) h
GROUP BY outcome
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

-- Backlogs: live jobs by consumer, by indexes, counted up to a limit.

-- name: backlogs
-- Ready jobs consumer by consumer, those that wait in the log among them; of an ordered one also those that wait for an
-- earlier job of their key. The first of each priority is its oldest, so that walking down the priorities finds the
-- oldest of all.
WITH leased AS (
    SELECT l.consumer_id, sum(l.n) AS jobs FROM (
        SELECT j.consumer_id, j.n FROM holdfast.jobs j WHERE j.state = 'leased'
        ORDER BY j.lease_until LIMIT %(limit)s) l
    GROUP BY l.consumer_id
), scheduled AS (
    SELECT s.consumer_id, count(*) AS jobs FROM (
        SELECT j.consumer_id FROM holdfast.jobs j WHERE j.state = 'scheduled'
        ORDER BY j.due_at LIMIT %(limit)s) s
    GROUP BY s.consumer_id
)
SELECT ch.name, c.name,
       least(%(limit)s, free.jobs + holdfast.count_beyond(c.id, false, %(limit)s) + special.ready
       + CASE WHEN c.ordered AND free.jobs < %(limit)s THEN (SELECT count(*) FROM (
           SELECT FROM holdfast.jobs j
           WHERE j.consumer_id = c.id AND j.order_key IS NOT NULL AND j.state = 'ready' AND j.held
           LIMIT %(limit)s) h) ELSE 0 END),
       coalesce(leased.jobs, 0)::bigint, coalesce(scheduled.jobs, 0) + special.scheduled,
       least(special.oldest, (
           SELECT greatest(l.published_at, c.created_at) FROM holdfast.beyond(c.id, false, 1) b
           CROSS JOIN LATERAL (
               SELECT * FROM holdfast.log x
               WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
       ), (WITH RECURSIVE heads AS (
           (SELECT j.priority, j.due_at FROM holdfast.jobs j
            WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held
            ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1)
           UNION ALL
           SELECT f.priority, f.due_at FROM heads h, LATERAL (
               SELECT j.priority, j.due_at FROM holdfast.jobs j
               WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority < h.priority
               ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) f)
        SELECT min(due_at) FROM heads))
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
LEFT JOIN leased ON leased.consumer_id = c.id
LEFT JOIN scheduled ON scheduled.consumer_id = c.id
CROSS JOIN LATERAL (
    SELECT count(*) AS jobs FROM (
        SELECT FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held LIMIT %(limit)s) r
) free
CROSS JOIN LATERAL (
    SELECT count(*) FILTER (WHERE l.at > l.published_at) AS scheduled,
           count(*) FILTER (WHERE (l.at > l.published_at) IS NOT TRUE) AS ready,
           min(greatest(l.published_at, c.created_at)) FILTER (WHERE (l.at > l.published_at) IS NOT TRUE) AS oldest
    FROM holdfast.beyond(c.id, true, CASE WHEN holdfast.has_special(c) THEN %(limit)s ELSE 0 END) b
    CROSS JOIN LATERAL (
        SELECT * FROM holdfast.log x
        WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
) special
ORDER BY ch.name, c.name;

-- name: job_times
-- The oldest and the newest by indexes: of ready jobs the first and the last of each priority and of what waits in the
-- log, of dead letters the first and the last death.
SELECT ch.name, c.name, least(r.oldest, w.oldest), greatest(r.newest, w.newest),
       (SELECT min(d.died_at) FROM holdfast.dead_letters d WHERE d.consumer_id = c.id),
       (SELECT max(d.died_at) FROM holdfast.dead_letters d WHERE d.consumer_id = c.id)
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL (
    WITH RECURSIVE heads AS (
        (SELECT j.priority, j.due_at FROM holdfast.jobs j
         WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held
         ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1)
        UNION ALL
        SELECT f.priority, f.due_at FROM heads h, LATERAL (
            SELECT j.priority, j.due_at FROM holdfast.jobs j
            WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority < h.priority
            ORDER BY j.priority DESC, j.due_at, j.id LIMIT 1) f)
    SELECT min(h.due_at) AS oldest, max((
        SELECT j.due_at FROM holdfast.jobs j
        WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority = h.priority
        ORDER BY j.due_at DESC LIMIT 1)) AS newest
    FROM heads h
) r
CROSS JOIN LATERAL (
    SELECT min(w.due_at) AS oldest, max(w.due_at) AS newest FROM (
        SELECT greatest(l.published_at, c.created_at) AS due_at FROM holdfast.beyond(c.id, false, 1) b
        CROSS JOIN LATERAL (
            SELECT * FROM holdfast.log x
            WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
        UNION ALL
        SELECT greatest(l.published_at, c.created_at) FROM (
            SELECT * FROM holdfast.log l WHERE l.channel_id = c.channel_id AND NOT l.special
            ORDER BY l.epoch DESC, l.tx DESC, l.seq DESC LIMIT 1) l
        WHERE holdfast.is_beyond(c, l.special, l.epoch, l.tx, l.seq, l.published_at)
        UNION ALL
        SELECT greatest(l.at, l.published_at, c.created_at) FROM holdfast.beyond(c.id, true, 1000) b
        CROSS JOIN LATERAL (
            SELECT * FROM holdfast.log x
            WHERE x.channel_id = c.channel_id AND x.epoch = b.epoch AND x.seq = b.seq OFFSET 0) l
        WHERE (l.at > l.published_at) IS NOT TRUE) w
) w
ORDER BY ch.name, c.name;
