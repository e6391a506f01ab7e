-- The tables of schema 1. No arguments; returns nothing; run once, inside the transaction that raises the version.

-- The one row of facts about the file: `salt` makes its history its own, `boot` is the boot of the machine that
-- `offset_us` was bound for (store time = time since boot + offset), `ceiling_us` is never behind a time given out.
CREATE TABLE file (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    schema INTEGER NOT NULL,
    salt TEXT NOT NULL,
    boot TEXT NOT NULL,
    offset_us INTEGER NOT NULL,
    ceiling_us INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,
    bell INTEGER NOT NULL DEFAULT 0
) STRICT;

-- A namespace: the token floor that deletions raise, and the longest lease that may be asked for.
CREATE TABLE space (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    floor INTEGER NOT NULL DEFAULT 0,
    max_ttl_ms INTEGER NOT NULL DEFAULT 0
) STRICT;

-- A run: its record as canonical JSON of text fields decides; the columns beside it are what searches go by.
-- `entry_ms` is the run's entry in the due index, NULL for none.
CREATE TABLE run (
    number INTEGER PRIMARY KEY,
    space INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    owner TEXT NOT NULL,
    parent TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    token INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    entry_ms INTEGER,
    record TEXT NOT NULL,
    UNIQUE (space, id)
) STRICT;
CREATE INDEX run_due ON run (space, kind, entry_ms, id) WHERE entry_ms IS NOT NULL;
CREATE INDEX run_status ON run (space, status, created_ms, id);
CREATE INDEX run_created ON run (space, created_ms, id);
CREATE INDEX run_parent ON run (space, parent, created_ms, id) WHERE parent <> '';

-- The commits of all runs. The key is the run's number << 32 | seq: with an integer key a step of 3 KB stays whole on
-- one page, under a (run, seq) key without rowid it would spill over onto pages of its own.
CREATE TABLE journal (
    key INTEGER PRIMARY KEY,
    data BLOB NOT NULL
) STRICT;

CREATE TABLE inbox (
    run INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, seq),
    UNIQUE (run, id)
) STRICT;

CREATE TABLE blob (
    run INTEGER NOT NULL,
    digest TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (run, digest)
) STRICT;

-- Hints, by which nothing decides: rows of workers, and refused writes as told by who was refused.
CREATE TABLE beat (
    space INTEGER NOT NULL,
    name TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (space, name)
) STRICT, WITHOUT ROWID;

CREATE TABLE refused (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    space INTEGER NOT NULL,
    data TEXT NOT NULL
) STRICT;
CREATE INDEX refused_space ON refused (space, number);
