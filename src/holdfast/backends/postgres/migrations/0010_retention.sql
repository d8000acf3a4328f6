-- Trimming the log, and forgetting what ended.

-- Events that a trim passed over for their dead letter, which has been requeued or purged since. A later trim
-- looks at them again. There can be several rows for one event: nothing ever waits for another's row.
CREATE TABLE holdfast.released (
    channel_id integer NOT NULL,
    epoch      integer NOT NULL,
    seq        bigint NOT NULL
);

CREATE INDEX released_channel ON holdfast.released (channel_id);

CREATE FUNCTION holdfast.release() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    -- A trim that is under way may still pass over the event. Wait for it: then we see how far it came.
    PERFORM FROM holdfast.channels WHERE id IN (SELECT channel_id FROM moved) ORDER BY id FOR SHARE;
    INSERT INTO holdfast.released (channel_id, epoch, seq)
    SELECT m.channel_id, m.epoch, m.seq FROM moved m JOIN holdfast.channels c ON c.id = m.channel_id
    WHERE (m.epoch, m.seq) <= (c.trimmed_epoch, c.trimmed_seq);
    RETURN NULL;
END $$;

CREATE TRIGGER release AFTER DELETE ON holdfast.dead_letters
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.release();

-- Events that were trimmed and had worker consumers, whose history would not know any more what they were.
CREATE TABLE holdfast.trimmed (
    channel_id integer NOT NULL,
    epoch      integer NOT NULL,
    seq        bigint NOT NULL,
    id         text NOT NULL,
    source     text NOT NULL,
    type       text NOT NULL,
    trimmed_at timestamptz NOT NULL,
    PRIMARY KEY (channel_id, epoch, seq)
);

-- From which place on somebody needs the log as a whole: stream consumers after their cursor. There are no foreign
-- groups here, and one that is not there needs all.
CREATE FUNCTION holdfast.needs(p_channel_id integer, p_ignore text[], p_groups text[])
RETURNS TABLE (consumer text, epoch integer, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT name, epoch, seq FROM holdfast.cursors
    WHERE channel_id = p_channel_id AND name <> ALL (p_ignore)
    UNION ALL
    SELECT name, 0, 0 FROM unnest(p_groups) AS g (name);
$$;

-- The first live job of each worker consumer after a place, but for those that are about to end: by number, and of what
-- waits in the log the first that would be taken up, whose number is nearly the lowest.
CREATE FUNCTION holdfast.first_jobs(
    p_channel_id integer, p_after holdfast.place, p_owners integer[], p_ended bigint[]
) RETURNS TABLE (consumer text, epoch integer, seq bigint) LANGUAGE sql STABLE AS $$
    SELECT c.name, f.epoch, f.seq FROM holdfast.consumers c
    CROSS JOIN LATERAL (
        SELECT ARRAY(SELECT e.seq FROM unnest(p_owners, p_ended) AS e (owner, seq) WHERE e.owner = c.id) AS seqs OFFSET 0
    ) ended
    CROSS JOIN LATERAL (
        SELECT * FROM (
            (SELECT j.epoch, j.id AS seq FROM holdfast.jobs j
             WHERE j.consumer_id = c.id AND j.id > (p_after).seq AND j.id <> ALL (ended.seqs)
               AND (j.epoch, j.id) > ((p_after).epoch, (p_after).seq)
             ORDER BY j.id LIMIT 1)
            UNION ALL
            (SELECT j.epoch, m.seq FROM holdfast.jobs j CROSS JOIN LATERAL unnest(j.members) AS m (seq)
             WHERE j.consumer_id = c.id AND j.id < 0 AND m.seq <> ALL (ended.seqs)
               AND (j.epoch, m.seq) > ((p_after).epoch, (p_after).seq)
             ORDER BY m.seq LIMIT 1)
            UNION ALL
            SELECT b.epoch, b.seq FROM unnest(ARRAY[false, true]) AS special CROSS JOIN LATERAL (
                SELECT b.* FROM holdfast.beyond(c.id, special, cardinality(ended.seqs) + 1) b
                WHERE b.seq <> ALL (ended.seqs) LIMIT 1) b
        ) every ORDER BY every.epoch, every.seq LIMIT 1
    ) f WHERE c.channel_id = p_channel_id;
$$;

-- Whether one of these consumers still has the event before it.
CREATE FUNCTION holdfast.has_beyond(
    p_consumers integer[], p_special boolean, p_epoch integer, p_tx xid8, p_seq bigint, p_published_at timestamptz,
    p_owners integer[], p_ended bigint[]
) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM holdfast.consumers c
        WHERE c.id = ANY (p_consumers) AND holdfast.is_beyond(c, p_special, p_epoch, p_tx, p_seq, p_published_at)
          AND NOT EXISTS (
            SELECT FROM unnest(p_owners, p_ended) AS e (owner, seq) WHERE e.owner = c.id AND e.seq = p_seq));
