-- Completing a job in somebody's own transaction: what it did and the end of the job are one.
--
-- Such a transaction may stay open for long, and nobody is to wait for it. So the job first gets a row of its own, in a
-- short transaction: the jobs that are leased together with it are in another row. The lock of that row is then the fence:
-- nobody takes the job before the transaction has ended. Whoever meets that lock leaves the job to it, or gives way. What
-- others wait for, room in a bounded consumer, is made at the commit; the next job of a key is left to the next claim.

-- Which database this is, and which of its lives: tokens of another one mean nothing here.
CREATE FUNCTION holdfast.identity() RETURNS text LANGUAGE sql STABLE AS $$
    SELECT s.system_id || '/' || d.oid || '/' || holdfast.current_epoch(s)
    FROM holdfast.store s, pg_database d WHERE d.datname = current_database();
$$;

-- Give a leased job a row of its own, under its token. Returns the identity of this store; null where the lease is lost.
CREATE FUNCTION holdfast.prepare_completion(p_channel text, p_consumer text, p_seq bigint, p_token bigint) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    v_consumer integer := holdfast.consumer_id(p_channel, p_consumer);
BEGIN
    -- Nothing is lost with this commit, and nobody waits for the disk.
    PERFORM set_config('synchronous_commit', 'off', true);
    PERFORM holdfast.split_off(ARRAY[v_consumer], ARRAY[p_seq], ARRAY[p_token]);
    IF NOT EXISTS (SELECT FROM holdfast.jobs j WHERE j.consumer_id = v_consumer AND j.id = p_seq AND j.token = p_token
                   AND j.lease_until IS NOT NULL) THEN
        RETURN NULL;
    ELSIF holdfast.ending(v_consumer, ARRAY[p_seq]) <> '{}' THEN
        RAISE EXCEPTION 'job % is being ended in another transaction, which is still open', p_seq USING ERRCODE = 'HF003';
    END IF;
    RETURN holdfast.identity();
END $$;

-- leased → done, in a transaction that the caller ends. Raises where the lease is lost, so that it cannot be committed.
-- The settings are those of our own sessions.
CREATE FUNCTION holdfast.complete_within(
    p_channel text, p_consumer text, p_seq bigint, p_token bigint, p_identity text
) RETURNS void LANGUAGE plpgsql
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
SET jit = off AS $$
BEGIN
    IF holdfast.identity() <> p_identity THEN
        RAISE EXCEPTION 'job % is not of this database, or the database was promoted or restored meanwhile', p_seq
            USING ERRCODE = 'HF003';
    END IF;
    PERFORM set_config('holdfast.stays_open', 'on', true);
    PERFORM FROM holdfast.complete_rows(
        holdfast.consumer_id(p_channel, p_consumer), ARRAY[p_seq], ARRAY[p_token], holdfast.now());
    IF FOUND AND current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'job % is not as it was when this transaction began to read; let the completion be its first '
            'statement, or use READ COMMITTED', p_seq USING ERRCODE = 'serialization_failure';
    ELSIF FOUND THEN
        RAISE EXCEPTION 'the lease on job % was lost', p_seq USING ERRCODE = 'HF007';
    END IF;
    PERFORM set_config('holdfast.stays_open', 'off', true);
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
