-- Dead letters and their counts.

CREATE TABLE holdfast.dead_letters (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    died_at      timestamptz NOT NULL,
    priority     smallint NOT NULL,
    attempts     smallint NOT NULL,
    abandonments smallint NOT NULL,
    order_key    text,
    worker       text,
    reason       text NOT NULL,
    fingerprint  text NOT NULL,
    errors       jsonb NOT NULL,
    data         bytea,
    PRIMARY KEY (consumer_id, seq)
);

-- What purge_dead goes by.
CREATE INDEX dead_letters_died ON holdfast.dead_letters (channel_id, died_at);

-- What a list goes by: all of a consumer, those of one reason, or those of one fingerprint; the latest first.
CREATE INDEX dead_letters_consumer ON holdfast.dead_letters (consumer_id, died_at, seq);

CREATE INDEX dead_letters_reason ON holdfast.dead_letters (consumer_id, reason, died_at, seq);

CREATE INDEX dead_letters_fingerprint ON holdfast.dead_letters (consumer_id, fingerprint, died_at, seq);

-- Exact counts without a hot row: each statement that moves a job into or out of dead appends one delta
-- per group in its own transaction; folding moves deltas into dead_counts; a read adds the rest.
-- A delta counts for its reason and for its fingerprint; one that mends a count carries only one of them.
CREATE TABLE holdfast.dead_deltas (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_id integer NOT NULL,
    reason      text,
    change      bigint NOT NULL,
    fingerprint text
);

CREATE TABLE holdfast.dead_counts (
    consumer_id integer NOT NULL REFERENCES holdfast.consumers ON DELETE CASCADE,
    reason      text NOT NULL,
    dead        bigint NOT NULL,
    PRIMARY KEY (consumer_id, reason)
);

CREATE TABLE holdfast.dead_clusters (
    consumer_id integer NOT NULL REFERENCES holdfast.consumers ON DELETE CASCADE,
    fingerprint text NOT NULL,
    dead        bigint NOT NULL,
    PRIMARY KEY (consumer_id, fingerprint)
);

-- What folding takes away: there may be many clusters.
CREATE INDEX dead_clusters_empty ON holdfast.dead_clusters (consumer_id) WHERE dead = 0;

-- One row: when what was there was counted, once in the store's life, and when deltas were last folded.
CREATE TABLE holdfast.dead_summary (
    singleton       boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    bootstrapped_at timestamptz,
    folded_at       timestamptz NOT NULL DEFAULT holdfast.now()
);

INSERT INTO holdfast.dead_summary DEFAULT VALUES;

UPDATE holdfast.dead_summary SET bootstrapped_at = folded_at;

-- Exact at every moment: the folded counts plus the deltas that are not folded yet.
CREATE VIEW holdfast.dead_totals AS
SELECT consumer_id, reason, sum(n)::bigint AS dead FROM (
    SELECT consumer_id, reason, dead AS n FROM holdfast.dead_counts
    UNION ALL SELECT consumer_id, reason, change FROM holdfast.dead_deltas WHERE reason IS NOT NULL
) t GROUP BY consumer_id, reason;

CREATE VIEW holdfast.cluster_totals AS
SELECT consumer_id, fingerprint, sum(n)::bigint AS dead FROM (
    SELECT consumer_id, fingerprint, dead AS n FROM holdfast.dead_clusters
    UNION ALL SELECT consumer_id, fingerprint, change FROM holdfast.dead_deltas WHERE fingerprint IS NOT NULL
) t GROUP BY consumer_id, fingerprint;

