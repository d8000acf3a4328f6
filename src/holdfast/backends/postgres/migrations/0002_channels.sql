-- Channels and worker consumers.

CREATE TABLE holdfast.channels (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE
                 CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,127}$' AND name !~ '\.\.' AND name !~ '\.$'),
    display_name text,
    bounded      boolean NOT NULL DEFAULT false,  -- whether some consumer of it has a row in depths
    created_at   timestamptz NOT NULL DEFAULT holdfast.now(),
    -- Whatever stood at or below the trimmed position was removed, but for the events of dead letters.
    trimmed_epoch integer NOT NULL DEFAULT 0,
    trimmed_tx    bigint NOT NULL DEFAULT 0,
    trimmed_seq   bigint NOT NULL DEFAULT 0,
    -- A full channel refuses publishes. `bounded` is then true as well: it tells publish to look closer at all.
    is_full       boolean NOT NULL DEFAULT false
);

CREATE TABLE holdfast.consumers (
    id             integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel_id     integer NOT NULL REFERENCES holdfast.channels,
    name           text NOT NULL,
    display_name   text,
    policy         jsonb NOT NULL,
    -- What statements need of the policy, so that they never parse it.
    lease          interval NOT NULL,
    expires_after  interval,
    ordered        boolean NOT NULL,
    discard        boolean NOT NULL,
    dead_letter_id integer REFERENCES holdfast.channels,
    paused         boolean NOT NULL DEFAULT false,
    -- A consumer that starts in the past turns older events into jobs in steps: those from
    -- backfill_from on, after the position (epoch, tx, seq), up to backfill_until. Null: nothing left.
    backfill_from  timestamptz,
    backfill_epoch integer,
    backfill_tx    bigint,
    backfill_seq   bigint,
    backfill_until bigint,
    created_at     timestamptz NOT NULL DEFAULT holdfast.now(),
    revision       bigint NOT NULL DEFAULT holdfast.next_revision(0),
    UNIQUE (channel_id, name)
);

CREATE INDEX consumers_backfill ON holdfast.consumers (id) WHERE backfill_until IS NOT NULL;

-- How many live jobs a bounded consumer has. Unbounded consumers have no row and pay nothing.
CREATE TABLE holdfast.depths (
    consumer_id integer PRIMARY KEY REFERENCES holdfast.consumers ON DELETE CASCADE,
    live        bigint NOT NULL,
    max_depth   bigint NOT NULL
) WITH (fillfactor = 50);

-- Consumers that are being removed. They are no consumers any more, so that nobody finds, feeds or counts them; what
-- is left of each goes in steps, and its row here last.
CREATE TABLE holdfast.removals (
    consumer_id integer PRIMARY KEY,
    channel_id  integer NOT NULL REFERENCES holdfast.channels,
    name        text NOT NULL,
    UNIQUE (channel_id, name)
);

CREATE FUNCTION holdfast.ensure_channel(channel text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT c.id INTO found_id FROM holdfast.channels c WHERE c.name = channel;
    WHILE found_id IS NULL LOOP
        INSERT INTO holdfast.channels (name) VALUES (channel) ON CONFLICT DO NOTHING;
        SELECT c.id INTO found_id FROM holdfast.channels c WHERE c.name = channel;
    END LOOP;
    RETURN found_id;
END $$;

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

CREATE FUNCTION holdfast.is_bounded(p_channel_id integer) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT FROM holdfast.depths d JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = p_channel_id);
$$;

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
        SELECT p_consumer_id, coalesce(sum(coalesce(upto - seq, 0) + 1), 0), p_max_depth
        FROM holdfast.jobs WHERE consumer_id = p_consumer_id;
    END IF;
    UPDATE holdfast.channels SET bounded = is_full OR holdfast.is_bounded(id) WHERE id = p_channel_id;
END $$;

CREATE FUNCTION holdfast.set_full(p_channel text, p_full boolean) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    -- A statement of its own: the next one sees the bounds that somebody else was setting meanwhile.
    PERFORM FROM holdfast.channels WHERE name = p_channel FOR NO KEY UPDATE;
    UPDATE holdfast.channels SET is_full = p_full, bounded = p_full OR holdfast.is_bounded(id)
    WHERE name = p_channel;
    RETURN FOUND;
END $$;

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
DECLARE
    v_left bigint := p_limit;
BEGIN
    WITH gone AS (
        DELETE FROM holdfast.jobs WHERE ctid = ANY (ARRAY(
            SELECT j.ctid FROM holdfast.jobs j WHERE j.consumer_id = p_consumer_id
            LIMIT v_left FOR UPDATE SKIP LOCKED))
        RETURNING coalesce(upto - seq, 0) + 1 AS jobs
    )
    SELECT coalesce(sum(g.jobs), 0), p_limit - count(*) INTO jobs, v_left FROM gone g;
    DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM holdfast.dead_letters d WHERE d.consumer_id = p_consumer_id
        LIMIT v_left FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dead = ROW_COUNT;
    DELETE FROM holdfast.job_log WHERE ctid = ANY (ARRAY(
        SELECT l.ctid FROM holdfast.job_log l WHERE l.consumer_id = p_consumer_id
        LIMIT v_left - dead FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS history = ROW_COUNT;
    -- One statement: a job that somebody still moves is seen where it was or where it went.
    done := NOT EXISTS (SELECT FROM holdfast.jobs WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.job_log WHERE consumer_id = p_consumer_id);
    IF done THEN
        PERFORM holdfast.fold_lock();
        DELETE FROM holdfast.keys_to_wake WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.dead_deltas WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.removals WHERE consumer_id = p_consumer_id;
    END IF;
END $$;
