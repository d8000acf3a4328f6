-- Completing a job in somebody's own transaction: what it did and the end of the job are one.
--
-- Such a transaction may stay open for long, and nobody is to wait for it. So the job first gets a row of its own, in a
-- short transaction, and none is shared with the jobs that are leased together with it. The lock of that row is the fence:
-- nobody takes the job before the transaction has ended. A second lock tells that this may take long: whoever meets both
-- leaves the job to it, or gives way. What
-- others wait for, room in a bounded consumer, is made at the commit; the next job of a key is left to the next claim.

-- Which database this is, and which of its lives: tokens of another one mean nothing here.
CREATE FUNCTION holdfast.identity() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT s.system_id || '/' || d.oid || '/' || holdfast.current_epoch(s)
    FROM holdfast.store s, pg_database d WHERE d.datname = current_database();
$$;

-- Give a leased job a row of its own, under its token, and with it all that are leased in one row: most likely each of them
-- is completed in this way. Returns the consumer and the identity of this store; nulls where the lease is lost.
CREATE FUNCTION holdfast.prepare_completion(
    p_channel text, p_consumer text, p_seq bigint, p_token bigint, OUT consumer_id integer, OUT store text
) LANGUAGE plpgsql AS $$
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_members  bigint[] := (SELECT j.members FROM holdfast.jobs j WHERE j.consumer_id = v_consumer AND j.id = -p_token);
    v_n        integer[] := ARRAY[cardinality(v_members)];
BEGIN
    IF v_members IS NOT NULL THEN
        -- Nothing is lost with this commit, and nobody waits for the disk.
        PERFORM set_config('synchronous_commit', 'off', true);
        PERFORM holdfast.split_off(array_fill(v_consumer, v_n), v_members, array_fill(p_token, v_n));
    END IF;
    IF NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.consumer_id = v_consumer AND j.id = p_seq AND j.token = p_token
                   AND j.lease_until IS NOT NULL) THEN
        RETURN;
    ELSIF holdfast.ending(v_consumer, ARRAY[p_seq]) <> '{}' THEN
        RAISE EXCEPTION 'job % is being ended in another transaction, which is still open', p_seq USING ERRCODE = 'HF003';
    END IF;
    consumer_id := v_consumer;
    store := holdfast.identity();
END $$;

-- leased → done, in a transaction that the caller ends. Raises where the lease is lost, so that it cannot be committed.
-- The settings are those of our own sessions.
CREATE FUNCTION holdfast.complete_within(p_consumer_id integer, p_seq bigint, p_token bigint, p_store text) RETURNS void
LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $$
BEGIN
    IF holdfast.identity() <> p_store THEN
        RAISE EXCEPTION 'job % is not of this database, or the database was promoted or restored meanwhile', p_seq
            USING ERRCODE = 'HF003';
    ELSIF current_setting('transaction_isolation') <> 'read committed' THEN
        -- Its snapshot may be older than the row.
        RAISE EXCEPTION 'a completion needs a READ COMMITTED transaction, this one is %',
            current_setting('transaction_isolation') USING ERRCODE = 'HF003';
    END IF;
    PERFORM set_config('holdfast.stays_open', 'on', true), pg_advisory_xact_lock(holdfast.ending_lock(p_consumer_id, p_seq));
    PERFORM FROM holdfast.complete_rows(p_consumer_id, ARRAY[p_seq], ARRAY[p_token], holdfast.now());
    IF FOUND THEN
        RAISE EXCEPTION 'the lease on job % was lost', p_seq USING ERRCODE = 'HF007';
    END IF;
    PERFORM set_config('holdfast.stays_open', 'off', true);
END $$;

-- Leave nothing in a session for the next handler.
CREATE FUNCTION holdfast.reset_session() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    RESET ALL;
    RESET SESSION AUTHORIZATION;
    UNLISTEN *;
    DISCARD TEMP;
    PERFORM pg_advisory_unlock_all();
END $$;

-- What became of completions in transactions that others end: true where one was committed, null where one is still open,
-- false where there is none.
CREATE FUNCTION holdfast.completions(p_channel text, p_consumer text, p_seqs bigint[], p_tokens bigint[])
RETURNS TABLE (seq bigint, token bigint, completed boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
    v_ending   bigint[] := holdfast.ending(v_consumer, p_seqs);
BEGIN
    -- A statement of its own: one that ended since then is seen here.
    RETURN QUERY
    SELECT l.seq, l.token, CASE
        WHEN EXISTS (SELECT FROM holdfast.ended(v_consumer, l.seq) h WHERE h.token = l.token AND h.outcome = 'done') THEN true
        WHEN l.seq = ANY (v_ending) AND EXISTS (
            SELECT FROM holdfast.jobs j WHERE j.consumer_id = v_consumer AND j.id = l.seq AND j.token = l.token) THEN NULL
        ELSE false END
    FROM unnest(p_seqs, p_tokens) AS l (seq, token);
END $$;