-- Give up on jobs: into dead_letters, or into history where the policy discards, and from there into the
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
    IF waiting THEN
        PERFORM holdfast.take_out(p_consumer_ids, p_seqs);
    ELSE
        PERFORM holdfast.split_off(p_consumer_ids, p_seqs, p_tokens);
    END IF;
    IF overdue THEN
        p_seqs := holdfast.lock_free(p_consumer_ids, p_seqs);
    END IF;
    PERFORM FROM holdfast.jobs j
    JOIN unnest(p_consumer_ids, p_seqs) AS b (consumer_id, seq) ON b.consumer_id = j.consumer_id AND b.seq = j.id
    WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
    ORDER BY j.consumer_id, j.id FOR UPDATE OF j;
    WITH gone AS (
        DELETE FROM holdfast.jobs j
        USING unnest(p_consumer_ids, p_seqs, p_tokens, p_reasons, p_errors, p_fingerprints)
              AS b (consumer_id, seq, token, reason, error, fingerprint)
        WHERE j.consumer_id = ANY (p_consumer_ids) AND j.id = ANY (p_seqs)
          AND j.consumer_id = b.consumer_id AND j.id = b.seq AND j.token = b.token
          AND CASE WHEN waiting THEN j.lease_until IS NULL AND j.expires_at <= v_now
              ELSE j.lease_until IS NOT NULL AND (NOT overdue OR j.lease_until <= v_now) END
        -- An overdue attempt ended without an answer: it is given back and counts as an abandonment.
        RETURNING j.*, j.attempts - overdue::integer AS spent, j.abandonments + overdue::integer AS lost,
                  b.reason, coalesce(j.errors, '[]') || (b.error || jsonb_build_object('at', v_now)) AS history, b.fingerprint
    ), dead AS (
        INSERT INTO holdfast.dead_letters (consumer_id, channel_id, epoch, seq, token, created_at,
            died_at, priority, attempts, abandonments, order_key, worker, reason, fingerprint, errors, data)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.id, g.token, g.created_at, v_now, g.priority, g.spent,
               g.lost, g.order_key, g.worker, g.reason, g.fingerprint, g.history, g.data
        FROM gone g JOIN holdfast.consumers c ON c.id = g.consumer_id WHERE NOT c.discard
    ), discarded AS (
        INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.id, g.id, g.token, g.created_at, v_now, 'discarded',
               g.priority, g.spent, g.lost, g.worker, g.reason, g.history
        FROM gone g JOIN holdfast.consumers c ON c.id = g.consumer_id WHERE c.discard
    )
    SELECT array_agg(g.consumer_id), array_agg(g.id), array_agg(g.token)
    INTO v_owners, v_seqs, v_tokens FROM gone g;
    PERFORM holdfast.make_room(array_agg(c.id)) FROM unnest(v_owners) AS b (id) JOIN holdfast.consumers c ON c.id = b.id
    WHERE NOT c.discard;

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
        -- Row by row, by the whole key: planned on a young table, a join reads all dead letters of the consumer, or all the log.
        CROSS JOIN LATERAL (SELECT * FROM holdfast.dead_letters x
                            WHERE x.consumer_id = b.consumer_id AND x.seq = b.seq OFFSET 0) d
        JOIN holdfast.consumers c ON c.id = b.consumer_id
        JOIN holdfast.channels o ON o.id = c.channel_id
        JOIN holdfast.channels t ON t.id = c.dead_letter_id
        CROSS JOIN LATERAL (SELECT * FROM holdfast.log x
                            WHERE x.channel_id = d.channel_id AND x.epoch = d.epoch AND x.seq = d.seq OFFSET 0) e
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

-- The same for the lifecycle, which buries jobs of many consumers at once, and gives way where it would have to wait.
CREATE FUNCTION holdfast.bury_due(
    p_consumer_ids integer[], p_seqs bigint[], p_tokens bigint[], p_reasons text[], p_errors jsonb[],
    p_fingerprints text[], p_waiting boolean
) RETURNS bigint LANGUAGE sql SET lock_timeout = '500ms' AS $$
    SELECT count(*) FROM holdfast.bury(p_consumer_ids, p_seqs, p_tokens, p_reasons, p_errors, p_fingerprints,
                                       p_waiting, NOT p_waiting);
$$;

