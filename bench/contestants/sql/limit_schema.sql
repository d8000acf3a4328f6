CREATE TABLE job (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    claimed boolean NOT NULL DEFAULT false,
    data bytea NOT NULL
);

CREATE INDEX job_free ON job (id) WHERE NOT claimed;

CREATE TABLE log (
    id bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
);
