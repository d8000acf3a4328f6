-- Transitions that need more than one statement.

-- Lease jobs of an ordered consumer: only the head of each key. A job that waits behind an earlier one of
-- its key is marked held and leaves the ready index, so that a long lane costs each claim nothing;
-- after_leaving() frees it when its turn comes.
CREATE FUNCTION holdfast.claim_ordered(p_consumer_id integer, p_worker text, p_limit integer)
RETURNS SETOF holdfast.jobs LANGUAGE plpgsql AS $$
DECLARE
    v_lease   interval;
    v_now     timestamptz := holdfast.now();
    v_missing integer := p_limit;
    v_picked  bigint[];
    v_heads   bigint[];
    v_held    bigint;
    v_again   text[];
BEGIN
    SELECT lease INTO v_lease FROM holdfast.consumers
    WHERE id = p_consumer_id AND NOT paused
      AND backfill_until IS NULL;  -- older events still to come would be overtaken by newer ones of their key
    IF NOT FOUND THEN
        RETURN;
    END IF;
    WITH again AS (
        DELETE FROM holdfast.lanes WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM holdfast.lanes WHERE consumer_id = p_consumer_id LIMIT 100
            FOR UPDATE SKIP LOCKED)) RETURNING order_key
    )
    SELECT array_agg(DISTINCT order_key ORDER BY order_key) INTO v_again FROM again;
    PERFORM holdfast.wake_lane(p_consumer_id, l.order_key) FROM unnest(v_again) AS l (order_key);
    WHILE v_missing > 0 LOOP
        SELECT array_agg(p.seq) INTO v_picked FROM (
            SELECT j.seq FROM holdfast.jobs j
            WHERE j.consumer_id = p_consumer_id AND j.state = 'ready' AND NOT j.held
              AND (j.expires_at IS NULL OR j.expires_at > v_now)
            ORDER BY j.priority DESC, j.due_at, j.seq LIMIT greatest(v_missing, 500)
            FOR NO KEY UPDATE SKIP LOCKED) p;
        -- A statement of its own, so that its snapshot is younger than the locks above.
        SELECT array_agg(p.seq ORDER BY p.place) INTO v_heads
        FROM unnest(v_picked) WITH ORDINALITY AS p (seq, place)
        JOIN holdfast.jobs j ON j.consumer_id = p_consumer_id AND j.seq = p.seq
        WHERE j.order_key IS NULL OR NOT EXISTS (
            SELECT FROM holdfast.jobs e
            WHERE e.consumer_id = p_consumer_id AND e.order_key = j.order_key
              AND (e.epoch, e.tx, e.seq) < (j.epoch, j.tx, j.seq));
        RETURN QUERY
        UPDATE holdfast.jobs j SET state = 'leased', attempts = j.attempts + 1, token = j.token + 1,
               lease_until = v_now + v_lease, worker = p_worker
        WHERE j.consumer_id = p_consumer_id AND j.seq = ANY (v_heads[1:v_missing]) RETURNING j.*;
        v_missing := v_missing - coalesce(cardinality(v_heads), 0);

        -- Mark a job held only under a lock on its head: then the head cannot leave before the mark is
        -- visible to the trigger that will look for the next one.
        WITH head AS MATERIALIZED (
            SELECT j.seq AS behind, h.seq FROM unnest(v_picked) AS p (seq)
            JOIN holdfast.jobs j ON j.consumer_id = p_consumer_id AND j.seq = p.seq
            CROSS JOIN LATERAL (
                SELECT e.seq FROM holdfast.jobs e
                WHERE e.consumer_id = p_consumer_id AND e.order_key = j.order_key
                ORDER BY e.epoch, e.tx, e.seq LIMIT 1) h
            WHERE h.seq <> j.seq
        ), locked AS MATERIALIZED (
            SELECT e.seq FROM holdfast.jobs e
            WHERE e.consumer_id = p_consumer_id AND e.seq = ANY (ARRAY(SELECT DISTINCT seq FROM head))
            FOR KEY SHARE SKIP LOCKED
        )
        UPDATE holdfast.jobs j SET held = true
        WHERE j.consumer_id = p_consumer_id
          AND j.seq = ANY (ARRAY(SELECT behind FROM head WHERE seq = ANY (ARRAY(SELECT seq FROM locked))));
        GET DIAGNOSTICS v_held = ROW_COUNT;
        EXIT WHEN v_held = 0;
    END LOOP;