-- dead → ready at the tail with fresh budgets and a higher token, with other data where some is given.
CREATE FUNCTION holdfast.revive(p_consumer_id integer, p_seqs bigint[], p_data bytea) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now    timestamptz := holdfast.now();
    v_risen  bigint[];
BEGIN
    WITH risen AS (
        -- Locked in order: two that name the same ones never wait for each other.
        DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM holdfast.dead_letters d
            WHERE d.consumer_id = p_consumer_id AND d.seq = ANY (p_seqs) ORDER BY d.seq FOR UPDATE))
        RETURNING *
    ), made AS (
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, id, token, due_at, created_at,
                                   expires_at, state, priority, order_key, errors, data)
        SELECT r.consumer_id, r.channel_id, r.epoch, r.seq, (SELECT holdfast.next_token()), v_now, r.created_at,
               v_now + c.expires_after, 'ready', r.priority, r.order_key, r.errors, coalesce(p_data, r.data)
        FROM risen r JOIN holdfast.consumers c ON c.id = r.consumer_id
        RETURNING id
    )
    SELECT array_agg(id) INTO v_risen FROM made;
    UPDATE holdfast.depths SET live = live + cardinality(v_risen)
    WHERE consumer_id = p_consumer_id AND v_risen IS NOT NULL;
    PERFORM pg_notify('holdfast', ch.name) FROM holdfast.consumers c
        JOIN holdfast.channels ch ON ch.id = c.channel_id WHERE c.id = p_consumer_id AND v_risen IS NOT NULL;
    RETURN QUERY SELECT unnest(v_risen);
END $$;

