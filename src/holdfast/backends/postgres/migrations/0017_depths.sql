-- Publishers of a channel with bounded consumers take the counts of these before the keys of their events, all of them
-- in this order: whoever copies has to know that there is room before it begins.

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
    SELECT c.bounded, holdfast.current_epoch(s), clock_timestamp() + s.clock_offset INTO bounded, epoch, now
    FROM holdfast.channels c, holdfast.store s WHERE c.id = channel_id;
    IF bounded THEN
        PERFORM FROM holdfast.depths d JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = begin_publish.channel_id ORDER BY d.consumer_id FOR UPDATE OF d;
    END IF;
    tx := pg_current_xact_id()::text::bigint;
    v_first := nextval('holdfast.event_seq');
    seqs := ARRAY(SELECT generate_series(v_first, v_first + p_count - 1));
END $$;
