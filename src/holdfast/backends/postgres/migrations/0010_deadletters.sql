-- Dead letters: their counts and clusters, pages of them, and the moves out of dead. Names for people, revisions,
-- and the end of a consumer.
-- Errors: HF006 it was changed since, or is being removed (its message says which).

-- The data that a consumer gets instead of the event's own: null for all but those that somebody patched.
ALTER TABLE holdfast.jobs ADD data bytea;
ALTER TABLE holdfast.dead_letters ADD data bytea;

-- What a list goes by: all of a consumer, those of one reason, or those of one fingerprint; the latest first.
CREATE INDEX dead_letters_consumer ON holdfast.dead_letters (consumer_id, died_at, seq);
CREATE INDEX dead_letters_reason ON holdfast.dead_letters (consumer_id, reason, died_at, seq);
CREATE INDEX dead_letters_fingerprint ON holdfast.dead_letters (consumer_id, fingerprint, died_at, seq);

-- Counts ---------------------------------------------------------------------------------------------------------

-- A delta counts for its reason and for its fingerprint; one that mends a count carries only one of them.
ALTER TABLE holdfast.dead_deltas ALTER reason DROP NOT NULL, ADD fingerprint text;

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

CREATE OR REPLACE VIEW holdfast.dead_totals AS
SELECT consumer_id, reason, sum(n)::bigint AS dead FROM (
    SELECT consumer_id, reason, dead AS n FROM holdfast.dead_counts
    UNION ALL SELECT consumer_id, reason, change FROM holdfast.dead_deltas WHERE reason IS NOT NULL
) t GROUP BY consumer_id, reason;

CREATE VIEW holdfast.cluster_totals AS
SELECT consumer_id, fingerprint, sum(n)::bigint AS dead FROM (
    SELECT consumer_id, fingerprint, dead AS n FROM holdfast.dead_clusters
    UNION ALL SELECT consumer_id, fingerprint, change FROM holdfast.dead_deltas WHERE fingerprint IS NOT NULL
) t GROUP BY consumer_id, fingerprint;

-- The summary of the DLQ's own design, by its own names. What it calls an id is our name.
CREATE VIEW holdfast.dlq_summary AS
SELECT c.name AS "consumerId", coalesce(c.display_name, c.name) AS "consumerName",
       ch.name AS "channelId", coalesce(ch.display_name, ch.name) AS "channelName",
       coalesce(t.dead, 0)::bigint AS dead_count, s.folded_at AS last_checked_at
FROM holdfast.consumers c
JOIN holdfast.channels ch ON ch.id = c.channel_id
CROSS JOIN holdfast.dead_summary s
LEFT JOIN (SELECT consumer_id, sum(dead) AS dead FROM holdfast.dead_totals GROUP BY consumer_id) t
  ON t.consumer_id = c.id;

-- One folds at a time, so that nobody waits for the rows of another's counts. What follows the lock in a function
-- sees everything that the one before has folded.
CREATE FUNCTION holdfast.fold_lock() RETURNS void LANGUAGE sql AS
    'SELECT pg_advisory_xact_lock(holdfast.publish_lock(), -1)';

-- Move deltas into the counts, all or at most `p_limit`; the caller holds the fold lock. Deltas of a consumer that
-- was removed are dropped.
DROP FUNCTION holdfast.fold_dead(integer);
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
CREATE OR REPLACE FUNCTION holdfast.count_dead() RETURNS trigger LANGUAGE plpgsql AS $$
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

-- A store of an earlier version has counts by reason, and none by fingerprint.
INSERT INTO holdfast.dead_deltas (consumer_id, reason, fingerprint, change)
SELECT consumer_id, reason, fingerprint, found - counted FROM holdfast.dead_drift();
UPDATE holdfast.dead_summary SET bootstrapped_at = folded_at;

-- Lists ----------------------------------------------------------------------------------------------------------

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

-- A consumer's job, wherever it is now.
CREATE FUNCTION holdfast.job(p_consumer_id integer, p_seq bigint)
RETURNS TABLE (
    seq bigint, state text, epoch integer, tx bigint, attempts smallint, abandonments smallint, token bigint,
    priority smallint, created_at timestamptz, due_at timestamptz, lease_until timestamptz, ended_at timestamptz,
    worker text, reason text, errors jsonb
) LANGUAGE sql STABLE AS $$
    SELECT seq, state::text, epoch, tx, attempts, abandonments, token, priority, created_at, due_at, lease_until,
           NULL::timestamptz, worker, NULL::text, errors
    FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq = p_seq
    UNION ALL
    SELECT seq, outcome, epoch, tx, attempts, abandonments, token, priority, created_at, NULL, NULL,
           ended_at, worker, reason, errors
    FROM holdfast.job_log WHERE consumer_id = p_consumer_id AND seq = p_seq
    UNION ALL
    SELECT seq, 'dead', epoch, tx, attempts, abandonments, token, priority, created_at, NULL, NULL,
           died_at, worker, reason, errors
    FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id AND seq = p_seq;