-- dead → purged, each with a record of it.
CREATE FUNCTION holdfast.purge(p_consumer_id integer, p_seqs bigint[]) RETURNS SETOF bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM holdfast.dead_letters d
            WHERE d.consumer_id = p_consumer_id AND d.seq = ANY (p_seqs) ORDER BY d.seq FOR UPDATE))
        RETURNING *
    ), logged AS (
        INSERT INTO holdfast.history (consumer_id, channel_id, epoch, first, last, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.seq, g.seq, g.token, g.created_at,
               (SELECT holdfast.now()), 'purged', g.priority, g.attempts, g.abandonments, g.worker, g.reason,
               g.errors FROM gone g
    )
    SELECT seq FROM gone;
$$;

-- The latest deaths of a consumer before one of them, and not before `p_since`: by reason, by fingerprint or all.
CREATE FUNCTION holdfast.dead_before(
    p_consumer_id integer, p_reason text, p_fingerprint text, p_since timestamptz,
    p_died_at timestamptz, p_seq bigint, p_limit bigint
) RETURNS TABLE (died_at timestamptz, seq bigint) LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
    IF p_fingerprint IS NOT NULL THEN
        RETURN QUERY SELECT d.died_at, d.seq FROM holdfast.dead_letters d
        WHERE d.consumer_id = p_consumer_id AND d.fingerprint = p_fingerprint
          AND d.died_at >= p_since AND (d.died_at, d.seq) < (p_died_at, p_seq)
        ORDER BY d.died_at DESC, d.seq DESC LIMIT p_limit;
    ELSIF p_reason IS NOT NULL THEN
        RETURN QUERY SELECT d.died_at, d.seq FROM holdfast.dead_letters d
        WHERE d.consumer_id = p_consumer_id AND d.reason = p_reason
          AND d.died_at >= p_since AND (d.died_at, d.seq) < (p_died_at, p_seq)
        ORDER BY d.died_at DESC, d.seq DESC LIMIT p_limit;
    ELSE
        RETURN QUERY SELECT d.died_at, d.seq FROM holdfast.dead_letters d
        WHERE d.consumer_id = p_consumer_id
          AND d.died_at >= p_since AND (d.died_at, d.seq) < (p_died_at, p_seq)
        ORDER BY d.died_at DESC, d.seq DESC LIMIT p_limit;
    END IF;
END $$;

-- One folds at a time, so that nobody waits for the rows of another's counts. What follows the lock in a function
-- sees everything that the one before has folded.
CREATE FUNCTION holdfast.fold_lock() RETURNS void LANGUAGE sql AS
    'SELECT pg_advisory_xact_lock(holdfast.publish_lock(), -1)';

CREATE FUNCTION holdfast.fold_deltas(p_limit bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_folded bigint;
BEGIN
    WITH taken AS (
        DELETE FROM holdfast.dead_deltas
        WHERE id IN (SELECT id FROM holdfast.dead_deltas ORDER BY id LIMIT p_limit)
        RETURNING consumer_id, reason, fingerprint, change
    ), known AS (
        SELECT * FROM taken WHERE consumer_id IN (SELECT id FROM holdfast.consumers)
    ), counts AS (
        INSERT INTO holdfast.dead_counts AS d (consumer_id, reason, dead)
        SELECT consumer_id, reason, sum(change) FROM known WHERE reason IS NOT NULL GROUP BY 1, 2
        ON CONFLICT (consumer_id, reason) DO UPDATE SET dead = d.dead + excluded.dead
    ), clusters AS (
        INSERT INTO holdfast.dead_clusters AS d (consumer_id, fingerprint, dead)
        SELECT consumer_id, fingerprint, sum(change) FROM known WHERE fingerprint IS NOT NULL GROUP BY 1, 2
        ON CONFLICT (consumer_id, fingerprint) DO UPDATE SET dead = d.dead + excluded.dead
    )
    SELECT count(*) INTO v_folded FROM taken;
    DELETE FROM holdfast.dead_counts WHERE dead = 0;
    DELETE FROM holdfast.dead_clusters WHERE dead = 0;
    RETURN v_folded;
END $$;

-- A move into or out of dead counts itself: one delta per statement and group. Now and then the statement that
-- appends also folds, unless somebody else does, so that a read adds up a few hundred deltas at the most.
CREATE FUNCTION holdfast.count_dead() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_turn boolean;
BEGIN
    WITH added AS (
        INSERT INTO holdfast.dead_deltas (consumer_id, reason, fingerprint, change)
        SELECT consumer_id, reason, fingerprint, CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM moved GROUP BY consumer_id, reason, fingerprint RETURNING id
    )
    SELECT bool_or(id % 256 = 0) INTO v_turn FROM added;
    IF v_turn AND pg_try_advisory_xact_lock(holdfast.publish_lock(), -1) THEN
        PERFORM holdfast.fold_deltas(10000);
    END IF;
    RETURN NULL;
END $$;

CREATE TRIGGER count_in AFTER INSERT ON holdfast.dead_letters
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_dead();

CREATE TRIGGER count_out AFTER DELETE ON holdfast.dead_letters
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_dead();

-- Fold, unless that was done within `p_fresh` and at most `p_most` deltas wait. A store that was filled before there
-- were counts is counted first. The lock is judged last: the work may take long, and is undone if it was lost.
CREATE FUNCTION holdfast.fold_dead(
    p_fresh interval, p_most bigint, p_lock text, p_token bigint,
    OUT folded bigint, OUT bootstrapped boolean, OUT skipped boolean
) LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := holdfast.now();
    s     holdfast.dead_summary;
BEGIN
    PERFORM holdfast.fold_lock();
    SELECT * INTO s FROM holdfast.dead_summary;
    folded := 0;
    bootstrapped := s.bootstrapped_at IS NULL;
    skipped := NOT bootstrapped AND s.folded_at > v_now - p_fresh
        AND (SELECT count(*) FROM (SELECT FROM holdfast.dead_deltas LIMIT p_most + 1) d) <= p_most;
    IF bootstrapped THEN
        INSERT INTO holdfast.dead_deltas (consumer_id, reason, fingerprint, change)
        SELECT d.consumer_id, d.reason, d.fingerprint, d.found - d.counted FROM holdfast.dead_drift() d;
    END IF;
    IF NOT skipped THEN
        folded := holdfast.fold_deltas();
        UPDATE holdfast.dead_summary SET folded_at = v_now, bootstrapped_at = coalesce(bootstrapped_at, v_now);
    END IF;
    PERFORM holdfast.fence(p_lock, p_token);
END $$;

-- What folding would move into the counts now.
CREATE FUNCTION holdfast.would_fold_dead(p_fresh interval, p_most bigint) RETURNS bigint STABLE LANGUAGE sql AS $$
    SELECT CASE
        WHEN s.bootstrapped_at IS NULL
            THEN (SELECT count(*) FROM holdfast.dead_deltas) + (SELECT count(*) FROM holdfast.dead_drift())
        WHEN s.folded_at > holdfast.now() - p_fresh
             AND (SELECT count(*) FROM (SELECT FROM holdfast.dead_deltas LIMIT p_most + 1) d) <= p_most THEN 0
        ELSE (SELECT count(*) FROM holdfast.dead_deltas)
    END FROM holdfast.dead_summary s;
$$;

-- Every count that does not agree with what is there, by reason or by fingerprint. One statement, so that rows,
-- counts and deltas are seen at the same moment, whatever moves meanwhile. It reads every dead letter, and no index
-- is good for that.
CREATE FUNCTION holdfast.dead_drift()
RETURNS TABLE (consumer_id integer, reason text, fingerprint text, counted bigint, found bigint)
LANGUAGE sql STABLE SET enable_seqscan = on AS $$
    WITH letters AS MATERIALIZED (
        SELECT d.consumer_id, d.reason, d.fingerprint, count(*) AS n FROM holdfast.dead_letters d
        WHERE d.consumer_id IN (SELECT id FROM holdfast.consumers) GROUP BY 1, 2, 3
    ), compared AS (
        SELECT consumer_id, reason, NULL AS fingerprint, coalesce(t.dead, 0) AS counted, coalesce(l.n, 0) AS found
        FROM (SELECT consumer_id, reason, sum(n)::bigint AS n FROM letters GROUP BY 1, 2) l
        FULL JOIN holdfast.dead_totals t USING (consumer_id, reason)
        UNION ALL
        SELECT consumer_id, NULL, fingerprint, coalesce(t.dead, 0), coalesce(l.n, 0)
        FROM (SELECT consumer_id, fingerprint, sum(n)::bigint AS n FROM letters GROUP BY 1, 2) l
        FULL JOIN holdfast.cluster_totals t USING (consumer_id, fingerprint)
    )
    SELECT * FROM compared c WHERE c.counted <> c.found AND c.consumer_id IN (SELECT id FROM holdfast.consumers);
$$;

-- Compare the counts with what is there. What mends one is a delta too, and so right whatever moves meanwhile.
CREATE FUNCTION holdfast.recount_dead(p_repair boolean, p_lock text, p_token bigint)
RETURNS TABLE (channel text, consumer text, reason text, counted bigint, found bigint) LANGUAGE plpgsql AS $$
BEGIN
    PERFORM holdfast.fold_lock();
    RETURN QUERY
    WITH drift AS MATERIALIZED (
        SELECT * FROM holdfast.dead_drift()
    ), mended AS (
        INSERT INTO holdfast.dead_deltas (consumer_id, reason, fingerprint, change)
        SELECT d.consumer_id, d.reason, d.fingerprint, d.found - d.counted FROM drift d WHERE p_repair
    )
    SELECT ch.name, c.name, coalesce(d.reason, 'fingerprint ' || d.fingerprint), d.counted, d.found
    FROM drift d JOIN holdfast.consumers c ON c.id = d.consumer_id JOIN holdfast.channels ch ON ch.id = c.channel_id
    ORDER BY 1, 2, d.fingerprint NULLS FIRST, d.reason;
    PERFORM holdfast.fence(p_lock, p_token);
END $$;
