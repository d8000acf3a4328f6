-- A claim of an ordered consumer looks up the events of what it leased itself. Joined outside, in a statement whose
-- snapshot is older than those in here, an event that was published in between would be leased and handed to nobody.
DROP FUNCTION holdfast.claim_ordered(integer, text, integer);
CREATE FUNCTION holdfast.claim_ordered(p_consumer_id integer, p_worker text, p_limit integer)
RETURNS TABLE (
    epoch integer, tx bigint, seq bigint, attempts smallint, abandonments smallint, token bigint,
    lease_until timestamptz, priority smallint, due_at timestamptz, data bytea, id text, source text, type text,
    key text, "time" timestamptz, headers jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
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
        WITH leased AS (
            UPDATE holdfast.jobs j SET state = 'leased', attempts = j.attempts + 1, token = j.token + 1,
                   lease_until = v_now + v_lease, worker = p_worker
            WHERE j.consumer_id = p_consumer_id AND j.seq = ANY (v_heads[1:v_missing]) RETURNING j.*
        )
        SELECT j.epoch, j.tx, j.seq, j.attempts, j.abandonments, j.token, j.lease_until, j.priority, j.due_at,
               coalesce(j.data, e.data), e.id, e.source, e.type, e.key, e.time, e.headers
        FROM leased j CROSS JOIN LATERAL (
            SELECT l.data, l.id, l.source, l.type, l.key, coalesce(l.time, l.published_at) AS time, l.headers
            FROM holdfast.log l
            WHERE l.channel_id = j.channel_id AND l.epoch = j.epoch AND l.tx = j.tx AND l.seq = j.seq OFFSET 0
        ) e;
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

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that a lease that
-- still runs is lost.
CREATE OR REPLACE FUNCTION holdfast.requeue(p_consumer_id integer, p_seq bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := holdfast.now();
BEGIN
    LOOP
        PERFORM holdfast.single_out(p_consumer_id, p_seq);
        UPDATE holdfast.jobs j SET state = 'ready', token = j.token + 1, attempts = 0, abandonments = 0,
               due_at = v_now, expires_at = v_now + c.expires_after, lease_until = NULL, worker = NULL
        FROM holdfast.consumers c
        WHERE c.id = p_consumer_id AND j.consumer_id = p_consumer_id AND j.seq = p_seq;
        EXIT WHEN FOUND;
        PERFORM holdfast.revive(p_consumer_id, ARRAY[p_seq], NULL);
        IF FOUND THEN
            RETURN true;
        END IF;
        -- Neither live nor dead, unless somebody else revived it between these statements.
        IF NOT EXISTS (SELECT FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq = p_seq) THEN
            RETURN false;
        END IF;
    END LOOP;
    PERFORM pg_notify('holdfast', ch.name) FROM holdfast.consumers c
        JOIN holdfast.channels ch ON ch.id = c.channel_id WHERE c.id = p_consumer_id;
    RETURN true;
END $$;
