-- Subscribe, and the steps in which a consumer that starts in the past catches up.
-- Errors: HF004 a policy that cannot be (its message says why).

-- Refuse a dead-letter channel that is missing, the channel itself, or leads back to it.
CREATE FUNCTION holdfast.check_dead_letter(p_channel text, p_target text) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_target integer;
BEGIN
    IF p_target IS NULL THEN
        RETURN NULL;
    END IF;
    SELECT id INTO v_target FROM holdfast.channels WHERE name = p_target;
    IF v_target IS NULL THEN
        RAISE EXCEPTION 'dead-letter channel % does not exist; create it first', p_target
            USING ERRCODE = 'HF004';
    END IF;
    IF EXISTS (
        WITH RECURSIVE reached (id) AS (
            SELECT v_target
            UNION SELECT c.dead_letter_id FROM reached r JOIN holdfast.consumers c ON c.channel_id = r.id
            WHERE c.dead_letter_id IS NOT NULL
        ) SELECT FROM reached JOIN holdfast.channels USING (id) WHERE name = p_channel
    ) THEN
        RAISE EXCEPTION 'dead-letter channel % leads back to %; choose one outside the cycle',
            p_target, p_channel USING ERRCODE = 'HF004';
    END IF;
    RETURN v_target;
END $$;

-- Start, change or end the bound of a consumer. No publish may be in flight while that changes.
CREATE FUNCTION holdfast.set_max_depth(p_channel_id integer, p_consumer_id integer, p_max_depth bigint)
RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths SET max_depth = p_max_depth
    WHERE consumer_id = p_consumer_id AND p_max_depth IS NOT NULL;
    IF FOUND OR (p_max_depth IS NULL
                 AND NOT EXISTS (SELECT FROM holdfast.depths WHERE consumer_id = p_consumer_id)) THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), p_channel_id);
    IF p_max_depth IS NULL THEN
        DELETE FROM holdfast.depths WHERE consumer_id = p_consumer_id;
    ELSE
        -- Nor may a job leave while they are counted for the first time.
        LOCK TABLE holdfast.jobs IN SHARE ROW EXCLUSIVE MODE;
        INSERT INTO holdfast.depths (consumer_id, live, max_depth)
        SELECT p_consumer_id, count(*), p_max_depth FROM holdfast.jobs WHERE consumer_id = p_consumer_id;
    END IF;
    UPDATE holdfast.channels SET bounded = EXISTS (
        SELECT FROM holdfast.depths d JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = p_channel_id) WHERE id = p_channel_id;
END $$;

CREATE FUNCTION holdfast.subscribe(
    p_channel text, p_consumer text, p_policy jsonb, p_lease interval, p_expires_after interval,
    p_ordered boolean, p_discard boolean, p_dead_letter text, p_max_depth bigint, p_from timestamptz
) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_channel  integer := holdfast.ensure_channel(p_channel);
    v_target   integer;
    v_consumer integer;
    v_ordered  boolean;
BEGIN
    -- One subscribe at a time: two could otherwise close a cycle of dead letters together.
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    v_target := holdfast.check_dead_letter(p_channel, p_dead_letter);
    SELECT id, ordered INTO v_consumer, v_ordered FROM holdfast.consumers
    WHERE channel_id = v_channel AND name = p_consumer;
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
               discard = p_discard, dead_letter_id = v_target WHERE id = v_consumer;
    END IF;
    PERFORM holdfast.set_max_depth(v_channel, v_consumer, p_max_depth);
END $$;

-- Turn the next `p_limit` older events into jobs; answers how many events it looked at. Everything up to
-- backfill_until was committed when the consumer was created, so that no late commit can be missed here.
CREATE FUNCTION holdfast.backfill(p_consumer_id integer, p_limit integer) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE
    v_now  timestamptz := holdfast.now();
    c      holdfast.consumers;
    v_step record;
BEGIN
    SELECT * INTO c FROM holdfast.consumers
    WHERE id = p_consumer_id AND backfill_until IS NOT NULL FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    WITH page AS MATERIALIZED (
        SELECT l.epoch, l.tx, l.seq, l.key, l.published_at, l.at, l.priority FROM holdfast.log l
        WHERE l.channel_id = c.channel_id AND l.seq <= c.backfill_until
          AND (l.epoch, l.tx, l.seq) > (c.backfill_epoch, c.backfill_tx, c.backfill_seq)
        ORDER BY l.epoch, l.tx, l.seq LIMIT p_limit
    ), made AS (
        INSERT INTO holdfast.jobs (consumer_id, channel_id, epoch, tx, seq, due_at, created_at, expires_at,
                                   state, priority, order_key)
        SELECT c.id, c.channel_id, p.epoch, p.tx, p.seq, greatest(p.at, v_now), v_now,
               greatest(p.at, v_now) + c.expires_after,
               (CASE WHEN p.at > v_now THEN 'scheduled' ELSE 'ready' END)::holdfast.job_state,
               p.priority, CASE WHEN c.ordered THEN p.key END
        FROM page p WHERE p.published_at >= c.backfill_from
        ON CONFLICT DO NOTHING RETURNING 1
    )
    SELECT (SELECT count(*) FROM page) AS seen, (SELECT count(*) FROM made) AS made, l.epoch, l.tx, l.seq
    INTO v_step
    FROM (SELECT) AS always LEFT JOIN LATERAL (
        SELECT p.epoch, p.tx, p.seq FROM page p ORDER BY p.epoch DESC, p.tx DESC, p.seq DESC LIMIT 1
    ) l ON true;
    UPDATE holdfast.depths SET live = live + v_step.made WHERE consumer_id = c.id;
    IF v_step.seen < p_limit THEN
        UPDATE holdfast.consumers SET backfill_from = NULL, backfill_until = NULL WHERE id = c.id;
    ELSE
        UPDATE holdfast.consumers SET backfill_epoch = v_step.epoch, backfill_tx = v_step.tx,
               backfill_seq = v_step.seq WHERE id = c.id;
    END IF;
    RETURN v_step.seen;
END $$;
