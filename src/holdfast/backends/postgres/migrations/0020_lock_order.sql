-- One order of locks: whoever waits for locks on several jobs, or on the depths of several consumers, takes them by
-- consumer and number. Two batches at once could wait for each other before.

CREATE OR REPLACE FUNCTION holdfast.after_leaving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths d SET live = d.live - g.n FROM (
        SELECT x.consumer_id, t.n FROM holdfast.depths x
        JOIN (SELECT consumer_id, count(*) AS n FROM gone GROUP BY consumer_id) t ON t.consumer_id = x.consumer_id
        ORDER BY x.consumer_id FOR UPDATE OF x
    ) g WHERE d.consumer_id = g.consumer_id;

    PERFORM holdfast.wake_lane(l.consumer_id, l.order_key) FROM (
        SELECT DISTINCT consumer_id, order_key FROM gone WHERE order_key IS NOT NULL ORDER BY 1, 2) l;
    RETURN NULL;
END $$;

-- leased → done. Only an index scan is left to the planner: it locks in the order of the primary key.
CREATE FUNCTION holdfast.complete(p_consumer_id integer, p_seqs bigint[], p_tokens bigint[])
RETURNS TABLE (seq bigint, token bigint) LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = on AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH ended AS (
        DELETE FROM holdfast.jobs j
        WHERE j.consumer_id = p_consumer_id AND j.seq = ANY (p_seqs) AND j.lease_until IS NOT NULL
          AND ((j.seq, j.token) IN (SELECT * FROM unnest(p_seqs, p_tokens))) IS TRUE
        RETURNING j.*
    ), logged AS (
        INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
                                      outcome, priority, attempts, abandonments, worker, errors)
        SELECT consumer_id, channel_id, epoch, tx, seq, token, created_at, (SELECT holdfast.now()), 'done',
               priority, attempts, abandonments, worker, errors FROM ended
    )
    SELECT e.seq, e.token FROM ended e;
END $$;

-- scheduled | ready → cancelled, for one consumer of the channel or, where none is named, for all.
CREATE OR REPLACE FUNCTION holdfast.cancel(p_channel text, p_source text, p_id text, p_consumer text) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_seq       bigint;
    v_consumers integer[];
    v_consumer  integer;
    v_cancelled bigint;
BEGIN
    SELECT k.seq, ARRAY(SELECT c.id FROM holdfast.consumers c
                        WHERE c.channel_id = k.channel_id AND (p_consumer IS NULL OR c.name = p_consumer) ORDER BY c.id)
    INTO v_seq, v_consumers
    FROM holdfast.keys k
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = p_channel)
      AND k.id = p_id AND k.source = p_source;
    FOREACH v_consumer IN ARRAY coalesce(v_consumers, '{}') LOOP
        PERFORM holdfast.single_out(v_consumer, v_seq);
        PERFORM FROM holdfast.jobs WHERE consumer_id = v_consumer AND seq = v_seq AND state <> 'leased' FOR UPDATE;
    END LOOP;
    WITH gone AS (
        DELETE FROM holdfast.jobs
        WHERE consumer_id = ANY (v_consumers) AND seq = v_seq AND state <> 'leased' RETURNING *
    ), logged AS (
        INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
                                      outcome, priority, attempts, abandonments, worker, errors)
        SELECT consumer_id, channel_id, epoch, tx, seq, token, created_at, (SELECT holdfast.now()),
               'cancelled', priority, attempts, abandonments, worker, errors FROM gone
    )
    SELECT count(*) INTO v_cancelled FROM gone;
    RETURN v_cancelled;
END $$;

