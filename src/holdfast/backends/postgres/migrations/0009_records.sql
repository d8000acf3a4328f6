-- State records.

-- Small state records, each written whole under the revision that was read.
CREATE TABLE holdfast.records (
    key      text COLLATE "C" PRIMARY KEY,
    fields   jsonb NOT NULL,
    revision bigint NOT NULL,
    due_at   timestamptz
);

CREATE INDEX records_due ON holdfast.records (due_at, key) WHERE due_at IS NOT NULL;