$$;

-- Whether an event has a live job that has a row.
CREATE FUNCTION holdfast.has_job(p_consumers integer[], p_seq bigint, p_owners integer[], p_ended bigint[])
RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM (
            SELECT j.consumer_id FROM holdfast.jobs j WHERE j.consumer_id = ANY (p_consumers) AND j.id = p_seq
            UNION ALL
            SELECT j.consumer_id FROM holdfast.jobs j
            WHERE j.consumer_id = ANY (p_consumers) AND j.id < 0 AND p_seq = ANY (j.members)
        ) j WHERE NOT EXISTS (
            SELECT FROM unnest(p_owners, p_ended) AS e (owner, seq) WHERE e.owner = j.consumer_id AND e.seq = p_seq));
$$;

-- Who needs the oldest event after the trimmed place that somebody needs, if that one is old enough to go; and
-- the last place that it no longer needs.
CREATE FUNCTION holdfast.holder(
    p_channel_id integer, p_before timestamptz, p_trimmed holdfast.place, p_ignore text[], p_groups text[],
    p_owners integer[], p_ended bigint[]
) RETURNS TABLE (consumer text, epoch integer, seq bigint) LANGUAGE sql STABLE AS $$
    WITH needed AS (
        SELECT n.consumer, f.epoch, f.seq, ROW(n.epoch, n.seq)::holdfast.place AS after
        FROM holdfast.needs(p_channel_id, p_ignore, p_groups) n CROSS JOIN LATERAL (
            SELECT l.epoch, l.seq FROM holdfast.log l WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.seq) > (n.epoch, n.seq)
              AND (l.epoch, l.seq) > ((p_trimmed).epoch, (p_trimmed).seq)
            ORDER BY l.epoch, l.seq LIMIT 1
        ) f
        UNION ALL
        SELECT j.consumer, j.epoch, j.seq, NULL
        FROM holdfast.first_jobs(p_channel_id, p_trimmed, p_owners, p_ended) j
        UNION ALL
        -- What ended the step, where the order in which the log is taken up is not that of numbers.
        SELECT c.name, l.epoch, l.seq, NULL FROM holdfast.consumers c CROSS JOIN LATERAL (
            SELECT l.special, l.epoch, l.tx, l.seq, l.published_at FROM holdfast.log l WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.seq) > ((p_trimmed).epoch, (p_trimmed).seq)
            ORDER BY l.epoch, l.seq LIMIT 1
        ) l
        WHERE c.channel_id = p_channel_id
          AND holdfast.has_beyond(ARRAY[c.id], l.special, l.epoch, l.tx, l.seq, l.published_at, p_owners, p_ended)
    ), oldest AS (
        SELECT * FROM needed ORDER BY epoch, seq, consumer LIMIT 1
    )
    SELECT o.consumer, (coalesce(o.after, (
        SELECT ROW(b.epoch, b.seq)::holdfast.place FROM holdfast.log b WHERE b.channel_id = p_channel_id
          AND (b.epoch, b.seq) > ((p_trimmed).epoch, (p_trimmed).seq)
          AND (b.epoch, b.seq) < (o.epoch, o.seq)
        ORDER BY b.epoch DESC, b.seq DESC LIMIT 1), p_trimmed)).*
    FROM oldest o CROSS JOIN LATERAL (
        SELECT x.published_at FROM holdfast.log x
        WHERE x.channel_id = p_channel_id AND x.epoch = o.epoch AND x.seq = o.seq OFFSET 0) l
    WHERE l.published_at < p_before;
$$;

-- Up to where nobody needs the log as a whole, and readers may have been.
CREATE FUNCTION holdfast.trim_bound(p_channel_id integer, p_until holdfast.place, p_ignore text[], p_groups text[])
RETURNS holdfast.place LANGUAGE sql STABLE AS $$
    SELECT least(p_until, (
        SELECT ROW(n.epoch, n.seq)::holdfast.place FROM holdfast.needs(p_channel_id, p_ignore, p_groups) n
        ORDER BY n.epoch, n.seq LIMIT 1));
