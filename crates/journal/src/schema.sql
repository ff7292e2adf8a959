-- The tables of the journal.

-- Keys that are created on first use, such as the key for digests of call arguments.
CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;

-- Large payloads, each stored once. `packed` is compressed, and encrypted if the journal is.
CREATE TABLE blobs (hash BLOB PRIMARY KEY, packed BLOB NOT NULL) WITHOUT ROWID;

-- Rows are ordered by insertion, not by id. Ids are random and rows are large, so inserting in the
-- order of ids would split a page each time.
CREATE TABLE runs (
    id TEXT NOT NULL,
    session TEXT NOT NULL,
    -- The run that this run resumes.
    resumes TEXT,
    source BLOB NOT NULL,
    directory TEXT NOT NULL,
    seed TEXT NOT NULL,
    -- The process that executes the run.
    owner TEXT NOT NULL,
    status TEXT NOT NULL,
    output BLOB,
    started_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    -- What the caller needs to set up the same tools when the run is restored.
    saved_config BLOB NOT NULL,
    recording BLOB,
    -- Number of calls and names of tools, once the run has ended.
    calls INTEGER,
    tools TEXT
);
CREATE UNIQUE INDEX runs_by_id ON runs (id);
CREATE INDEX open_runs ON runs (owner) WHERE ended_ms IS NULL;
CREATE INDEX resumed_runs ON runs (resumes) WHERE resumes IS NOT NULL;
-- Covers all columns that a list of runs shows or filters by, so that the list reads neither the
-- rows nor the calls.
CREATE INDEX runs_listed
    ON runs (started_ms DESC, id, owner, status, ended_ms, directory, resumes, calls, tools,
        session);

CREATE TABLE calls (
    run TEXT NOT NULL,
    id TEXT NOT NULL,
    tool TEXT NOT NULL,
    args BLOB,
    digest TEXT NOT NULL,
    read_only INTEGER NOT NULL,
    line INTEGER,
    -- 'started', or how the call ended (`CallStatus`).
    state TEXT NOT NULL,
    value BLOB,
    error BLOB,
    reused INTEGER NOT NULL DEFAULT 0,
    started_ms INTEGER NOT NULL,
    duration_ms REAL,
    -- The text that the model got instead of the value.
    shown BLOB,
    -- Nanoseconds, strictly increasing within a process; gives the order of calls.
    started_ns INTEGER,
    -- The call of the resumed run that this call reuses or repeats.
    prior_call TEXT,
    -- What the call means to a run that resumes this run (`ResumeAs`); null until the call has
    -- ended. For a call that started a task, the calls of the task's own run decide.
    resume_as TEXT,
    PRIMARY KEY (run, id)
) WITHOUT ROWID;

CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    run TEXT NOT NULL,
    request BLOB NOT NULL,
    answers TEXT,
    asked_ms INTEGER NOT NULL,
    answered_ms INTEGER
) WITHOUT ROWID;
CREATE INDEX approvals_of_runs ON approvals (run);

-- States of scripts that wait for an approval. The row is deleted when a call or the end of its run
-- is recorded.
CREATE TABLE suspensions (
    run TEXT PRIMARY KEY,
    state BLOB NOT NULL,
    claimed_by TEXT,
    written_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- Requests to cancel a run that another process executes. That process polls this table.
CREATE TABLE cancel_requests (
    run TEXT PRIMARY KEY,
    asked_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    name TEXT UNIQUE,
    directory TEXT NOT NULL,
    started_ms INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL,
    forked_from TEXT,
    -- The process that has claimed the session.
    owner TEXT,
    -- The session whose agent launched this one.
    parent TEXT
) WITHOUT ROWID;
CREATE INDEX sessions_by_time ON sessions (touched_ms DESC);

CREATE TABLE items (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    item BLOB NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;

-- Values that scripts of a session saved with `store`.
CREATE TABLE stored (
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    stored_ms INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;

-- The documents of the File Cabinet.
CREATE TABLE cabinet (
    key TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    -- A keyed hash of kind and source, so that the documents of a source are found without storing
    -- its name in plain text.
    origin BLOB NOT NULL,
    about BLOB NOT NULL,
    content BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    saved_ms INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX cabinet_by_origin ON cabinet (origin, saved_ms DESC);
CREATE INDEX cabinet_by_time ON cabinet (kind, saved_ms DESC);
