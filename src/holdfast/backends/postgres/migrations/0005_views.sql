-- What people with psql look at: the names and states of the EventBus, and of the dead-letter summary.

-- JSON where the data is JSON, else the bytes in base64.
CREATE FUNCTION holdfast.readable(data bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(data, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR character_not_in_repertoire OR untranslatable_character OR program_limit_exceeded THEN
    RETURN jsonb_build_object('data_base64', encode(data, 'base64'));
END $$;

CREATE TYPE holdfast.event_status AS ENUM ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED');

CREATE VIEW holdfast.events AS
SELECT j.seq AS id, holdfast.readable(e.data) AS event,
       (CASE WHEN j.state = 'leased' THEN 'PROCESSING' ELSE 'PENDING' END)::holdfast.event_status AS status,
       j.attempts, j.created_at, coalesce(j.lease_until - c.lease, j.due_at) AS updated_at,
       j.lease_until - c.lease AS processing_started_at, j.abandonments, j.lease_until, j.errors,
       ch.name AS channel, c.name AS consumer, e.id AS event_id
FROM holdfast.jobs j
JOIN holdfast.consumers c ON c.id = j.consumer_id
JOIN holdfast.channels ch ON ch.id = j.channel_id
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (j.channel_id, j.epoch, j.tx, j.seq);

CREATE VIEW holdfast.event_log AS
SELECT t.seq AS id, holdfast.readable(e.data)::text AS payload, t.status, t.attempts, t.created_at,
       t.updated_at, t.abandonments, t.outcome, t.reason, t.errors,
       ch.name AS channel, c.name AS consumer, e.id AS event_id, e.type AS event_type
FROM (
    SELECT consumer_id, channel_id, epoch, tx, seq, attempts, abandonments, created_at,
           ended_at AS updated_at, outcome, reason, errors,
           (CASE outcome WHEN 'done' THEN 'COMPLETED' ELSE 'FAILED' END)::holdfast.event_status AS status
    FROM holdfast.job_log
    UNION ALL
    SELECT consumer_id, channel_id, epoch, tx, seq, attempts, abandonments, created_at,
           died_at, 'dead', reason, errors, 'FAILED' FROM holdfast.dead_letters
) t
JOIN holdfast.consumers c ON c.id = t.consumer_id
JOIN holdfast.channels ch ON ch.id = t.channel_id
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (t.channel_id, t.epoch, t.tx, t.seq);

-- Exact at every moment: the folded counts plus the deltas that are not folded yet.
CREATE VIEW holdfast.dead_totals AS
SELECT consumer_id, reason, sum(n)::bigint AS dead FROM (
    SELECT consumer_id, reason, dead AS n FROM holdfast.dead_counts
    UNION ALL SELECT consumer_id, reason, change FROM holdfast.dead_deltas
) t GROUP BY consumer_id, reason;
