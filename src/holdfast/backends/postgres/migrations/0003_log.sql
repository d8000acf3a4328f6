-- The log: publish and read.

-- A publish takes one number of the sequence, however many events it has: theirs follow from it without a gap.
CREATE SEQUENCE holdfast.event_seq INCREMENT BY 131072;

-- The highest number that any event can have so far; a multiple of 131072.
CREATE FUNCTION holdfast.last_number() RETURNS bigint LANGUAGE sql
AS $$ SELECT coalesce(pg_sequence_last_value('holdfast.event_seq') + 131071, 0) $$;

-- The log. Its order is (epoch, seq): readers stay below the numbers of publishes that are not committed yet (see
-- holdfast.horizons), so a late commit can never appear behind them.
CREATE TABLE holdfast.log (
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    seq          bigint NOT NULL,
    tx           xid8 NOT NULL DEFAULT pg_current_xact_id(),  -- who published it: what frontiers go by, and no reader
    id           text NOT NULL,
    source       text NOT NULL,
    type         text NOT NULL,
    key          text,
    time         timestamptz,  -- null: the time of publishing
    headers      jsonb,
    data         bytea NOT NULL,
    published_at timestamptz NOT NULL,
    at           timestamptz,
    priority     smallint NOT NULL DEFAULT 0,
    -- Scheduled or prioritised: taken up before all others.
    special      boolean NOT NULL GENERATED ALWAYS AS (at IS NOT NULL OR priority <> 0) STORED
-- A trim leaves dead entries at one end of the index, which readers from the beginning have to pass.
) WITH (
    autovacuum_vacuum_insert_scale_factor = 0.5,
    autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 20000
);

-- In the order in which frontiers take it up.
CREATE INDEX log_take_up ON holdfast.log (channel_id, special, epoch, tx, seq);

-- Made after the other one: while both seem equally good for a number, as on a log of one event, the planner takes the
-- newest, and its plan outlives that.
ALTER TABLE holdfast.log ADD PRIMARY KEY (channel_id, epoch, seq);

-- Idempotency keys. They outlive their events, so the log can be trimmed. The id itself is the key, not a
-- hash of it: nothing can collide, and ids that rise with time fill the index from one end.
CREATE TABLE holdfast.keys (
    channel_id   integer NOT NULL,
    id           text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    content_hash bytea NOT NULL,
    epoch        integer NOT NULL,
    seq          bigint NOT NULL,
    published_at timestamptz NOT NULL,
    -- Ids that rise with time fill the index from one end, whichever channel they belong to.
    PRIMARY KEY (id, channel_id, source)
);

-- Headers and time are no content: a producer's retry often carries a fresh trace header.
CREATE FUNCTION holdfast.content_hash(type text, key text, data bytea) RETURNS bytea
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN substring(sha256(int4send(octet_length(type)) || convert_to(type, 'UTF8')
    || int4send(coalesce(octet_length(key), -1)) || convert_to(coalesce(key, ''), 'UTF8') || data) FOR 16);

-- Publish takes this lock of its channel shared; who sets a bound takes it exclusively, so that no publish is in flight
-- meanwhile.
-- (The two-number form is a key space of its own: no other lock of ours can collide with it.)
CREATE FUNCTION holdfast.publish_lock() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 1215655476;

-- Take the locks of a publish, both shared and until its transaction ends: that of the channel, and one whose key tells
-- the log's readers that its number will be above the last one that is taken by now. In this order, and the number itself
-- after both: see holdfast.horizons. The key is the complement of that last number with the channel in its low bits:
-- applications that lock single numbers of their own hardly use negative ones, and hardly shared.
--
-- The second one once in a transaction for each channel: what it tells holds for later publishes as well, and thousands of
-- locks would fill the server's table of them. The setting that remembers it ends with the transaction and goes back with
-- a savepoint, as the locks do. (One expression without a FROM: the server puts it in the place of the call.)
CREATE FUNCTION holdfast.lock_publish(p_channel_id integer) RETURNS text LANGUAGE sql AS $$
    SELECT CASE WHEN pg_advisory_xact_lock_shared(holdfast.publish_lock(), p_channel_id)::text IS NOT NULL THEN
        CASE WHEN position(',' || p_channel_id || ',' IN coalesce(current_setting('holdfast.publishing', true), '')) = 0
        THEN set_config('holdfast.publishing',
            concat(current_setting('holdfast.publishing', true), ',', p_channel_id, ',',
                   pg_advisory_xact_lock_shared(~(holdfast.last_number() + p_channel_id % 131072))::text),
            true)
        END
    END
