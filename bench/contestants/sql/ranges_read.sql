-- The jobs of a range that `take` has leased.
SELECT data FROM log WHERE id > %s AND id <= %s ORDER BY id
