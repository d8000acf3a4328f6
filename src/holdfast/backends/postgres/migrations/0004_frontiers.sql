-- Frontiers: how far each worker consumer has taken up the log. An event beyond it has no row: it is the backlog.

-- A frontier is two snapshots and a place. Everything that `passed` sees is taken up. The window is what `reach` sees
-- and `passed` does not; it is taken up in the order of (tx, seq), as far as the place. So a late commit falls into a
-- later window, nothing is skipped, and nobody waits. Special events, which are scheduled or prioritised, have a frontier
-- of their own. Frontiers are appended and the newest counts: a row that is updated again and again would have a long
-- chain of versions while somebody holds a snapshot open. Transaction ids of different epochs are never compared.
CREATE TABLE holdfast.frontiers (
    consumer_id integer NOT NULL,
    special     boolean NOT NULL,
    number      bigint NOT NULL,
    epoch       integer NOT NULL,
    passed      pg_snapshot NOT NULL,
    reach       pg_snapshot,  -- null: there is no window, all of the last one is taken up
    at_tx       xid8,         -- null: the beginning of the window
    at_seq      bigint,
    passed_to   bigint,       -- every number up to here, of its epoch, is behind the frontier; null: not known
    reach_to    bigint,       -- the same once the window is used up
    PRIMARY KEY (consumer_id, special, number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_cost_delay = 0);

-- Events beyond a frontier that left the order of the log: somebody cancelled them, say, or they expired. Whatever
-- became of them is written elsewhere; the take-up skips them, and removes the row.
CREATE TABLE holdfast.ahead (
    consumer_id integer NOT NULL,
    seq         bigint NOT NULL,
    PRIMARY KEY (consumer_id, seq)
);

-- Sees nothing; sees everything.
CREATE FUNCTION holdfast.nothing() RETURNS pg_snapshot LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '1:1:'::pg_snapshot;

CREATE FUNCTION holdfast.everything() RETURNS pg_snapshot LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN '9223372036854775807:9223372036854775807:'::pg_snapshot;

CREATE FUNCTION holdfast.is_everything(s pg_snapshot) RETURNS boolean LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN pg_snapshot_xmax(s) = '9223372036854775807'::xid8;

-- The frontier of one consumer at a time is moved, and what lies beyond it changed. Whoever takes this lock looks in a
-- later statement, whose snapshot is younger.
CREATE FUNCTION holdfast.lock_frontier(p_consumer_id integer) RETURNS void LANGUAGE sql AS
    'SELECT pg_advisory_xact_lock(1215655477, p_consumer_id)';

-- A new consumer begins with what is not committed yet; or with everything, after all epochs below the first one; or
-- before the first event that was published after a time, or up to ten minutes before it, since times rise with numbers
-- only nearly. So what is older is passed once, in the index, and not by each look at what waits.
CREATE FUNCTION holdfast.begin_frontiers(p_consumer_id integer, p_channel_id integer, p_from timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_sort = off AS $$
DECLARE
    v_newest integer := (SELECT holdfast.current_epoch(s) FROM holdfast.store s);
    -- What it does not see falls into a later window. Everything that it sees is there for the statements below.
    v_reach  pg_snapshot := holdfast.snapshot();
    v_before holdfast.place := ROW(0, 0)::holdfast.place;
    v_epoch  integer;
    v_tx     xid8;
BEGIN
    IF p_from > '0001-01-02' THEN
        v_before := holdfast.seek(p_channel_id, p_from - interval '10 minutes', ROW(v_newest, 9223372036854775807)::holdfast.place);
        SELECT l.epoch INTO v_epoch FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND (l.epoch, l.seq) > (v_before.epoch, v_before.seq)
        ORDER BY l.epoch, l.seq LIMIT 1;
    END IF;
    IF p_from IS NULL OR v_before.epoch > 0 AND v_epoch IS NULL THEN
        INSERT INTO holdfast.frontiers (consumer_id, special, number, epoch, passed)
        SELECT p_consumer_id, special, 0, v_newest, v_reach FROM unnest(ARRAY[false, true]) AS special;
    ELSIF v_before.epoch = v_epoch THEN
        -- In the order of the take-up, of which numbers are not quite the order.
        SELECT l.tx INTO v_tx FROM unnest(ARRAY[false, true]) AS special CROSS JOIN LATERAL (
            SELECT e.tx FROM holdfast.log e
            WHERE e.channel_id = p_channel_id AND e.special = special.special AND e.epoch = v_epoch AND e.seq > v_before.seq
            ORDER BY e.tx, e.seq LIMIT 1) l
        ORDER BY l.tx LIMIT 1;
        INSERT INTO holdfast.frontiers
        SELECT p_consumer_id, special, 0, v_epoch, holdfast.nothing(),
               CASE WHEN v_epoch < v_newest THEN holdfast.everything() ELSE v_reach END, v_tx, 0
        FROM unnest(ARRAY[false, true]) AS special;
    ELSE
        INSERT INTO holdfast.frontiers (consumer_id, special, number, epoch, passed)
        SELECT p_consumer_id, special, 0, v_before.epoch, holdfast.everything() FROM unnest(ARRAY[false, true]) AS special;
    END IF;
END $$;

CREATE FUNCTION holdfast.frontier(p_consumer_id integer, p_special boolean) RETURNS holdfast.frontiers
LANGUAGE sql STABLE AS $$
    SELECT f FROM holdfast.frontiers f WHERE f.consumer_id = p_consumer_id AND f.special = p_special
    ORDER BY f.number DESC LIMIT 1;
$$;

-- Whether an event is behind a frontier.
CREATE FUNCTION holdfast.has_passed(f holdfast.frontiers, p_epoch integer, p_tx xid8, p_seq bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE
RETURN p_epoch < f.epoch OR p_epoch = f.epoch AND (
    pg_visible_in_snapshot(p_tx, f.passed)
    OR coalesce((p_tx, p_seq) <= (f.at_tx, f.at_seq) AND pg_visible_in_snapshot(p_tx, f.reach), false));

-- What is committed at this moment. The server's own snapshot leaves out the transaction that takes it, which is not
-- committed, and may publish later.
CREATE FUNCTION holdfast.snapshot() RETURNS pg_snapshot LANGUAGE sql STABLE AS $$
    SELECT CASE WHEN t.own < pg_snapshot_xmax(t.now)
           THEN (least(t.own, pg_snapshot_xmin(t.now)) || ':' || pg_snapshot_xmax(t.now) || ':' || (
                SELECT string_agg(x::text, ',' ORDER BY x) FROM (SELECT pg_snapshot_xip(t.now) UNION SELECT t.own) r (x)
           ))::pg_snapshot ELSE t.now END
    FROM (SELECT pg_current_snapshot() AS now, pg_current_xact_id_if_assigned() AS own) t;
$$;

-- The window is used up: all of it is behind the frontier.
CREATE FUNCTION holdfast.without_window(f holdfast.frontiers) RETURNS holdfast.frontiers LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    f.passed := f.reach; f.passed_to := f.reach_to;
    f.reach := NULL; f.reach_to := NULL; f.at_tx := NULL; f.at_seq := NULL;
    RETURN f;
END $$;

-- The next window of a frontier: up to a moment, in the newest epoch, and so with every number up to the horizon of an
-- earlier statement, if that is known. A window in an older epoch is all that is there.
CREATE FUNCTION holdfast.next_window(
    f holdfast.frontiers, p_channel_id integer, p_moment pg_snapshot, p_horizon bigint DEFAULT NULL
) RETURNS holdfast.frontiers LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_newest integer := (SELECT holdfast.current_epoch(s) FROM holdfast.store s);
BEGIN
    IF f.reach IS NOT NULL THEN
        f := holdfast.without_window(f);
    END IF;
    IF f.epoch < v_newest AND holdfast.is_everything(f.passed) THEN
        f.passed := holdfast.nothing();
        f.epoch := coalesce((
            SELECT l.epoch FROM holdfast.log l
            WHERE l.channel_id = p_channel_id AND l.special = f.special AND l.epoch > f.epoch
            ORDER BY l.epoch LIMIT 1), v_newest);
        f.passed_to := NULL;
    END IF;
    IF f.epoch < v_newest THEN
        f.reach := holdfast.everything();
    ELSE
        f.reach := p_moment; f.reach_to := p_horizon;
    END IF;
    RETURN f;
END $$;

-- The next events of a frontier's window, after its place. The transactions that ran when the window before ended come
-- first: their ids are lower than those of all others. Without sorts the planner takes the index that has the order,
-- however few events it believes there are.
CREATE FUNCTION holdfast.in_window(f holdfast.frontiers, p_channel_id integer, p_limit bigint)
RETURNS TABLE (tx xid8, seq bigint, place tid) LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
#variable_conflict use_column
DECLARE
    v_running xid8[];
    v_tx      xid8 := pg_snapshot_xmax(f.passed);
    v_seq     bigint := -1;
    v_found   bigint := 0;
BEGIN
    IF f.at_tx >= v_tx THEN
        v_tx := f.at_tx; v_seq := f.at_seq;
    ELSIF pg_snapshot_xmin(f.passed) < v_tx THEN
        v_running := ARRAY(SELECT pg_snapshot_xip(f.passed));
        RETURN QUERY SELECT l.tx, l.seq, l.ctid FROM unnest(v_running) AS r (tx) CROSS JOIN LATERAL (
            SELECT e.tx, e.seq, e.ctid FROM holdfast.log e
            WHERE e.channel_id = p_channel_id AND e.special = f.special AND e.epoch = f.epoch AND e.tx = r.tx
              AND e.seq > CASE WHEN r.tx = f.at_tx THEN f.at_seq ELSE -1 END
            ORDER BY e.tx, e.seq OFFSET 0) l
        WHERE pg_visible_in_snapshot(r.tx, f.reach) AND (r.tx >= f.at_tx) IS NOT FALSE LIMIT p_limit;
        GET DIAGNOSTICS v_found = ROW_COUNT;
    END IF;
    IF (v_found < p_limit) IS NOT FALSE THEN
        -- The lower bound is one row of the index, whatever is in it.
        RETURN QUERY SELECT l.tx, l.seq, l.ctid FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.special = f.special AND l.epoch = f.epoch
          AND (l.tx, l.seq) > (v_tx, v_seq) AND l.tx < pg_snapshot_xmax(f.reach) AND pg_visible_in_snapshot(l.tx, f.reach)
        ORDER BY l.tx, l.seq LIMIT p_limit - v_found;
    END IF;
END $$;

-- What waits beyond a consumer's frontier, as far as this statement sees: without what left the order of the log.
CREATE FUNCTION holdfast.beyond(p_consumer_id integer, p_special boolean, p_limit bigint)
RETURNS TABLE (epoch integer, seq bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
    c       holdfast.consumers;
    f       holdfast.frontiers := holdfast.frontier(p_consumer_id, p_special);
    v_skips boolean := EXISTS (SELECT FROM holdfast.ahead WHERE consumer_id = p_consumer_id);
    v_found bigint := 0;
    v_step  bigint;
    v_chunk bigint := 100;
    v_now   boolean := false;  -- whether the window ends with this moment
    w       record;
BEGIN
    SELECT * INTO c FROM holdfast.consumers WHERE id = p_consumer_id;
    LOOP
        IF f.reach IS NULL OR v_step < v_chunk THEN
            EXIT WHEN v_now;
            f := holdfast.next_window(f, c.channel_id, holdfast.snapshot());
            v_now := NOT holdfast.is_everything(f.reach);
        END IF;
        IF NOT v_skips AND c.starts_at IS NULL THEN
            v_chunk := p_limit - v_found;
            RETURN QUERY SELECT f.epoch, i.seq FROM holdfast.in_window(f, c.channel_id, v_chunk) i;
            GET DIAGNOSTICS v_step = ROW_COUNT;
            v_found := v_found + v_step;
            v_chunk := coalesce(v_chunk, v_step + 1);
        ELSE
            v_chunk := least(2 * v_chunk, 10000);
            SELECT array_agg(i.tx) AS txs, array_agg(i.seq) AS seqs INTO w FROM holdfast.in_window(f, c.channel_id, v_chunk) i;
            RETURN QUERY SELECT f.epoch, e.seq FROM unnest(w.seqs) AS e (seq) CROSS JOIN LATERAL (
                SELECT l.published_at FROM holdfast.log l
                WHERE l.channel_id = c.channel_id AND l.epoch = f.epoch AND l.seq = e.seq OFFSET 0) l
            WHERE (l.published_at >= c.starts_at) IS NOT FALSE AND NOT EXISTS (
                SELECT FROM holdfast.ahead a WHERE a.consumer_id = c.id AND a.seq = e.seq OFFSET 0)
            LIMIT p_limit - v_found;
            GET DIAGNOSTICS v_step = ROW_COUNT;
            v_found := v_found + v_step;
            v_step := coalesce(cardinality(w.seqs), 0);
            f.at_tx := coalesce(w.txs[v_step], f.at_tx); f.at_seq := coalesce(w.seqs[v_step], f.at_seq);
        END IF;
        EXIT WHEN v_found >= p_limit;
    END LOOP;
END $$;

-- How many of them there are, counted up to a limit: in the index, where that tells. Whatever is above both the place and
-- `passed` waits; below, only what comes from a transaction that ran when one of the snapshots was taken.
CREATE FUNCTION holdfast.count_beyond(p_consumer_id integer, p_special boolean, p_limit bigint) RETURNS bigint
LANGUAGE plpgsql STABLE SET enable_sort = off AS $$
DECLARE
    c       holdfast.consumers;
    f       holdfast.frontiers := holdfast.frontier(p_consumer_id, p_special);
    v_tx    xid8 := greatest(pg_snapshot_xmax(f.passed), f.at_tx);
    v_seq   bigint := CASE WHEN v_tx = f.at_tx THEN f.at_seq ELSE -1 END;
    v_count bigint;
BEGIN
    SELECT * INTO c FROM holdfast.consumers WHERE id = p_consumer_id;
    IF c.starts_at IS NOT NULL OR f.epoch < (SELECT holdfast.current_epoch(s) FROM holdfast.store s)
       OR EXISTS (SELECT FROM holdfast.ahead WHERE consumer_id = p_consumer_id) THEN
        RETURN (SELECT count(*) FROM holdfast.beyond(p_consumer_id, p_special, p_limit));
    END IF;
    SELECT count(*) INTO v_count FROM (
        SELECT FROM holdfast.log l
        WHERE l.channel_id = c.channel_id AND l.special = p_special AND l.epoch = f.epoch AND (l.tx, l.seq) > (v_tx, v_seq)
        ORDER BY l.tx, l.seq LIMIT p_limit) w;
    RETURN least(p_limit, v_count + (
        SELECT count(*) FROM (
            SELECT FROM (SELECT pg_snapshot_xip(f.passed) UNION SELECT pg_snapshot_xip(f.reach)) AS r (tx)
            CROSS JOIN LATERAL (
                SELECT l.seq FROM holdfast.log l
                WHERE l.channel_id = c.channel_id AND l.special = p_special AND l.epoch = f.epoch AND l.tx = r.tx
                  AND l.seq > CASE WHEN r.tx = f.at_tx THEN f.at_seq ELSE -1 END AND (l.tx, l.seq) <= (v_tx, v_seq) OFFSET 0) l
            WHERE NOT holdfast.has_passed(f, f.epoch, r.tx, l.seq) LIMIT p_limit - v_count) w));
END $$;

-- Whether an event waits beyond a consumer's frontier.
CREATE FUNCTION holdfast.is_beyond(
    c holdfast.consumers, p_special boolean, p_epoch integer, p_tx xid8, p_seq bigint, p_published_at timestamptz
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT holdfast.has_passed(holdfast.frontier(c.id, p_special), p_epoch, p_tx, p_seq)
       AND (p_published_at >= c.starts_at) IS NOT FALSE
       AND NOT EXISTS (SELECT FROM holdfast.ahead a WHERE a.consumer_id = c.id AND a.seq = p_seq OFFSET 0);
$$;

-- Whether special events may wait beyond a frontier: there is one that its snapshot does not see, or did not see when it
-- was taken.
CREATE FUNCTION holdfast.has_special(c holdfast.consumers) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM holdfast.log l WHERE l.channel_id = c.channel_id AND l.special AND (l.epoch, l.tx) >= (f.epoch, f.tx)
        ORDER BY l.epoch, l.tx OFFSET 0)
    FROM (SELECT f.epoch, pg_snapshot_xmin(f.passed) AS tx FROM holdfast.frontiers f
          WHERE f.consumer_id = c.id AND f.special ORDER BY f.number DESC LIMIT 1) f;
$$;

-- The next events of the log, in its order, for somebody who leases them or makes rows of them; the frontier moves past
-- them. At most `p_limit`, less what comes before them: `p_higher` ready jobs, whatever their time, and those that were
-- due at `p_dues`. `places` are those of the events in the table: what is taken up is not trimmed, and so stays there.
-- What expired while it waited becomes a row, which the lifecycle buries. `used_up` is false where more may follow. The
-- caller holds the lock, and took it in an earlier statement; `p_moment` and `p_horizon` are those of `next_window`.
CREATE FUNCTION holdfast.take_up(
    c holdfast.consumers, p_special boolean, p_limit integer, p_now timestamptz, p_moment pg_snapshot,
    p_higher integer DEFAULT 0, p_dues timestamptz[] DEFAULT '{}', p_horizon bigint DEFAULT NULL,
    OUT epochs integer[], OUT seqs bigint[], OUT places tid[], OUT used_up boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_most  constant integer := 5000;  -- events that one call looks at
    v_old   constant holdfast.frontiers := holdfast.frontier(c.id, p_special);
    -- The index tells everything.
    v_plain constant boolean := p_higher = 0 AND p_dues = '{}' AND c.starts_at IS NULL AND c.expires_after IS NULL
                                AND NOT EXISTS (SELECT FROM holdfast.ahead WHERE consumer_id = c.id);
    f       holdfast.frontiers := v_old;
    v_now   boolean := false;  -- whether the window ends with this moment
    v_moved boolean := false;
    v_chunk integer;
    v_least integer := 32;
    v_looks integer := 0;
    v_due   timestamptz := c.created_at;
    w       record;
    v_step  record;
BEGIN
    epochs := '{}'; seqs := '{}'; places := '{}';
    IF f.reach IS NULL THEN
        f := holdfast.next_window(f, c.channel_id, p_moment, p_horizon);
        v_now := NOT holdfast.is_everything(f.reach);
    END IF;
    LOOP
        v_chunk := p_limit - cardinality(seqs);
        IF NOT v_plain THEN
            -- Not all that is looked at is taken.
            v_chunk := greatest(v_chunk, v_least);
            v_least := least(2 * v_least, 1000);
        END IF;
        SELECT coalesce(array_agg(i.tx), '{}') AS txs, coalesce(array_agg(i.seq), '{}') AS seqs,
               coalesce(array_agg(i.place), '{}') AS places INTO w
        FROM holdfast.in_window(f, c.channel_id, v_chunk) i;
        IF v_plain THEN
            SELECT w.seqs AS taken, w.places, cardinality(w.seqs) AS passed INTO v_step;
        ELSE
            SELECT * INTO v_step FROM holdfast.choose(
                c, p_special, f.epoch, w.seqs, w.places, p_now, v_due, cardinality(seqs) + p_higher - p_limit, p_dues);
            v_due := v_step.due;
        END IF;
        IF v_step.passed > 0 THEN
            v_moved := true;
            f.at_tx := w.txs[v_step.passed]; f.at_seq := w.seqs[v_step.passed];
            seqs := seqs || v_step.taken;
            places := places || v_step.places;
            epochs := epochs || array_fill(f.epoch, ARRAY[cardinality(v_step.taken)]);
        END IF;
        v_looks := v_looks + cardinality(w.seqs);
        used_up := v_now AND cardinality(w.seqs) < v_chunk AND v_step.passed = cardinality(w.seqs);
        -- (With a limit of none, whatever needs no room is passed.)
        EXIT WHEN used_up OR v_step.passed < cardinality(w.seqs) OR p_limit > 0 AND cardinality(seqs) >= p_limit
               OR v_looks >= v_most;
        IF cardinality(w.seqs) < v_chunk THEN
            f := holdfast.next_window(f, c.channel_id, p_moment, p_horizon);
            v_now := NOT holdfast.is_everything(f.reach);
        END IF;
    END LOOP;
    IF v_moved THEN
        IF used_up THEN
            f := holdfast.without_window(f);
        END IF;
        f.number := f.number + 1;
        INSERT INTO holdfast.frontiers VALUES (f.*);
        DELETE FROM holdfast.frontiers WHERE consumer_id = c.id AND special = p_special AND number = v_old.number;
    END IF;
END $$;

-- Which of the next events of the log are taken up, and how many of them the frontier may pass: those before the first
-- one that has to wait for jobs that are ready. `p_before` is the number of jobs that come first, less the limit; `p_due`
-- when the last event before these was due: the log is left in its own order. What left that order is skipped.
CREATE FUNCTION holdfast.choose(
    c holdfast.consumers, p_special boolean, p_epoch integer, p_seqs bigint[], p_places tid[], p_now timestamptz,
    p_due timestamptz, p_before integer, p_dues timestamptz[],
    OUT taken bigint[], OUT places tid[], OUT passed integer, OUT due timestamptz
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_expired bigint[];
    v_skipped bigint[];
BEGIN
    WITH looked AS MATERIALIZED (
        -- What nobody needs may have been trimmed since it was found.
        SELECT e.seq, e.place, e.i, l.published_at,
               CASE WHEN l.published_at IS NULL OR EXISTS (
                        SELECT FROM holdfast.ahead a WHERE a.consumer_id = c.id AND a.seq = e.seq OFFSET 0) THEN 'skipped'
                    WHEN l.published_at < c.starts_at THEN 'early'
                    WHEN NOT p_special AND greatest(l.published_at, c.created_at) + c.expires_after <= p_now THEN 'expired'
                    ELSE 'taken' END AS what
        FROM unnest(p_seqs, p_places) WITH ORDINALITY AS e (seq, place, i) LEFT JOIN LATERAL (
            SELECT l.published_at FROM holdfast.log l
            WHERE l.channel_id = c.channel_id AND l.epoch = p_epoch AND l.seq = e.seq OFFSET 0) l ON true
    ), placed AS (
        SELECT k.*, count(*) FILTER (WHERE k.what = 'taken') OVER w AS nth,
               greatest(p_due, max(k.published_at) FILTER (WHERE k.what = 'taken') OVER w) AS latest
        FROM looked k WINDOW w AS (ORDER BY k.i)
    ), cut AS (
        SELECT p.*, min(p.i) FILTER (WHERE p.what = 'taken' AND p.nth + p_before + CASE
            WHEN p_dues = '{}' THEN 0 ELSE width_bucket(p.latest, p_dues) END > 0) OVER () AS first_waiting
        FROM placed p
    )
    SELECT coalesce(array_agg(u.seq ORDER BY u.i) FILTER (WHERE u.what = 'taken'), '{}'),
           coalesce(array_agg(u.place ORDER BY u.i) FILTER (WHERE u.what = 'taken'), '{}'),
           array_agg(u.seq) FILTER (WHERE u.what = 'expired'), array_agg(u.seq) FILTER (WHERE u.what = 'skipped'),
           count(*), coalesce(max(u.latest), p_due)
    INTO taken, places, v_expired, v_skipped, passed, due
    FROM cut u WHERE (u.i < u.first_waiting) IS NOT FALSE;
    DELETE FROM holdfast.ahead WHERE consumer_id = c.id AND seq = ANY (v_skipped);
    IF v_expired IS NOT NULL THEN
        PERFORM holdfast.add_jobs(c, array_fill(p_epoch, ARRAY[cardinality(v_expired)]), v_expired);
    END IF;
END $$;