$$;

-- Up to where each channel can be read: whatever commits later has a higher number, so that a reader who goes on from here
-- misses nothing. It never moves back. A reader asks for it in a statement before the one that looks at the log: then that
-- one sees every publish up to here, unless it was rolled back.
--
-- `entering` lists the server processes that have the lock of a channel and have not told their number yet: it may be
-- below what others have taken since. That lasts for a moment only, so the reader asks again.
CREATE FUNCTION holdfast.horizons(p_channels text[])
RETURNS TABLE (channel text, epoch integer, seq bigint, entering integer[])
LANGUAGE plpgsql SET enable_nestloop = off AS $$  -- nobody knows beforehand how many locks there are
DECLARE
    -- Before the locks are looked at: whoever is not among their holders by then takes a higher number.
    v_last  constant bigint := holdfast.last_number();
    v_epoch constant integer := (SELECT holdfast.current_epoch(s) FROM holdfast.store s);
BEGIN
    RETURN QUERY
    WITH held AS (
        -- By virtual transaction: a prepared one has no process. Exclusive locks are not those of publishers.
        SELECT l.virtualtransaction AS owner, l.pid, l.objsubid, l.objid::bigint AS channel_id,
               CASE l.objsubid WHEN 1 THEN ~(l.classid::bigint << 32 | l.objid::bigint) ELSE l.objid::bigint END AS told
        FROM pg_locks l
        WHERE l.locktype = 'advisory' AND l.granted AND l.mode = 'ShareLock'
          AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
          AND (l.objsubid = 1 OR l.classid = holdfast.publish_lock()::oid)
    ), publishing AS (
        SELECT h.objsubid, h.channel_id, h.pid, min(h.told - h.told % 131072) FILTER (WHERE h.objsubid = 1)
               OVER (PARTITION BY h.owner, h.told % 131072) AS below
        FROM held h WHERE h.told >= 0
    )
    SELECT c.name, v_epoch, least(v_last, min(p.below)),
           array_agg(p.pid) FILTER (WHERE p.channel_id IS NOT NULL AND p.below IS NULL)
    FROM holdfast.channels c LEFT JOIN publishing p ON p.channel_id = c.id AND p.objsubid = 2
    WHERE c.name = ANY (p_channels) GROUP BY c.name;
END $$;

-- Refuse while the channel or a bounded consumer of it is full; serialises publishers of channels with bounded
-- consumers only.
CREATE FUNCTION holdfast.check_depth(p_channel text, p_channel_id integer) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    bound record;
BEGIN
    IF (SELECT is_full FROM holdfast.channels WHERE id = p_channel_id) THEN
        RAISE EXCEPTION 'channel % is full by its max_bytes policy', p_channel
            USING ERRCODE = 'HF002',
                  HINT = 'let its consumers catch up so that it can be trimmed, or raise max_bytes';
    END IF;
    FOR bound IN
        SELECT c.name, d.live, d.max_depth FROM holdfast.depths d
        JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = p_channel_id ORDER BY d.consumer_id FOR UPDATE OF d
    LOOP
        IF bound.live >= bound.max_depth THEN
            RAISE EXCEPTION 'consumer % of channel % holds % live jobs; its max_depth is %',
                bound.name, p_channel, bound.live, bound.max_depth
                USING ERRCODE = 'HF002', HINT = 'publish again once it has caught up';
        END IF;
    END LOOP;
END $$;