-- Give up on jobs: into dead_letters, or into job_log where the policy discards, and from there into the
-- dead-letter channel, all in the caller's transaction. `waiting` true buries what expired while it
-- waited; false what is leased under the given token, and with `overdue` only past its deadline.
CREATE OR REPLACE FUNCTION holdfast.bury(
    p_consumer_ids integer[], p_seqs bigint[], p_tokens bigint[], p_reasons text[], p_errors jsonb[],
    p_fingerprints text[], waiting boolean, overdue boolean
) RETURNS TABLE (consumer_id integer, seq bigint, token bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_now    timestamptz := holdfast.now();
    v_owners integer[];
    v_seqs   bigint[];
    v_tokens bigint[];
    v_target record;
BEGIN
    PERFORM FROM holdfast.jobs j
    JOIN unnest(p_consumer_ids, p_seqs) AS b (consumer_id, seq) ON b.consumer_id = j.consumer_id AND b.seq = j.seq
    WHERE j.consumer_id = ANY (p_consumer_ids) AND j.seq = ANY (p_seqs)
    ORDER BY j.consumer_id, j.seq FOR UPDATE OF j;
    WITH gone AS (
        DELETE FROM holdfast.jobs j
        USING unnest(p_consumer_ids, p_seqs, p_tokens, p_reasons, p_errors, p_fingerprints)
              AS b (consumer_id, seq, token, reason, error, fingerprint)
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.seq = ANY (p_seqs)
          AND j.consumer_id = b.consumer_id AND j.seq = b.seq AND j.token = b.token
          AND CASE WHEN waiting THEN j.lease_until IS NULL AND j.expires_at <= v_now
              ELSE j.lease_until IS NOT NULL AND (NOT overdue OR j.lease_until <= v_now) END
        -- An overdue attempt ended without an answer: it is given back and counts as an abandonment.
        RETURNING j.*, j.attempts - overdue::integer AS spent, j.abandonments + overdue::integer AS lost,
                  b.reason, coalesce(j.errors, '[]') || (b.error || jsonb_build_object('at', v_now)) AS history, b.fingerprint
    ), dead AS (
        INSERT INTO holdfast.dead_letters (consumer_id, channel_id, epoch, tx, seq, token, created_at,
            died_at, priority, attempts, abandonments, order_key, worker, reason, fingerprint, errors, data)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at, v_now, g.priority,
               g.spent, g.lost, g.order_key, g.worker, g.reason, g.fingerprint, g.history, g.data
        FROM gone g JOIN holdfast.consumers c ON c.id = g.consumer_id WHERE NOT c.discard
    ), discarded AS (
        INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at, v_now, 'discarded',
               g.priority, g.spent, g.lost, g.worker, g.reason, g.history
        FROM gone g JOIN holdfast.consumers c ON c.id = g.consumer_id WHERE c.discard
    )
    SELECT array_agg(g.consumer_id), array_agg(g.seq), array_agg(g.token)
    INTO v_owners, v_seqs, v_tokens FROM gone g;

    -- Dead letters are not refused for depth: a full target must not keep a dead job alive.
    FOR v_target IN
        SELECT t.name AS channel, array_agg(i.id) AS ids, array_agg(coalesce(d.data, e.data)) AS data,
               array_agg(i.source) AS sources, array_agg(e.type) AS types,
               array_agg(e.key) AS keys, array_agg(coalesce(e.time, e.published_at)) AS times,
               array_agg(coalesce(e.headers, '{}') || jsonb_build_object(
                   'holdfast-channel', o.name, 'holdfast-consumer', c.name, 'holdfast-source', e.source,
                   'holdfast-id', e.id, 'holdfast-reason', d.reason,
                   'holdfast-error', d.errors->-1->>'error')) AS headers
        FROM unnest(v_owners, v_seqs) AS b (consumer_id, seq)
        -- Row by row, by the whole key: planned on a young table, a join reads all dead letters of the consumer.
        CROSS JOIN LATERAL (SELECT * FROM holdfast.dead_letters x
                            WHERE x.consumer_id = b.consumer_id AND x.seq = b.seq OFFSET 0) d
        JOIN holdfast.consumers c ON c.id = b.consumer_id
        JOIN holdfast.channels o ON o.id = c.channel_id
        JOIN holdfast.channels t ON t.id = c.dead_letter_id
        JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (d.channel_id, d.epoch, d.tx, d.seq)
        -- A job dies once under a token: an id that is there already is somebody else's.
        CROSS JOIN LATERAL (
            SELECT n.source, n.id || CASE WHEN EXISTS (
                       SELECT FROM holdfast.keys k
                       WHERE k.id = n.id AND k.channel_id = t.id AND k.source = n.source OFFSET 0
                   ) THEN '#' || gen_random_uuid() ELSE '' END AS id
            FROM (SELECT e.id || '#' || d.token AS id, o.name || '/' || c.name AS source) n
        ) i
        GROUP BY t.name ORDER BY t.name
    LOOP
        PERFORM holdfast.publish_many(v_target.channel, v_target.ids, v_target.data, v_target.sources,
            v_target.types, v_target.keys, v_target.times, v_target.headers, bounded => false);
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(v_owners, v_seqs, v_tokens);
END $$;