$$;

-- Events below the trimmed place whose dead letters are gone and which nobody else needs: a consumer that was created
-- since may have them before it. `dead` where there is a dead letter again, which keeps the event.
CREATE FUNCTION holdfast.trimmable_released(
    p_channel_id integer, p_before timestamptz, p_limit bigint, p_bound holdfast.place, p_consumers integer[],
    p_owners integer[], p_ended bigint[], p_kept bigint[]
) RETURNS TABLE (released tid, event tid, dead boolean) LANGUAGE sql STABLE AS $$
    SELECT r.ctid, l.ctid, r.seq IN (SELECT unnest(p_kept)) OR EXISTS (
               SELECT FROM holdfast.dead_letters d
               WHERE d.consumer_id = ANY (p_consumers) AND d.seq = r.seq OFFSET 0)
    FROM holdfast.released r LEFT JOIN LATERAL (
        SELECT l.ctid, l.special, l.tx, l.published_at FROM holdfast.log l
        WHERE l.channel_id = r.channel_id AND l.epoch = r.epoch AND l.seq = r.seq OFFSET 0
    ) l ON true
    WHERE r.channel_id = p_channel_id AND (l.published_at < p_before) IS NOT FALSE
      AND (r.epoch, r.seq) <= ((p_bound).epoch, (p_bound).seq)
      AND NOT holdfast.has_job(p_consumers, r.seq, p_owners, p_ended)
      AND NOT holdfast.has_beyond(p_consumers, l.special, r.epoch, l.tx, r.seq, l.published_at, p_owners, p_ended)
    LIMIT p_limit;
$$;

-- Events after the trimmed place that nobody needs, in order up to the first one that is needed or too young, at most
-- `p_limit` and one more; `dead` where a dead letter keeps the event. What is old enough, and before the first live job:
-- of what waits in the log only nearly the first is known, so that events that are not behind all frontiers are looked at
-- one by one.
CREATE FUNCTION holdfast.trimmable(
    p_channel_id integer, p_before timestamptz, p_limit bigint, p_trimmed holdfast.place, p_bound holdfast.place,
    p_consumers integer[], p_owners integer[], p_ended bigint[], p_kept bigint[]
) RETURNS TABLE (event tid, epoch integer, seq bigint, n bigint, total numeric, dead boolean)
LANGUAGE sql STABLE AS $$
    WITH bound AS MATERIALIZED (
        SELECT least(p_bound, holdfast.seek(p_channel_id, p_before, p_bound), (
            SELECT ROW(j.epoch, j.seq - 1)::holdfast.place
            FROM holdfast.first_jobs(p_channel_id, p_trimmed, p_owners, p_ended) j
            ORDER BY j.epoch, j.seq LIMIT 1)) AS place
    ), passed AS MATERIALIZED (
        -- What is behind all frontiers for certain; of special events, which are few, each is looked at.
        SELECT f.epoch, pg_snapshot_xmin(f.passed) AS tx FROM unnest(p_consumers) AS c (id)
        CROSS JOIN LATERAL holdfast.frontier(c.id, false) f ORDER BY 1, 2 LIMIT 1
    ), page AS MATERIALIZED (
        SELECT l.*, row_number() OVER w AS n, sum(l.size) OVER w AS total,
               l.published_at >= p_before
               OR (l.special OR EXISTS (SELECT FROM passed p WHERE (l.epoch, l.tx) >= (p.epoch, p.tx))) AND holdfast.has_beyond(
                   p_consumers, l.special, l.epoch, l.tx, l.seq, l.published_at, p_owners, p_ended) AS needed
        FROM (
            SELECT l.ctid, l.special, l.epoch, l.tx, l.seq, l.published_at, octet_length(l.data) AS size FROM holdfast.log l
            WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.seq) > ((p_trimmed).epoch, (p_trimmed).seq)
              AND (l.epoch, l.seq) <= (
                  (SELECT (place).epoch FROM bound), (SELECT (place).seq FROM bound))
            ORDER BY l.epoch, l.seq LIMIT p_limit + 1
        ) l WINDOW w AS (ORDER BY l.epoch, l.seq ROWS UNBOUNDED PRECEDING)
    )
    SELECT p.ctid, p.epoch, p.seq, p.n, p.total, p.seq IN (SELECT unnest(p_kept)) OR EXISTS (
               SELECT FROM holdfast.dead_letters d
               WHERE d.consumer_id = ANY (p_consumers) AND d.seq = p.seq OFFSET 0)
    FROM page p WHERE ((SELECT min(n) FROM page WHERE needed) > p.n) IS NOT FALSE ORDER BY p.n;
