-- What DuckDB is asked. {table}, {columns} and {values} are quoted identifiers and expressions from the mapping.

-- name: schema
-- The ledger stands beside the data, so that both change in one transaction. Every load changes the one row
-- of holdfast_turn: of two that run at once DuckDB refuses one, and neither can miss the other's rows.
CREATE TABLE IF NOT EXISTS holdfast_ledger (
    key VARCHAR PRIMARY KEY,
    inserted BIGINT NOT NULL,
    duplicates BIGINT NOT NULL,
    conflicts VARCHAR[] NOT NULL,
    refused VARCHAR,
    written_at TIMESTAMPTZ NOT NULL
);
CREATE TABLE IF NOT EXISTS holdfast_turn (turn BIGINT NOT NULL);
INSERT INTO holdfast_turn SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM holdfast_turn);
CREATE TABLE IF NOT EXISTS failed_events (
    id UUID PRIMARY KEY,
    transaction_id VARCHAR NOT NULL,
    event_id VARCHAR NOT NULL,
    session_key VARCHAR,
    correlation_key VARCHAR,
    source VARCHAR NOT NULL,
    event_payload JSON NOT NULL,
    failed_at TIMESTAMPTZ NOT NULL DEFAULT current_timestamp,
    failure_reason VARCHAR NOT NULL,
    failure_layer VARCHAR NOT NULL,
    last_error VARCHAR,
    retry_count INTEGER NOT NULL DEFAULT 0,
    last_retry_at TIMESTAMPTZ,
    max_retries_exceeded BOOLEAN NOT NULL DEFAULT false,
    status VARCHAR NOT NULL DEFAULT 'pending',
    resolved_at TIMESTAMPTZ,
    resolved_by VARCHAR,
    resolution_notes VARCHAR,
    created_at TIMESTAMPTZ NOT NULL DEFAULT current_timestamp,
    updated_at TIMESTAMPTZ NOT NULL DEFAULT current_timestamp,
    channel VARCHAR NOT NULL DEFAULT '',
    "partition" INTEGER NOT NULL DEFAULT 0,
    "position" VARCHAR NOT NULL DEFAULT '',
    batch VARCHAR NOT NULL DEFAULT ''
);

-- name: failed_is_old
-- Whether the table has no defaults yet: an earlier version made it. The last of them tells, should one step be cut off.
SELECT count(*) > 0 FROM information_schema.columns
WHERE table_name = 'failed_events' AND column_name = 'batch' AND column_default IS NULL;

-- name: failed_defaults
ALTER TABLE failed_events ALTER COLUMN failed_at SET DEFAULT current_timestamp;
ALTER TABLE failed_events ALTER COLUMN retry_count SET DEFAULT 0;
ALTER TABLE failed_events ALTER COLUMN max_retries_exceeded SET DEFAULT false;
ALTER TABLE failed_events ALTER COLUMN status SET DEFAULT 'pending';
ALTER TABLE failed_events ALTER COLUMN created_at SET DEFAULT current_timestamp;
ALTER TABLE failed_events ALTER COLUMN updated_at SET DEFAULT current_timestamp;
ALTER TABLE failed_events ALTER COLUMN channel SET DEFAULT '';
ALTER TABLE failed_events ALTER COLUMN "partition" SET DEFAULT 0;
ALTER TABLE failed_events ALTER COLUMN "position" SET DEFAULT '';
ALTER TABLE failed_events ALTER COLUMN batch SET DEFAULT '';

-- name: failed_indexes
CREATE INDEX IF NOT EXISTS idx_failed_events_status ON failed_events (status);
CREATE INDEX IF NOT EXISTS idx_failed_events_source ON failed_events (source);
CREATE INDEX IF NOT EXISTS idx_failed_events_failed_at ON failed_events (failed_at);
CREATE INDEX IF NOT EXISTS idx_failed_events_transaction_id ON failed_events (transaction_id);

-- name: create_table
-- No unique index: the join below, inside the transaction, does its work at a third less cost.
CREATE TABLE IF NOT EXISTS {table} (
    channel VARCHAR NOT NULL,
    "partition" INTEGER NOT NULL,
    "position" VARCHAR NOT NULL,
    id VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    type VARCHAR NOT NULL,
    key VARCHAR,
    time TIMESTAMPTZ NOT NULL,
    headers VARCHAR NOT NULL,
    data VARCHAR,
    data_base64 VARCHAR,
    transaction_id VARCHAR NOT NULL,
    transaction_hash BIGINT NOT NULL,
    ingested_at TIMESTAMPTZ NOT NULL,
    batch VARCHAR NOT NULL
);

-- name: columns
SELECT column_name, data_type FROM information_schema.columns WHERE table_name = ? AND table_schema = 'main';

-- name: is_view
SELECT true FROM information_schema.tables WHERE table_name = ? AND table_type = 'VIEW';

