-- Revisions of records: a record that is removed and made anew has none that it had before. Otherwise whoever has read
-- the old one could change or remove the new one.
CREATE SEQUENCE holdfast.record_revisions;
SELECT setval('holdfast.record_revisions', coalesce(max(revision % 4294967296), 0) + 1, false) FROM holdfast.records;
