-- What is learned of the data of channels, whose rows stand as `incoming`, and where it is written down.

-- name: structures
-- The structure of all data that is an object, and whether a number may be too large for 64 bits.
SELECT channel, json_group_structure(data::JSON)::VARCHAR, bool_or(regexp_matches(data, '[0-9]{{19}}'))
FROM incoming
WHERE ltrim(data, chr(32) || chr(9) || chr(10) || chr(13)) LIKE '{{%' AND {where}
GROUP BY channel;

-- name: shallow
-- DuckDB gives up on JSON that nests deeper than 128.
length(data) - length(replace(replace(data, '{', ''), '[', '')) < 100

-- name: kinds
SELECT DISTINCT json_type(data, $pointer)
FROM incoming
WHERE channel = $channel AND json_type(data, $pointer) IS NOT NULL;

-- name: largest
SELECT max(abs(TRY_CAST(json_extract_string(data, $pointer) AS HUGEINT))) FROM incoming WHERE channel = $channel;

-- name: create
CREATE TABLE IF NOT EXISTS holdfast_schemas (
    channel VARCHAR NOT NULL,
    version INTEGER NOT NULL,
    "table" VARCHAR NOT NULL,
    fields VARCHAR NOT NULL,
    left_out VARCHAR[] NOT NULL,
    since TIMESTAMPTZ NOT NULL,
    cause VARCHAR NOT NULL,
    PRIMARY KEY (channel, version)
);

-- name: read
SELECT channel, version, "table", fields, left_out, since, cause FROM {table} ORDER BY channel, version;

-- name: write
INSERT INTO holdfast_schemas VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: tables
SELECT table_name FROM information_schema.tables WHERE table_type = 'BASE TABLE';
