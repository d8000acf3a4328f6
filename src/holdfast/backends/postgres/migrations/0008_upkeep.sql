-- Locks, stream consumers and state records.
-- Errors: HF005 the lock was lost (its detail is the name and the token).

-- Leases on names. A row stays when its lock is freed (until is null), so that the token only ever rises.
CREATE TABLE holdfast.locks (
    name  text PRIMARY KEY,
    owner text NOT NULL,
    token bigint NOT NULL,
    until timestamptz
);

-- Refuse a holder from the past. The row stays locked until the transaction ends: nobody takes the lock over
-- in between.
CREATE FUNCTION holdfast.fence(p_name text, p_token bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM holdfast.locks WHERE name = p_name AND token = p_token AND until IS NOT NULL FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the lock % with token % was lost', p_name, p_token
            USING ERRCODE = 'HF005', DETAIL = jsonb_build_array(p_name, p_token)::text;
    END IF;
END $$;

-- Stream consumers: the sink of each is durable up to and including the place. All zeros: nothing yet.
CREATE TABLE holdfast.cursors (
    channel_id integer NOT NULL REFERENCES holdfast.channels,
    name       text NOT NULL,
    epoch      integer NOT NULL,
    tx         bigint NOT NULL,
    seq        bigint NOT NULL,
    moved_at   timestamptz NOT NULL DEFAULT holdfast.now(),
    PRIMARY KEY (channel_id, name)
);

-- Create a stream consumer that starts after what was published before a time; infinity is the end of the
-- log. It ends below the oldest running transaction, and so before whatever is still in flight.
CREATE FUNCTION holdfast.attach(p_channel text, p_consumer text, p_from timestamptz) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_channel integer := holdfast.ensure_channel(p_channel);
BEGIN
    -- No trim is under way while a consumer appears: see holdfast.trim.
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    INSERT INTO holdfast.cursors (channel_id, name, epoch, tx, seq)
    SELECT c.id, p_consumer, p.epoch, p.tx, p.seq FROM holdfast.channels c
    CROSS JOIN LATERAL (
        SELECT (greatest(s, ROW(c.trimmed_epoch, c.trimmed_tx, c.trimmed_seq)::holdfast.place)).*
        FROM holdfast.seek(c.id, p_from) s
    ) p
    WHERE c.id = v_channel
    ON CONFLICT DO NOTHING;
END $$;

-- Small state records, each written whole under the revision that was read.
CREATE TABLE holdfast.records (
    key      text COLLATE "C" PRIMARY KEY,
    fields   jsonb NOT NULL,
    revision bigint NOT NULL,
    due_at   timestamptz
);
CREATE INDEX records_due ON holdfast.records (due_at, key) WHERE due_at IS NOT NULL;
