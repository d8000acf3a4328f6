-- Failover: the epoch follows the server's timeline at once, and whatever only ever rises begins anew above all that a
-- lost life of the store may have given out.

-- The timeline on which this server writes. It is current from the moment in which a promoted server takes writes;
-- pg_control_checkpoint() is not, before the next checkpoint. A server in recovery refuses it.
CREATE FUNCTION holdfast.timeline() RETURNS integer LANGUAGE sql PARALLEL SAFE
RETURN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;

-- The epoch. A promotion raises the timeline, and so the epoch, before anybody has written that down: whatever a
-- promoted server does belongs to the new one, whoever asked for it.
CREATE FUNCTION holdfast.current_epoch(s holdfast.store) RETURNS integer LANGUAGE sql PARALLEL SAFE
RETURN s.epoch + greatest(holdfast.timeline() - s.timeline, 0);

-- The lowest token, or revision, that is given out in this epoch. Within one epoch nothing is claimed or changed four
-- billion times.
CREATE FUNCTION holdfast.lowest_token() RETURNS bigint LANGUAGE sql STABLE
AS 'SELECT (holdfast.current_epoch(s) - 1)::bigint << 32 FROM holdfast.store s';

-- Which epochs began after the first, and where.
CREATE TABLE holdfast.epochs (
    epoch     integer PRIMARY KEY,
    system_id bigint NOT NULL,
    timeline  integer NOT NULL,
    began_at  timestamptz NOT NULL DEFAULT holdfast.now()
);

-- A store that was never opened begins here.
UPDATE holdfast.store s SET system_id = i.system_identifier, timeline = holdfast.timeline()
FROM pg_control_system() i WHERE s.system_id = 0;

-- Record what the server is; called on each new connection. Another system identifier is a store that was restored
-- elsewhere, perhaps not for the first time: its epoch is at least the number of the day. Returns the epoch and the
-- timeline if they are new.
CREATE FUNCTION holdfast.renew_epoch() RETURNS TABLE (epoch integer, timeline integer) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_system   bigint;
    v_timeline integer;
    v_epoch    integer;
BEGIN
    -- A connection to a standby would outlive its promotion, with all that was read on it.
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    SELECT i.system_identifier, holdfast.timeline() INTO v_system, v_timeline FROM pg_control_system() i;
    PERFORM FROM holdfast.store s WHERE (s.system_id, s.timeline) = (v_system, v_timeline);
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE holdfast.store s SET system_id = v_system, timeline = v_timeline,
           epoch = CASE WHEN s.system_id = v_system AND s.timeline < v_timeline THEN holdfast.current_epoch(s)
                   ELSE greatest(holdfast.current_epoch(s) + 1, current_date - date '2025-01-01') END
    WHERE (s.system_id, s.timeline) <> (v_system, v_timeline) RETURNING s.epoch INTO v_epoch;
    IF NOT FOUND THEN
        RETURN;  -- another connection has just done it
    END IF;
    INSERT INTO holdfast.epochs (epoch, system_id, timeline) VALUES (v_epoch, v_system, v_timeline);
    -- Numbers of jobs and revisions of policies go on above those that were lost.
    PERFORM setval('holdfast.event_seq', nextval('holdfast.event_seq') + 131072 * (1::bigint << 24));
    UPDATE holdfast.consumers SET revision = revision + 100000;
    RETURN QUERY SELECT v_epoch, v_timeline;
END $$;

-- The last place that a reader may go to: just below the oldest running transaction, since whatever commits
-- later has a place above it.
CREATE OR REPLACE FUNCTION holdfast.horizon() RETURNS holdfast.place LANGUAGE sql STABLE AS $$
    SELECT holdfast.current_epoch(s), pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1, 9223372036854775807
    FROM holdfast.store s;
$$;

