-- What the engine asks DuckDB before it runs a query. {parts} are selections of our own.

-- name: tables
-- Tables of events: those that have every column that all of them have.
SELECT table_name
FROM information_schema.columns
WHERE column_name IN (SELECT unnest($fixed))
GROUP BY table_name
HAVING count(*) = len($fixed)
ORDER BY table_name;

-- name: all_events
CREATE TEMP VIEW all_events AS {parts};

-- name: has_audit
-- The last part of a name as model/names.py has it.
SELECT true FROM all_events WHERE ends_with(channel, '.events.system.audit')
UNION ALL
SELECT true FROM failed_events WHERE ends_with(channel, '.events.system.audit')
LIMIT 1;

-- name: lock
-- Nothing but the warehouse can be reached after this, and nothing of it can be undone.
SET threads = 2;
SET temp_directory = '';
SET python_enable_replacements = false;
SET autoinstall_known_extensions = false;
SET autoload_known_extensions = false;
SET enable_external_access = false;
SET lock_configuration = true;
