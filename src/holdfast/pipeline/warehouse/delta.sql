-- What a DuckDB in memory is asked for a Delta table, before the statements that both warehouses share.

-- name: hits
-- Which files have rows that may be the same events.
SELECT DISTINCT __fragment_index
FROM hashes
WHERE transaction_hash IN (SELECT transaction_hash FROM incoming);

-- name: standing
-- Rows of these files that may be the same events.
CREATE OR REPLACE TEMP TABLE standing AS
SELECT transaction_id, type, key, data, data_base64
FROM stored
WHERE transaction_hash IN (SELECT transaction_hash FROM incoming);

-- name: standing_at
SELECT count(*)
FROM stored
WHERE channel = $channel AND "partition" = $partition AND "position" IN (SELECT unnest($positions));
