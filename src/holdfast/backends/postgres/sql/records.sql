-- State records.

-- name: create_record
INSERT INTO holdfast.records (key, fields, revision, due_at)
VALUES (%(key)s, %(fields)s::jsonb, holdfast.next_revision(0),
        %(due)s::timestamptz)
ON CONFLICT (key) DO NOTHING RETURNING revision;

-- name: change_record
UPDATE holdfast.records SET fields = %(fields)s::jsonb, due_at = %(due)s::timestamptz,
       revision = holdfast.next_revision(revision)
WHERE key = %(key)s AND revision = %(expected)s RETURNING revision;

-- name: remove_record
DELETE FROM holdfast.records WHERE key = %(key)s AND revision = %(expected)s RETURNING revision;

-- name: record
SELECT key, fields, revision FROM holdfast.records WHERE key = %(key)s;

-- name: due_records
SELECT key, fields, revision FROM holdfast.records
WHERE due_at <= coalesce(%(until)s::timestamptz, (SELECT holdfast.now())) AND starts_with(key, %(prefix)s)
  AND (due_at, key) > (coalesce(%(time)s::timestamptz, '-infinity'), %(key)s)
ORDER BY due_at, key LIMIT %(limit)s;

-- name: newest_records
SELECT key, fields, revision FROM holdfast.records
WHERE due_at <= coalesce(%(until)s::timestamptz, (SELECT holdfast.now())) AND starts_with(key, %(prefix)s)
  AND (due_at, key) < (coalesce(%(time)s::timestamptz, 'infinity'), %(key)s)
ORDER BY due_at DESC, key DESC LIMIT %(limit)s;