-- name: take_turn
UPDATE holdfast_turn SET turn = turn + 1;

-- name: outcomes
SELECT key, inserted, duplicates, conflicts, refused FROM holdfast_ledger WHERE key IN (SELECT unnest(?));

-- name: record
INSERT INTO holdfast_ledger VALUES (?, ?, ?, ?, ?, ?);

-- name: existing
-- Rows that may be the same events. They are sought by row, so that of all others only the hashes are read: in
-- one step the scan's filter lets some thousand strangers through, and reads their data.
CREATE OR REPLACE TEMP TABLE existing AS
SELECT transaction_id, type, key, data, data_base64
FROM {table}
WHERE rowid IN (
    SELECT rowid FROM {table} WHERE transaction_hash IN (SELECT transaction_hash FROM incoming)
);

-- name: possible_repeats
CREATE OR REPLACE TEMP TABLE possible_repeats AS
SELECT transaction_id FROM existing
UNION
SELECT transaction_id FROM incoming GROUP BY transaction_id HAVING count(*) > 1;

-- name: repeats
-- Every incoming row whose event is there already, or stands earlier among them.
CREATE OR REPLACE TEMP TABLE repeats AS
WITH candidates AS (
    SELECT row, load, channel, "partition", "position", transaction_id, type, key, data, data_base64,
           row_number() OVER (PARTITION BY transaction_id ORDER BY row) AS copy
    FROM incoming
    WHERE transaction_id IN (SELECT transaction_id FROM possible_repeats)
),
originals AS (
    SELECT NULL AS row, * FROM existing
    UNION ALL
    SELECT row, transaction_id, type, key, data, data_base64
    FROM candidates
    WHERE copy = 1 AND transaction_id NOT IN (SELECT transaction_id FROM existing)
)
SELECT candidate.row AS row,
       candidate.load AS load,
       concat_ws('@', candidate.channel, candidate."partition", candidate."position") AS name,
       candidate.type = original.type
       AND candidate.key IS NOT DISTINCT FROM original.key
       AND candidate.data IS NOT DISTINCT FROM original.data
       AND candidate.data_base64 IS NOT DISTINCT FROM original.data_base64 AS same
FROM candidates AS candidate
JOIN originals AS original USING (transaction_id)
WHERE candidate.row IS DISTINCT FROM original.row;

-- name: repeats_found
SELECT load, name, same FROM repeats ORDER BY row;

-- name: insert
INSERT INTO {table} ({columns})
SELECT {values}
FROM incoming
WHERE row NOT IN (SELECT row FROM repeats);

-- name: remove
DELETE FROM {table}
WHERE channel = $channel AND "partition" = $partition AND "position" IN (SELECT unnest($positions));

-- name: put
INSERT INTO {table} ({columns}) SELECT {values} FROM incoming;

-- name: put_failed
INSERT INTO failed_events
SELECT * FROM incoming
ON CONFLICT (id) DO UPDATE SET
    last_error = excluded.last_error,
    retry_count = excluded.retry_count,
    last_retry_at = excluded.last_retry_at,
    status = excluded.status,
    resolved_at = excluded.resolved_at,
    resolved_by = excluded.resolved_by,
    resolution_notes = excluded.resolution_notes,
    updated_at = excluded.updated_at;

-- name: failed
SELECT id::VARCHAR AS id, * EXCLUDE (id)
FROM failed_events
WHERE ? IS NULL OR status = ?
ORDER BY failed_at DESC, id
LIMIT ?;

-- name: events
-- The digest is that of `digests` in reconcile/records.py. A row that contradicts itself has one that no event has.
SELECT "partition", "position", transaction_id, source, id,
       CASE WHEN (data IS NULL) <> (data_base64 IS NULL) AND {mapped} THEN
           (md5_number_lower(concat(
               length(id), ':', id, length(source), ':', source, length(type), ':', type,
               CASE WHEN key IS NULL THEN '-' ELSE concat(length(key), ':', key) END,
               epoch_us(time), ';', length(headers), ':', headers, transaction_hash, ';',
               coalesce(md5(data), md5(TRY(from_base64(data_base64))))
           )) >> 1)::BIGINT
       ELSE -1 END AS digest
FROM {table}
WHERE channel = $channel
  AND ($day::TIMESTAMPTZ IS NULL OR (time >= $day::TIMESTAMPTZ AND time < $day::TIMESTAMPTZ + INTERVAL 1 DAY));

-- name: holds
SELECT transaction_id FROM {table} WHERE transaction_id IN (SELECT unnest(?));

-- name: find
SELECT channel, "partition", "position", source, id, transaction_id, time, ingested_at, batch
FROM {table}
WHERE id = ? AND channel IN (SELECT unnest(?))
ORDER BY channel, "partition", "position";
