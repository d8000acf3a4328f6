-- Only in tests: the store itself refuses rows of a consumer that stand for the same job. At the commit, since a
-- statement may write the rest of a range before it shortens the range. (Not an exclusion constraint: one that is
-- deferred cannot be combined with ON CONFLICT DO NOTHING, which a backfill uses.)
CREATE FUNCTION holdfast.refuse_overlap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    j holdfast.jobs;
    o holdfast.jobs;
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE consumer_id = NEW.consumer_id AND seq = NEW.seq;
    SELECT * INTO o FROM holdfast.jobs WHERE consumer_id = j.consumer_id AND seq < j.seq ORDER BY seq DESC LIMIT 1;
    IF coalesce(o.upto, o.seq) >= j.seq THEN
        RAISE exclusion_violation USING MESSAGE = format('jobs %s to %s and %s of consumer %s overlap',
                                                         o.seq, o.upto, j.seq, j.consumer_id);
    END IF;
    IF j.upto IS NOT NULL THEN
        SELECT * INTO o FROM holdfast.jobs WHERE consumer_id = j.consumer_id AND seq > j.seq ORDER BY seq LIMIT 1;
        IF o.seq <= j.upto THEN
            RAISE exclusion_violation USING MESSAGE = format('jobs %s to %s and %s of consumer %s overlap',
                                                             j.seq, j.upto, o.seq, j.consumer_id);
        END IF;
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER no_overlap AFTER INSERT OR UPDATE OF upto ON holdfast.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_overlap();
