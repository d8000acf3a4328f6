-- The store itself: its clock, its epochs, and the numbers that only rise.

-- Functions may name tables of later files.
SET LOCAL check_function_bodies = off;

-- One row: the store's epoch, what it was when the epoch was set, and the test kit's clock offset.
CREATE TABLE holdfast.store (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch        integer NOT NULL DEFAULT 1,
    system_id    bigint NOT NULL DEFAULT 0,
    timeline     integer NOT NULL DEFAULT 0,
    clock_offset interval NOT NULL DEFAULT '0'
);

INSERT INTO holdfast.store DEFAULT VALUES;

-- The one clock. Declared stable so that an index condition evaluates it once per statement.
CREATE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT clock_timestamp() + clock_offset FROM holdfast.store';

-- The timeline on which this server writes. It is current from the moment in which a promoted server takes writes;
-- pg_control_checkpoint() is not, before the next checkpoint. A server in recovery refuses it.
CREATE FUNCTION holdfast.timeline() RETURNS integer LANGUAGE sql PARALLEL SAFE
RETURN ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer;

-- The epoch. A promotion raises the timeline, and so the epoch, before anybody has written that down: whatever a
-- promoted server does belongs to the new one, whoever asked for it.
CREATE FUNCTION holdfast.current_epoch(s holdfast.store) RETURNS integer LANGUAGE sql PARALLEL SAFE
RETURN s.epoch + greatest(holdfast.timeline() - s.timeline, 0);

-- The lowest token, or revision, that is given out in this epoch. Within one epoch nothing is claimed or changed four
-- billion times.
CREATE FUNCTION holdfast.lowest_token() RETURNS bigint LANGUAGE sql STABLE
AS 'SELECT (holdfast.current_epoch(s) - 1)::bigint << 32 FROM holdfast.store s';

-- Which epochs began after the first, and where.
CREATE TABLE holdfast.epochs (
    epoch     integer PRIMARY KEY,
    system_id bigint NOT NULL,
    timeline  integer NOT NULL,
    began_at  timestamptz NOT NULL DEFAULT holdfast.now()
);

-- Events that a failover has lost, as far as somebody knows: their publishers report them. Under the same id they can be
-- published again.
CREATE TABLE holdfast.lost (
    channel     text NOT NULL,
    epoch       integer NOT NULL,
    seq         bigint NOT NULL,
    id          text COLLATE "C" NOT NULL,
    reported_at timestamptz NOT NULL DEFAULT holdfast.now(),
    PRIMARY KEY (channel, epoch, seq)
);

-- A store that was never opened begins here.
UPDATE holdfast.store s SET system_id = i.system_identifier, timeline = holdfast.timeline()
FROM pg_control_system() i WHERE s.system_id = 0;

-- Record what the server is; called on each new connection. Another system identifier is a store that was restored
-- elsewhere, perhaps not for the first time: its epoch is at least the number of the day. Returns the epoch and the
-- timeline if they are new.
CREATE FUNCTION holdfast.renew_epoch() RETURNS TABLE (epoch integer, timeline integer) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_system   bigint;
    v_timeline integer;
    v_epoch    integer;
BEGIN
    -- A connection to a standby would outlive its promotion, with all that was read on it.
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'the server is a standby' USING ERRCODE = 'read_only_sql_transaction';
    END IF;
    SELECT i.system_identifier, holdfast.timeline() INTO v_system, v_timeline FROM pg_control_system() i;
    PERFORM FROM holdfast.store s WHERE (s.system_id, s.timeline) = (v_system, v_timeline);
    IF FOUND THEN
        RETURN;
    END IF;
    UPDATE holdfast.store s SET system_id = v_system, timeline = v_timeline,
           epoch = CASE WHEN s.system_id = v_system AND s.timeline < v_timeline THEN holdfast.current_epoch(s)
                   ELSE greatest(holdfast.current_epoch(s) + 1, current_date - date '2025-01-01') END
    WHERE (s.system_id, s.timeline) <> (v_system, v_timeline) RETURNING s.epoch INTO v_epoch;
    IF NOT FOUND THEN
        RETURN;  -- another connection has just done it
    END IF;
    INSERT INTO holdfast.epochs (epoch, system_id, timeline) VALUES (v_epoch, v_system, v_timeline);
    -- Numbers of jobs and revisions of policies go on above those that were lost.
    PERFORM setval('holdfast.event_seq', nextval('holdfast.event_seq') + 131072 * (1::bigint << 24));
    UPDATE holdfast.consumers SET revision = revision + 100000;
    RETURN QUERY SELECT v_epoch, v_timeline;
END $$;

-- Revisions of records: a record that is removed and made anew has none that it had before. Otherwise whoever has read
-- the old one could change or remove the new one.
CREATE SEQUENCE holdfast.record_revisions;

-- A revision above the last one of a record or a consumer, and above all of those that had its name before.
CREATE FUNCTION holdfast.next_revision(p_last bigint) RETURNS bigint LANGUAGE sql
AS $$ SELECT greatest(p_last + 1, holdfast.lowest_token() + nextval('holdfast.record_revisions')) $$;

-- A position as the tables have it. All zeros is before every event, and stands for no position at all.
CREATE TYPE holdfast.place AS (epoch integer, seq bigint);

CREATE FUNCTION holdfast.format_position(epoch integer, seq bigint) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN lpad(to_hex(epoch), 4, '0') || '-' || lpad(to_hex(seq), 16, '0');