$$;

-- Moves out of dead ----------------------------------------------------------------------------------------------

-- dead → ready at the tail with fresh budgets and a higher token, with other data where some is given.
CREATE FUNCTION holdfast.revive(p_consumer_id integer, p_seqs bigint[], p_data bytea) RETURNS SETOF bigint
LANGUAGE plpgsql AS $$
DECLARE
    v_now   timestamptz := holdfast.now();
    v_risen bigint[];
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
        SELECT r.consumer_id, r.channel_id, r.epoch, r.tx, r.seq, r.token + 1, v_now, r.created_at,
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

-- Back to ready at the tail with fresh budgets, from dead or from any live state. The token rises, so that
-- a lease that still runs is lost.
CREATE OR REPLACE FUNCTION holdfast.requeue(p_consumer_id integer, p_seq bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := holdfast.now();
BEGIN
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

-- dead → purged, each with a record of it.
CREATE FUNCTION holdfast.purge(p_consumer_id integer, p_seqs bigint[]) RETURNS SETOF bigint LANGUAGE sql AS $$
    WITH gone AS (
        DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
            SELECT d.ctid FROM holdfast.dead_letters d
            WHERE d.consumer_id = p_consumer_id AND d.seq = ANY (p_seqs) ORDER BY d.seq FOR UPDATE))
        RETURNING *
    ), logged AS (
        INSERT INTO holdfast.job_log (consumer_id, channel_id, epoch, tx, seq, token, created_at, ended_at,
            outcome, priority, attempts, abandonments, worker, reason, errors)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at,
               (SELECT holdfast.now()), 'purged', g.priority, g.attempts, g.abandonments, g.worker, g.reason,
               g.errors FROM gone g
    )
    SELECT seq FROM gone;
$$;

-- Give up on jobs: into dead_letters, or into job_log where the policy discards, and from there into the
-- dead-letter channel, all in the caller's transaction. `waiting` true buries what expired while it
-- waited; false what is leased under the given token, and with `overdue` only past its deadline.
CREATE OR REPLACE FUNCTION holdfast.bury(
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
            died_at, priority, attempts, abandonments, order_key, worker, reason, fingerprint, errors, data)
        SELECT g.consumer_id, g.channel_id, g.epoch, g.tx, g.seq, g.token, g.created_at, v_now, g.priority,
               g.spent, g.lost, g.order_key, g.worker, g.reason, g.fingerprint, g.history, g.data
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
        -- Row by row, by the whole key: planned on a young table, a join reads all dead letters of the consumer.
        CROSS JOIN LATERAL (SELECT * FROM holdfast.dead_letters x
                            WHERE x.consumer_id = b.consumer_id AND x.seq = b.seq OFFSET 0) d
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

-- Consumers ------------------------------------------------------------------------------------------------------

ALTER TABLE holdfast.consumers ADD revision integer NOT NULL DEFAULT 1;

-- Consumers that are being removed. They are no consumers any more, so that nobody finds, feeds or counts them; what
-- is left of each goes in steps, and its row here last.
CREATE TABLE holdfast.removals (
    consumer_id integer PRIMARY KEY,
    channel_id  integer NOT NULL REFERENCES holdfast.channels,
    name        text NOT NULL,
    UNIQUE (channel_id, name)
);

