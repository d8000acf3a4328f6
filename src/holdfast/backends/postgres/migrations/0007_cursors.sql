-- Stream consumers.

-- Stream consumers: the sink of each is durable up to and including the place. All zeros: nothing yet.
CREATE TABLE holdfast.cursors (
    channel_id integer NOT NULL REFERENCES holdfast.channels,
    name       text NOT NULL,
    epoch      integer NOT NULL,
    seq        bigint NOT NULL,
    moved_at   timestamptz NOT NULL DEFAULT holdfast.now(),
    PRIMARY KEY (channel_id, name)
);

-- Create a stream consumer that starts after what was published before a time, as far as the log can be read (see
-- holdfast.horizons); infinity is the end of that, and so before whatever is still in flight.
CREATE FUNCTION holdfast.attach(p_channel text, p_consumer text, p_from timestamptz, p_until holdfast.place)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_channel integer := holdfast.ensure_channel(p_channel);
BEGIN
    -- No trim is under way while a consumer appears: see holdfast.trim.
    PERFORM pg_advisory_xact_lock(holdfast.publish_lock(), 0);
    INSERT INTO holdfast.cursors (channel_id, name, epoch, seq)
    SELECT c.id, p_consumer, p.epoch, p.seq FROM holdfast.channels c
    CROSS JOIN LATERAL (
        SELECT (greatest(s, ROW(c.trimmed_epoch, c.trimmed_seq)::holdfast.place)).*
        FROM holdfast.seek(c.id, p_from, p_until) s
    ) p
    WHERE c.id = v_channel
    ON CONFLICT DO NOTHING;
END $$;
