-- Jobs: claimed, ended, cancelled, requeued.

CREATE TYPE holdfast.job_state AS ENUM ('scheduled', 'ready', 'leased');

-- Tokens of leases. One that is given to several jobs at once names their row, too.
CREATE SEQUENCE holdfast.tokens;

CREATE FUNCTION holdfast.next_token() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT holdfast.lowest_token() + nextval('holdfast.tokens') $$;

-- Live jobs that are in hand, or that differ from what waits in the log: a terminal one leaves for history or
-- dead_letters, so that this table stays small. A row has either one job, whose number is its id, or `members`: jobs that
-- were taken up together and are leased under one token; its id is that token, negative. Times of members are those of
-- their events. (No foreign keys on the hot tables: their checks would cost as much as the rows.)
CREATE TABLE holdfast.jobs (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    id           bigint NOT NULL,
    token        bigint NOT NULL DEFAULT 0,
    due_at       timestamptz,
    created_at   timestamptz,
    lease_until  timestamptz,
    expires_at   timestamptz,
    started_at   timestamptz,
    renewed_at   timestamptz,
    n            integer GENERATED ALWAYS AS (coalesce(cardinality(members), 1)) STORED,
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
    members      bigint[],  -- in order
    PRIMARY KEY (consumer_id, id),
    CHECK ((state = 'leased') = (lease_until IS NOT NULL)),
    CHECK ((members IS NULL) = (id > 0)),
    CHECK (CASE WHEN members IS NULL THEN due_at IS NOT NULL AND created_at IS NOT NULL
           ELSE state = 'leased' AND id = -token AND cardinality(members) > 0 AND order_key IS NULL AND data IS NULL END)
) WITH (
    fillfactor = 70,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
);

-- One partial index per state: what is due is found without touching what is not.
CREATE INDEX jobs_ready ON holdfast.jobs (consumer_id, priority DESC, due_at, id)
    WHERE state = 'ready' AND NOT held;

CREATE INDEX jobs_scheduled ON holdfast.jobs (due_at) WHERE state = 'scheduled';

CREATE INDEX jobs_leased ON holdfast.jobs (lease_until) WHERE state = 'leased';

CREATE INDEX jobs_expiring ON holdfast.jobs (expires_at) WHERE state <> 'leased' AND expires_at IS NOT NULL;

CREATE INDEX jobs_ordered ON holdfast.jobs (consumer_id, order_key, id) WHERE order_key IS NOT NULL;

