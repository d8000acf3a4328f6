CREATE TABLE log (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    data bytea NOT NULL
);

-- One row: what is at or below `upto` was taken up.
CREATE TABLE frontier (
    upto bigint NOT NULL
);

INSERT INTO frontier VALUES (0);

-- One row for up to 500 jobs.
CREATE TABLE lease (
    upto bigint PRIMARY KEY,
    jobs integer NOT NULL,
    deadline timestamptz NOT NULL
);

CREATE TABLE history (
    upto bigint NOT NULL,
    jobs integer NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);

-- Finalize a range (named by its end), and lease the next: after `above`, up to and including `upto`.
-- The log is read in a statement after the one that locks the frontier, so that two workers never get the same.
CREATE FUNCTION take(p_done bigint, OUT above bigint, OUT upto bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    v_jobs integer;
BEGIN
    WITH gone AS (
        DELETE FROM lease WHERE upto = p_done RETURNING upto, jobs
    )
    INSERT INTO history (upto, jobs) SELECT upto, jobs FROM gone;

    SELECT f.upto INTO take.above FROM frontier f FOR UPDATE;
    SELECT max(l.id), count(*) INTO take.upto, v_jobs
    FROM (SELECT id FROM log WHERE id > take.above ORDER BY id LIMIT 500) l;
    IF v_jobs > 0 THEN
        UPDATE frontier SET upto = take.upto;
        INSERT INTO lease VALUES (take.upto, v_jobs, now() + interval '60 s');
    END IF;
END $$;
