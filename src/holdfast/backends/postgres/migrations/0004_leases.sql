-- Jobs: claimed, ended, cancelled, requeued.

CREATE TYPE holdfast.job_state AS ENUM ('scheduled', 'ready', 'leased');

-- Live jobs only: a terminal one leaves for job_log or dead_letters, so that this table stays small.
-- (No foreign keys on the hot tables: their checks would cost as much as the rows.)
CREATE TABLE holdfast.jobs (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    lease_until  timestamptz,
    expires_at   timestamptz,
    state        holdfast.job_state NOT NULL,
    priority     smallint NOT NULL DEFAULT 0,
    attempts     smallint NOT NULL DEFAULT 0,
    abandonments smallint NOT NULL DEFAULT 0,
    -- Ordered consumers only: the event's key, and whether an earlier job of that key holds this one back.
    held         boolean NOT NULL DEFAULT false,
    order_key    text,
    worker       text,
    errors       jsonb,
    -- The data that a consumer gets instead of the event's own: null for all but those that somebody patched.
    data         bytea,
    -- The number of the last job that the row stands for; null: the row is one job.
    upto         bigint,
    started_at   timestamptz,
    renewed_at   timestamptz,
    -- Half empty, as is the table: a claim then finds room for a job's second version beside the first.
    PRIMARY KEY (consumer_id, seq) WITH (fillfactor = 50),
    CHECK ((state = 'leased') = (lease_until IS NOT NULL)),
    CHECK (upto IS NULL OR upto >= seq AND state = 'ready' AND NOT held AND token = 0 AND attempts = 0
           AND expires_at IS NULL AND order_key IS NULL)
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
);

-- One partial index per state: what is due is found without touching what is not.
CREATE INDEX jobs_ready ON holdfast.jobs (consumer_id, priority DESC, due_at, seq)
    WHERE state = 'ready' AND NOT held;

CREATE INDEX jobs_scheduled ON holdfast.jobs (due_at) WHERE state = 'scheduled';

CREATE INDEX jobs_leased ON holdfast.jobs (lease_until) WHERE state = 'leased';

CREATE INDEX jobs_expiring ON holdfast.jobs (expires_at) WHERE state <> 'leased' AND expires_at IS NOT NULL;

CREATE INDEX jobs_ordered ON holdfast.jobs (consumer_id, order_key, epoch, tx, seq)
    WHERE order_key IS NOT NULL;

CREATE INDEX jobs_ranges ON holdfast.jobs (consumer_id, priority DESC, due_at, seq) WHERE upto IS NOT NULL;

-- The live jobs one by one.
CREATE VIEW holdfast.live_jobs AS
SELECT consumer_id, channel_id, epoch, tx, seq, token, due_at, created_at, lease_until, expires_at, state, priority,
       attempts, abandonments, held, order_key, worker, errors, started_at, renewed_at
FROM holdfast.jobs WHERE upto IS NULL
UNION ALL
SELECT consumer_id, channel_id, epoch, tx, generate_series(seq, upto), token, due_at, created_at, lease_until,
       expires_at, state, priority, attempts, abandonments, held, order_key, worker, errors, started_at, renewed_at
FROM holdfast.jobs WHERE upto IS NOT NULL;

-- The history of jobs that ended other than dead. The key makes a second completion impossible.
CREATE TABLE holdfast.job_log (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL,
    outcome      text NOT NULL CHECK (outcome IN ('done', 'cancelled', 'discarded', 'purged')),
    priority     smallint NOT NULL,
    attempts     smallint NOT NULL,
    abandonments smallint NOT NULL,
    worker       text,
    reason       text,
    errors       jsonb,
    PRIMARY KEY (consumer_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

-- Keys to look at again: the head of such a key was locked by somebody when its turn came.
CREATE TABLE holdfast.keys_to_wake (
    consumer_id integer NOT NULL,
    order_key   text NOT NULL
);

CREATE INDEX keys_to_wake_consumer ON holdfast.keys_to_wake (consumer_id);

-- Let the first live job of a key go, if an earlier one held it back.
CREATE FUNCTION holdfast.wake_key(p_consumer_id integer, p_order_key text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_head bigint;
    v_held boolean;
BEGIN
    -- Two jobs of one key may leave at once. One at a time looks for the next, so that neither takes the
    -- other, which is about to vanish, for the head.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_order_key, p_consumer_id));
    SELECT h.seq, h.held INTO v_head, v_held FROM holdfast.jobs h
    WHERE h.consumer_id = p_consumer_id AND h.order_key = p_order_key
    ORDER BY h.epoch, h.tx, h.seq LIMIT 1;
    IF v_held THEN
        UPDATE holdfast.jobs SET held = false WHERE ctid = (
            SELECT ctid FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq = v_head
            FOR NO KEY UPDATE SKIP LOCKED);
        -- Whoever locked it may leave it as it is, and waiting here could end in a deadlock.
        IF NOT FOUND THEN
            INSERT INTO holdfast.keys_to_wake (consumer_id, order_key) VALUES (p_consumer_id, p_order_key);
        END IF;
    END IF;
END $$;

-- A job that leaves the live table makes room in a bounded consumer and lets the next job of its key go.
CREATE FUNCTION holdfast.after_leaving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths d SET live = d.live - g.n FROM (
        SELECT x.consumer_id, t.n FROM holdfast.depths x
        JOIN (SELECT consumer_id, count(*) AS n FROM gone GROUP BY consumer_id) t ON t.consumer_id = x.consumer_id
        ORDER BY x.consumer_id FOR UPDATE OF x
    ) g WHERE d.consumer_id = g.consumer_id;

    PERFORM holdfast.wake_key(l.consumer_id, l.order_key) FROM (
        SELECT DISTINCT consumer_id, order_key FROM gone WHERE order_key IS NOT NULL ORDER BY 1, 2) l;
    RETURN NULL;
END $$;

CREATE TRIGGER after_leaving AFTER DELETE ON holdfast.jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION holdfast.after_leaving();

-- Lease jobs of an ordered consumer: only the head of each key.
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
        DELETE FROM holdfast.keys_to_wake WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM holdfast.keys_to_wake WHERE consumer_id = p_consumer_id LIMIT 100
            FOR UPDATE SKIP LOCKED)) RETURNING order_key
    )
    SELECT array_agg(DISTINCT order_key ORDER BY order_key) INTO v_again FROM again;
    PERFORM holdfast.wake_key(p_consumer_id, l.order_key) FROM unnest(v_again) AS l (order_key);
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
                   token = greatest(j.token + 1, v_lowest), lease_until = v_now + v_lease,
                   started_at = v_now, worker = p_worker
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