-- The history of jobs that ended other than dead; like `jobs`, a row has one job or `members`. A row's numbers lie less
-- than 2^30 apart, so that a job is found by its number.
CREATE TABLE holdfast.history (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    first        bigint NOT NULL,
    last         bigint NOT NULL,
    token        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL,
    n            integer GENERATED ALWAYS AS (coalesce(cardinality(members), 1)) STORED,
    priority     smallint NOT NULL,
    attempts     smallint NOT NULL,
    abandonments smallint NOT NULL,
    outcome      text NOT NULL CHECK (outcome IN ('done', 'cancelled', 'discarded', 'purged')),
    worker       text,
    reason       text,
    cancelled_by text,
    errors       jsonb,
    members      bigint[],
    CHECK (CASE WHEN members IS NULL THEN first = last ELSE last - first < 1::bigint << 30 END)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

-- A second completion of a job is impossible.
CREATE UNIQUE INDEX history_job ON holdfast.history (consumer_id, last) WHERE members IS NULL;

-- How far apart a row's first and last numbers are: less than 8 to the power of this.
CREATE FUNCTION holdfast.width(first bigint, last bigint) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN width_bucket(last - first, ARRAY[1, 8, 64, 512, 4096, 32768, 262144, 2097152, 16777216, 134217728]::bigint[]);

-- By width: of the rows that can have a job there are few of each, while 2^30 numbers may be those of millions of rows.
CREATE UNIQUE INDEX history_members ON holdfast.history (consumer_id, holdfast.width(first, last), last, first)
    WHERE members IS NOT NULL;

-- The history of one job.
CREATE FUNCTION holdfast.ended(p_consumer_id integer, p_seq bigint) RETURNS SETOF holdfast.history
LANGUAGE sql STABLE AS $$
    SELECT * FROM holdfast.history WHERE consumer_id = p_consumer_id AND last = p_seq AND members IS NULL
    UNION ALL
    (SELECT h.* FROM generate_series(0, 10) AS w (width) CROSS JOIN LATERAL (
        SELECT * FROM holdfast.history x
        WHERE x.consumer_id = p_consumer_id AND x.members IS NOT NULL AND holdfast.width(x.first, x.last) = w.width
          AND x.last >= p_seq AND x.last < p_seq + (1::bigint << 3 * w.width) AND x.first <= p_seq
          AND p_seq = ANY (x.members)
        ORDER BY x.last LIMIT 1) h LIMIT 1);
$$;

-- The same for people, job by job.
CREATE VIEW holdfast.job_log AS
SELECT h.consumer_id, h.channel_id, h.epoch, m.seq, h.token, h.created_at, h.ended_at, h.outcome, h.priority, h.attempts,
       h.abandonments, h.worker, h.reason, h.errors, h.cancelled_by
FROM holdfast.history h CROSS JOIN LATERAL unnest(coalesce(h.members, ARRAY[h.first])) AS m (seq);

-- What is known of an event without its data, by its number alone.
CREATE FUNCTION holdfast.event(p_channel_id integer, p_seq bigint)
RETURNS TABLE (epoch integer, seq bigint, tx xid8, special boolean, published_at timestamptz, at timestamptz, priority smallint)
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE epochs (epoch) AS (
        (SELECT l.epoch FROM holdfast.log l WHERE l.channel_id = p_channel_id ORDER BY l.epoch LIMIT 1)
        UNION ALL
        SELECT (SELECT l.epoch FROM holdfast.log l WHERE l.channel_id = p_channel_id AND l.epoch > e.epoch
                ORDER BY l.epoch LIMIT 1) FROM epochs e WHERE e.epoch IS NOT NULL
    )
    SELECT l.epoch, l.seq, l.tx, l.special, l.published_at, l.at, l.priority
    FROM epochs e CROSS JOIN LATERAL (
        SELECT * FROM holdfast.log x WHERE x.channel_id = p_channel_id AND x.epoch = e.epoch AND x.seq = p_seq OFFSET 0) l;
$$;

-- The live jobs one by one: those that have rows, and those that wait in the log.
CREATE VIEW holdfast.live_jobs AS
SELECT ch.name AS channel, c.name AS consumer, j.consumer_id, j.channel_id, j.epoch, m.seq, j.token,
       coalesce(j.due_at, greatest(l.published_at, c.created_at)) AS due_at,
       coalesce(j.created_at, greatest(l.published_at, c.created_at)) AS created_at, j.lease_until,
       CASE WHEN j.members IS NULL THEN j.expires_at ELSE greatest(l.published_at, c.created_at) + c.expires_after END
           AS expires_at,
       j.state, j.priority, j.attempts, j.abandonments, j.held, j.order_key, j.worker, j.errors, j.started_at, j.renewed_at
FROM holdfast.jobs j
JOIN holdfast.consumers c ON c.id = j.consumer_id
JOIN holdfast.channels ch ON ch.id = j.channel_id
CROSS JOIN LATERAL unnest(coalesce(j.members, ARRAY[j.id])) AS m (seq)
LEFT JOIN holdfast.log l ON (l.channel_id, l.epoch, l.seq) = (j.channel_id, j.epoch, m.seq)
UNION ALL
SELECT ch.name, c.name, c.id, c.channel_id, b.epoch, b.seq, 0, greatest(l.at, l.published_at, c.created_at),
       greatest(l.published_at, c.created_at), NULL, greatest(l.at, l.published_at, c.created_at) + c.expires_after,
       (CASE WHEN l.at > l.published_at THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state, l.priority, 0::smallint,
       0::smallint, false, CASE WHEN c.ordered THEN l.key END, NULL, NULL, NULL, NULL
FROM holdfast.channels ch JOIN holdfast.consumers c ON c.channel_id = ch.id
CROSS JOIN unnest(ARRAY[false, true]) AS special
CROSS JOIN LATERAL holdfast.beyond(c.id, special, NULL) b
JOIN holdfast.log l ON (l.channel_id, l.epoch, l.seq) = (c.channel_id, b.epoch, b.seq);

-- Keys to look at again: the head of such a key was locked by somebody when its turn came.
CREATE TABLE holdfast.keys_to_wake (
    consumer_id integer NOT NULL,
    order_key   text NOT NULL
);

CREATE INDEX keys_to_wake_consumer ON holdfast.keys_to_wake (consumer_id);

-- Whether what happens now is part of a transaction that somebody else ends, perhaps much later: see
-- holdfast.complete_within.
CREATE FUNCTION holdfast.stays_open() RETURNS boolean LANGUAGE sql STABLE PARALLEL SAFE
RETURN current_setting('holdfast.stays_open', true) IS NOT DISTINCT FROM 'on';

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
    SELECT h.id, h.held INTO v_head, v_held FROM holdfast.jobs h
    WHERE h.consumer_id = p_consumer_id AND h.order_key = p_order_key
    ORDER BY h.id LIMIT 1;
    IF v_held THEN
        UPDATE holdfast.jobs SET held = false WHERE ctid = (
            SELECT ctid FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND id = v_head
            FOR NO KEY UPDATE SKIP LOCKED);
        -- Whoever locked it may leave it as it is, and waiting here could end in a deadlock.
        IF NOT FOUND THEN
            INSERT INTO holdfast.keys_to_wake (consumer_id, order_key) VALUES (p_consumer_id, p_order_key);
        END IF;
    END IF;
END $$;

-- A job that leaves the table lets the next one of its key go. In a transaction that may stay open nobody is to wait for
-- the key: the next claim looks at it, if there is a job to let go. (None is marked held while its head is locked.)
CREATE FUNCTION holdfast.after_leaving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF holdfast.stays_open() THEN
        INSERT INTO holdfast.keys_to_wake (consumer_id, order_key)
        SELECT DISTINCT g.consumer_id, g.order_key FROM gone g WHERE g.order_key IS NOT NULL AND EXISTS (
            SELECT FROM holdfast.jobs j
            WHERE j.consumer_id = g.consumer_id AND j.order_key = g.order_key AND j.held OFFSET 0);
    ELSE
        PERFORM holdfast.wake_key(l.consumer_id, l.order_key) FROM (
            SELECT DISTINCT consumer_id, order_key FROM gone WHERE order_key IS NOT NULL ORDER BY 1, 2) l;
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER after_leaving AFTER DELETE ON holdfast.jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION holdfast.after_leaving();

-- Jobs that ended make room in bounded consumers.
CREATE FUNCTION holdfast.make_room(p_consumer_ids integer[], p_counts bigint[] DEFAULT NULL) RETURNS void
LANGUAGE sql AS $$
    UPDATE holdfast.depths d SET live = d.live - g.n FROM (
        SELECT x.consumer_id, t.n FROM holdfast.depths x
        JOIN (SELECT e.id, sum(coalesce(e.n, 1)) AS n FROM unnest(p_consumer_ids, p_counts) AS e (id, n) GROUP BY e.id) t
          ON t.id = x.consumer_id
        ORDER BY x.consumer_id FOR UPDATE OF x
    ) g WHERE d.consumer_id = g.consumer_id;
$$;

CREATE FUNCTION holdfast.after_ending() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holdfast.stays_open() THEN
        PERFORM holdfast.make_room(array_agg(a.consumer_id), array_agg(a.n)) FROM added a WHERE a.outcome <> 'purged';
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER after_ending AFTER INSERT ON holdfast.history
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION holdfast.after_ending();

-- Publishers wait for whoever makes room. In a transaction that may stay open it is made at the commit.
CREATE FUNCTION holdfast.at_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths SET live = live - NEW.n WHERE consumer_id = NEW.consumer_id;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON holdfast.history DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (holdfast.stays_open()) EXECUTE FUNCTION holdfast.at_commit();

-- Rows for events that were taken up and differ from those that wait.
CREATE FUNCTION holdfast.add_jobs(c holdfast.consumers, p_epochs integer[], p_seqs bigint[]) RETURNS void
LANGUAGE sql AS $$
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, due_at, created_at, expires_at, state, priority,
                               order_key)
    SELECT c.id, c.channel_id, e.epoch, e.seq, d.due_at, greatest(l.published_at, c.created_at), d.due_at + c.expires_after,
           (CASE WHEN l.at > l.published_at THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state, l.priority,
           CASE WHEN c.ordered THEN l.key END
    FROM unnest(p_epochs, p_seqs) AS e (epoch, seq)
    CROSS JOIN LATERAL (
        SELECT x.published_at, x.at, x.priority, x.key FROM holdfast.log x
        WHERE x.channel_id = c.channel_id AND x.epoch = e.epoch AND x.seq = e.seq OFFSET 0) l
    CROSS JOIN LATERAL (SELECT greatest(l.at, l.published_at, c.created_at) AS due_at) d;
$$;

-- Make rows of the next events of the log, as long as there are any; returns whether that was all of them. Others wait for
-- the frontier meanwhile, and whoever called hangs up after some seconds, which would undo it: so it takes no longer than
-- a second.
CREATE FUNCTION holdfast.take_up_all(
    c holdfast.consumers, p_special boolean, p_now timestamptz, p_moment pg_snapshot, p_horizon bigint DEFAULT NULL
) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_until timestamptz := clock_timestamp() + interval '1 second';
    v_step  record;
BEGIN
    FOR i IN 1..10 LOOP
        EXIT WHEN clock_timestamp() > v_until;
        SELECT * INTO v_step FROM holdfast.take_up(c, p_special, 2000, p_now, p_moment, p_horizon => p_horizon);
        IF v_step.seqs <> '{}' THEN
            PERFORM holdfast.add_jobs(c, v_step.epochs, v_step.seqs);
        END IF;
        IF v_step.used_up THEN
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Make rows of special events that wait; returns of how many.
CREATE FUNCTION holdfast.take_up_special(p_consumer_id integer) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    c        holdfast.consumers;
    v_before bigint;
BEGIN
    PERFORM holdfast.lock_frontier(p_consumer_id);
    SELECT * INTO c FROM holdfast.consumers WHERE id = p_consumer_id;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    v_before := holdfast.count_beyond(p_consumer_id, true, NULL);
    PERFORM holdfast.take_up_all(c, true, holdfast.now(), holdfast.snapshot());
    RETURN v_before - holdfast.count_beyond(p_consumer_id, true, NULL);
END $$;

-- Jobs of an unordered consumer to lease: ready ones by their numbers, and the next events of the log. `used_up` as for
-- take_up.
CREATE FUNCTION holdfast.pick(
    c holdfast.consumers, p_limit integer, p_now timestamptz, p_moment pg_snapshot,
    OUT ready bigint[], OUT epochs integer[], OUT seqs bigint[], OUT places tid[], OUT used_up boolean
) LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    v_higher integer;
    v_dues   timestamptz[];
BEGIN
    SELECT coalesce(array_agg(r.id), '{}'), count(*) FILTER (WHERE r.priority > 0),
           coalesce(array_agg(r.due_at) FILTER (WHERE r.priority = 0), '{}')
    INTO ready, v_higher, v_dues
    FROM (
        SELECT j.id, j.priority, j.due_at FROM holdfast.jobs j
        WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held AND (j.expires_at IS NULL OR j.expires_at > p_now)
        ORDER BY j.priority DESC, j.due_at, j.id LIMIT p_limit FOR NO KEY UPDATE SKIP LOCKED) r;
    IF v_higher < p_limit THEN
        SELECT t.epochs, t.seqs, t.places, t.used_up INTO epochs, seqs, places, used_up
        FROM holdfast.take_up(c, false, p_limit, p_now, p_moment, v_higher, v_dues) t;
        ready := ready[1:p_limit - cardinality(seqs)];
    END IF;
END $$;

-- Jobs of an ordered consumer to lease: only the head of each key, and only up to a number, unless that is null. `used_up`
-- is false where more may follow: one call marks so many jobs held at the most, since each look passes what the looks
-- before it in the same transaction have marked.
CREATE FUNCTION holdfast.pick_heads(
    p_consumer_id integer, p_limit integer, p_now timestamptz, p_bound bigint, OUT ready bigint[], OUT used_up boolean
) LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    v_most   constant integer := 5000;
    v_picked bigint[];
    v_heads  bigint[];
    v_held   bigint;
    v_marked bigint := 0;
    v_again  text[];
BEGIN
    ready := '{}'; used_up := true;
    WITH again AS (
        DELETE FROM holdfast.keys_to_wake WHERE ctid = ANY (ARRAY(
            SELECT ctid FROM holdfast.keys_to_wake WHERE consumer_id = p_consumer_id LIMIT 100
            FOR UPDATE SKIP LOCKED)) RETURNING order_key
    )
    SELECT array_agg(DISTINCT order_key ORDER BY order_key) INTO v_again FROM again;
    PERFORM holdfast.wake_key(p_consumer_id, l.order_key) FROM unnest(v_again) AS l (order_key);
    WHILE cardinality(ready) < p_limit LOOP
        SELECT array_agg(p.id) INTO v_picked FROM (
            SELECT j.id FROM holdfast.jobs j
            WHERE j.consumer_id = p_consumer_id AND j.state = 'ready' AND NOT j.held
              AND (j.expires_at IS NULL OR j.expires_at > p_now) AND j.id <> ALL (ready)
              AND (j.id <= p_bound) IS NOT FALSE
            ORDER BY j.priority DESC, j.due_at, j.id LIMIT greatest(p_limit - cardinality(ready), 500)
            FOR NO KEY UPDATE SKIP LOCKED) p;
        -- A statement of its own, so that its snapshot is younger than the locks above.
        SELECT coalesce(array_agg(p.id ORDER BY p.place), '{}') INTO v_heads
        FROM unnest(v_picked) WITH ORDINALITY AS p (id, place) CROSS JOIN LATERAL (
            SELECT x.id, x.order_key FROM holdfast.jobs x WHERE x.consumer_id = p_consumer_id AND x.id = p.id OFFSET 0) j
        WHERE j.order_key IS NULL OR NOT EXISTS (
            SELECT FROM holdfast.jobs e
            WHERE e.consumer_id = p_consumer_id AND e.order_key = j.order_key AND e.id < j.id);
        ready := ready || v_heads[1:p_limit - cardinality(ready)];

        -- Mark a job held only under a lock on its head: then the head cannot leave before the mark is
        -- visible to the trigger that will look for the next one.
        WITH head AS MATERIALIZED (
            SELECT j.id AS behind, h.id FROM unnest(v_picked) AS p (id) CROSS JOIN LATERAL (
                SELECT x.id, x.order_key FROM holdfast.jobs x WHERE x.consumer_id = p_consumer_id AND x.id = p.id OFFSET 0) j
            CROSS JOIN LATERAL (
                SELECT e.id FROM holdfast.jobs e
                WHERE e.consumer_id = p_consumer_id AND e.order_key = j.order_key
                ORDER BY e.id LIMIT 1) h
            WHERE h.id <> j.id
        ), locked AS MATERIALIZED (
            SELECT e.id FROM holdfast.jobs e
            WHERE e.consumer_id = p_consumer_id AND e.id = ANY (ARRAY(SELECT DISTINCT id FROM head))
            FOR KEY SHARE SKIP LOCKED
        )
        UPDATE holdfast.jobs j SET held = true
        WHERE j.consumer_id = p_consumer_id
          AND j.id = ANY (ARRAY(SELECT behind FROM head WHERE id = ANY (ARRAY(SELECT id FROM locked))));
        GET DIAGNOSTICS v_held = ROW_COUNT;
        EXIT WHEN v_held = 0;
        v_marked := v_marked + v_held;
        used_up := v_marked < v_most;
        EXIT WHEN NOT used_up;
    END LOOP;
END $$;

-- Lease events of the log, up to 128 in one row. Returns the token of each.
CREATE FUNCTION holdfast.lease_events(
    c holdfast.consumers, p_worker text, p_now timestamptz, p_epochs integer[], p_seqs bigint[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    v_all     constant integer := cardinality(p_seqs);
    v_tokens  bigint[] := '{}';
    v_first   integer := 1;
    v_last    integer := 128;
    v_members bigint[];
    v_token   bigint;
BEGIN
    WHILE v_first <= v_all LOOP
        v_last := least(v_last, v_all);
        v_members := ARRAY(SELECT unnest(p_seqs[v_first:v_last]) ORDER BY 1);
        -- A row has events of one epoch, whose numbers are not far apart: see holdfast.history.
        IF p_epochs[v_first] < p_epochs[v_last] OR v_members[v_last - v_first + 1] - v_members[1] >= 1::bigint << 30 THEN
            v_last := (v_first + v_last) / 2;
            CONTINUE;
        END IF;
        v_token := holdfast.next_token();
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, token, lease_until, started_at, state, attempts,
                                   worker, members)
        VALUES (c.id, c.channel_id, p_epochs[v_first], -v_token, v_token, p_now + c.lease, p_now, 'leased', 1, p_worker,
                v_members);
        v_tokens := v_tokens || array_fill(v_token, ARRAY[v_last - v_first + 1]);
        v_first := v_last + 1;
        v_last := v_last + 128;
    END LOOP;
    RETURN v_tokens;
END $$;

-- Lease a batch, by priority, then due time. A row without a number says: there is more to take up first, ask again.
CREATE FUNCTION holdfast.claim(p_channel text, p_consumer text, p_limit integer, p_worker text)
RETURNS TABLE (
    epoch integer, seq bigint, attempts smallint, abandonments smallint, token bigint, lease_until timestamptz,
    data bytea, id text, source text, type text, key text, "time" timestamptz, headers jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz;
    v_horizon  bigint;
    v_moment   pg_snapshot;
    v_all      boolean;
    v_bound    bigint;
    v_picked   record;
    v_tokens   bigint[];
    c          holdfast.consumers;
BEGIN
    PERFORM holdfast.lock_frontier(v_consumer);
    -- Not before: somebody may have paused or removed it meanwhile.
    SELECT * INTO c FROM holdfast.consumers WHERE id = v_consumer AND NOT paused;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := holdfast.now();
    IF c.ordered AND EXISTS (SELECT FROM holdfast.frontiers WHERE consumer_id = c.id AND reach IS NOT NULL) THEN
        -- The last claim did not come to the end of the log. Where none of them does, the first events of the keys are
        -- known up to this number, once the window that begins now is used up.
        SELECT h.seq INTO v_horizon FROM holdfast.horizons(ARRAY[p_channel]) h WHERE h.entering IS NULL;
    END IF;
    -- Both frontiers go as far as this: else of two events of a key the later one could be taken up alone.
    v_moment := holdfast.snapshot();
    -- With very many special events, those that one call does not come to may be of a higher priority. Nobody waits for
    -- that: somebody may publish more of them than calls take up.
    v_all := NOT holdfast.has_special(c) OR holdfast.take_up_all(c, true, v_now, v_moment, v_horizon);
    IF c.ordered THEN
        -- An event that is not taken up yet may be an earlier one of its key.
        IF NOT v_all THEN
            v_bound := coalesce((holdfast.frontier(c.id, true)).passed_to, 0);
        END IF;
        IF NOT holdfast.take_up_all(c, false, v_now, v_moment, v_horizon) THEN
            v_all := false;
            v_bound := least(v_bound, coalesce((holdfast.frontier(c.id, false)).passed_to, 0));
        END IF;
        SELECT h.ready, '{}'::integer[] AS epochs, '{}'::bigint[] AS seqs, '{}'::tid[] AS places, h.used_up INTO v_picked
        FROM holdfast.pick_heads(c.id, p_limit, v_now, v_bound) h;
    ELSE
        SELECT * INTO v_picked FROM holdfast.pick(c, p_limit, v_now, v_moment);
    END IF;
    IF v_picked.ready = '{}' AND v_picked.seqs = '{}' AND NOT (v_picked.used_up AND v_all) THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_tokens := holdfast.lease_events(c, p_worker, v_now, v_picked.epochs, v_picked.seqs);
    IF v_picked.ready = '{}' THEN
        -- The usual case: all of it comes from the log, in its order.
        RETURN QUERY
        SELECT t.epoch, t.seq, 1::smallint, 0::smallint, t.token, v_now + c.lease, l.data, l.id, l.source, l.type, l.key,
               coalesce(l.time, l.published_at), l.headers
        FROM unnest(v_picked.epochs, v_picked.seqs, v_tokens, v_picked.places) AS t (epoch, seq, token, place)
        CROSS JOIN LATERAL (SELECT * FROM holdfast.log e WHERE e.ctid = t.place OFFSET 0) l;
        RETURN;
    END IF;
    RETURN QUERY
    WITH claimed AS (
        UPDATE holdfast.jobs j
        SET state = 'leased', attempts = j.attempts + 1, token = (SELECT holdfast.next_token()),
            lease_until = v_now + c.lease, started_at = v_now, worker = p_worker
        WHERE j.consumer_id = c.id AND j.id = ANY (v_picked.ready) RETURNING *
    )
    SELECT j.epoch, j.seq, j.attempts, j.abandonments, j.token, v_now + c.lease, coalesce(j.data, l.data), l.id, l.source,
           l.type, l.key, coalesce(l.time, l.published_at), l.headers
    FROM (
        SELECT k.epoch, k.id AS seq, k.attempts, k.abandonments, k.token, k.priority, k.due_at, k.data FROM claimed k
        UNION ALL
        SELECT t.epoch, t.seq, 1::smallint, 0::smallint, t.token, 0::smallint, NULL, NULL
        FROM unnest(v_picked.epochs, v_picked.seqs, v_tokens) AS t (epoch, seq, token)
    ) j
    CROSS JOIN LATERAL (
        SELECT * FROM holdfast.log e
        WHERE e.channel_id = c.channel_id AND e.epoch = j.epoch AND e.seq = j.seq OFFSET 0) l
    ORDER BY j.priority DESC, coalesce(j.due_at, greatest(l.published_at, c.created_at)), j.seq;
END $$;

CREATE FUNCTION holdfast.consumer_id(p_channel text, p_consumer text) RETURNS integer LANGUAGE sql STABLE AS $$
    SELECT c.id FROM holdfast.consumers c JOIN holdfast.channels ch ON ch.id = c.channel_id
    WHERE ch.name = p_channel AND c.name = p_consumer;
$$;

-- Lock the rows of members that leases name, in one order with everybody who waits for locks.
CREATE FUNCTION holdfast.lock_members(p_consumer_ids integer[], p_tokens bigint[]) RETURNS boolean
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM holdfast.jobs j
    JOIN (SELECT DISTINCT l.consumer_id, -l.token AS id FROM unnest(p_consumer_ids, p_tokens) AS l (consumer_id, token)) r
      ON r.consumer_id = j.consumer_id AND r.id = j.id
    WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (ARRAY(SELECT -token FROM unnest(p_tokens) AS t (token)))
    ORDER BY j.consumer_id, j.id FOR UPDATE OF j;
    RETURN FOUND;
END $$;

-- Give members of leased rows rows of their own, under the same token. Whoever changes single jobs does this first.
CREATE FUNCTION holdfast.split_off(p_consumer_ids integer[], p_seqs bigint[], p_tokens bigint[]) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holdfast.lock_members(p_consumer_ids, p_tokens) THEN
        RETURN;
    END IF;
    WITH parts AS MATERIALIZED (
        SELECT j.*, ARRAY(SELECT unnest(j.members) INTERSECT SELECT unnest(l.seqs)) AS off,
               ARRAY(SELECT unnest(j.members) EXCEPT SELECT unnest(l.seqs) ORDER BY 1) AS rest
        FROM (SELECT n.consumer_id, n.token, array_agg(n.seq) AS seqs
              FROM unnest(p_consumer_ids, p_seqs, p_tokens) AS n (consumer_id, seq, token) GROUP BY 1, 2) l
        CROSS JOIN LATERAL (
            SELECT * FROM holdfast.jobs x WHERE x.consumer_id = l.consumer_id AND x.id = -l.token OFFSET 0) j
    ), emptied AS (
        DELETE FROM holdfast.jobs j USING parts p
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.consumer_id = p.consumer_id AND j.id = p.id AND p.rest = '{}'
    ), kept AS (
        UPDATE holdfast.jobs j SET members = p.rest FROM parts p
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.consumer_id = p.consumer_id AND j.id = p.id
          AND p.rest <> '{}' AND p.off <> '{}'
    )
    INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, token, due_at, created_at, lease_until, expires_at,
                               started_at, renewed_at, state, priority, attempts, abandonments, worker)
    SELECT p.consumer_id, p.channel_id, p.epoch, s.seq, p.token, d.due_at, d.due_at, p.lease_until,
           d.due_at + c.expires_after, p.started_at, p.renewed_at, p.state, p.priority, p.attempts, p.abandonments, p.worker
    FROM parts p CROSS JOIN LATERAL unnest(p.off) AS s (seq)
    JOIN holdfast.consumers c ON c.id = p.consumer_id
    CROSS JOIN LATERAL (
        SELECT x.published_at FROM holdfast.log x
        WHERE x.channel_id = p.channel_id AND x.epoch = p.epoch AND x.seq = s.seq OFFSET 0) l
    CROSS JOIN LATERAL (SELECT greatest(l.published_at, c.created_at) AS due_at) d;
END $$;

-- Give jobs that wait in the log rows of their own. Those at the beginning of the backlog are taken up; others leave its
-- order. Locks the frontiers.
CREATE FUNCTION holdfast.take_out(p_consumer_ids integer[], p_seqs bigint[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_now  timestamptz := holdfast.now();
    v_seqs bigint[];
    v_left record;
    c      holdfast.consumers;
BEGIN
    PERFORM holdfast.lock_frontier(o.id) FROM (SELECT DISTINCT id FROM unnest(p_consumer_ids) AS o (id) ORDER BY id) o;
    FOR c IN SELECT * FROM holdfast.consumers WHERE id = ANY (p_consumer_ids) ORDER BY id LOOP
        IF c.expires_after IS NOT NULL THEN
            -- What expired at the beginning of the backlog is taken up, so that the order of the log is left by few.
            PERFORM holdfast.take_up(c, false, 0, v_now, holdfast.snapshot());
        END IF;
        v_seqs := ARRAY(SELECT t.seq FROM unnest(p_consumer_ids, p_seqs) AS t (consumer_id, seq) WHERE t.consumer_id = c.id);
        SELECT array_agg(l.epoch) AS epochs, array_agg(l.seq) AS seqs INTO v_left
        FROM unnest(v_seqs) AS s (seq) CROSS JOIN LATERAL holdfast.event(c.channel_id, s.seq) l
        WHERE holdfast.is_beyond(c, l.special, l.epoch, l.tx, l.seq, l.published_at);
        IF v_left.seqs IS NOT NULL THEN
            PERFORM holdfast.add_jobs(c, v_left.epochs, v_left.seqs);
            INSERT INTO holdfast.ahead (consumer_id, seq) SELECT c.id, unnest(v_left.seqs);
        END IF;
    END LOOP;
END $$;

-- Give one job a row of its own, wherever it is. Locks the frontier.
CREATE FUNCTION holdfast.single_out(p_consumer_id integer, p_seq bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_token bigint;
BEGIN
    PERFORM holdfast.take_out(ARRAY[p_consumer_id], ARRAY[p_seq]);
    SELECT j.token INTO v_token FROM holdfast.jobs j
    WHERE j.consumer_id = p_consumer_id AND j.id < 0 AND p_seq = ANY (j.members);
    IF FOUND THEN
        PERFORM holdfast.split_off(ARRAY[p_consumer_id], ARRAY[p_seq], ARRAY[v_token]);
    END IF;
END $$;

-- leased → done. The jobs come by token, each token once, with the number of its jobs; these in order. Returns those that
-- are not leased under their tokens any more.
CREATE FUNCTION holdfast.complete(
    p_channel text, p_consumer text, p_tokens bigint[], p_counts integer[], p_seqs bigint[]
) RETURNS TABLE (seq bigint, token bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz := holdfast.now();
    v_ids      bigint[] := ARRAY(SELECT -t FROM unnest(p_tokens) AS t);
    v_whole    bigint[];
    v_seqs     bigint[];
    v_tokens   bigint[];
    v_done     bigint[] := '{}';
    v_of       bigint[] := '{}';
BEGIN
    PERFORM FROM holdfast.jobs WHERE consumer_id = v_consumer AND id = ANY (v_ids) ORDER BY id FOR UPDATE;
    IF FOUND THEN
        -- The usual case: all members of a row at once.
        WITH named AS MATERIALIZED (
            SELECT -t.token AS id, p_seqs[t.upto - t.n + 1:t.upto] AS seqs FROM (
                SELECT g.token, g.n, sum(g.n) OVER (ORDER BY g.i)::integer AS upto
                FROM unnest(p_tokens, p_counts) WITH ORDINALITY AS g (token, n, i)) t
        ), whole AS (
            DELETE FROM holdfast.jobs j USING named g
            WHERE j.consumer_id = v_consumer AND j.id = ANY (v_ids) AND j.id = g.id AND j.members = g.seqs RETURNING j.*
        ), logged AS (
            INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at, outcome,
                                          priority, attempts, abandonments, worker, errors, members)
            SELECT w.consumer_id, w.channel_id, w.epoch, w.members[1], w.members[w.n], w.token,
                   holdfast.created_at(w.channel_id, w.epoch, w.members[1], w.started_at),
                   v_now, 'done', w.priority, w.attempts, w.abandonments, w.worker, w.errors, w.members FROM whole w
        )
        SELECT coalesce(array_agg(w.token), '{}') INTO v_whole FROM whole w;
        IF cardinality(v_whole) = cardinality(p_tokens) THEN
            RETURN;
        END IF;
    END IF;
    SELECT array_agg(n.seq), array_agg(n.token) INTO v_seqs, v_tokens
    FROM unnest(p_seqs, ARRAY(SELECT g.token FROM unnest(p_tokens, p_counts) WITH ORDINALITY AS g (token, n, i)
                              CROSS JOIN generate_series(1, g.n) ORDER BY g.i)) AS n (seq, token)
    WHERE (n.token <> ALL (v_whole)) IS NOT FALSE;
    IF v_whole IS NOT NULL THEN
        WITH parts AS MATERIALIZED (
            SELECT j.*, ARRAY(SELECT unnest(j.members) INTERSECT SELECT unnest(g.seqs) ORDER BY 1) AS done,
                   ARRAY(SELECT unnest(j.members) EXCEPT SELECT unnest(g.seqs) ORDER BY 1) AS rest
            FROM (SELECT n.token, array_agg(n.seq) AS seqs FROM unnest(v_seqs, v_tokens) AS n (seq, token) GROUP BY n.token) g
            CROSS JOIN LATERAL (
                SELECT * FROM holdfast.jobs x WHERE x.consumer_id = v_consumer AND x.id = -g.token OFFSET 0) j
        ), emptied AS (
            DELETE FROM holdfast.jobs j
            WHERE j.consumer_id = v_consumer AND j.id = ANY (ARRAY(SELECT id FROM parts WHERE rest = '{}'))
        ), kept AS (
            UPDATE holdfast.jobs j SET members = p.rest FROM parts p
            WHERE j.consumer_id = v_consumer AND j.id = ANY (v_ids) AND j.id = p.id AND p.rest <> '{}' AND p.done <> '{}'
        ), logged AS (
            INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at, outcome,
                                          priority, attempts, abandonments, worker, errors, members)
            SELECT p.consumer_id, p.channel_id, p.epoch, p.done[1], p.done[cardinality(p.done)], p.token,
                   holdfast.created_at(p.channel_id, p.epoch, p.done[1], p.started_at),
                   v_now, 'done', p.priority, p.attempts, p.abandonments, p.worker, p.errors, p.done
            FROM parts p WHERE p.done <> '{}'
        )
        SELECT coalesce(array_agg(d.seq), '{}'), coalesce(array_agg(p.token), '{}') INTO v_done, v_of
        FROM parts p CROSS JOIN LATERAL unnest(p.done) AS d (seq);
        IF cardinality(v_done) = cardinality(v_seqs) THEN
            RETURN;
        END IF;
    END IF;
    RETURN QUERY
    SELECT * FROM holdfast.complete_rows(v_consumer, v_seqs, v_tokens, v_now)
    EXCEPT SELECT * FROM unnest(v_done, v_of);
END $$;

-- The same for jobs that have rows of their own.
CREATE FUNCTION holdfast.complete_rows(p_consumer_id integer, p_seqs bigint[], p_tokens bigint[], p_now timestamptz)
RETURNS TABLE (seq bigint, token bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND id = ANY (p_seqs) ORDER BY id FOR UPDATE;
    RETURN QUERY
    WITH ended AS (
        DELETE FROM holdfast.jobs j
        WHERE j.consumer_id = p_consumer_id AND j.id = ANY (p_seqs) AND j.lease_until IS NOT NULL
          AND ((j.id, j.token) IN (SELECT * FROM unnest(p_seqs, p_tokens))) IS TRUE
        RETURNING j.*
    ), logged AS (
        INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at, outcome,
                                      priority, attempts, abandonments, worker, errors)
        SELECT consumer_id, channel_id, epoch, id, id, token, created_at, p_now, 'done', priority, attempts, abandonments,
               worker, errors FROM ended
    )
    SELECT * FROM unnest(p_seqs, p_tokens) EXCEPT SELECT id, token FROM ended;
END $$;

-- When an event was published, or another time where it was trimmed.
CREATE FUNCTION holdfast.created_at(p_channel_id integer, p_epoch integer, p_seq bigint, p_else timestamptz)
RETURNS timestamptz LANGUAGE sql STABLE AS $$
    SELECT coalesce((SELECT l.published_at FROM holdfast.log l
                     WHERE l.channel_id = p_channel_id AND l.epoch = p_epoch AND l.seq = p_seq), p_else);
$$;

-- leased → scheduled or ready. Without an error the attempt is given back; without a delay the job returns to its old
-- place. What is ready at once wakes the listeners.
CREATE FUNCTION holdfast.retry(
    p_channel text, p_consumer text, p_seqs bigint[], p_tokens bigint[], p_delays interval[], p_errors jsonb[]
) RETURNS TABLE (seq bigint, token bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz := holdfast.now();
BEGIN
    PERFORM holdfast.split_off(array_fill(v_consumer, ARRAY[cardinality(p_seqs)]), p_seqs, p_tokens);
    PERFORM FROM holdfast.jobs WHERE consumer_id = v_consumer AND id = ANY (p_seqs) ORDER BY id FOR NO KEY UPDATE;
    RETURN QUERY
    WITH back AS (
        UPDATE holdfast.jobs j
        SET state = (CASE WHEN l.delay > '0' THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
            due_at = CASE WHEN l.delay IS NULL THEN j.due_at ELSE v_now + l.delay END,
            -- A smallint: the next claim adds one to it, and must not fail after tens of thousands of attempts.
            attempts = CASE WHEN l.error IS NULL THEN j.attempts - 1 ELSE least(j.attempts, 32766) END,
            -- Of very many errors the first five and the latest are kept.
            errors = CASE WHEN l.error IS NULL THEN j.errors
                     ELSE coalesce(CASE WHEN jsonb_array_length(j.errors) >= 1000 THEN j.errors - 5 ELSE j.errors END,
                                   '[]') || (l.error || jsonb_build_object('at', v_now)) END,
            lease_until = NULL, worker = NULL
        FROM unnest(p_seqs, p_tokens, p_delays, p_errors) AS l (seq, token, delay, error)
        WHERE j.consumer_id = v_consumer AND j.id = ANY (p_seqs) AND j.id = l.seq AND j.token = l.token
          AND j.lease_until IS NOT NULL
        RETURNING j.id, j.token, j.state
    ), wake AS MATERIALIZED (
        SELECT pg_notify('holdfast', p_channel) WHERE EXISTS (SELECT FROM back WHERE state = 'ready')
    )
    SELECT b.id, b.token FROM back b LEFT JOIN wake ON true;
END $$;

-- Move the deadline of leases that are still held. A row goes on as a whole where all its members do. A job that is ended in
-- a transaction that may stay open counts as held, and is left as it is: that transaction holds the lease.
CREATE FUNCTION holdfast.extend(p_channel text, p_consumer text, p_seqs bigint[], p_tokens bigint[], p_by interval)
RETURNS TABLE (seq bigint, token bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz := holdfast.now();
    v_ending   bigint[];
BEGIN
    IF holdfast.lock_members(array_fill(v_consumer, ARRAY[cardinality(p_tokens)]), p_tokens) THEN
        RETURN QUERY
        WITH whole AS (
            UPDATE holdfast.jobs j SET lease_until = v_now + p_by, renewed_at = v_now
            FROM (SELECT -n.token AS id, array_agg(n.seq) AS seqs FROM unnest(p_seqs, p_tokens) AS n (seq, token)
                  GROUP BY n.token) l
            WHERE j.consumer_id = v_consumer AND j.id = ANY (ARRAY(SELECT -t FROM unnest(p_tokens) AS t)) AND j.id = l.id
              AND j.members <@ l.seqs
            RETURNING j.token, j.members
        )
        SELECT m.seq, w.token FROM whole w CROSS JOIN LATERAL unnest(w.members) AS m (seq);
        PERFORM holdfast.split_off(array_agg(v_consumer), array_agg(n.seq), array_agg(n.token))
        FROM unnest(p_seqs, p_tokens) AS n (seq, token)
        WHERE NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.consumer_id = v_consumer AND j.id = -n.token
                          AND j.renewed_at = v_now OFFSET 0)
        HAVING count(*) > 0;
    END IF;
    v_ending := holdfast.ending(v_consumer, p_seqs);
    PERFORM FROM holdfast.jobs WHERE consumer_id = v_consumer AND id = ANY (p_seqs) AND id <> ALL (v_ending)
    ORDER BY id FOR NO KEY UPDATE;
    RETURN QUERY
    UPDATE holdfast.jobs j SET lease_until = v_now + p_by, renewed_at = v_now
    FROM unnest(p_seqs, p_tokens) AS l (seq, token)
    WHERE j.consumer_id = v_consumer AND j.id = ANY (p_seqs) AND j.id = l.seq AND j.token = l.token
      AND j.lease_until IS NOT NULL AND j.id <> ALL (v_ending)
    RETURNING j.id, j.token;
    IF v_ending <> '{}' THEN
        RETURN QUERY
        SELECT j.id, j.token FROM unnest(p_seqs, p_tokens) AS l (seq, token) JOIN holdfast.jobs j
          ON j.consumer_id = v_consumer AND j.id = l.seq AND j.token = l.token
        WHERE j.consumer_id = v_consumer AND j.id = ANY (v_ending) AND j.lease_until IS NOT NULL;
    END IF;
END $$;

-- What a transaction that may stay open holds while it ends a job.
CREATE FUNCTION holdfast.ending_lock(p_consumer_id integer, p_seq bigint) RETURNS bigint LANGUAGE sql IMMUTABLE
RETURN hashtextextended('ending ' || p_seq, p_consumer_id);

-- Those of some jobs that somebody is ending at this moment, in a transaction that may stay open. It is read from the
-- server's locks, and takes none: whoever held some rows while he waits for others could wait for ever.
CREATE FUNCTION holdfast.ending(p_consumer_id integer, p_seqs bigint[]) RETURNS bigint[] LANGUAGE sql AS $$
    WITH held AS MATERIALIZED (
        SELECT l.classid::bigint << 32 | l.objid::bigint AS key FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ExclusiveLock' AND l.objsubid = 1
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
    )
    SELECT ARRAY(SELECT s.seq FROM unnest(p_seqs) AS s (seq)
                 WHERE holdfast.ending_lock(p_consumer_id, s.seq) IN (SELECT h.key FROM held h));
$$;

-- A consumer's job, wherever it is now.
CREATE FUNCTION holdfast.job(p_consumer_id integer, p_seq bigint)
RETURNS TABLE (
    seq bigint, state text, epoch integer, attempts smallint, abandonments smallint, token bigint, priority smallint,
    created_at timestamptz, due_at timestamptz, lease_until timestamptz, ended_at timestamptz, worker text, reason text,
    errors jsonb, cancelled_by text
) LANGUAGE sql STABLE AS $$
    WITH c AS MATERIALIZED (
        SELECT * FROM holdfast.consumers WHERE id = p_consumer_id
    ), l AS MATERIALIZED (
        SELECT l.* FROM c CROSS JOIN LATERAL holdfast.event(c.channel_id, p_seq) l
    ), e AS MATERIALIZED (
        SELECT greatest(l.published_at, c.created_at) AS created_at FROM l, c
    )
    SELECT p_seq, j.state::text, j.epoch, j.attempts, j.abandonments, j.token, j.priority,
           coalesce(j.created_at, e.created_at), coalesce(j.due_at, e.created_at), j.lease_until, NULL::timestamptz,
           j.worker, NULL::text, j.errors, NULL::text
    FROM (
        SELECT * FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND id = p_seq
        UNION ALL
        SELECT * FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND id < 0 AND p_seq = ANY (members)
    ) j LEFT JOIN e ON true
    UNION ALL
    SELECT p_seq, h.outcome, h.epoch, h.attempts, h.abandonments, h.token, h.priority,
           CASE WHEN h.members IS NULL THEN h.created_at ELSE coalesce(e.created_at, h.created_at) END, NULL, NULL,
           h.ended_at, h.worker, h.reason, h.errors, h.cancelled_by
    FROM holdfast.ended(p_consumer_id, p_seq) h LEFT JOIN e ON true
    UNION ALL
    SELECT d.seq, 'dead', d.epoch, d.attempts, d.abandonments, d.token, d.priority, d.created_at, NULL, NULL, d.died_at,
           d.worker, d.reason, d.errors, NULL
    FROM holdfast.dead_letters d WHERE d.consumer_id = p_consumer_id AND d.seq = p_seq
    UNION ALL
    SELECT l.seq, CASE WHEN l.at > l.published_at THEN 'scheduled' ELSE 'ready' END, l.epoch, 0::smallint, 0::smallint, 0,
           l.priority, e.created_at, greatest(l.at, e.created_at), NULL, NULL, NULL, NULL, NULL, NULL
    FROM l, e, c WHERE holdfast.is_beyond(c, l.special, l.epoch, l.tx, l.seq, l.published_at);
$$;

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that a lease that
-- still runs is lost.
CREATE FUNCTION holdfast.requeue(p_channel text, p_consumer text, p_seq bigint) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz := holdfast.now();
BEGIN
    LOOP
        PERFORM holdfast.single_out(v_consumer, p_seq);
        -- The transaction that ends it may stay open, and claims wait for the frontier.
        IF holdfast.ending(v_consumer, ARRAY[p_seq]) <> '{}' THEN
            RAISE EXCEPTION 'job % is being ended in a transaction that is still open', p_seq
                USING ERRCODE = 'lock_not_available';
        END IF;
        UPDATE holdfast.jobs j SET state = 'ready', token = holdfast.next_token(), attempts = 0,
               abandonments = 0, due_at = v_now, expires_at = v_now + c.expires_after, lease_until = NULL, worker = NULL
        FROM holdfast.consumers c
        WHERE c.id = v_consumer AND j.consumer_id = v_consumer AND j.id = p_seq;
        EXIT WHEN FOUND;
        PERFORM holdfast.revive(v_consumer, ARRAY[p_seq], NULL);
        IF FOUND THEN
            RETURN true;
        END IF;
        -- Neither live nor dead, unless somebody else revived it between these statements. Of a consumer that was taken
        -- out meanwhile, rows of jobs are there until they are removed.
        IF NOT EXISTS (SELECT FROM holdfast.jobs j JOIN holdfast.consumers c ON c.id = j.consumer_id
                       WHERE j.consumer_id = v_consumer AND j.id = p_seq) THEN
            RETURN false;
        END IF;
    END LOOP;
    PERFORM pg_notify('holdfast', p_channel);
    RETURN true;
END $$;

-- The end of jobs that have rows, which the caller has locked: those that wait, with `p_running` leased ones too. Returns
-- how many there were.
CREATE FUNCTION holdfast.cancel_rows(
    p_consumer_ids integer[], p_seqs bigint[], p_now timestamptz,
    p_running boolean DEFAULT false, p_by text DEFAULT NULL, p_reason text DEFAULT NULL
) RETURNS bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM holdfast.jobs
        WHERE consumer_id = ANY (p_consumer_ids) AND id = ANY (p_seqs) AND (state <> 'leased' OR p_running) RETURNING *
    ), logged AS (
        INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
                                      outcome, priority, attempts, abandonments, worker, errors, cancelled_by, reason)
        SELECT consumer_id, channel_id, epoch, id, id, token, created_at, p_now,
               'cancelled', priority, attempts, abandonments, worker, errors, p_by, p_reason FROM gone
    )
    SELECT count(*) FROM gone;
$$;

-- The end of events that were taken up and never became jobs in rows: up to 128 in one row of history.
CREATE FUNCTION holdfast.cancel_events(
    c holdfast.consumers, p_epochs integer[], p_seqs bigint[], p_now timestamptz
) RETURNS void LANGUAGE sql AS $$
    INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at, outcome,
                                  priority, attempts, abandonments, members)
    SELECT c.id, c.channel_id, r.epoch, r.members[1], r.members[cardinality(r.members)], 0,
           holdfast.created_at(c.channel_id, r.epoch, r.members[1], p_now), p_now, 'cancelled', 0, 0, 0, r.members
    FROM (
        SELECT n.epoch, array_agg(n.seq ORDER BY n.seq) AS members
        FROM (
            SELECT e.epoch, e.seq,
                   (row_number() OVER (PARTITION BY e.epoch, e.seq >> 30 ORDER BY e.seq) - 1) / 128 AS part
            FROM unnest(p_epochs, p_seqs) AS e (epoch, seq)) n
        GROUP BY n.epoch, n.seq >> 30, n.part) r;
$$;

-- scheduled | ready → cancelled, with `p_running` also leased → cancelled, for one consumer of the channel or, where none is
-- named, for all. A leased job leaves its row under its token, and listeners are told which one it was.
CREATE FUNCTION holdfast.cancel(
    p_channel text, p_source text, p_id text, p_consumer text, p_running boolean, p_by text, p_reason text
) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_seq       bigint;
    v_consumers integer[];
BEGIN
    SELECT k.seq, ARRAY(SELECT c.id FROM holdfast.consumers c
                        WHERE c.channel_id = k.channel_id AND (p_consumer IS NULL OR c.name = p_consumer) ORDER BY c.id)
    INTO v_seq, v_consumers
    FROM holdfast.keys k
    WHERE k.channel_id = (SELECT id FROM holdfast.channels WHERE name = p_channel)
      AND k.id = p_id AND k.source = p_source;
    IF v_consumers IS NULL OR v_consumers = '{}' THEN
        RETURN 0;
    END IF;
    PERFORM holdfast.take_out(v_consumers, array_fill(v_seq, ARRAY[cardinality(v_consumers)]));
    IF p_running THEN
        PERFORM holdfast.split_off(array_agg(j.consumer_id), array_agg(v_seq), array_agg(j.token))
        FROM holdfast.jobs j WHERE j.consumer_id = ANY (v_consumers) AND j.id < 0 AND v_seq = ANY (j.members)
        HAVING count(*) > 0;
    END IF;
    PERFORM FROM holdfast.jobs
    WHERE consumer_id = ANY (v_consumers) AND id = v_seq AND (state <> 'leased' OR p_running)
    ORDER BY consumer_id FOR UPDATE;
    IF p_running THEN
        PERFORM pg_notify('holdfast', concat_ws('/', p_channel, c.name, v_seq))
        FROM holdfast.jobs j JOIN holdfast.consumers c ON c.id = j.consumer_id
        WHERE j.consumer_id = ANY (v_consumers) AND j.id = v_seq AND j.state = 'leased';
    END IF;
    RETURN holdfast.cancel_rows(v_consumers, ARRAY[v_seq], holdfast.now(), p_running, p_by, p_reason);
END $$;

-- scheduled | ready → cancelled, for up to `p_limit` jobs of one consumer: rows first, then the next events of the log,
-- which need none. Without a job to cancel, `more` says that there may be some behind what was passed over: ask again.
-- All null where there is no such consumer.
CREATE FUNCTION holdfast.cancel_waiting(
    p_channel text, p_consumer text, p_limit integer, OUT cancelled bigint, OUT more boolean
) LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    -- Each row of an ordered consumer may take a lock on its key, and the server has room for some thousands.
    v_rows     constant integer := least(p_limit, 2000);
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_now      timestamptz;
    v_step     record;
    v_all      boolean := true;
    c          holdfast.consumers;
BEGIN
    PERFORM holdfast.lock_frontier(v_consumer);
    SELECT * INTO c FROM holdfast.consumers WHERE id = v_consumer;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_now := holdfast.now();
    IF v_rows > 0 AND holdfast.has_special(c) THEN
        SELECT * INTO v_step FROM holdfast.take_up(c, true, v_rows, v_now, holdfast.snapshot());
        PERFORM holdfast.add_jobs(c, v_step.epochs, v_step.seqs);
        v_all := v_step.used_up;
    END IF;
    cancelled := holdfast.cancel_rows(ARRAY[c.id], ARRAY(
        SELECT j.id FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.id > 0 AND j.state <> 'leased'
        ORDER BY j.id LIMIT v_rows FOR UPDATE), v_now);
    IF cancelled < v_rows THEN
        SELECT * INTO v_step
        FROM holdfast.take_up(c, false, p_limit - cancelled::integer, v_now, holdfast.snapshot());
        PERFORM holdfast.cancel_events(c, v_step.epochs, v_step.seqs, v_now);
        cancelled := cancelled + cardinality(v_step.seqs);
        v_all := v_all AND v_step.used_up;
    END IF;
    -- What expired in the log has become rows.
    more := cancelled = 0 AND p_limit > 0 AND (NOT v_all OR EXISTS (
        SELECT FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.state = 'ready' AND NOT j.held));
END $$;

-- What time does to jobs. These functions, and those of operators, may wait for a publisher of a bounded channel while they
-- hold locks that claims need, of many consumers at once. So they give way, and whoever calls them tries again, or later.

-- scheduled → ready, for what is still due.
CREATE FUNCTION holdfast.promote(p_consumer_ids integer[], p_seqs bigint[]) RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_now      timestamptz := holdfast.now();
    v_channels integer[];
BEGIN
    PERFORM holdfast.take_out(p_consumer_ids, p_seqs);
    PERFORM FROM holdfast.jobs j JOIN unnest(p_consumer_ids, p_seqs) AS d (consumer_id, seq)
      ON d.consumer_id = j.consumer_id AND d.seq = j.id
    WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
    ORDER BY j.consumer_id, j.id FOR NO KEY UPDATE OF j;
    WITH promoted AS (
        UPDATE holdfast.jobs j SET state = 'ready' FROM unnest(p_consumer_ids, p_seqs) AS d (consumer_id, seq)
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
          AND j.consumer_id = d.consumer_id AND j.id = d.seq AND j.state = 'scheduled' AND j.due_at <= v_now
        RETURNING j.channel_id
    )
    SELECT array_agg(channel_id) INTO v_channels FROM promoted;
    PERFORM pg_notify('holdfast', name) FROM holdfast.channels WHERE id = ANY (v_channels);
    RETURN coalesce(cardinality(v_channels), 0);
END $$;

-- Lock jobs that have rows of their own, as far as nobody else has; returns their numbers, null in place of the others. A
-- transaction that completes a job may stay open: the lifecycle leaves it to a later step.
CREATE FUNCTION holdfast.lock_free(p_consumer_ids integer[], p_seqs bigint[]) RETURNS bigint[] LANGUAGE sql AS $$
    WITH free AS MATERIALIZED (
        SELECT j.consumer_id, j.id FROM holdfast.jobs j JOIN unnest(p_consumer_ids, p_seqs) AS d (consumer_id, seq)
          ON d.consumer_id = j.consumer_id AND d.seq = j.id
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
        ORDER BY j.consumer_id, j.id FOR UPDATE OF j SKIP LOCKED
    )
    SELECT array_agg(f.id ORDER BY d.i)
    FROM unnest(p_consumer_ids, p_seqs) WITH ORDINALITY AS d (consumer_id, seq, i)
    LEFT JOIN free f ON f.consumer_id = d.consumer_id AND f.id = d.seq;
$$;

-- leased → ready at the tail, for leases that are still overdue: the attempt is given back and an abandonment is
-- counted, for each job by itself.
CREATE FUNCTION holdfast.abandon(p_consumer_ids integer[], p_seqs bigint[], p_tokens bigint[], p_errors jsonb[])
RETURNS bigint LANGUAGE plpgsql SET lock_timeout = '500ms' AS $$
DECLARE
    v_now      timestamptz := holdfast.now();
    v_channels integer[];
BEGIN
    PERFORM holdfast.split_off(p_consumer_ids, p_seqs, p_tokens);
    p_seqs := holdfast.lock_free(p_consumer_ids, p_seqs);
    WITH abandoned AS (
        UPDATE holdfast.jobs j
        SET state = 'ready', due_at = v_now, lease_until = NULL, worker = NULL,
            attempts = j.attempts - 1, abandonments = j.abandonments + 1,
            errors = coalesce(j.errors, '[]') || (d.error || jsonb_build_object('at', v_now))
        FROM unnest(p_consumer_ids, p_seqs, p_tokens, p_errors) AS d (consumer_id, seq, token, error)
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
          AND j.consumer_id = d.consumer_id AND j.id = d.seq AND j.token = d.token AND j.lease_until <= v_now
        RETURNING j.channel_id
    )
    SELECT array_agg(channel_id) INTO v_channels FROM abandoned;
    PERFORM pg_notify('holdfast', name) FROM holdfast.channels WHERE id = ANY (v_channels);
    RETURN coalesce(cardinality(v_channels), 0);
END $$;
