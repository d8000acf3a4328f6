-- The witness: notes every change of a job, in the transaction and at the store's time of the change.
-- It belongs to the rig, so that the judge sees what really moved, whatever statement moved it.
CREATE SCHEMA rig;

CREATE TABLE rig.moves (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL,
    consumer_id  integer NOT NULL,
    seq          bigint NOT NULL,
    before       text,         -- the state that was left; null: the job had no row
    after        text,         -- the state that was entered; null: the job left the live table
    old_token    bigint,
    token        bigint,
    old_lease    timestamptz,  -- the deadline that stood before
    lease        timestamptz,
    abandonments smallint      -- after the change
);

CREATE INDEX moves_job ON rig.moves (consumer_id, seq, id);

-- A row may have several jobs: each of them moves with it. A member that gets a row of its own under the same lease does
-- not move. A job that gets a second row was there before: whatever it was, that row's lease is not its first.
CREATE FUNCTION rig.witness() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, old_lease, lease, abandonments)
        SELECT holdfast.now(), NEW.consumer_id, s.seq, m.after, NEW.state, m.token, NEW.token, m.lease, NEW.lease_until,
               NEW.abandonments
        FROM unnest(coalesce(NEW.members, ARRAY[NEW.id])) AS s (seq)
        LEFT JOIN LATERAL (
            SELECT l.after, l.token, l.lease FROM rig.moves l
            WHERE l.consumer_id = NEW.consumer_id AND l.seq = s.seq ORDER BY l.id DESC LIMIT 1) m ON m.after IS NOT NULL
        WHERE (m.after, m.token, m.lease) IS DISTINCT FROM ('leased', NEW.token, NEW.lease_until);
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' AND (NEW.members IS NULL OR (OLD.token, OLD.lease_until, OLD.abandonments)
                             IS DISTINCT FROM (NEW.token, NEW.lease_until, NEW.abandonments)) THEN
        INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, old_lease, lease, abandonments)
        SELECT holdfast.now(), NEW.consumer_id, s.seq, OLD.state, NEW.state, OLD.token, NEW.token, OLD.lease_until,
               NEW.lease_until, NEW.abandonments
        FROM unnest(coalesce(NEW.members, ARRAY[NEW.id])) AS s (seq);
    END IF;
    INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, old_lease, lease, abandonments)
    SELECT holdfast.now(), OLD.consumer_id, s.seq, OLD.state, NULL, OLD.token, NULL, OLD.lease_until, NULL, OLD.abandonments
    FROM unnest(coalesce(OLD.members, ARRAY[OLD.id])) AS s (seq)
    WHERE CASE WHEN TG_OP = 'DELETE' THEN true ELSE s.seq <> ALL (coalesce(NEW.members, ARRAY[NEW.id])) END
      AND (OLD.members IS NULL OR NOT EXISTS (
          SELECT FROM holdfast.jobs j WHERE j.consumer_id = OLD.consumer_id AND j.id = s.seq));
    RETURN NULL;
END $$;

CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON holdfast.jobs
    FOR EACH ROW EXECUTE FUNCTION rig.witness();

-- Events that were cancelled together, straight from the log: they were created by their publish, and ended here.
CREATE FUNCTION rig.witness_cancelled() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, abandonments)
    SELECT holdfast.now(), NEW.consumer_id, s.seq, m.before, m.after, m.old_token, m.token, 0
    FROM unnest(NEW.members) AS s (seq)
    CROSS JOIN (VALUES (1, NULL, 'ready', NULL, 0), (2, 'ready', NULL, 0, NULL)) AS m (i, before, after, old_token, token)
    ORDER BY s.seq, m.i;
    RETURN NULL;
END $$;

CREATE TRIGGER witness AFTER INSERT ON holdfast.history
    FOR EACH ROW WHEN (NEW.members IS NOT NULL AND NEW.outcome = 'cancelled') EXECUTE FUNCTION rig.witness_cancelled();

-- Where each consumer began: which events of the log are its jobs follows from that alone, wherever its frontier is now.
CREATE TABLE rig.beginnings (
    consumer_id integer PRIMARY KEY,
    epoch       integer NOT NULL,
    sees        pg_snapshot NOT NULL,
    from_start  boolean NOT NULL
);

CREATE FUNCTION rig.note_beginning() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rig.beginnings VALUES (NEW.consumer_id, NEW.epoch, NEW.passed, NEW.epoch = 0);
    RETURN NULL;
END $$;

CREATE TRIGGER witness AFTER INSERT ON holdfast.frontiers
    FOR EACH ROW WHEN (NEW.number = 0 AND NOT NEW.special) EXECUTE FUNCTION rig.note_beginning();

-- The jobs that publishes created: of every event in the log for every consumer that had begun.
CREATE VIEW rig.published AS
SELECT c.id AS consumer_id, l.channel_id, l.seq, l.published_at
FROM rig.beginnings b
JOIN holdfast.consumers c ON c.id = b.consumer_id
JOIN holdfast.log l ON l.channel_id = c.channel_id
WHERE (l.published_at >= c.starts_at) IS NOT FALSE
  AND (b.from_start OR l.epoch > b.epoch OR l.epoch = b.epoch AND NOT pg_visible_in_snapshot(l.tx, b.sees));