-- The number of the row that a live job is in, if there is one: rows do not overlap.
CREATE FUNCTION holdfast.row_of(p_consumer_id integer, p_seq bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT max(seq) FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq <= p_seq;
$$;

-- Give a job that is part of a range a row of its own. Whoever changes single jobs does this first.
CREATE FUNCTION holdfast.single_out(p_consumer_id integer, p_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    s holdfast.jobs;
BEGIN
    LOOP
        SELECT * INTO s FROM holdfast.jobs
        WHERE consumer_id = p_consumer_id AND seq = holdfast.row_of(p_consumer_id, p_seq) AND upto >= p_seq FOR UPDATE;
        EXIT WHEN FOUND;
        -- If somebody else took from it while we waited, the job is now in a row that we did not see.
        PERFORM FROM holdfast.jobs
        WHERE consumer_id = p_consumer_id AND seq = holdfast.row_of(p_consumer_id, p_seq) AND upto >= p_seq;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    UPDATE holdfast.jobs SET upto = CASE WHEN s.seq < p_seq THEN p_seq - 1 END
    WHERE consumer_id = p_consumer_id AND seq = s.seq;
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, upto, due_at, created_at, state, priority)
    SELECT s.consumer_id, s.channel_id, s.epoch, s.tx, part.seq, part.upto, s.due_at, s.created_at, s.state, s.priority
    FROM (VALUES (p_seq, NULL), (p_seq + 1, s.upto)) AS part (seq, upto)
    WHERE part.seq > s.seq AND part.seq <= s.upto;
END $$;

-- A consumer's job, wherever it is now.
CREATE FUNCTION holdfast.job(p_consumer_id integer, p_seq bigint)
RETURNS TABLE (
    seq bigint, state text, epoch integer, tx bigint, attempts smallint, abandonments smallint, token bigint,
    priority smallint, created_at timestamptz, due_at timestamptz, lease_until timestamptz, ended_at timestamptz,
    worker text, reason text, errors jsonb
) LANGUAGE sql STABLE AS $$
    SELECT p_seq, state::text, epoch, tx, attempts, abandonments, token, priority, created_at, due_at, lease_until,
           NULL::timestamptz, worker, NULL::text, errors
    FROM holdfast.jobs
    WHERE consumer_id = p_consumer_id AND seq = holdfast.row_of(p_consumer_id, p_seq) AND coalesce(upto, seq) >= p_seq
    UNION ALL
    SELECT seq, outcome, epoch, tx, attempts, abandonments, token, priority, created_at, NULL, NULL,
           ended_at, worker, reason, errors
    FROM holdfast.job_log WHERE consumer_id = p_consumer_id AND seq = p_seq
    UNION ALL
    SELECT seq, 'dead', epoch, tx, attempts, abandonments, token, priority, created_at, NULL, NULL,
           died_at, worker, reason, errors
    FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id AND seq = p_seq;
$$;

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that a lease that
-- still runs is lost.
CREATE FUNCTION holdfast.requeue(p_consumer_id integer, p_seq bigint) RETURNS boolean
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

-- scheduled | ready → cancelled, for one consumer of the channel or, where none is named, for all.
CREATE FUNCTION holdfast.cancel(p_channel text, p_source text, p_id text, p_consumer text) RETURNS bigint
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
