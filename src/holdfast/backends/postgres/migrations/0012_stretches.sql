-- Stretches: a bulk publish writes one row for up to a thousand jobs that are all alike, numbered without a gap.
-- A claim takes jobs off its beginning, as rows of their own, already leased: what is published in bulk is written
-- once, when somebody works on it. The row has the number of its first job, which is also the first in the log: who
-- looks for the oldest live job finds it.

-- The number of the last job that the row stands for; null: the row is one job.
ALTER TABLE holdfast.jobs ADD upto bigint, ADD CHECK (
    upto IS NULL OR upto >= seq
    AND state = 'ready' AND NOT held AND token = 0 AND attempts = 0 AND expires_at IS NULL AND order_key IS NULL);

CREATE INDEX jobs_stretches ON holdfast.jobs (consumer_id, priority DESC, due_at, seq) WHERE upto IS NOT NULL;

-- The live jobs one by one.
CREATE VIEW holdfast.live_jobs AS
SELECT consumer_id, channel_id, epoch, tx, seq, token, due_at, created_at, lease_until, expires_at, state, priority,
       attempts, abandonments, held, order_key, worker, errors
FROM holdfast.jobs WHERE upto IS NULL
UNION ALL
SELECT consumer_id, channel_id, epoch, tx, generate_series(seq, upto), token, due_at, created_at, lease_until,
       expires_at, state, priority, attempts, abandonments, held, order_key, worker, errors
FROM holdfast.jobs WHERE upto IS NOT NULL;

-- The number of the row that a live job is in, if there is one: rows do not overlap.
CREATE FUNCTION holdfast.row_of(p_consumer_id integer, p_seq bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
    SELECT max(seq) FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq <= p_seq;
$$;

-- Give a job that is part of a stretch a row of its own. Whoever changes single jobs does this first.
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

-- What people and rules look at ------------------------------------------------------------------------------------

CREATE OR REPLACE VIEW holdfast.events AS
SELECT j.seq AS id, holdfast.readable(e.data) AS event,
       (CASE WHEN j.state = 'leased' THEN 'PROCESSING' ELSE 'PENDING' END)::holdfast.event_status AS status,
       j.attempts, j.created_at, coalesce(j.lease_until - c.lease, j.due_at) AS updated_at,
       j.lease_until - c.lease AS processing_started_at, j.abandonments, j.lease_until, j.errors,
       ch.name AS channel, c.name AS consumer, e.id AS event_id
FROM holdfast.live_jobs j
JOIN holdfast.consumers c ON c.id = j.consumer_id
JOIN holdfast.channels ch ON ch.id = j.channel_id
LEFT JOIN holdfast.log e ON (e.channel_id, e.epoch, e.tx, e.seq) = (j.channel_id, j.epoch, j.tx, j.seq);

-- A consumer's job, wherever it is now.
CREATE OR REPLACE FUNCTION holdfast.job(p_consumer_id integer, p_seq bigint)
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

-- Start, change or end the bound of a consumer. No publish may be in flight while that changes.
CREATE OR REPLACE FUNCTION holdfast.set_max_depth(p_channel_id integer, p_consumer_id integer, p_max_depth bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths SET max_depth = p_max_depth
    WHERE consumer_id = p_consumer_id AND p_max_depth IS NOT NULL;
    IF FOUND OR (p_max_depth IS NULL
                 AND NOT EXISTS (SELECT FROM holdfast.depths WHERE consumer_id = p_consumer_id)) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), p_channel_id);
    IF p_max_depth IS NULL THEN
        DELETE FROM holdfast.depths WHERE consumer_id = p_consumer_id;
    ELSE
        -- Nor may a job leave while they are counted for the first time.
        LOCK TABLE holdfast.jobs IN SHARE ROW EXCLUSIVE MODE;
        INSERT INTO holdfast.depths (consumer_id, live, max_depth)
        SELECT p_consumer_id, coalesce(sum(coalesce(upto - seq, 0) + 1), 0), p_max_depth
        FROM holdfast.jobs WHERE consumer_id = p_consumer_id;
    END IF;
    UPDATE holdfast.channels SET bounded = is_full OR holdfast.is_bounded(id) WHERE id = p_channel_id;
END $$;

-- What changes single jobs -----------------------------------------------------------------------------------------

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that
-- a lease that still runs is lost.
CREATE OR REPLACE FUNCTION holdfast.requeue(p_consumer_id integer, p_seq bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := holdfast.now();
BEGIN
    PERFORM holdfast.single_out(p_consumer_id, p_seq);
    UPDATE holdfast.jobs j SET state = 'ready', token = j.token + 1, attempts = 0, abandonments = 0,
           due_at = v_now, expires_at = v_now + c.expires_after, lease_until = NULL, worker = NULL
    FROM holdfast.consumers c
    WHERE c.id = p_consumer_id AND j.consumer_id = p_consumer_id AND j.seq = p_seq;
    IF NOT FOUND THEN
        PERFORM holdfast.revive(p_consumer_id, ARRAY[p_seq], NULL);
        RETURN FOUND;
    END IF;
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
    v_cancelled bigint;
BEGIN
    SELECT k.seq, ARRAY(SELECT c.id FROM holdfast.consumers c
                        WHERE c.channel_id = k.channel_id AND (p_consumer IS NULL OR c.name = p_consumer) ORDER BY c.id)
    INTO v_seq, v_consumers
    FROM holdfast.keys k
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = p_channel)
      AND k.id = p_id AND k.source = p_source;
    PERFORM holdfast.single_out(c.id, v_seq) FROM unnest(v_consumers) AS c (id);
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

-- Remove up to `p_limit` rows of a consumer that was taken out.
CREATE OR REPLACE FUNCTION holdfast.remove_step(
    p_consumer_id integer, p_limit bigint,
    OUT jobs bigint, OUT dead bigint, OUT history bigint, OUT done boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_left bigint := p_limit;
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.jobs WHERE ctid = ANY (ARRAY(
            SELECT j.ctid FROM holdfast.jobs j WHERE j.consumer_id = p_consumer_id
            LIMIT v_left FOR UPDATE SKIP LOCKED))
        RETURNING coalesce(upto - seq, 0) + 1 AS jobs
    )
    SELECT coalesce(sum(g.jobs), 0), p_limit - count(*) INTO jobs, v_left FROM gone g;
    DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM holdfast.dead_letters d WHERE d.consumer_id = p_consumer_id
        LIMIT v_left FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dead = ROW_COUNT;
    DELETE FROM holdfast.job_log WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM holdfast.job_log l WHERE l.consumer_id = p_consumer_id
        LIMIT v_left - dead FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS history = ROW_COUNT;
    -- One statement: a job that somebody still moves is seen where it was or where it went.
    done := NOT EXISTS (SELECT FROM holdfast.jobs WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.job_log WHERE consumer_id = p_consumer_id);
    IF done THEN
        PERFORM holdfast.fold_lock();
        DELETE FROM holdfast.lanes WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.dead_deltas WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.removals WHERE consumer_id = p_consumer_id;
    END IF;
END $$;
