-- Triggers that keep what must hold on every way in and out, whoever writes the statement.

-- Move deltas into the counts, at most `p_limit` of them; safe to run anywhere at any time.
CREATE FUNCTION holdfast.fold_dead(p_limit integer) RETURNS bigint LANGUAGE sql AS $$
    WITH taken AS (
        DELETE FROM holdfast.dead_deltas WHERE id IN (
            SELECT id FROM holdfast.dead_deltas ORDER BY id LIMIT p_limit FOR UPDATE SKIP LOCKED)
        RETURNING consumer_id, reason, change
    ), folded AS (
        INSERT INTO holdfast.dead_counts AS d (consumer_id, reason, dead)
        SELECT consumer_id, reason, sum(change) FROM taken
        WHERE consumer_id IN (SELECT id FROM holdfast.consumers) GROUP BY 1, 2 ORDER BY 1, 2
        ON CONFLICT (consumer_id, reason) DO UPDATE SET dead = d.dead + excluded.dead
    )
    SELECT count(*) FROM taken;
$$;

-- A move into or out of dead counts itself: one delta per statement and group. Now and then the statement
-- that appends also folds, so that a read adds up a few hundred deltas at the most.
CREATE FUNCTION holdfast.count_dead() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    v_last bigint;
BEGIN
    WITH added AS (
        INSERT INTO holdfast.dead_deltas (consumer_id, reason, change)
        SELECT consumer_id, reason, CASE TG_OP WHEN 'INSERT' THEN count(*) ELSE -count(*) END
        FROM moved GROUP BY consumer_id, reason RETURNING id
    )
    SELECT max(id) INTO v_last FROM added WHERE id % 256 = 0;
    IF v_last IS NOT NULL THEN
        PERFORM holdfast.fold_dead(10000);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER count_in AFTER INSERT ON holdfast.dead_letters
    REFERENCING NEW TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_dead();
CREATE TRIGGER count_out AFTER DELETE ON holdfast.dead_letters
    REFERENCING OLD TABLE AS moved FOR EACH STATEMENT EXECUTE FUNCTION holdfast.count_dead();

-- Lanes to look at again: the head of such a key was locked by somebody when its turn came.
CREATE TABLE holdfast.lanes (
    consumer_id integer NOT NULL,
    order_key   text NOT NULL
);
CREATE INDEX lanes_consumer ON holdfast.lanes (consumer_id);

-- Let the first live job of a key go, if an earlier one held it back.
CREATE FUNCTION holdfast.wake_lane(p_consumer_id integer, p_order_key text) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    v_head bigint;
    v_held boolean;
BEGIN
    -- Two jobs of one key may leave at once. One at a time looks for the next, so that neither takes the
    -- other, which is about to vanish, for the head.
    PERFORM pg_advisory_xact_lock(hashtextextended(p_order_key, p_consumer_id));
    SELECT h.seq, h.held INTO v_head, v_held FROM holdfast.jobs h
    WHERE h.consumer_id = p_consumer_id AND h.order_key = p_order_key
    ORDER BY h.epoch, h.tx, h.seq LIMIT 1;
    IF v_held THEN
        UPDATE holdfast.jobs SET held = false WHERE ctid = (
            SELECT ctid FROM holdfast.jobs WHERE consumer_id = p_consumer_id AND seq = v_head
            FOR NO KEY UPDATE SKIP LOCKED);
        -- Whoever locked it may leave it as it is, and waiting here could end in a deadlock.
        IF NOT FOUND THEN
            INSERT INTO holdfast.lanes (consumer_id, order_key) VALUES (p_consumer_id, p_order_key);
        END IF;
    END IF;
END $$;

-- A job that leaves the live table makes room in a bounded consumer and lets the next job of its key go.
CREATE FUNCTION holdfast.after_leaving() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.depths d SET live = d.live - g.n
    FROM (SELECT consumer_id, count(*) AS n FROM gone GROUP BY consumer_id) g
    WHERE d.consumer_id = g.consumer_id;

    PERFORM holdfast.wake_lane(l.consumer_id, l.order_key) FROM (
        SELECT DISTINCT consumer_id, order_key FROM gone WHERE order_key IS NOT NULL ORDER BY 1, 2) l;
    RETURN NULL;
END $$;
CREATE TRIGGER after_leaving AFTER DELETE ON holdfast.jobs
    REFERENCING OLD TABLE AS gone FOR EACH STATEMENT EXECUTE FUNCTION holdfast.after_leaving();
