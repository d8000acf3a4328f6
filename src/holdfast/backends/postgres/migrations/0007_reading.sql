-- The log in bulk: how far it may be read, where a time stands in it, where to cut it, how large it is.

-- A position as the tables have it. All zeros is before every event, and stands for no position at all.
CREATE TYPE holdfast.place AS (epoch integer, tx bigint, seq bigint);

-- Whatever stood at or below the trimmed place was removed, but for the events of dead letters.
ALTER TABLE holdfast.channels
    ADD trimmed_epoch integer NOT NULL DEFAULT 0,
    ADD trimmed_tx    bigint NOT NULL DEFAULT 0,
    ADD trimmed_seq   bigint NOT NULL DEFAULT 0;

-- The last place that a reader may go to: just below the oldest running transaction, since whatever commits
-- later has a place above it.
CREATE FUNCTION holdfast.horizon() RETURNS holdfast.place LANGUAGE sql STABLE AS $$
    SELECT s.epoch, pg_snapshot_xmin(pg_current_snapshot())::text::bigint - 1, 9223372036854775807
    FROM holdfast.store s;
$$;

-- The last event published before a time, among those that were not trimmed. Times rise with places, but for
-- transactions that overlap, so that halving finds it without an index by time, which every publish would pay for.
CREATE FUNCTION holdfast.seek(p_channel_id integer, p_time timestamptz) RETURNS holdfast.place
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end    holdfast.place := holdfast.horizon();
    v_start  holdfast.place := (
        SELECT ROW(trimmed_epoch, trimmed_tx, trimmed_seq)::holdfast.place FROM holdfast.channels
        WHERE id = p_channel_id);
    v_epoch  integer := v_end.epoch;
    v_probe  record;
    v_low    bigint;
    v_high   bigint;
    v_middle bigint;
    v_found  holdfast.place := ROW(0, 0, 0)::holdfast.place;
BEGIN
    -- The newest epoch that began before the time.
    WHILE v_low IS NULL LOOP
        SELECT l.epoch, l.tx INTO v_epoch, v_high FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch <= v_epoch
          AND (l.epoch, l.tx, l.seq) > (v_start.epoch, v_start.tx, v_start.seq)
          AND (l.epoch, l.tx, l.seq) <= (v_end.epoch, v_end.tx, v_end.seq)
        ORDER BY l.epoch DESC, l.tx DESC, l.seq DESC LIMIT 1;
        IF NOT FOUND THEN
            RETURN v_found;
        END IF;
        SELECT l.tx, l.published_at INTO v_probe FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch
          AND (l.epoch, l.tx, l.seq) > (v_start.epoch, v_start.tx, v_start.seq)
        ORDER BY l.epoch, l.tx, l.seq LIMIT 1;
        IF v_probe.published_at < p_time THEN
            v_low := v_probe.tx;
        ELSE
            v_epoch := v_epoch - 1;
        END IF;
    END LOOP;
    -- In it, the last transaction whose first event was published before the time.
    WHILE v_low < v_high LOOP
        v_middle := v_low + (v_high - v_low + 1) / 2;
        SELECT l.tx, l.published_at INTO v_probe FROM holdfast.log l
        WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch AND l.tx >= v_middle
        ORDER BY l.tx, l.seq LIMIT 1;
        IF v_probe.published_at < p_time THEN
            v_low := v_probe.tx;
        ELSE
            v_high := v_middle - 1;
        END IF;
    END LOOP;
    SELECT l.epoch, l.tx, l.seq INTO v_found FROM holdfast.log l
    WHERE l.channel_id = p_channel_id AND l.epoch = v_epoch AND l.tx = v_low AND l.published_at < p_time
    ORDER BY l.seq DESC LIMIT 1;
    RETURN v_found;
END $$;

-- Cut what stands after one place, up to another, into slices of `p_every` events, `p_limit` events in all.
-- It hops over the primary key alone, eight times a slice, and looks at the size of the data where it lands.
CREATE FUNCTION holdfast.cuts(
    p_channel_id integer, p_after holdfast.place, p_until holdfast.place, p_limit bigint, p_every bigint
) RETURNS TABLE (epoch integer, tx bigint, seq bigint, events bigint, bytes bigint)
LANGUAGE plpgsql STABLE AS $$
DECLARE
    v_end   holdfast.place := least(p_until, holdfast.horizon());
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
            SELECT l.epoch, l.tx, l.seq INTO epoch, tx, seq FROM holdfast.log l
            WHERE l.channel_id = p_channel_id
              AND (l.epoch, l.tx, l.seq) > (v_at.epoch, v_at.tx, v_at.seq)
              AND (l.epoch, l.tx, l.seq) <= (v_end.epoch, v_end.tx, v_end.seq)
            ORDER BY l.epoch, l.tx, l.seq OFFSET v_hop - 1 LIMIT 1;
            IF NOT FOUND THEN
                -- Fewer than a hop are left: they get shorter ones.
                SELECT count(*) INTO v_hop FROM (
                    SELECT FROM holdfast.log l WHERE l.channel_id = p_channel_id
                      AND (l.epoch, l.tx, l.seq) > (v_at.epoch, v_at.tx, v_at.seq)
                      AND (l.epoch, l.tx, l.seq) <= (v_end.epoch, v_end.tx, v_end.seq)) t;
                v_left := events + v_hop; v_most := (v_hop + 7) / 8;
                CONTINUE;
            END IF;
            SELECT octet_length(l.data) INTO v_bytes FROM holdfast.log l
            WHERE l.channel_id = p_channel_id AND (l.epoch, l.tx, l.seq) = (cuts.epoch, cuts.tx, cuts.seq);
            v_at := (epoch, tx, seq);
            events := events + v_hop; v_sum := v_sum + v_bytes; v_looks := v_looks + 1;
        END LOOP;
        EXIT WHEN events = 0;
        epoch := v_at.epoch; tx := v_at.tx; seq := v_at.seq;
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
        (SELECT epoch, tx, seq, row_number() OVER (ORDER BY epoch, tx, seq) AS n FROM holdfast.log
         WHERE channel_id = p_channel_id ORDER BY epoch, tx, seq LIMIT v_most / 2)
        UNION ALL
        (SELECT epoch, tx, seq, row_number() OVER (ORDER BY epoch DESC, tx DESC, seq DESC) FROM holdfast.log
         WHERE channel_id = p_channel_id ORDER BY epoch DESC, tx DESC, seq DESC LIMIT v_most / 2)
    ) s
    JOIN holdfast.log l ON (l.channel_id, l.epoch, l.tx, l.seq) = (p_channel_id, s.epoch, s.tx, s.seq)
    WHERE s.n % greatest(least(size.events, v_most / 2) / 100, 1) = 0;
END $$;
