-- Retention: a full channel, trimming the log, forgetting what ended, purging the dead.
-- (OFFSET 0 keeps a look-up by key from becoming a join with the whole table.)

-- A full channel refuses publishes. `bounded` is then true as well: it tells publish to look closer at all.
ALTER TABLE holdfast.channels ADD is_full boolean NOT NULL DEFAULT false;

CREATE FUNCTION holdfast.is_bounded(p_channel_id integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM holdfast.depths d JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = p_channel_id);
$$;

-- Refuse while the channel or a bounded consumer of it is full; serialises publishers of channels with bounded
-- consumers only.
CREATE OR REPLACE FUNCTION holdfast.check_depth(p_channel text, p_channel_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bound record;
BEGIN
    IF (SELECT is_full FROM holdfast.channels WHERE id = p_channel_id) THEN
        RAISE EXCEPTION 'channel % is full by its max_bytes policy', p_channel
            USING ERRCODE = 'HF002',
                  HINT = 'let its consumers catch up so that it can be trimmed, or raise max_bytes';
    END IF;
    FOR bound IN
        SELECT c.name, d.live, d.max_depth FROM holdfast.depths d
        JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = p_channel_id ORDER BY d.consumer_id FOR UPDATE OF d
    LOOP
        IF bound.live >= bound.max_depth THEN
            RAISE EXCEPTION 'consumer % of channel % holds % live jobs; its max_depth is %',
                bound.name, p_channel, bound.live, bound.max_depth
                USING ERRCODE = 'HF002', HINT = 'publish again once it has caught up';
        END IF;
    END LOOP;
END $$;

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
        SELECT p_consumer_id, count(*), p_max_depth FROM holdfast.jobs WHERE consumer_id = p_consumer_id;
    END IF;
    UPDATE holdfast.channels SET bounded = is_full OR holdfast.is_bounded(id) WHERE id = p_channel_id;
END $$;

CREATE FUNCTION holdfast.set_full(p_channel text, p_full boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- A statement of its own: the next one sees the bounds that somebody else was setting meanwhile.
    PERFORM FROM holdfast.channels WHERE name = p_channel FOR NO KEY UPDATE;
    UPDATE holdfast.channels SET is_full = p_full, bounded = p_full OR holdfast.is_bounded(id)
    WHERE name = p_channel;
    RETURN FOUND;
END $$;

-- A trim leaves dead entries at one end of the index, which readers from the beginning have to pass.
ALTER TABLE holdfast.log SET (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000);

-- What purge_dead goes by.
CREATE INDEX dead_letters_died ON holdfast.dead_letters (channel_id, died_at);

-- Events that a trim passed over for their dead letter, which has been requeued or purged since. A later trim
-- looks at them again. There can be several rows for one event: nothing ever waits for another's row.
CREATE TABLE holdfast.released (
    channel_id integer NOT NULL,
    epoch      integer NOT NULL,
    tx         bigint NOT NULL,
    seq        bigint NOT NULL
);
CREATE INDEX released_channel ON holdfast.released (channel_id);

CREATE FUNCTION holdfast.release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A trim that is under way may still pass over the event. Wait for it: then we see how far it came.
    PERFORM FROM holdfast.channels WHERE id IN (SELECT channel_id FROM moved) ORDER BY id FOR SHARE;
    INSERT INTO holdfast.released (channel_id, epoch, tx, seq)
    SELECT m.channel_id, m.epoch, m.tx, m.seq FROM moved m JOIN holdfast.channels c ON c.id = m.channel_id
    WHERE (m.epoch, m.tx, m.seq) <= (c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq);
    RETURN NULL;
END $$;
CREATE TRIGGER release AFTER DELETE ON holdfast.dead_letters
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.release();

-- From which place on somebody needs the log as a whole: stream consumers after their cursor, worker consumers
-- after what they have turned into jobs. There are no foreign groups here, and one that is not there needs all.
CREATE FUNCTION holdfast.needs(p_channel_id integer, p_ignore text[], p_groups text[])
RETURNS TABLE (consumer text, epoch integer, tx bigint, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT name, epoch, tx, seq FROM holdfast.cursors
    WHERE channel_id = p_channel_id AND name <> ALL (p_ignore)
    UNION ALL
    SELECT name, backfill_epoch, backfill_tx, backfill_seq FROM holdfast.consumers
    WHERE channel_id = p_channel_id AND backfill_until IS NOT NULL
    UNION ALL
    SELECT name, 0, 0, 0 FROM unnest(p_groups) AS g (name);
$$;

-- Remove events below the trimmed place whose dead letters are gone and whose jobs, if any, have ended.
CREATE FUNCTION holdfast.trim_released(
    p_channel_id integer, p_before timestamptz, p_limit integer, p_bound holdfast.place, p_consumers integer[]
) RETURNS integer LANGUAGE sql AS $$
    WITH looked AS MATERIALIZED (
        SELECT r.ctid, l.ctid AS event, EXISTS (
                   SELECT FROM holdfast.dead_letters d
                   WHERE d.consumer_id = ANY (p_consumers) AND d.seq = r.seq OFFSET 0) AS dead
        FROM holdfast.released r LEFT JOIN LATERAL (
            SELECT l.ctid, l.published_at FROM holdfast.log l
            WHERE l.channel_id = r.channel_id AND l.epoch = r.epoch AND l.tx = r.tx AND l.seq = r.seq OFFSET 0
        ) l ON true
        WHERE r.channel_id = p_channel_id AND (l.published_at < p_before) IS NOT FALSE
          AND (r.epoch, r.tx, r.seq) <= ((p_bound).epoch, (p_bound).tx, (p_bound).seq)
          AND NOT EXISTS (
            SELECT FROM holdfast.jobs j WHERE j.consumer_id = ANY (p_consumers) AND j.seq = r.seq OFFSET 0)
        LIMIT p_limit
    ), settled AS (
        DELETE FROM holdfast.released WHERE ctid = ANY (ARRAY(SELECT ctid FROM looked))
    ), gone AS (
        DELETE FROM holdfast.log
        WHERE ctid = ANY (ARRAY(SELECT event FROM looked WHERE NOT dead AND event IS NOT NULL)) RETURNING 1
    )
    SELECT count(*)::integer FROM gone;
$$;

-- The first live job of each worker consumer after a place. By number, which is nearly the order of places.
CREATE FUNCTION holdfast.first_jobs(p_channel_id integer, p_after holdfast.place)
RETURNS TABLE (consumer text, epoch integer, tx bigint, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT c.name, f.epoch, f.tx, f.seq FROM holdfast.consumers c CROSS JOIN LATERAL (
        SELECT j.epoch, j.tx, j.seq FROM holdfast.jobs j
        WHERE j.consumer_id = c.id
          AND (j.epoch, j.tx, j.seq) > ((p_after).epoch, (p_after).tx, (p_after).seq)
        ORDER BY j.seq LIMIT 1
    ) f WHERE c.channel_id = p_channel_id;
$$;

-- Who needs the oldest event after the trimmed place that somebody needs, if that one is old enough to go; and
-- the last place that it no longer needs.
CREATE FUNCTION holdfast.holder(
    p_channel_id integer, p_before timestamptz, p_trimmed holdfast.place, p_ignore text[], p_groups text[]
) RETURNS TABLE (consumer text, epoch integer, tx bigint, seq bigint) LANGUAGE sql STABLE AS $$
    WITH needed AS (
        SELECT n.consumer, f.epoch, f.tx, f.seq, ROW(n.epoch, n.tx, n.seq)::holdfast.place AS after
        FROM holdfast.needs(p_channel_id, p_ignore, p_groups) n CROSS JOIN LATERAL (
            SELECT l.epoch, l.tx, l.seq FROM holdfast.log l WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.tx, l.seq) > (n.epoch, n.tx, n.seq)
              AND (l.epoch, l.tx, l.seq) > ((p_trimmed).epoch, (p_trimmed).tx, (p_trimmed).seq)
            ORDER BY l.epoch, l.tx, l.seq LIMIT 1
        ) f
        UNION ALL
        SELECT j.consumer, j.epoch, j.tx, j.seq, NULL FROM holdfast.first_jobs(p_channel_id, p_trimmed) j
        UNION ALL
        -- What ended the step, where the order of jobs by number is not that of places.
        SELECT c.name, f.epoch, f.tx, f.seq, NULL FROM holdfast.consumers c CROSS JOIN LATERAL (
            SELECT l.epoch, l.tx, l.seq FROM holdfast.log l WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.tx, l.seq) > ((p_trimmed).epoch, (p_trimmed).tx, (p_trimmed).seq)
            ORDER BY l.epoch, l.tx, l.seq LIMIT 1
        ) f
        WHERE c.channel_id = p_channel_id
          AND EXISTS (SELECT FROM holdfast.jobs j WHERE j.consumer_id = c.id AND j.seq = f.seq)
    ), oldest AS (
        SELECT * FROM needed ORDER BY epoch, tx, seq, consumer LIMIT 1
    )
    SELECT o.consumer, (coalesce(o.after, (
        SELECT ROW(b.epoch, b.tx, b.seq)::holdfast.place FROM holdfast.log b WHERE b.channel_id = p_channel_id
          AND (b.epoch, b.tx, b.seq) > ((p_trimmed).epoch, (p_trimmed).tx, (p_trimmed).seq)
          AND (b.epoch, b.tx, b.seq) < (o.epoch, o.tx, o.seq)
        ORDER BY b.epoch DESC, b.tx DESC, b.seq DESC LIMIT 1), p_trimmed)).*
    FROM oldest o JOIN holdfast.log l
      ON (l.channel_id, l.epoch, l.tx, l.seq) = (p_channel_id, o.epoch, o.tx, o.seq)
    WHERE l.published_at < p_before;
$$;

-- Remove the oldest events of a channel, published before a time, as far as nobody needs them. One step, all
-- under the sweeper's lock: `holder` tells whose need ends it, now or in a later step, and the place is the
-- last that it no longer needs.
CREATE FUNCTION holdfast.trim(
    p_channel text, p_before timestamptz, p_limit integer, p_lock text, p_token bigint,
    p_ignore text[], p_groups text[],
    OUT removed integer, OUT more boolean, OUT holder text, OUT epoch integer, OUT tx bigint, OUT seq bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c           holdfast.channels;
    v_consumers integer[];
    v_trimmed   holdfast.place;
    v_bound     holdfast.place;
    v_step      record;
BEGIN
    removed := 0; more := false;
    PERFORM holdfast.fence(p_lock, p_token);
    -- No consumer appears meanwhile (subscribe and attach take this exclusively), and no dead letter leaves
    -- unnoticed (holdfast.release waits for the row). Each statement below sees what was there before that.
    PERFORM pg_advisory_xact_lock_shared(holdfast.publish_lock(), 0);
    SELECT * INTO c FROM holdfast.channels WHERE name = p_channel FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_trimmed := (c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq);
    v_consumers := ARRAY(SELECT id FROM holdfast.consumers WHERE channel_id = c.id);
    v_bound := least(holdfast.horizon(), (
        SELECT ROW(n.epoch, n.tx, n.seq)::holdfast.place FROM holdfast.needs(c.id, p_ignore, p_groups) n
        ORDER BY n.epoch, n.tx, n.seq LIMIT 1));
    removed := holdfast.trim_released(c.id, p_before, p_limit, v_bound, v_consumers);

    -- What is old enough, and not beyond the first live job. The order of jobs by number is only nearly that of
    -- places, so that each event is looked at for itself as well.
    v_bound := least(v_bound, holdfast.seek(c.id, p_before), (
        SELECT ROW(j.epoch, j.tx, j.seq)::holdfast.place FROM holdfast.first_jobs(c.id, v_trimmed) j
        ORDER BY j.epoch, j.tx, j.seq LIMIT 1));
    WITH page AS MATERIALIZED (
        SELECT l.*, row_number() OVER w AS n, sum(l.size) OVER w AS total,
               l.published_at >= p_before OR EXISTS (
                   SELECT FROM holdfast.jobs j
                   WHERE j.consumer_id = ANY (v_consumers) AND j.seq = l.seq OFFSET 0) AS needed
        FROM (
            SELECT l.ctid, l.epoch, l.tx, l.seq, l.published_at, octet_length(l.data) AS size FROM holdfast.log l
            WHERE l.channel_id = c.id
              AND (l.epoch, l.tx, l.seq) > (v_trimmed.epoch, v_trimmed.tx, v_trimmed.seq)
              AND (l.epoch, l.tx, l.seq) <= (v_bound.epoch, v_bound.tx, v_bound.seq)
            ORDER BY l.epoch, l.tx, l.seq LIMIT p_limit - trim.removed + 1
        ) l WINDOW w AS (ORDER BY l.epoch, l.tx, l.seq ROWS UNBOUNDED PRECEDING)
    ), free AS MATERIALIZED (
        SELECT * FROM page WHERE n < coalesce((SELECT min(n) FROM page WHERE needed), p_limit + 2)
    ), passed AS MATERIALIZED (
        -- Large data is many rows to the server: a step takes no more of it than is done within a second or so.
        SELECT * FROM free WHERE n <= p_limit - trim.removed AND (total <= 200000000 OR n = 1)
    ), gone AS (
        DELETE FROM holdfast.log WHERE ctid = ANY (ARRAY(
            SELECT p.ctid FROM passed p WHERE NOT EXISTS (
                SELECT FROM holdfast.dead_letters d
                WHERE d.consumer_id = ANY (v_consumers) AND d.seq = p.seq OFFSET 0)))
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone) AS removed,
           (SELECT count(*) FROM free) > (SELECT count(*) FROM passed) AS more,
           (SELECT ROW(epoch, tx, seq)::holdfast.place FROM passed ORDER BY n DESC LIMIT 1) AS last
    INTO v_step;
    removed := removed + v_step.removed; more := v_step.more;
    v_trimmed := coalesce(v_step.last, v_trimmed);
    UPDATE holdfast.channels
    SET trimmed_epoch = v_trimmed.epoch, trimmed_tx = v_trimmed.tx, trimmed_seq = v_trimmed.seq
    WHERE id = c.id AND v_step.last IS NOT NULL;
    SELECT h.* INTO holder, epoch, tx, seq
    FROM holdfast.holder(c.id, p_before, v_trimmed, p_ignore, p_groups) h;
END $$;

-- dead → purged, at most `p_limit` of what died before a time.
CREATE FUNCTION holdfast.purge_dead(
    p_channel text, p_before timestamptz, p_limit integer, p_lock text, p_token bigint
) RETURNS TABLE (consumer text, purged bigint) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.fence(p_lock, p_token);
    RETURN QUERY
    WITH gone AS (
        DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM holdfast.dead_letters d
            WHERE d.channel_id = (SELECT id FROM holdfast.channels WHERE name = p_channel)
              AND d.died_at < p_before
            ORDER BY d.died_at LIMIT p_limit FOR UPDATE SKIP LOCKED))
        RETURNING *
    ), logged AS (
        INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at,
               (SELECT holdfast.now()), 'purged', g.priority, g.attempts, g.abandonments, g.worker, g.reason,
               g.errors FROM gone g
    )
    SELECT c.name, count(*) FROM gone g JOIN holdfast.consumers c ON c.id = g.consumer_id
    GROUP BY c.name ORDER BY c.name;
END $$;

-- Where forget goes on, in pages of each table. An index by time would cost every publish and every completed
-- job; going through the tables in turns, some pages at each call, costs them nothing.
CREATE TABLE holdfast.walks (
    tablename text PRIMARY KEY,
    next_page bigint NOT NULL DEFAULT 0
);
INSERT INTO holdfast.walks (tablename) VALUES ('keys'), ('job_log');

-- Remove what a table holds from before a time, at most `p_limit` rows, from the next 2,000 pages of it.
CREATE FUNCTION holdfast.forget_from(p_table text, p_column text, p_before timestamptz, p_limit integer)
RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_step    constant bigint := 2000;
    v_bytes   bigint := pg_relation_size(format('holdfast.%I', p_table)::regclass);
    v_page    bigint;
    v_removed integer;
BEGIN
    SELECT next_page INTO v_page FROM holdfast.walks WHERE tablename = p_table FOR UPDATE;
    IF v_page * current_setting('block_size')::bigint >= v_bytes THEN
        v_page := 0;
    END IF;
    EXECUTE format('DELETE FROM holdfast.%1$I WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM holdfast.%1$I WHERE ctid >= $1 AND ctid < $2 AND %2$I < $3 LIMIT $4))', p_table, p_column)
    USING format('(%s,0)', v_page)::tid, format('(%s,0)', v_page + v_step)::tid, p_before, p_limit;
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    -- Where the limit was reached, there may be more in the same pages.
    UPDATE holdfast.walks SET next_page = CASE WHEN v_removed < p_limit THEN v_page + v_step ELSE v_page END
    WHERE tablename = p_table;
    RETURN v_removed;
END $$;

-- Remove idempotency keys and ended jobs from before these times, at most `p_limit` of each.
CREATE FUNCTION holdfast.forget(
    p_keys timestamptz, p_jobs timestamptz, p_limit integer, p_lock text, p_token bigint,
    OUT keys integer, OUT jobs integer
) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.fence(p_lock, p_token);
    keys := holdfast.forget_from('keys', 'published_at', p_keys, p_limit);
    jobs := holdfast.forget_from('job_log', 'ended_at', p_jobs, p_limit);
END $$;
