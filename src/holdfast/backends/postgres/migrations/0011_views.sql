-- What people and other programs look at: the tables of the original designs, as views.

-- JSON where the data is JSON, else the bytes in base64.
CREATE FUNCTION holdfast.readable(data bytea) RETURNS jsonb LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN convert_from(data, 'UTF8')::jsonb;
EXCEPTION WHEN data_exception OR character_not_in_repertoire OR untranslatable_character OR program_limit_exceeded THEN
    RETURN jsonb_build_object('data_base64', encode(data, 'base64'));
END $$;

CREATE TYPE holdfast.event_status AS ENUM ('PENDING', 'PROCESSING', 'COMPLETED', 'FAILED');

-- `updated_at` is when a job last changed hands: it was due, leased, extended, or its attempt ended. Never later than now.
CREATE VIEW holdfast.events AS
SELECT j.seq AS id, holdfast.readable(e.data) AS event,
       (CASE WHEN j.state = 'leased' THEN 'PROCESSING' ELSE 'PENDING' END)::holdfast.event_status AS status,
       j.attempts, j.created_at,
       greatest(j.created_at, j.started_at, j.renewed_at, (j.errors->-1->>'at')::timestamptz,
                CASE WHEN j.state <> 'scheduled' THEN j.due_at END) AS updated_at,
       CASE WHEN j.state = 'leased' THEN j.started_at END AS processing_started_at, j.abandonments, j.lease_until,
       j.errors, j.channel, j.consumer, e.id AS event_id
FROM holdfast.live_jobs j
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.seq) = (j.channel_id, j.epoch, j.seq);

-- `trimmed`: retention has removed the event from the log, and with it the payload; `holdfast trace` finds it in the
-- archive. The id and the type stay as long as the history.
CREATE VIEW holdfast.event_log AS
SELECT t.seq AS id, holdfast.readable(e.data)::text AS payload, t.status, t.attempts, t.created_at,
       t.updated_at, t.abandonments, t.outcome, t.reason, t.errors,
       ch.name AS channel, c.name AS consumer, coalesce(e.id, x.id) AS event_id,
       coalesce(e.type, x.type) AS event_type, coalesce(e.source, x.source) AS event_source,
       e.seq IS NULL AS trimmed, x.trimmed_at
FROM (
    SELECT consumer_id, channel_id, epoch, seq, attempts, abandonments, created_at,
           ended_at AS updated_at, outcome, reason, errors,
           (CASE outcome WHEN 'done' THEN 'COMPLETED' ELSE 'FAILED' END)::holdfast.event_status AS status
    FROM holdfast.job_log
    UNION ALL
    SELECT consumer_id, channel_id, epoch, seq, attempts, abandonments, created_at,
           died_at, 'dead', reason, errors, 'FAILED' FROM holdfast.dead_letters
) t
JOIN holdfast.consumers c ON c.id = t.consumer_id
JOIN holdfast.channels ch ON ch.id = t.channel_id
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.seq) = (t.channel_id, t.epoch, t.seq)
LEFT JOIN holdfast.trimmed x ON (x.channel_id, x.epoch, x.seq) = (t.channel_id, t.epoch, t.seq);

-- The summary of the DLQ's own design, by its own names. What it calls an id is our name.
CREATE VIEW holdfast.dlq_summary AS
SELECT c.name AS "consumerId", coalesce(c.display_name, c.name) AS "consumerName",
       ch.name AS "channelId", coalesce(ch.display_name, ch.name) AS "channelName",
       coalesce(t.dead, 0)::bigint AS dead_count, s.folded_at AS last_checked_at
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN holdfast.dead_summary s
LEFT JOIN (SELECT consumer_id, sum(dead) AS dead FROM holdfast.dead_totals GROUP BY consumer_id) t
  ON t.consumer_id = c.id;
