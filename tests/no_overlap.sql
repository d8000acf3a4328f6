-- Only in tests: the store itself refuses that a job is in two places. At the commit, since a statement may write a row
-- before it removes the one from which the job came.
CREATE FUNCTION holdfast.refuse_overlap() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    j     holdfast.jobs;
    v_seq bigint;
BEGIN
    SELECT * INTO j FROM holdfast.jobs WHERE consumer_id = NEW.consumer_id AND id = NEW.id;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    FOREACH v_seq IN ARRAY coalesce(j.members, ARRAY[j.id]) LOOP
        IF (SELECT count(*) FROM holdfast.job(j.consumer_id, v_seq)) > 1
           AND EXISTS (SELECT FROM holdfast.consumers WHERE id = j.consumer_id) THEN
            RAISE exclusion_violation USING MESSAGE = format('job %s of consumer %s is in more places than one: %s', v_seq,
                j.consumer_id, (SELECT array_agg(o.state) FROM holdfast.job(j.consumer_id, v_seq) o));
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER no_overlap AFTER INSERT OR UPDATE OF members ON holdfast.jobs
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION holdfast.refuse_overlap();