$$;

-- Remove the oldest events of a channel, published before a time, as far as nobody needs them, and not beyond
-- `p_until`, the end of what can be read (see holdfast.horizons). One step, all under the sweeper's lock: `holder` tells
-- whose need ends it, now or in a later step, and the place is the last that it no longer needs.
CREATE FUNCTION holdfast.trim(
    p_channel text, p_before timestamptz, p_until holdfast.place, p_limit integer, p_lock text, p_token bigint,
    p_ignore text[], p_groups text[],
    OUT removed integer, OUT more boolean, OUT holder text, OUT epoch integer, OUT seq bigint
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c           holdfast.channels;
    v_now       timestamptz := holdfast.now();
    v_consumers integer[];
    v_trimmed   holdfast.place;
    v_bound     holdfast.place;
    v_released  record;
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
    v_trimmed := (c.trimmed_epoch, c.trimmed_seq);
    v_consumers := ARRAY(SELECT id FROM holdfast.consumers WHERE channel_id = c.id);
    v_bound := holdfast.trim_bound(c.id, p_until, p_ignore, p_groups);
    WITH looked AS MATERIALIZED (
        SELECT * FROM holdfast.trimmable_released(c.id, p_before, p_limit, v_bound, v_consumers, '{}', '{}', '{}')
    ), settled AS (
        DELETE FROM holdfast.released WHERE ctid = ANY (ARRAY(SELECT released FROM looked))
    ), gone AS (
        DELETE FROM holdfast.log
        WHERE ctid = ANY (ARRAY(SELECT event FROM looked WHERE NOT dead AND event IS NOT NULL)) RETURNING *
    ), noted AS (
        INSERT INTO holdfast.trimmed (channel_id, epoch, seq, id, source, type, trimmed_at)
        SELECT g.channel_id, g.epoch, g.seq, g.id, g.source, g.type, v_now FROM gone g
        WHERE v_consumers <> '{}'
        ON CONFLICT DO NOTHING
    ), unmarked AS (
        -- The take-up never comes to these.
        DELETE FROM holdfast.ahead WHERE ctid = ANY (ARRAY(
            SELECT a.ctid FROM holdfast.ahead a
            WHERE a.consumer_id = ANY (v_consumers) AND a.seq = ANY (ARRAY(SELECT seq FROM gone)) FOR UPDATE SKIP LOCKED))
    )
    SELECT (SELECT count(*) FROM looked) AS looked, (SELECT count(*) FROM gone) AS removed INTO v_released;

    WITH free AS MATERIALIZED (
        SELECT * FROM holdfast.trimmable(c.id, p_before, p_limit - v_released.removed, v_trimmed, v_bound,
                                         v_consumers, '{}', '{}', '{}')
    ), passed AS MATERIALIZED (
        -- Large data is many rows to the server: a step takes no more of it than is done within a second or so.
        SELECT * FROM free WHERE n <= p_limit - v_released.removed AND (total <= 200000000 OR n = 1)
    ), gone AS (
        DELETE FROM holdfast.log WHERE ctid = ANY (ARRAY(SELECT event FROM passed WHERE NOT dead)) RETURNING *
    ), noted AS (
        INSERT INTO holdfast.trimmed (channel_id, epoch, seq, id, source, type, trimmed_at)
        SELECT g.channel_id, g.epoch, g.seq, g.id, g.source, g.type, v_now FROM gone g
        WHERE v_consumers <> '{}'
        ON CONFLICT DO NOTHING
    ), unmarked AS (
        -- The take-up never comes to these.
        DELETE FROM holdfast.ahead WHERE ctid = ANY (ARRAY(
            SELECT a.ctid FROM holdfast.ahead a
            WHERE a.consumer_id = ANY (v_consumers) AND a.seq = ANY (ARRAY(SELECT seq FROM gone)) FOR UPDATE SKIP LOCKED))
    )
    SELECT (SELECT count(*) FROM gone) AS removed,
           (SELECT count(*) FROM free) > (SELECT count(*) FROM passed) AS more,
           (SELECT ROW(epoch, seq)::holdfast.place FROM passed ORDER BY n DESC LIMIT 1) AS last
    INTO v_step;
    removed := v_released.removed + v_step.removed; more := v_step.more OR v_released.looked = p_limit;
    v_trimmed := coalesce(v_step.last, v_trimmed);
    UPDATE holdfast.channels
    SET trimmed_epoch = v_trimmed.epoch, trimmed_seq = v_trimmed.seq
    WHERE id = c.id AND v_step.last IS NOT NULL;
    SELECT h.* INTO holder, epoch, seq
    FROM holdfast.holder(c.id, p_before, v_trimmed, p_ignore, p_groups, '{}', '{}') h;
END $$;

-- What the steps of a trim would remove altogether, and who would hold the rest; one look, without a lock.
CREATE FUNCTION holdfast.would_trim(
    p_channel text, p_before timestamptz, p_until holdfast.place, p_ignore text[], p_groups text[],
    p_owners integer[], p_ended bigint[],
    OUT removed bigint, OUT holder text, OUT epoch integer, OUT seq bigint
) STABLE LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    c           holdfast.channels;
    v_consumers integer[];
    v_kept      bigint[];
    v_trimmed   holdfast.place;
    v_bound     holdfast.place;
    v_all       record;
BEGIN
    removed := 0;
    SELECT * INTO c FROM holdfast.channels WHERE name = p_channel;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_trimmed := (c.trimmed_epoch, c.trimmed_seq);
    v_consumers := ARRAY(SELECT id FROM holdfast.consumers WHERE channel_id = c.id);
    v_kept := ARRAY(SELECT e.seq FROM unnest(p_owners, p_ended) AS e (owner, seq)
                    JOIN holdfast.consumers o ON o.id = e.owner WHERE o.channel_id = c.id AND NOT o.discard);
    v_bound := holdfast.trim_bound(c.id, p_until, p_ignore, p_groups);
    WITH free AS MATERIALIZED (
        SELECT * FROM holdfast.trimmable(c.id, p_before, NULL, v_trimmed, v_bound, v_consumers, p_owners, p_ended, v_kept)
    )
    SELECT (SELECT count(*) FROM free WHERE NOT dead) AS removed,
           (SELECT ROW(epoch, seq)::holdfast.place FROM free ORDER BY n DESC LIMIT 1) AS last
    INTO v_all;
    removed := v_all.removed + (
        SELECT count(DISTINCT r.event) FILTER (WHERE NOT r.dead) FROM holdfast.trimmable_released(
            c.id, p_before, NULL, v_bound, v_consumers, p_owners, p_ended, v_kept) r);
    v_trimmed := coalesce(v_all.last, v_trimmed);
    SELECT h.* INTO holder, epoch, seq
    FROM holdfast.holder(c.id, p_before, v_trimmed, p_ignore, p_groups, p_owners, p_ended) h;
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
        INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.seq, g.seq, g.token, g.created_at,
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

INSERT INTO holdfast.walks (tablename) VALUES ('keys'), ('history'), ('trimmed');

-- Rows of a table's next 2,000 pages from before a time, at most `p_limit`, and how many things each stands for. Keys of what was scheduled are kept until
-- that was due, and what is known of trimmed events as long as there is a history of them.
CREATE FUNCTION holdfast.forgettable(p_table text, p_column text, p_before timestamptz, p_page bigint, p_limit bigint)
RETURNS TABLE (place tid, n integer) STABLE LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY EXECUTE format('SELECT t.ctid, %4$s FROM holdfast.%1$I t
        WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%2$I < $3 AND NOT EXISTS (%3$s OFFSET 0) LIMIT $4', p_table, p_column,
        CASE p_table
        WHEN 'keys' THEN 'SELECT FROM holdfast.log l WHERE l.channel_id = t.channel_id AND l.epoch = t.epoch
            AND l.seq = t.seq AND l.at >= $3'
        WHEN 'trimmed' THEN 'SELECT FROM holdfast.consumers c CROSS JOIN LATERAL holdfast.ended(c.id, t.seq)
            WHERE c.channel_id = t.channel_id'
        ELSE 'SELECT WHERE false' END, CASE p_table WHEN 'history' THEN 't.n' ELSE '1' END)
    USING format('(%s,0)', p_page)::tid, format('(%s,0)', p_page + 2000)::tid, p_before, p_limit;
END $$;

-- Where a walk over a table goes on: at its beginning once it is past the end.
CREATE FUNCTION holdfast.walk_page(p_table text, p_page bigint) RETURNS bigint STABLE LANGUAGE sql AS $$
    SELECT CASE WHEN p_page * current_setting('block_size')::bigint
                     < pg_relation_size(format('holdfast.%I', p_table)::regclass) THEN p_page ELSE 0 END;
$$;

-- Remove what a table holds from before a time, at most `p_limit` rows, from the next pages of it. Returns how many things
-- that were, and whether the limit was reached.
CREATE FUNCTION holdfast.forget_from(
    p_table text, p_column text, p_before timestamptz, p_limit integer, OUT things bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_page bigint;
BEGIN
    SELECT next_page INTO v_page FROM holdfast.walks WHERE tablename = p_table FOR UPDATE;
    v_page := holdfast.walk_page(p_table, v_page);
    EXECUTE format('WITH old AS MATERIALIZED (
        SELECT * FROM holdfast.forgettable($1, $2, $3, $4, $5)
    ), gone AS (
        DELETE FROM holdfast.%I WHERE ctid = ANY (ARRAY(SELECT place FROM old))
    ) SELECT coalesce(sum(n), 0), count(*) = $5 FROM old', p_table)
    INTO things, more USING p_table, p_column, p_before, v_page, p_limit::bigint;
    -- Where the limit was reached, there may be more in the same pages.
    UPDATE holdfast.walks SET next_page = CASE WHEN more THEN v_page ELSE v_page + 2000 END WHERE tablename = p_table;
END $$;

-- Remove idempotency keys and ended jobs from before these times, at most `p_limit` rows of each.
CREATE FUNCTION holdfast.forget(
    p_keys timestamptz, p_jobs timestamptz, p_limit integer, p_lock text, p_token bigint,
    OUT keys bigint, OUT jobs bigint, OUT more boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_more boolean;
BEGIN
    PERFORM holdfast.fence(p_lock, p_token);
    SELECT f.things, f.more INTO keys, v_more FROM holdfast.forget_from('keys', 'published_at', p_keys, p_limit) f;
    SELECT f.things, f.more OR v_more INTO jobs, more FROM holdfast.forget_from('history', 'ended_at', p_jobs, p_limit) f;
    PERFORM holdfast.forget_from('trimmed', 'trimmed_at', p_jobs, p_limit);
END $$;

-- What the steps of forgetting would remove altogether until none reaches its limit: the same walk, without writing.
CREATE FUNCTION holdfast.would_forget(
    p_keys timestamptz, p_jobs timestamptz, p_limit integer, OUT keys bigint, OUT jobs bigint
) STABLE LANGUAGE plpgsql AS $$
DECLARE
    v_tables  constant text[] := ARRAY['keys', 'history'];
    v_columns constant text[] := ARRAY['published_at', 'ended_at'];
    v_before  constant timestamptz[] := ARRAY[p_keys, p_jobs];
    v_first   bigint[];         -- the page that the walk began with
    v_next    bigint[];         -- that of the next step
    v_left    bigint[] := ARRAY[NULL, NULL]::bigint[];  -- rows of its pages that are still to go; null: not looked yet
    v_round   boolean[] := ARRAY[false, false];         -- whether the walk is back where it began
    v_gone    bigint[] := ARRAY[0, 0];
    v_found   record;
    v_step    bigint;
    v_more    boolean := true;
BEGIN
    v_next := ARRAY(SELECT holdfast.walk_page(t.name, w.next_page) FROM unnest(v_tables) WITH ORDINALITY AS t (name, n)
                    JOIN holdfast.walks w ON w.tablename = t.name ORDER BY t.n);
    v_first := v_next;
    WHILE v_more LOOP
        v_more := false;
        FOR i IN 1..2 LOOP
            IF v_left[i] IS NULL THEN
                SELECT count(*) AS rows, coalesce(sum(f.n), 0) AS things INTO v_found
                FROM holdfast.forgettable(v_tables[i], v_columns[i], v_before[i], v_next[i], NULL) f WHERE NOT v_round[i];
                v_left[i] := v_found.rows;
                v_gone[i] := v_gone[i] + v_found.things;
            END IF;
            v_step := least(v_left[i], p_limit);
            IF v_step < p_limit THEN
                v_next[i] := holdfast.walk_page(v_tables[i], v_next[i] + 2000);
                v_round[i] := v_round[i] OR v_next[i] = v_first[i];
                v_left[i] := NULL;
            ELSE
                v_left[i] := v_left[i] - v_step;
                v_more := true;
            END IF;
        END LOOP;
    END LOOP;
    keys := v_gone[1]; jobs := v_gone[2];
END $$;
