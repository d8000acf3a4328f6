-- The database of a spool. SQLite.

-- name: schema
-- `head` is JSON: everything of the event but its data, and how it is to be published. `checksum` covers number, head
-- and data. No constraints: rows of a damaged database are carried over as they are, and then fail their checksum.
CREATE TABLE events (
    number INTEGER PRIMARY KEY,
    head BLOB,
    data BLOB,
    checksum INTEGER,
    appended_at REAL
)

-- name: found_schema
SELECT sql FROM sqlite_master

-- name: append
INSERT INTO events (number, head, data, checksum, appended_at) VALUES (?, ?, ?, ?, ?)

-- name: oldest_first
SELECT number, head, data, checksum, appended_at FROM events ORDER BY number LIMIT ?

-- name: newest_first
SELECT number, head, data, checksum, appended_at FROM events ORDER BY number DESC LIMIT ?

-- name: sizes
SELECT number, coalesce(length(head) + length(data), 0) FROM events ORDER BY number LIMIT ?

-- name: totals
SELECT count(*), coalesce(sum(length(head) + length(data)), 0), min(number), max(number) FROM events

-- name: ages
-- One row for each second.
SELECT min(number), min(appended_at) FROM events GROUP BY CAST(appended_at AS INTEGER) ORDER BY 1

-- name: remove
DELETE FROM events WHERE number <= ?