END $$;

-- Give up on jobs: into dead_letters, or into job_log where the policy discards, and from there into the
-- dead-letter channel, all in the caller's transaction. `waiting` true buries what expired while it
-- waited; false what is leased under the given token, and with `overdue` only past its deadline.
CREATE FUNCTION holdfast.bury(
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
            died_at, priority, attempts, abandonments, order_key, worker, reason, fingerprint, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at, v_now, g.priority,
               g.spent, g.lost, g.order_key, g.worker, g.reason, g.fingerprint, g.history
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
        SELECT t.name AS channel, array_agg(e.id || '#' || d.token) AS ids, array_agg(e.data) AS data,
               array_agg(o.name || '/' || c.name) AS sources, array_agg(e.type) AS types,
               array_agg(e.key) AS keys, array_agg(coalesce(e.time, e.published_at)) AS times,
               array_agg(coalesce(e.headers, '{}') || jsonb_build_object(
                   'holdfast-channel', o.name, 'holdfast-consumer', c.name, 'holdfast-source', e.source,
                   'holdfast-id', e.id, 'holdfast-reason', d.reason,
                   'holdfast-error', d.errors->-1->>'error')) AS headers
        FROM unnest(v_owners, v_seqs) AS b (consumer_id, seq)
        JOIN holdfast.dead_letters d ON d.consumer_id = b.consumer_id AND d.seq = b.seq
        JOIN holdfast.consumers c ON c.id = b.consumer_id
        JOIN holdfast.channels o ON o.id = c.channel_id
        JOIN holdfast.channels t ON t.id = c.dead_letter_id
        JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (d.channel_id, d.epoch, d.tx, d.seq)
        GROUP BY t.name ORDER BY t.name
    LOOP
        PERFORM holdfast.publish_many(v_target.channel, v_target.ids, v_target.data, v_target.sources,
            v_target.types, v_target.keys, v_target.times, v_target.headers, bounded => false);
    END LOOP;
    RETURN QUERY SELECT * FROM unnest(v_owners, v_seqs, v_tokens);
END $$;

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that
-- a lease that still runs is lost.
CREATE FUNCTION holdfast.requeue(p_consumer_id integer, p_seq bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := holdfast.now();
BEGIN
    UPDATE holdfast.jobs j SET state = 'ready', token = j.token + 1, attempts = 0, abandonments = 0,
           due_at = v_now, expires_at = v_now + c.expires_after, lease_until = NULL, worker = NULL
    FROM holdfast.consumers c
    WHERE c.id = p_consumer_id AND j.consumer_id = p_consumer_id AND j.seq = p_seq;
    IF NOT FOUND THEN
        WITH risen AS (
            DELETE FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id AND seq = p_seq RETURNING *
        )
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, token, due_at, created_at,
                                   expires_at, state, priority, order_key, errors)
        SELECT r.consumer_id, r.channel_id, r.epoch, r.tx, r.seq, r.token + 1, v_now, r.created_at,
               v_now + c.expires_after, 'ready', r.priority, r.order_key, r.errors
        FROM risen r JOIN holdfast.consumers c ON c.id = r.consumer_id;
        IF NOT FOUND THEN
            RETURN false;
        END IF;
        UPDATE holdfast.depths SET live = live + 1 WHERE consumer_id = p_consumer_id;
    END IF;
    PERFORM pg_notify('holdfast', ch.name) FROM holdfast.consumers c
        JOIN holdfast.channels ch ON ch.id = c.channel_id WHERE c.id = p_consumer_id;
    RETURN true;
END $$;
