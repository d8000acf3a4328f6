-- The bus: channels, worker consumers, the log, jobs, their history and their dead letters.

-- One row: the store's epoch, what it was when the epoch was set, and the test kit's clock offset.
CREATE TABLE holdfast.store (
    singleton    boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch        integer NOT NULL DEFAULT 1,
    system_id    bigint NOT NULL DEFAULT 0,
    timeline     integer NOT NULL DEFAULT 0,
    clock_offset interval NOT NULL DEFAULT '0'
);
INSERT INTO holdfast.store DEFAULT VALUES;

-- The one clock. Declared stable so that an index condition evaluates it once per statement.
CREATE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE sql STABLE
AS 'SELECT clock_timestamp() + clock_offset FROM holdfast.store';

CREATE TABLE holdfast.channels (
    id           integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name         text NOT NULL UNIQUE
                 CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,127}$' AND name !~ '\.\.' AND name !~ '\.$'),
    display_name text,
    bounded      boolean NOT NULL DEFAULT false,  -- whether some consumer of it has a row in depths
    created_at   timestamptz NOT NULL DEFAULT holdfast.now()
);

CREATE TABLE holdfast.consumers (
    id             integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    channel_id     integer NOT NULL REFERENCES holdfast.channels,
    name           text NOT NULL,
    display_name   text,
    policy         jsonb NOT NULL,
    -- What statements need of the policy, so that they never parse it.
    lease          interval NOT NULL,
    expires_after  interval,
    ordered        boolean NOT NULL,
    discard        boolean NOT NULL,
    dead_letter_id integer REFERENCES holdfast.channels,
    paused         boolean NOT NULL DEFAULT false,
    -- A consumer that starts in the past turns older events into jobs in steps: those from
    -- backfill_from on, after the position (epoch, tx, seq), up to backfill_until. Null: nothing left.
    backfill_from  timestamptz,
    backfill_epoch integer,
    backfill_tx    bigint,
    backfill_seq   bigint,
    backfill_until bigint,
    created_at     timestamptz NOT NULL DEFAULT holdfast.now(),
    UNIQUE (channel_id, name)
);
CREATE INDEX consumers_backfill ON holdfast.consumers (id) WHERE backfill_until IS NOT NULL;

-- How many live jobs a bounded consumer has. Unbounded consumers have no row and pay nothing.
CREATE TABLE holdfast.depths (
    consumer_id integer PRIMARY KEY REFERENCES holdfast.consumers ON DELETE CASCADE,
    live        bigint NOT NULL,
    max_depth   bigint NOT NULL
) WITH (fillfactor = 50);

CREATE SEQUENCE holdfast.event_seq;

-- The log. Its order is (epoch, tx, seq): readers stay below the oldest running transaction, so a late
-- commit can never appear behind them.
CREATE TABLE holdfast.log (
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    id           text NOT NULL,
    source       text NOT NULL,
    type         text NOT NULL,
    key          text,
    time         timestamptz,  -- null: the time of publishing
    headers      jsonb,
    data         bytea NOT NULL,
    published_at timestamptz NOT NULL,
    at           timestamptz,
    priority     smallint NOT NULL DEFAULT 0,
    PRIMARY KEY (channel_id, epoch, tx, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

-- Idempotency keys. They outlive their events, so the log can be trimmed. The id itself is the key, not a
-- hash of it: nothing can collide, and ids that rise with time fill the index from one end.
CREATE TABLE holdfast.keys (
    channel_id   integer NOT NULL,
    id           text COLLATE "C" NOT NULL,
    source       text COLLATE "C" NOT NULL,
    content_hash bytea NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    published_at timestamptz NOT NULL,
    PRIMARY KEY (channel_id, id, source)
);

CREATE TYPE holdfast.job_state AS ENUM ('scheduled', 'ready', 'leased');

-- Live jobs only: a terminal one leaves for job_log or dead_letters, so that this table stays small.
-- (No foreign keys on the hot tables: their checks would cost as much as the rows.)
CREATE TABLE holdfast.jobs (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL DEFAULT 0,
    due_at       timestamptz NOT NULL,
    created_at   timestamptz NOT NULL,
    lease_until  timestamptz,
    expires_at   timestamptz,
    state        holdfast.job_state NOT NULL,
    priority     smallint NOT NULL DEFAULT 0,
    attempts     smallint NOT NULL DEFAULT 0,
    abandonments smallint NOT NULL DEFAULT 0,
    -- Ordered consumers only: the event's key, and whether an earlier job of that key holds this one back.
    held         boolean NOT NULL DEFAULT false,
    order_key    text,
    worker       text,
    errors       jsonb,
    -- Half empty, as is the table: a claim then finds room for a job's second version beside the first.
    PRIMARY KEY (consumer_id, seq) WITH (fillfactor = 50),
    CHECK ((state = 'leased') = (lease_until IS NOT NULL))
) WITH (
    fillfactor = 50,
    autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000,
    autovacuum_analyze_scale_factor = 0.2, autovacuum_vacuum_cost_delay = 0
);
-- One partial index per state: what is due is found without touching what is not.
CREATE INDEX jobs_ready ON holdfast.jobs (consumer_id, priority DESC, due_at, seq)
    WHERE state = 'ready' AND NOT held;
CREATE INDEX jobs_scheduled ON holdfast.jobs (due_at) WHERE state = 'scheduled';
CREATE INDEX jobs_leased ON holdfast.jobs (lease_until) WHERE state = 'leased';
CREATE INDEX jobs_expiring ON holdfast.jobs (expires_at) WHERE state <> 'leased' AND expires_at IS NOT NULL;
CREATE INDEX jobs_ordered ON holdfast.jobs (consumer_id, order_key, epoch, tx, seq)
    WHERE order_key IS NOT NULL;

-- The history of jobs that ended other than dead. The key makes a second completion impossible.
CREATE TABLE holdfast.job_log (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    ended_at     timestamptz NOT NULL,
    outcome      text NOT NULL CHECK (outcome IN ('done', 'cancelled', 'discarded', 'purged')),
    priority     smallint NOT NULL,
    attempts     smallint NOT NULL,
    abandonments smallint NOT NULL,
    worker       text,
    reason       text,
    errors       jsonb,
    PRIMARY KEY (consumer_id, seq)
) WITH (autovacuum_vacuum_insert_scale_factor = 0.5);

CREATE TABLE holdfast.dead_letters (
    consumer_id  integer NOT NULL,
    channel_id   integer NOT NULL,
    epoch        integer NOT NULL,
    tx           bigint NOT NULL,
    seq          bigint NOT NULL,
    token        bigint NOT NULL,
    created_at   timestamptz NOT NULL,
    died_at      timestamptz NOT NULL,
    priority     smallint NOT NULL,
    attempts     smallint NOT NULL,
    abandonments smallint NOT NULL,
    order_key    text,
    worker       text,
    reason       text NOT NULL,
    fingerprint  text NOT NULL,
    errors       jsonb NOT NULL,
    PRIMARY KEY (consumer_id, seq)
);

-- Exact counts without a hot row: each statement that moves a job into or out of dead appends one delta
-- per group in its own transaction; folding moves deltas into dead_counts; a read adds the rest.
CREATE TABLE holdfast.dead_deltas (
    id          bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    consumer_id integer NOT NULL,
    reason      text NOT NULL,
    change      bigint NOT NULL
);
CREATE TABLE holdfast.dead_counts (
    consumer_id integer NOT NULL REFERENCES holdfast.consumers ON DELETE CASCADE,
    reason      text NOT NULL,
    dead        bigint NOT NULL,
    PRIMARY KEY (consumer_id, reason)
);
