-- The points at which a test can stop a session; 7421 is the gate (see stops.py).
CREATE SCHEMA stops;

-- Waits where the session's countdown ends. Always true, so that an ASSERT can call it: that changes neither FOUND nor
-- the row count, as PERFORM would.
CREATE FUNCTION stops.here(p_point text) RETURNS boolean LANGUAGE plpgsql VOLATILE SET lock_timeout = 0 AS $$
DECLARE
    v_left integer := nullif(current_setting('stops.left', true), '');
BEGIN
    IF v_left >= 1 THEN
        v_left := v_left - 1;
        ASSERT set_config('stops.left', v_left::text, false) IS NOT NULL;
        IF v_left = 0 THEN
            ASSERT set_config('stops.at', p_point, false) IS NOT NULL;
            ASSERT pg_advisory_lock_shared(7421) IS NOT NULL;
            ASSERT pg_advisory_unlock_shared(7421);
        END IF;
    END IF;
    RETURN true;
END $$;

CREATE FUNCTION stops.after_statement() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    ASSERT stops.here(lower(TG_OP) || ' ' || TG_TABLE_NAME);
    RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql STABLE AS $$
BEGIN
    ASSERT stops.here('snapshot');
    RETURN clock_timestamp() + (SELECT clock_offset FROM holdfast.store);
END $$;
