-- Keys and copies: a batch takes its keys in one order; a dead job's copy has the data that it died with, under an id
-- that nobody has taken; the keys of scheduled events are kept until these are due.

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
        SELECT t.name AS channel, array_agg(i.id) AS ids, array_agg(coalesce(d.data, e.data)) AS data,
               array_agg(i.source) AS sources, array_agg(e.type) AS types,
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

-- Remove what a table holds from before a time, at most `p_limit` rows, from the next 2,000 pages of it. The key of an
-- event that was scheduled counts from when that is due: until then a repeat is known, and a cancel finds it.
CREATE OR REPLACE FUNCTION holdfast.forget_from(p_table text, p_column text, p_before timestamptz, p_limit integer)
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
        SELECT t.ctid FROM holdfast.%1$I t WHERE t.ctid >= $1 AND t.ctid < $2 AND t.%2$I < $3
          AND ($5 <> ''keys'' OR NOT EXISTS (
            SELECT FROM holdfast.log l WHERE l.channel_id = t.channel_id AND l.epoch = t.epoch AND l.tx = t.tx
              AND l.seq = t.seq AND l.at >= $3 OFFSET 0)) LIMIT $4))', p_table, p_column)
    USING format('(%s,0)', v_page)::tid, format('(%s,0)', v_page + v_step)::tid, p_before, p_limit, p_table;
    GET DIAGNOSTICS v_removed = ROW_COUNT;
    -- Where the limit was reached, there may be more in the same pages.
    UPDATE holdfast.walks SET next_page = CASE WHEN v_removed < p_limit THEN v_page + v_step ELSE v_page END
    WHERE tablename = p_table;
    RETURN v_removed;
END $$;

-- Append a batch, all or none. `repeats` lists the events that were there before, by index from 0:
-- [{"at": 3, "epoch": 1, "tx": 7, "seq": 9}]. Arrays may be null where every event takes the default.
CREATE OR REPLACE FUNCTION holdfast.publish_many(
    channel text, ids text[], data bytea[], sources text[] DEFAULT NULL, types text[] DEFAULT NULL,
    keys text[] DEFAULT NULL, times timestamptz[] DEFAULT NULL, headers jsonb[] DEFAULT NULL,
    at timestamptz DEFAULT NULL, priority smallint DEFAULT 0,
    bounded boolean DEFAULT true, wake boolean DEFAULT true,
    OUT epoch integer, OUT tx bigint, OUT seqs bigint[], OUT repeats jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_begun   record;
    v_seqs    bigint[];
    v_fresh   bigint;
    v_clashes jsonb;
BEGIN
    v_begun := holdfast.begin_publish(channel, cardinality(data));
    epoch := v_begun.epoch; tx := v_begun.tx; seqs := v_begun.seqs; v_seqs := v_begun.seqs;

    INSERT INTO holdfast.keys (channel_id, id, source, content_hash, epoch, tx, seq, published_at)
    SELECT v_begun.channel_id, e.id, coalesce(e.source, 'default'),
           holdfast.content_hash(coalesce(e.type, 'event'), e.key, e.data), v_begun.epoch, v_begun.tx, e.seq, v_begun.now
    FROM unnest(v_seqs, ids, sources, types, keys, data) AS e (seq, id, source, type, key, data)
    -- In one order: publishers that share ids wait for each other, and never in a circle.
    ORDER BY e.id COLLATE "C", coalesce(e.source, 'default') COLLATE "C", e.seq
    ON CONFLICT (channel_id, id, source) DO NOTHING;
    GET DIAGNOSTICS v_fresh = ROW_COUNT;

    IF v_fresh < cardinality(data) THEN
        SELECT jsonb_agg(jsonb_build_object('at', e.at - 1, 'epoch', k.epoch, 'tx', k.tx, 'seq', k.seq)
                         ORDER BY e.at),
               jsonb_agg(e.id ORDER BY e.at) FILTER (
                   WHERE k.content_hash <> holdfast.content_hash(coalesce(e.type, 'event'), e.key, e.data))
        INTO repeats, v_clashes
        FROM unnest(v_seqs, ids, sources, types, keys, data)
             WITH ORDINALITY AS e (seq, id, source, type, key, data, at)
        JOIN holdfast.keys k ON (k.channel_id, k.id, k.source)
                                = (v_begun.channel_id, e.id, coalesce(e.source, 'default'))
        WHERE k.seq <> e.seq;
        IF v_clashes IS NOT NULL THEN
            RAISE EXCEPTION 'channel % already holds % with other content', channel, v_clashes
                USING ERRCODE = 'HF001', DETAIL = v_clashes::text,
                      HINT = 'publish a changed event under a new id';
        END IF;
        IF v_fresh = 0 THEN
            RETURN;
        END IF;
        -- Go on with the fresh ones only.
        SELECT array_agg(e.seq), array_agg(e.id), array_agg(e.source), array_agg(e.type), array_agg(e.key),
               array_agg(e.time), array_agg(e.headers), array_agg(e.data)
        INTO v_seqs, ids, sources, types, keys, times, headers, data
        FROM unnest(v_seqs, ids, sources, types, keys, times, headers, data)
             AS e (seq, id, source, type, key, time, headers, data)
        JOIN holdfast.keys k ON (k.channel_id, k.id, k.source)
                                = (v_begun.channel_id, e.id, coalesce(e.source, 'default'))
        WHERE k.seq = e.seq;
    END IF;

    -- A repeat is answered even by a full consumer: only what is fresh needs room.
    IF bounded AND v_begun.bounded THEN
        PERFORM holdfast.check_depth(channel, v_begun.channel_id);
    END IF;
    INSERT INTO holdfast.log (channel_id, epoch, tx, seq, id, source, type, key, time, headers, data,
                              published_at, at, priority)
    SELECT v_begun.channel_id, v_begun.epoch, v_begun.tx, e.seq, e.id, coalesce(e.source, 'default'),
           coalesce(e.type, 'event'), e.key, e.time, e.headers, e.data, v_begun.now,
           publish_many.at, publish_many.priority
    FROM unnest(v_seqs, ids, sources, types, keys, times, headers, data)
         AS e (seq, id, source, type, key, time, headers, data);
    PERFORM holdfast.create_jobs(v_begun.channel_id, v_begun.epoch, v_begun.tx, v_seqs, keys, at, priority,
                                 v_begun.now, v_begun.bounded);
    IF wake THEN
        PERFORM pg_notify('holdfast', channel);
    END IF;
END $$;
