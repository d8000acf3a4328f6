-- Backlogs: live jobs by consumer, by indexes, counted up to a limit.

-- name: backlogs
-- Ready jobs consumer by consumer, a stretch for as many as it stands for; of an ordered one also those that wait
-- for an earlier job of their key. The first of each priority is its oldest, so that walking down the priorities
-- finds the oldest of all.
WITH leased AS (
    SELECT l.consumer_id, count(*) AS jobs FROM (
        SELECT j.consumer_id FROM holdfast.jobs j WHERE j.state = 'leased'
        ORDER BY j.lease_until LIMIT %(limit)s) l
    GROUP BY l.consumer_id
), scheduled AS (
    SELECT s.consumer_id, count(*) AS jobs FROM (
        SELECT j.consumer_id FROM holdfast.jobs j WHERE j.state = 'scheduled'
        ORDER BY j.due_at LIMIT %(limit)s) s
    GROUP BY s.consumer_id
)
SELECT ch.name, c.name,
       least(%(limit)s, (SELECT count(*) FROM (
           SELECT FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held
           LIMIT %(limit)s) r) + (SELECT coalesce(sum(s.upto - s.seq), 0)::bigint FROM (
           SELECT j.seq, j.upto FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.upto IS NOT NULL
           LIMIT %(limit)s) s))
       + CASE WHEN c.ordered THEN (SELECT count(*) FROM (
           SELECT FROM holdfast.jobs j
           WHERE j.consumer_id = c.id AND j.order_key IS NOT NULL AND j.state = 'ready' AND j.held
           LIMIT %(limit)s) h) ELSE 0 END,
       coalesce(leased.jobs, 0), coalesce(scheduled.jobs, 0),
       (WITH RECURSIVE heads AS (
           (SELECT j.priority, j.due_at FROM holdfast.jobs j
            WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held
            ORDER BY j.priority DESC, j.due_at, j.seq LIMIT 1)
           UNION ALL
           SELECT f.priority, f.due_at FROM heads h, LATERAL (
               SELECT j.priority, j.due_at FROM holdfast.jobs j
               WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority < h.priority
               ORDER BY j.priority DESC, j.due_at, j.seq LIMIT 1) f)
        SELECT min(due_at) FROM heads)
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
LEFT JOIN leased ON leased.consumer_id = c.id
LEFT JOIN scheduled ON scheduled.consumer_id = c.id
ORDER BY ch.name, c.name;

-- name: job_times
-- The oldest and the newest by indexes: of ready jobs the first and the last of each priority, of dead letters the
-- first and the last death.
SELECT ch.name, c.name, r.oldest, r.newest,
       (SELECT min(d.died_at) FROM holdfast.dead_letters d WHERE d.consumer_id = c.id),
       (SELECT max(d.died_at) FROM holdfast.dead_letters d WHERE d.consumer_id = c.id)
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN LATERAL (
    WITH RECURSIVE heads AS (
        (SELECT j.priority, j.due_at FROM holdfast.jobs j
         WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held
         ORDER BY j.priority DESC, j.due_at, j.seq LIMIT 1)
        UNION ALL
        SELECT f.priority, f.due_at FROM heads h, LATERAL (
            SELECT j.priority, j.due_at FROM holdfast.jobs j
            WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority < h.priority
            ORDER BY j.priority DESC, j.due_at, j.seq LIMIT 1) f)
    SELECT min(h.due_at) AS oldest, max((
        SELECT j.due_at FROM holdfast.jobs j
        WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND j.priority = h.priority
        ORDER BY j.due_at DESC LIMIT 1)) AS newest
    FROM heads h
) r
ORDER BY ch.name, c.name;