-- Create a consumer or change its policy; with `p_revision` only where it has that one (0: where there is none).
DROP FUNCTION holdfast.subscribe(text, text, jsonb, interval, interval, boolean, boolean, text, bigint, timestamptz);
CREATE FUNCTION holdfast.subscribe(
    p_channel text, p_consumer text, p_policy jsonb, p_lease interval, p_expires_after interval,
    p_ordered boolean, p_discard boolean, p_dead_letter text, p_max_depth bigint, p_from timestamptz,
    p_revision integer DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_channel  integer := holdfast.ensure_channel(p_channel);
    v_target   integer;
    v_consumer integer;
    v_ordered  boolean;
    v_revision integer;
BEGIN
    -- One subscribe at a time: two could otherwise close a cycle of dead letters together.
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    v_target := holdfast.check_dead_letter(p_channel, p_dead_letter);
    SELECT id, ordered, revision INTO v_consumer, v_ordered, v_revision FROM holdfast.consumers
    WHERE channel_id = v_channel AND name = p_consumer;
    IF p_revision <> coalesce(v_revision, 0) THEN
        RAISE EXCEPTION 'consumer % of channel % has the revision %, not %; read it again', p_consumer, p_channel,
            coalesce(v_revision, 0), p_revision USING ERRCODE = 'HF006';
    ELSIF EXISTS (SELECT FROM holdfast.removals WHERE channel_id = v_channel AND name = p_consumer) THEN
        RAISE EXCEPTION 'consumer % of channel % is being removed; wait until that is done', p_consumer, p_channel
            USING ERRCODE = 'HF006';
    END IF;
    IF v_consumer IS NULL THEN
        -- Waits for every publish in flight; later ones will see the consumer.
        PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), v_channel);
        INSERT INTO holdfast.consumers (channel_id, name, policy, lease, expires_after, ordered, discard,
            dead_letter_id, backfill_from, backfill_epoch, backfill_tx, backfill_seq, backfill_until)
        SELECT v_channel, p_consumer, p_policy, p_lease, p_expires_after, p_ordered, p_discard, v_target,
               p_from, 0, 0, 0, CASE WHEN p_from IS NOT NULL THEN CASE WHEN s.is_called THEN s.last_value ELSE 0 END END
        FROM holdfast.event_seq s
        RETURNING id INTO v_consumer;
    ELSIF v_ordered <> p_ordered THEN
        RAISE EXCEPTION 'consumer % of channel % was created with ordered = %; create another consumer',
            p_consumer, p_channel, v_ordered USING ERRCODE = 'HF004';
    ELSE
        UPDATE holdfast.consumers SET policy = p_policy, lease = p_lease, expires_after = p_expires_after,
               discard = p_discard, dead_letter_id = v_target, revision = revision + (policy <> p_policy)::integer
        WHERE id = v_consumer;
    END IF;
    PERFORM holdfast.set_max_depth(v_channel, v_consumer, p_max_depth);
END $$;

-- Take a consumer out. No publish is in flight while that happens, and no fold: later ones do not see it.
CREATE FUNCTION holdfast.begin_removal(p_channel text, p_consumer text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_channel  integer := (SELECT id FROM holdfast.channels WHERE name = p_channel);
    v_consumer integer;
BEGIN
    SELECT consumer_id INTO v_consumer FROM holdfast.removals WHERE channel_id = v_channel AND name = p_consumer;
    IF FOUND OR v_channel IS NULL THEN
        RETURN v_consumer;
    END IF;
    PERFORM holdfast.fold_lock();
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), v_channel);
    -- Before the depth of the consumer, as a move out of dead has them.
    PERFORM FROM holdfast.channels WHERE id = v_channel AND bounded FOR NO KEY UPDATE;
    DELETE FROM holdfast.consumers WHERE channel_id = v_channel AND name = p_consumer RETURNING id INTO v_consumer;
    INSERT INTO holdfast.removals (consumer_id, channel_id, name)
    SELECT v_consumer, v_channel, p_consumer WHERE v_consumer IS NOT NULL;
    UPDATE holdfast.channels SET bounded = is_full OR holdfast.is_bounded(id) WHERE id = v_channel AND bounded;
    RETURN v_consumer;
END $$;

-- Remove up to `p_limit` rows of a consumer that was taken out.
CREATE FUNCTION holdfast.remove_step(
    p_consumer_id integer, p_limit bigint,
    OUT jobs bigint, OUT dead bigint, OUT history bigint, OUT done boolean
) LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM holdfast.jobs WHERE ctid = ANY (ARRAY(
        SELECT j.ctid FROM holdfast.jobs j WHERE j.consumer_id = p_consumer_id
        LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS jobs = ROW_COUNT;
    DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM holdfast.dead_letters d WHERE d.consumer_id = p_consumer_id
        LIMIT p_limit - jobs FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dead = ROW_COUNT;
    DELETE FROM holdfast.job_log WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM holdfast.job_log l WHERE l.consumer_id = p_consumer_id
        LIMIT p_limit - jobs - dead FOR UPDATE SKIP LOCKED));
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