-- So many events more for every bounded consumer of a channel.
CREATE FUNCTION holdfast.add_depth(p_channel_id integer, p_count integer) RETURNS void LANGUAGE sql AS $$
    UPDATE holdfast.depths d SET live = d.live + p_count
    FROM holdfast.consumers c WHERE c.id = d.consumer_id AND c.channel_id = p_channel_id;
$$;

-- What every publish begins with: the channel, its lock, and a sequence number per event.
CREATE FUNCTION holdfast.begin_publish(
    p_channel text, p_count integer,
    OUT channel_id integer, OUT epoch integer, OUT now timestamptz, OUT bounded boolean, OUT seqs bigint[]
) LANGUAGE plpgsql AS $$
DECLARE
    v_first bigint;
BEGIN
    -- An older snapshot could miss a bound that was set since.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'publish needs a READ COMMITTED transaction, this one is %',
            current_setting('transaction_isolation') USING ERRCODE = 'HF003';
    ELSIF p_count > 131072 THEN
        RAISE EXCEPTION 'a batch of % events; publish at most 131072 at once', p_count USING ERRCODE = 'HF003';
    END IF;
    channel_id := holdfast.ensure_channel(p_channel);
    PERFORM holdfast.lock_publish(channel_id);
    -- A statement of its own, so that it sees what was changed before the lock was granted.
    SELECT c.bounded, holdfast.current_epoch(s), clock_timestamp() + s.clock_offset INTO bounded, epoch, now
    FROM holdfast.channels c, holdfast.store s WHERE c.id = channel_id;
    IF bounded THEN
        PERFORM FROM holdfast.depths d JOIN holdfast.consumers c ON c.id = d.consumer_id
        WHERE c.channel_id = begin_publish.channel_id ORDER BY d.consumer_id FOR UPDATE OF d;
    END IF;
    v_first := nextval('holdfast.event_seq');
    seqs := ARRAY(SELECT generate_series(v_first, v_first + p_count - 1));
END $$;

-- How a bulk publish begins: keys and events follow by COPY in the same transaction. A key that exists
-- breaks the COPY, and the batch goes through publish_many instead.
CREATE FUNCTION holdfast.begin_bulk(p_channel text, p_count integer) RETURNS record LANGUAGE plpgsql AS $$
DECLARE
    v_begun record;
BEGIN
    v_begun := holdfast.begin_publish(p_channel, p_count);
    IF v_begun.bounded THEN
        PERFORM holdfast.check_depth(p_channel, v_begun.channel_id);
        PERFORM holdfast.add_depth(v_begun.channel_id, p_count);
    END IF;
    RETURN v_begun;
END $$;

