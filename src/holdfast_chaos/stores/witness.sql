-- The witness: notes every change of a job, in the transaction and at the store's time of the change.
-- It belongs to the rig, so that the judge sees what really moved, whatever statement moved it.
CREATE SCHEMA rig;

CREATE TABLE rig.moves (
    id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at           timestamptz NOT NULL,
    consumer_id  integer NOT NULL,
    seq          bigint NOT NULL,
    before       text,         -- the state that was left; null: the job was created
    after        text,         -- the state that was entered; null: the job left the live table
    old_token    bigint,
    token        bigint,
    old_lease    timestamptz,  -- the deadline that stood before
    lease        timestamptz,
    abandonments smallint      -- after the change
);

CREATE INDEX moves_job ON rig.moves (consumer_id, seq);

-- A row may stand for a stretch of jobs: all of them are created with it. When it is taken apart, jobs get rows of
-- their own, and those are no new jobs: they have been there.
CREATE FUNCTION rig.witness() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, old_lease, lease, abandonments)
    SELECT holdfast.now(), coalesce(NEW.consumer_id, OLD.consumer_id), n.seq,
           CASE WHEN n.is_known THEN 'ready' ELSE OLD.state::text END, NEW.state,
           CASE WHEN n.is_known THEN 0 ELSE OLD.token END, NEW.token, OLD.lease_until, NEW.lease_until,
           coalesce(NEW.abandonments, OLD.abandonments)
    FROM (
        SELECT g.seq, TG_OP = 'INSERT' AND (
            SELECT count(*) FILTER (WHERE m.before IS NULL) > count(*) FILTER (WHERE m.after IS NULL)
            FROM rig.moves m WHERE m.consumer_id = NEW.consumer_id AND m.seq = g.seq) AS is_known
        FROM generate_series(coalesce(NEW.seq, OLD.seq), coalesce(NEW.upto, NEW.seq, OLD.seq)) AS g (seq)
    ) n
    WHERE NOT n.is_known OR NEW.upto IS NULL;
    RETURN NULL;
END $$;

CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON holdfast.jobs
    FOR EACH ROW EXECUTE FUNCTION rig.witness();
