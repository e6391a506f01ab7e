-- Migration 1: the tables. Runs once, in the transaction that notes it down.

-- A namespace: `floor` is what deletions raise tokens to, `salt` makes its history its own; (epoch, since_ms, promoted)
-- is the history row, written by whoever first sees another history.
CREATE TABLE tenure.space (
    number integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL UNIQUE,
    salt text NOT NULL,
    floor bigint NOT NULL DEFAULT 0,
    max_ttl_ms bigint NOT NULL DEFAULT 0,
    epoch text NOT NULL DEFAULT '',
    since_ms bigint NOT NULL DEFAULT 0,
    promoted boolean NOT NULL DEFAULT false,
    touch bigint NOT NULL DEFAULT 0
);

-- A run. Texts that people choose freely (owner, code version, names of requests and signals) stand in it as JSON
-- escapes them, because no text of PostgreSQL holds U+0000. `entry_ms` is the run's entry in the due index, NULL for none; no index holds what a
-- checkpoint changes, so that its update stays on the page.
CREATE TABLE tenure.run (
    number bigint GENERATED ALWAYS AS IDENTITY,
    space integer NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    schema bigint NOT NULL,
    code_version text NOT NULL,
    status text COLLATE "C" NOT NULL CHECK (
        status IN ('queued', 'running', 'suspended', 'quarantined', 'completed', 'failed', 'cancelled')
    ),
    version bigint NOT NULL DEFAULT 1,
    attempt bigint NOT NULL DEFAULT 1,
    crashes bigint NOT NULL DEFAULT 0,
    failures bigint NOT NULL DEFAULT 0,
    token bigint NOT NULL,
    nonce text NOT NULL DEFAULT '',
    epoch text NOT NULL,
    owner text NOT NULL DEFAULT '',
    granted_ttl_ms bigint NOT NULL DEFAULT 0,
    lease_until_ms bigint NOT NULL DEFAULT 0,
    step bigint NOT NULL DEFAULT 0,
    last_seq bigint NOT NULL,
    head text NOT NULL,
    base_seq bigint NOT NULL,
    inbox_seq bigint NOT NULL DEFAULT 0,
    requests text NOT NULL DEFAULT '',
    wants text NOT NULL DEFAULT '',
    parent text COLLATE "C" NOT NULL,
    cancel_by_ms bigint,
    due_ms bigint,
    priority bigint NOT NULL,
    tags text NOT NULL DEFAULT '',
    input_digest text NOT NULL,
    outcome text NOT NULL DEFAULT '',
    touch bigint NOT NULL DEFAULT 0,
    created_ms bigint NOT NULL,
    updated_ms bigint NOT NULL,
    grants text NOT NULL DEFAULT '',
    entry_ms bigint,
    PRIMARY KEY (space, id)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05, autovacuum_analyze_scale_factor = 0.05);
CREATE INDEX run_due ON tenure.run (space, kind, entry_ms, id) WHERE entry_ms IS NOT NULL;
CREATE INDEX run_status ON tenure.run (space, status, created_ms, id);
CREATE INDEX run_created ON tenure.run (space, created_ms, id);
CREATE INDEX run_parent ON tenure.run (space, parent, created_ms, id) WHERE parent <> '';

-- The commits of all runs. A body is opaque bytes, as they were hashed.
CREATE TABLE tenure.journal (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    token bigint NOT NULL,
    mark text NOT NULL,
    digest text NOT NULL,
    at_ms bigint NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (run, seq)
);

CREATE TABLE tenure.inbox (
    run bigint NOT NULL,
    seq bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    name text NOT NULL,
    ask text NOT NULL,
    digest text NOT NULL,
    at_ms bigint NOT NULL,
    consumed boolean NOT NULL DEFAULT false,
    body bytea NOT NULL,
    PRIMARY KEY (run, seq),
    UNIQUE (run, id)
);

CREATE TABLE tenure.blob (
    run bigint NOT NULL,
    digest text COLLATE "C" NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (run, digest)
);

-- Hints, by which nothing decides: rows of workers, and refused writes as told by who was refused.
CREATE TABLE tenure.beat (
    space integer NOT NULL,
    name text NOT NULL,
    at_ms bigint NOT NULL,
    until_ms bigint NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (space, name)
);

CREATE TABLE tenure.refused (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    space integer NOT NULL,
    at_ms bigint NOT NULL,
    data text NOT NULL
);
CREATE INDEX refused_space ON tenure.refused (space, number);

-- Where the server was built with lz4, payloads are packed with it, and a step stays in its row: aside of it, it would be
-- written with a row and an index entry more for every two kilobytes. Where it was not, a step of up to half a page is
-- not packed: what the server packs with instead costs as much as half of all else that it does for a step.
DO $$
BEGIN
    ALTER TABLE tenure.journal ALTER COLUMN body SET COMPRESSION lz4, ALTER COLUMN body SET STORAGE MAIN;
    ALTER TABLE tenure.blob ALTER COLUMN data SET COMPRESSION lz4;
EXCEPTION WHEN feature_not_supported OR syntax_error THEN
    ALTER TABLE tenure.journal SET (toast_tuple_target = 4080);
END $$;
