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

CREATE FUNCTION rig.witness() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO rig.moves (at, consumer_id, seq, before, after, old_token, token, old_lease, lease, abandonments)
    SELECT holdfast.now(), coalesce(NEW.consumer_id, OLD.consumer_id), coalesce(NEW.seq, OLD.seq),
           OLD.state, NEW.state, OLD.token, NEW.token, OLD.lease_until, NEW.lease_until,
           coalesce(NEW.abandonments, OLD.abandonments);
    RETURN NULL;
END $$;

CREATE TRIGGER witness AFTER INSERT OR UPDATE OR DELETE ON holdfast.jobs
    FOR EACH ROW EXECUTE FUNCTION rig.witness();
