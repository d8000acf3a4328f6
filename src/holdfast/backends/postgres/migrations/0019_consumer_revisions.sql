-- Revisions of consumers come from the counter of those of records: a consumer that is removed and made anew has none
-- that it had before.

-- A revision above the last one of a record or a consumer, and above all of those that had its name before.
CREATE FUNCTION holdfast.next_revision(p_last bigint) RETURNS bigint LANGUAGE sql
AS $$ SELECT greatest(p_last + 1, holdfast.lowest_token() + nextval('holdfast.record_revisions')) $$;

ALTER TABLE holdfast.consumers ALTER revision TYPE bigint, ALTER revision SET DEFAULT holdfast.next_revision(0);
SELECT setval('holdfast.record_revisions',
              greatest(nextval('holdfast.record_revisions'), (SELECT max(revision % 4294967296) + 1 FROM holdfast.consumers)));

DROP FUNCTION holdfast.subscribe(text, text, jsonb, interval, interval, boolean, boolean, text, bigint, timestamptz, integer);

-- Create a consumer or change its policy; with `p_revision` only where it has that one (0: where there is none).
CREATE FUNCTION holdfast.subscribe(
    p_channel text, p_consumer text, p_policy jsonb, p_lease interval, p_expires_after interval,
    p_ordered boolean, p_discard boolean, p_dead_letter text, p_max_depth bigint, p_from timestamptz,
    p_revision bigint DEFAULT NULL
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_channel  integer := holdfast.ensure_channel(p_channel);
    v_target   integer;
    v_consumer integer;
    v_ordered  boolean;
    v_revision bigint;
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
               discard = p_discard, dead_letter_id = v_target,
               revision = CASE WHEN policy = p_policy THEN revision ELSE holdfast.next_revision(revision) END
        WHERE id = v_consumer;
    END IF;
    PERFORM holdfast.set_max_depth(v_channel, v_consumer, p_max_depth);
END $$;
