-- Finalize the last batch (its ids are the parameter) and claim the next one, in one statement.
WITH gone AS (
    DELETE FROM job WHERE id = ANY (%s) RETURNING id
), logged AS (
    INSERT INTO log (id) SELECT id FROM gone
)
UPDATE job
SET claimed = true
FROM (
    SELECT id FROM job WHERE NOT claimed ORDER BY id LIMIT 500 FOR UPDATE SKIP LOCKED
) AS next
WHERE job.id = next.id
RETURNING job.id, job.data