-- Append a batch, all or none. `repeats` lists the events that were there before, by index from 0:
-- [{"at": 3, "epoch": 1, "seq": 9}]. Arrays may be null where every event takes the default.
CREATE FUNCTION holdfast.publish_many(
    channel text, ids text[], data bytea[], sources text[] DEFAULT NULL, types text[] DEFAULT NULL,
    keys text[] DEFAULT NULL, times timestamptz[] DEFAULT NULL, headers jsonb[] DEFAULT NULL,
    at timestamptz DEFAULT NULL, priority smallint DEFAULT 0,
    bounded boolean DEFAULT true, wake boolean DEFAULT true,
    OUT epoch integer, OUT seqs bigint[], OUT repeats jsonb
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_begun   record;
    v_seqs    bigint[];
    v_fresh   bigint;
    v_clashes jsonb;
BEGIN
    v_begun := holdfast.begin_publish(channel, cardinality(data));
    epoch := v_begun.epoch; seqs := v_begun.seqs; v_seqs := v_begun.seqs;

    INSERT INTO holdfast.keys (channel_id, id, source, content_hash, epoch, seq, published_at)
    SELECT v_begun.channel_id, e.id, coalesce(e.source, 'default'),
           holdfast.content_hash(coalesce(e.type, 'event'), e.key, e.data), v_begun.epoch, e.seq, v_begun.now
    FROM unnest(v_seqs, ids, sources, types, keys, data) AS e (seq, id, source, type, key, data)
    -- In one order: publishers that share ids wait for each other, and never in a circle.
    ORDER BY e.id COLLATE "C", coalesce(e.source, 'default') COLLATE "C", e.seq
    ON CONFLICT (channel_id, id, source) DO NOTHING;
    GET DIAGNOSTICS v_fresh = ROW_COUNT;

    IF v_fresh < cardinality(data) THEN
        SELECT jsonb_agg(jsonb_build_object('at', e.at - 1, 'epoch', k.epoch, 'seq', k.seq) ORDER BY e.at),
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
            -- What a caller saw fail may not have reached the standby yet, and a transaction that writes nothing waits
            -- for no standby. This one waits as the first one did.
            PERFORM pg_logical_emit_message(true, 'holdfast', '');
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
    INSERT INTO holdfast.log (channel_id, epoch, seq, id, source, type, key, time, headers, data,
                              published_at, at, priority)
    SELECT v_begun.channel_id, v_begun.epoch, e.seq, e.id, coalesce(e.source, 'default'),
           coalesce(e.type, 'event'), e.key, e.time, e.headers, e.data, v_begun.now,
           publish_many.at, publish_many.priority
    FROM unnest(v_seqs, ids, sources, types, keys, times, headers, data)
         AS e (seq, id, source, type, key, time, headers, data);
    IF v_begun.bounded THEN
        PERFORM holdfast.add_depth(v_begun.channel_id, cardinality(v_seqs));
    END IF;
    IF wake THEN
        PERFORM pg_notify('holdfast', channel);
    END IF;
END $$;

-- The quick way for the usual single publish: a fresh event in a known, unbounded channel. In every other
-- case it answers nothing and has done nothing; publish_many then says what is the matter. Two
-- statements on purpose: PL/pgSQL sets up every expression anew in each transaction, and many of them cost
-- more than the inserts.
CREATE FUNCTION holdfast.publish_one(
    p_channel text, p_id text, p_data bytea, p_source text, p_type text, p_key text, p_time timestamptz,
    p_headers jsonb, p_at timestamptz, p_priority smallint, p_wake boolean
) RETURNS TABLE (epoch integer, seq bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    PERFORM holdfast.lock_publish(c.id) FROM holdfast.channels c WHERE c.name = p_channel;
    -- A statement of its own, so that it sees what was changed before the lock was granted.
    RETURN QUERY
    WITH fresh AS (
        INSERT INTO holdfast.keys (channel_id, id, source, content_hash, epoch, seq, published_at)
        SELECT c.id, p_id, p_source, holdfast.content_hash(p_type, p_key, p_data), holdfast.current_epoch(s),
               nextval('holdfast.event_seq'), clock_timestamp() + s.clock_offset
        FROM holdfast.channels c, holdfast.store s
        WHERE c.name = p_channel AND NOT c.bounded
          AND current_setting('transaction_isolation') = 'read committed'
        ON CONFLICT (channel_id, id, source) DO NOTHING
        RETURNING channel_id, epoch, seq, published_at
    ), logged AS (
        INSERT INTO holdfast.log (channel_id, epoch, seq, id, source, type, key, time, headers, data,
                                  published_at, at, priority)
        SELECT f.channel_id, f.epoch, f.seq, p_id, p_source, p_type, p_key, p_time, p_headers, p_data,
               f.published_at, p_at, p_priority FROM fresh f
    )
    SELECT f.epoch, f.seq FROM fresh f
    LEFT JOIN LATERAL (SELECT pg_notify('holdfast', p_channel) WHERE p_wake) told ON true;
END $$;

-- One event, from psql or any language: SELECT * FROM holdfast.publish('orders', '{"n": 1}', id => 'o-1')
CREATE FUNCTION holdfast.publish(
    channel text, data jsonb, id text DEFAULT NULL, source text DEFAULT NULL, type text DEFAULT NULL,
    key text DEFAULT NULL, headers jsonb DEFAULT NULL, at timestamptz DEFAULT NULL,
    priority smallint DEFAULT 0,
    OUT event_id text, OUT event_position text, OUT duplicate boolean
) LANGUAGE plpgsql AS $$
DECLARE
    answer record;
BEGIN
    event_id := coalesce(publish.id, gen_random_uuid()::text);
    SELECT * INTO answer FROM holdfast.publish_many(
        channel, ARRAY[event_id], ARRAY[convert_to(data::text, 'UTF8')], ARRAY[source], ARRAY[type],
        ARRAY[key], NULL, ARRAY[headers], at, priority);
    duplicate := answer.repeats IS NOT NULL;
    event_position := CASE WHEN duplicate
        THEN holdfast.format_position((answer.repeats->0->>'epoch')::integer, (answer.repeats->0->>'seq')::bigint)
        ELSE holdfast.format_position(answer.epoch, answer.seqs[1]) END;
END $$;

-- The last event published before a time, among those that were not trimmed, up to a place. Times rise with places, but
-- for publishes that overlap, so that halving finds it without an index by time, which every publish would pay for.
CREATE FUNCTION holdfast.seek(p_channel_id integer, p_time timestamptz, p_until holdfast.place) RETURNS holdfast.place
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_start  holdfast.place := (
        SELECT ROW(trimmed_epoch, trimmed_seq)::holdfast.place FROM holdfast.channels
        WHERE id = p_channel_id);
    v_epoch  integer := p_until.epoch;
    v_probe  record;
    -- Publishes, each by the number before its first one, in steps of the sequence.
    v_low    bigint;
    v_high   bigint;
    v_middle bigint;
    v_found  holdfast.place := ROW(0, 0)::holdfast.place;
BEGIN
    -- The newest epoch that began before the time.
    WHILE v_low IS NULL LOOP
        SELECT l.epoch, (l.seq - 1) / 131072 INTO v_epoch, v_high FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch <= v_epoch
          AND (l.epoch, l.seq) > (v_start.epoch, v_start.seq)
          AND (l.epoch, l.seq) <= (p_until.epoch, p_until.seq)
        ORDER BY l.epoch DESC, l.seq DESC LIMIT 1;
        IF NOT FOUND THEN
            RETURN v_found;
        END IF;
        SELECT l.seq, l.published_at INTO v_probe FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch
          AND (l.epoch, l.seq) > (v_start.epoch, v_start.seq)
        ORDER BY l.epoch, l.seq LIMIT 1;
        IF v_probe.published_at < p_time THEN
            v_low := (v_probe.seq - 1) / 131072;
        ELSE
            v_epoch := v_epoch - 1;
        END IF;
    END LOOP;
    -- In it, the last publish before the time.
    WHILE v_low < v_high LOOP
        v_middle := v_low + (v_high - v_low + 1) / 2;
        SELECT l.seq, l.published_at INTO v_probe FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch AND l.seq > v_middle * 131072
        ORDER BY l.seq LIMIT 1;
        IF v_probe.published_at < p_time THEN
            v_low := (v_probe.seq - 1) / 131072;
        ELSE
            v_high := v_middle - 1;
        END IF;
    END LOOP;
    SELECT l.epoch, l.seq INTO v_found FROM holdfast.log l
    WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch
      AND l.seq > v_low * 131072 AND l.seq <= (v_low + 1) * 131072
    ORDER BY l.seq DESC LIMIT 1;
    RETURN v_found;
END $$;

-- Cut what stands after one place, up to another, into slices of `p_every` events, `p_limit` events in all.
-- It hops over the primary key alone, eight times a slice, and looks at the size of the data where it lands.
CREATE FUNCTION holdfast.cuts(
    p_channel_id integer, p_after holdfast.place, p_until holdfast.place, p_limit bigint, p_every bigint
) RETURNS TABLE (epoch integer, seq bigint, events bigint, bytes bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_at    holdfast.place := p_after;
    v_left  bigint := p_limit;
    v_most  bigint := (p_every + 7) / 8;
    v_hop   bigint;
    v_bytes bigint;
    v_sum   bigint;
    v_looks bigint;
BEGIN
    LOOP
        events := 0; v_sum := 0; v_looks := 0;
        WHILE events < least(p_every, v_left) LOOP
            v_hop := least(v_most, least(p_every, v_left) - events);
            SELECT l.epoch, l.seq INTO epoch, seq FROM holdfast.log l
            WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.seq) > (v_at.epoch, v_at.seq)
              AND (l.epoch, l.seq) <= (p_until.epoch, p_until.seq)
            ORDER BY l.epoch, l.seq OFFSET v_hop - 1 LIMIT 1;
            IF NOT FOUND THEN
                -- Fewer than a hop are left: they get shorter ones.
                SELECT count(*) INTO v_hop FROM (
                    SELECT FROM holdfast.log l WHERE l.channel_id = p_channel_id
                      AND (l.epoch, l.seq) > (v_at.epoch, v_at.seq)
                      AND (l.epoch, l.seq) <= (p_until.epoch, p_until.seq)) t;
                v_left := events + v_hop; v_most := (v_hop + 7) / 8;
                CONTINUE;
            END IF;
            SELECT octet_length(l.data) INTO v_bytes FROM holdfast.log l
            WHERE l.channel_id = p_channel_id AND (l.epoch, l.seq) = (cuts.epoch, cuts.seq);
            v_at := (epoch, seq);
            events := events + v_hop; v_sum := v_sum + v_bytes; v_looks := v_looks + 1;
        END LOOP;
        EXIT WHEN events = 0;
        epoch := v_at.epoch; seq := v_at.seq;
        bytes := v_sum * events / v_looks;
        RETURN NEXT;
        v_left := v_left - events;
    END LOOP;
END $$;

-- How many events a channel holds, and how large they are on average. Up to 100,000 are counted; of more, the
-- planner's estimate is good enough once the server has looked at the table, as autovacuum does.
CREATE FUNCTION holdfast.size(p_channel_id integer, OUT events bigint, OUT bytes bigint)
LANGUAGE plpgsql AS $$
DECLARE
    v_most constant bigint := 100000;
    v_plan json;
BEGIN
    SELECT count(*) INTO events FROM (
        SELECT FROM holdfast.log l WHERE l.channel_id = p_channel_id LIMIT v_most) t;
    IF events = v_most THEN
        IF (SELECT reltuples < 0 FROM pg_class WHERE oid = 'holdfast.log'::regclass) THEN
            SELECT count(*) INTO events FROM holdfast.log l WHERE l.channel_id = p_channel_id;
        ELSE
            EXECUTE format('EXPLAIN (FORMAT json) SELECT FROM holdfast.log WHERE channel_id = %s', p_channel_id)
            INTO v_plan;
            events := greatest(v_most, (v_plan->0->'Plan'->>'Plan Rows')::bigint);
        END IF;
    END IF;
    -- Both ends of the log are looked at: what is published changes with time.
    SELECT coalesce(avg(octet_length(l.data) + octet_length(l.id) + coalesce(pg_column_size(l.headers), 0)), 0)
           * size.events INTO bytes
    FROM (
        (SELECT epoch, seq, row_number() OVER (ORDER BY epoch, seq) AS n FROM holdfast.log
         WHERE channel_id = p_channel_id ORDER BY epoch, seq LIMIT v_most / 2)
        UNION ALL
        (SELECT epoch, seq, row_number() OVER (ORDER BY epoch DESC, seq DESC) FROM holdfast.log
         WHERE channel_id = p_channel_id ORDER BY epoch DESC, seq DESC LIMIT v_most / 2)
    ) s
    JOIN holdfast.log l ON (l.channel_id, l.epoch, l.seq) = (p_channel_id, s.epoch, s.seq)
    WHERE s.n % greatest(least(size.events, v_most / 2) / 100, 1) = 0;
END $$;
