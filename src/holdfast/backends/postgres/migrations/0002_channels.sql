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
    starts_at      timestamptz,  -- it gets no event that was published before; null: its frontier alone tells
    created_at     timestamptz NOT NULL DEFAULT holdfast.now(),
    revision       bigint NOT NULL DEFAULT holdfast.next_revision(0),
    UNIQUE (channel_id, name)
);

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
    waiting     bigint NOT NULL,  -- jobs that had no row; the first step reports them
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
    -- No claim either, and that lock comes first: whoever buries has it when he publishes to a dead-letter channel.
    PERFORM holdfast.lock_frontier(p_consumer_id);
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), p_channel_id);
    IF p_max_depth IS NULL THEN
        DELETE FROM holdfast.depths WHERE consumer_id = p_consumer_id;
    ELSE
        -- Nor may a job leave while they are counted for the first time.
        LOCK TABLE holdfast.jobs IN SHARE ROW EXCLUSIVE MODE;
        INSERT INTO holdfast.depths (consumer_id, live, max_depth)
        SELECT p_consumer_id, coalesce(sum(n), 0) + holdfast.count_beyond(p_consumer_id, false, NULL)
               + holdfast.count_beyond(p_consumer_id, true, NULL), p_max_depth
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
        INSERT INTO holdfast.consumers (channel_id, name, policy, lease, expires_after, ordered, discard,
            dead_letter_id, starts_at)
        VALUES (v_channel, p_consumer, p_policy, p_lease, p_expires_after, p_ordered, p_discard, v_target,
                CASE WHEN p_from > '0001-01-02' THEN least(p_from, holdfast.now()) END)
        RETURNING id INTO v_consumer;
        PERFORM holdfast.begin_frontiers(v_consumer, v_channel, p_from);
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

-- Take a consumer out. No claim and no fold is in flight while that happens: later ones do not see it.
CREATE FUNCTION holdfast.begin_removal(p_channel text, p_consumer text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_channel  integer := (SELECT id FROM holdfast.channels WHERE name = p_channel);
    v_consumer integer;
    v_waiting  bigint;
BEGIN
    SELECT consumer_id INTO v_consumer FROM holdfast.removals WHERE channel_id = v_channel AND name = p_consumer;
    IF FOUND OR v_channel IS NULL THEN
        RETURN v_consumer;
    END IF;
    PERFORM holdfast.fold_lock();
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    v_consumer := holdfast.consumer_id(p_channel, p_consumer);
    PERFORM holdfast.lock_frontier(v_consumer);
    -- Before the depth of the consumer, as a move out of dead has them.
    PERFORM FROM holdfast.channels WHERE id = v_channel AND bounded FOR NO KEY UPDATE;
    v_waiting := holdfast.count_beyond(v_consumer, false, NULL) + holdfast.count_beyond(v_consumer, true, NULL);
    DELETE FROM holdfast.consumers WHERE id = v_consumer;
    INSERT INTO holdfast.removals (consumer_id, channel_id, name, waiting)
    SELECT v_consumer, v_channel, p_consumer, v_waiting WHERE v_consumer IS NOT NULL;
    DELETE FROM holdfast.frontiers WHERE consumer_id = v_consumer;
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
    UPDATE holdfast.removals r SET waiting = 0 FROM holdfast.removals o
    WHERE r.consumer_id = p_consumer_id AND o.consumer_id = r.consumer_id RETURNING o.waiting INTO jobs;
    WITH gone AS (
        DELETE FROM holdfast.jobs WHERE ctid = ANY (ARRAY(
            SELECT j.ctid FROM holdfast.jobs j WHERE j.consumer_id = p_consumer_id
            LIMIT v_left FOR UPDATE SKIP LOCKED))
        RETURNING n
    )
    SELECT jobs + coalesce(sum(g.n), 0), p_limit - count(*) INTO jobs, v_left FROM gone g;
    DELETE FROM holdfast.ahead WHERE ctid = ANY (ARRAY(
        SELECT a.ctid FROM holdfast.ahead a WHERE a.consumer_id = p_consumer_id LIMIT v_left FOR UPDATE SKIP LOCKED));
    DELETE FROM holdfast.dead_letters WHERE ctid = ANY (ARRAY(
        SELECT d.ctid FROM holdfast.dead_letters d WHERE d.consumer_id = p_consumer_id
        LIMIT v_left FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS dead = ROW_COUNT;
    WITH gone AS (
        DELETE FROM holdfast.history WHERE ctid = ANY (ARRAY(
            SELECT h.ctid FROM holdfast.history h WHERE h.consumer_id = p_consumer_id AND h.members IS NULL
            LIMIT v_left - dead FOR UPDATE SKIP LOCKED) || ARRAY(
            SELECT h.ctid FROM holdfast.history h WHERE h.consumer_id = p_consumer_id AND h.members IS NOT NULL
            LIMIT v_left - dead FOR UPDATE SKIP LOCKED))
        RETURNING n
    )
    SELECT coalesce(sum(g.n), 0) INTO history FROM gone g;
    -- One statement: a job that somebody still moves is seen where it was or where it went.
    done := NOT EXISTS (SELECT FROM holdfast.jobs WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.dead_letters WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.ahead WHERE consumer_id = p_consumer_id)
        AND NOT EXISTS (SELECT FROM holdfast.history WHERE consumer_id = p_consumer_id AND members IS NULL)
        AND NOT EXISTS (SELECT FROM holdfast.history WHERE consumer_id = p_consumer_id AND members IS NOT NULL);
    IF done THEN
        PERFORM holdfast.fold_lock();
        DELETE FROM holdfast.keys_to_wake WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.dead_deltas WHERE consumer_id = p_consumer_id;
        DELETE FROM holdfast.removals WHERE consumer_id = p_consumer_id;
    END IF;
END $$;
