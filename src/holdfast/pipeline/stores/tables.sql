-- The tables of an archive in PostgreSQL. {objects} is the store: every object, byte for byte.
-- {lines} is for people who query: one row for each line of the objects that are lines.

CREATE TABLE IF NOT EXISTS {objects} (
    name    text PRIMARY KEY,
    data    bytea NOT NULL,
    put_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE IF NOT EXISTS {lines} (
    object      text NOT NULL REFERENCES {objects} (name) ON DELETE CASCADE,
    line        integer NOT NULL,
    message_id  text NOT NULL,
    channel     text NOT NULL,
    position    text NOT NULL,
    "timestamp" timestamptz NOT NULL,
    source      text NOT NULL,
    type        text NOT NULL,
    key         text,
    document    jsonb,  -- the whole line; NULL where jsonb cannot hold it (\u0000 in a string)
    PRIMARY KEY (object, line)
);

CREATE INDEX IF NOT EXISTS {by_message} ON {lines} (message_id);
CREATE INDEX IF NOT EXISTS {by_time} ON {lines} (channel, "timestamp");
