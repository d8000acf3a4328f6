-- A publish takes one number of the sequence, however many events it has: theirs follow from it without a gap.
ALTER SEQUENCE holdfast.event_seq INCREMENT BY 131072;

-- Ids that rise with time fill the index from one end, whichever channel they belong to.
ALTER TABLE holdfast.keys DROP CONSTRAINT keys_pkey, ADD PRIMARY KEY (id, channel_id, source);

-- What every publish begins with: the channel, its lock, and a sequence number per event.
CREATE OR REPLACE FUNCTION holdfast.begin_publish(
    p_channel text, p_count integer,
    OUT channel_id integer, OUT epoch integer, OUT tx bigint, OUT now timestamptz, OUT bounded boolean,
    OUT seqs bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    -- An older snapshot could miss a consumer that was created since, and its events with it.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'publish needs a READ COMMITTED transaction, this one is %',
            current_setting('transaction_isolation') USING ERRCODE = 'HF003';
    ELSIF p_count > 131072 THEN
        RAISE EXCEPTION 'a batch of % events; publish at most 131072 at once', p_count USING ERRCODE = 'HF003';
    END IF;
    channel_id := holdfast.ensure_channel(p_channel);
    PERFORM pg_advisory_xact_lock_shared(holdfast.publish_lock(), channel_id);
    -- A statement of its own, so that it sees what was changed before the lock was granted.
    SELECT c.bounded, s.epoch, clock_timestamp() + s.clock_offset INTO bounded, epoch, now
    FROM holdfast.channels c, holdfast.store s WHERE c.id = channel_id;
    tx := pg_current_xact_id()::text::bigint;
    v_first := nextval('holdfast.event_seq');
    seqs := ARRAY(SELECT generate_series(v_first, v_first + p_count - 1));
END $$;

-- Create a consumer or change its policy; with `p_revision` only where it has that one (0: where there is none).
CREATE OR REPLACE FUNCTION holdfast.subscribe(
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
        -- (A number of its own is above those of all events so far, and below those of all later ones.)
        INSERT INTO holdfast.consumers (channel_id, name, policy, lease, expires_after, ordered, discard,
            dead_letter_id, backfill_from, backfill_epoch, backfill_tx, backfill_seq, backfill_until)
        SELECT v_channel, p_consumer, p_policy, p_lease, p_expires_after, p_ordered, p_discard, v_target,
               p_from, 0, 0, 0, CASE WHEN p_from IS NOT NULL THEN nextval('holdfast.event_seq') END
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
