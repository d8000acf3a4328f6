-- What a reconciliation asks Spark. A place is one record of the log: a partition and a position in it.
--
-- {records}: side, partition, position, transaction_id, source, id, digest; one row for each time that a side has it.
-- {limits}: one row for each partition: until, ending, gone, floor, archived, ingested.
-- {pending}: partition, first, last: batches of the WAL that wait for the warehouse.

-- name: places
-- How often each side has a place; `in_warehouse`: how often the warehouse has its event, here or elsewhere.
SELECT transaction_id, partition, position,
       count_if(side = 'log') AS log,
       count_if(side = 'archive') AS archive,
       count_if(side = 'warehouse') AS warehouse,
       count_if(side = 'failed') AS failed,
       any_value(source, true) AS source,
       any_value(id) AS id,
       max(CASE WHEN side = 'log' THEN digest END) AS log_digest,
       max(CASE WHEN side = 'archive' THEN digest END) AS archive_digest,
       max(CASE WHEN side = 'warehouse' THEN digest END) AS warehouse_digest,
       sum(count_if(side = 'warehouse')) OVER (PARTITION BY transaction_id) AS in_warehouse
FROM {records}
GROUP BY transaction_id, partition, position;

-- name: unknown
-- Events of which nothing is in the warehouse, as far as was looked.
SELECT /*+ BROADCAST(bound) */ transaction_id FROM {places} JOIN {limits} AS bound USING (partition)
WHERE log > 0 AND failed = 0 AND in_warehouse = 0 AND position <= until
LIMIT 10000;

-- name: states
-- Published is what the log has; where it was trimmed, what the archive has read back of its manifests' objects.
-- An unreadable object is a place without a transaction id. What stands beyond `until` may have been published while
-- the sides were read, unless it is beyond the log's end afterwards, too. Of a partition that no store is, nothing is
-- known.
WITH described AS (
    SELECT /*+ BROADCAST(bound) */ *, transaction_id <> '' AS readable,
           log > 0 OR (archive > 0 AND transaction_id <> '' AND position <= gone) AS published,
           failed > 0 AND warehouse = 0 AS lost
    FROM {places} LEFT JOIN {limits} AS bound USING (partition)
    WHERE until IS NULL OR position <= until OR position > ending
)
SELECT *, published AND warehouse = 0 AND NOT lost AND in_warehouse > 0 AS repeated,
       until IS NOT NULL AND (NOT readable OR published OR position > floor) AS compared
FROM described;

-- name: checked
-- What is wrong with a place on each side. Null: nothing.
SELECT transaction_id, partition, position, source, id, readable, published, log, archive, warehouse, lost, repeated, compared,
       CASE WHEN NOT readable THEN 'unreadable'
            WHEN archive > 1 THEN 'doubled'
            WHEN published AND archive = 0 AND position > archived THEN 'waiting'
            WHEN published AND archive = 0 THEN 'missing'
            WHEN NOT published AND archive > 0 THEN 'surplus'
            WHEN archive_digest <> log_digest THEN 'changed'
       END AS wrong_archive,
       CASE WHEN published AND warehouse = 0 AND NOT lost AND NOT repeated THEN
                CASE WHEN position > ingested OR EXISTS (
                         SELECT /*+ BROADCAST(batch) */ 1 FROM {pending} AS batch
                         WHERE batch.partition = place.partition
                           AND place.position BETWEEN batch.first AND batch.last)
                     THEN 'waiting' ELSE 'missing' END
            WHEN NOT published AND (warehouse > 0 OR lost) THEN 'surplus'
            WHEN warehouse > 0 AND in_warehouse > 1 THEN 'doubled'
            WHEN warehouse_digest <> coalesce(log_digest, archive_digest) THEN 'changed'
       END AS wrong_warehouse
FROM {states} AS place;

-- name: sums
-- By verdict, so that one look gives the sums and the tallies.
SELECT compared, wrong_archive, wrong_warehouse, count(*) AS places,
       count_if(published) AS published,
       count_if(published AND log = 0) AS from_manifests,
       sum(CASE WHEN readable THEN archive ELSE 0 END) AS archived,
       sum(warehouse) AS ingested,
       count_if(lost) AS failed,
       count_if(repeated) AS repeats
FROM {checked}
GROUP BY compared, wrong_archive, wrong_warehouse;

-- name: differences
-- Those that are lost before those that are only late.
SELECT * FROM (
    SELECT stack(2, 'archive', wrong_archive, 'warehouse', wrong_warehouse) AS (side, kind),
           partition, position, source, id
    FROM {checked} WHERE compared
)
WHERE kind IS NOT NULL
ORDER BY kind = 'waiting', side, partition, position;

-- name: wrong
-- Positions where the warehouse is to be mended, and the event that is to stand there. One that stands at several
-- places where it was published stays at the first. What waits is the loader's, what failed stays failed. Where
-- neither the log nor the archive can say what was published ({unproven}), nothing is touched.
WITH ranked AS (
    SELECT *, compared AND wrong_warehouse IS NOT NULL AND wrong_warehouse <> 'waiting' AS wrong,
           row_number() OVER (
               PARTITION BY transaction_id, published AND warehouse > 0 ORDER BY partition, position
           ) AS copy
    FROM {checked} AS checked
    WHERE readable AND NOT EXISTS (
        SELECT /*+ BROADCAST(unproven) */ 1 FROM {unproven} AS unproven
        WHERE unproven.partition = checked.partition AND checked.position BETWEEN unproven.first AND unproven.last)
)
SELECT partition, position,
       sort_array(collect_set(CASE WHEN wrong THEN wrong_warehouse END)) AS kinds,
       max(CASE WHEN published AND NOT lost AND NOT repeated AND wrong_warehouse IS DISTINCT FROM 'waiting'
                     AND (warehouse = 0 OR copy = 1)
                THEN transaction_id END) AS expected
FROM ranked
GROUP BY partition, position
HAVING bool_or(wrong)
ORDER BY partition, position;
