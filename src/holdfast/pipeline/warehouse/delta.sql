-- What a DuckDB in memory is asked for a Delta table, before the statements that both warehouses share.

-- name: existing
-- Rows that may be the same events.
CREATE OR REPLACE TEMP TABLE existing AS
SELECT transaction_id, type, key, data, data_base64 FROM stored;