-- What every publish begins with: the channel, its lock, and a sequence number per event.
CREATE OR REPLACE FUNCTION holdfast.begin_publish(
    p_channel text, p_count integer,
    OUT channel_id integer, OUT epoch integer, OUT tx bigint, OUT now timestamptz, OUT bounded boolean,
    OUT seqs bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    -- An older snapshot could miss a consumer that was created since, and its events with it.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'publish needs a READ COMMITTED transaction, this one is %',
            current_setting('transaction_isolation') USING ERRCODE = 'HF003';
    ELSIF p_count > 131072 THEN
        RAISE EXCEPTION 'a batch of % events; publish at most 131072 at once', p_count USING ERRCODE = 'HF003';
    END IF;
    channel_id := holdfast.ensure_channel(p_channel);
    PERFORM pg_advisory_xact_lock_shared(holdfast.publish_lock(), channel_id);
    -- A statement of its own, so that it sees what was changed before the lock was granted.
    SELECT c.bounded, holdfast.current_epoch(s), clock_timestamp() + s.clock_offset INTO bounded, epoch, now
    FROM holdfast.channels c, holdfast.store s WHERE c.id = channel_id;
    tx := pg_current_xact_id()::text::bigint;
    v_first := nextval('holdfast.event_seq');
    seqs := ARRAY(SELECT generate_series(v_first, v_first + p_count - 1));
END $$;

-- The quick way for the usual single publish: a fresh event in a known, unbounded channel. In every other
-- case it answers nothing and has done nothing; publish_many then says what is the matter. Two
-- statements on purpose: PL/pgSQL sets up every expression anew in each transaction, and many of them cost
-- more than the inserts.
CREATE OR REPLACE FUNCTION holdfast.publish_one(
    p_channel text, p_id text, p_data bytea, p_source text, p_type text, p_key text, p_time timestamptz,
    p_headers jsonb, p_at timestamptz, p_priority smallint, p_wake boolean
) RETURNS TABLE (epoch integer, tx bigint, seqs bigint[]) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM pg_advisory_xact_lock_shared(holdfast.publish_lock(), c.id)
    FROM holdfast.channels c WHERE c.name = p_channel;
    -- A statement of its own, so that it sees the consumers that were created before the lock was granted.
    RETURN QUERY
    WITH fresh AS (
        INSERT INTO holdfast.keys (channel_id, id, source, content_hash, epoch, tx, seq, published_at)
        SELECT c.id, p_id, p_source, holdfast.content_hash(p_type, p_key, p_data), holdfast.current_epoch(s),
               pg_current_xact_id()::text::bigint, nextval('holdfast.event_seq'),
               clock_timestamp() + s.clock_offset
        FROM holdfast.channels c, holdfast.store s
        WHERE c.name = p_channel AND NOT c.bounded
          AND current_setting('transaction_isolation') = 'read committed'
        ON CONFLICT (channel_id, id, source) DO NOTHING
        RETURNING channel_id, epoch, tx, seq, published_at
    ), logged AS (
        INSERT INTO holdfast.log (channel_id, epoch, tx, seq, id, source, type, key, time, headers, data,
                                  published_at, at, priority)
        SELECT f.channel_id, f.epoch, f.tx, f.seq, p_id, p_source, p_type, p_key, p_time, p_headers, p_data,
               f.published_at, p_at, p_priority FROM fresh f
    ), made AS (
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, due_at, created_at, expires_at,
                                   state, priority, order_key)
        SELECT c.id, f.channel_id, f.epoch, f.tx, f.seq, greatest(p_at, f.published_at), f.published_at,
               greatest(p_at, f.published_at) + c.expires_after,
               (CASE WHEN p_at > f.published_at THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
               p_priority, CASE WHEN c.ordered THEN p_key END
        FROM fresh f JOIN holdfast.consumers c ON c.channel_id = f.channel_id
    )
    SELECT f.epoch, f.tx, ARRAY[f.seq] FROM fresh f
    LEFT JOIN LATERAL (SELECT pg_notify('holdfast', p_channel) WHERE p_wake) told ON true;
END $$;

-- dead → ready at the tail with fresh budgets and a higher token, with other data where some is given.
CREATE OR REPLACE FUNCTION holdfast.revive(p_consumer_id integer, p_seqs bigint[], p_data bytea) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := holdfast.now();
    v_lowest bigint := holdfast.lowest_token();
    v_risen  bigint[];
BEGIN
    WITH risen AS (
        -- Locked in order: two that name the same ones never wait for each other.
        DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM holdfast.dead_letters d
            WHERE d.consumer_id = p_consumer_id AND d.seq = ANY (p_seqs) ORDER BY d.seq FOR UPDATE))
        RETURNING *
    ), made AS (
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, token, due_at, created_at,
                                   expires_at, state, priority, order_key, errors, data)
        SELECT r.consumer_id, r.channel_id, r.epoch, r.tx, r.seq, greatest(r.token + 1, v_lowest), v_now, r.created_at,
               v_now + c.expires_after, 'ready', r.priority, r.order_key, r.errors, coalesce(p_data, r.data)
        FROM risen r JOIN holdfast.consumers c ON c.id = r.consumer_id
        RETURNING seq
    )
    SELECT array_agg(seq) INTO v_risen FROM made;
    UPDATE holdfast.depths SET live = live + cardinality(v_risen)
    WHERE consumer_id = p_consumer_id AND v_risen IS NOT NULL;
    PERFORM pg_notify('holdfast', ch.name) FROM holdfast.consumers c
        JOIN holdfast.channels ch ON ch.id = c.channel_id WHERE c.id = p_consumer_id AND v_risen IS NOT NULL;
    RETURN QUERY SELECT unnest(v_risen);
END $$;

-- Lease jobs of an ordered consumer: only the head of each key.
CREATE OR REPLACE FUNCTION holdfast.claim_ordered(p_consumer_id integer, p_worker text, p_limit integer)
RETURNS TABLE (
    epoch integer, tx bigint, seq bigint, attempts smallint, abandonments smallint, token bigint,
    lease_until timestamptz, priority smallint, due_at timestamptz, data bytea, id text, source text, type text,
    key text, "time" timestamptz, headers jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_lease   interval;
    v_now     timestamptz := holdfast.now();
    v_lowest  bigint := holdfast.lowest_token();
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
            UPDATE holdfast.jobs j SET state = 'leased', attempts = j.attempts + 1,
                   token = greatest(j.token + 1, v_lowest), lease_until = v_now + v_lease, worker = p_worker
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
    v_now    timestamptz := holdfast.now();
    v_lowest bigint := holdfast.lowest_token();
BEGIN
    LOOP
        PERFORM holdfast.single_out(p_consumer_id, p_seq);
        UPDATE holdfast.jobs j SET state = 'ready', token = greatest(j.token + 1, v_lowest), attempts = 0,
               abandonments = 0, due_at = v_now, expires_at = v_now + c.expires_after, lease_until = NULL, worker = NULL
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
