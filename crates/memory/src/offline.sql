-- Why a lesson is no longer right, if it is contradicted; null otherwise.
ALTER TABLE memory_lessons ADD COLUMN note CODED TEXT;

-- Requests to a model about turns. A row is written before the request is sent, and deleted in the
-- transaction that learns from its answer. `unit` is a project, or a session without one. `spans`
-- are the new turns: session, first and last turn. `batch` and `place` are set if the request is
-- part of a provider's batch. `answered` is 1 if there is an answer; the answer is null if the
-- request failed.
DROP TABLE memory_batches;
CREATE TABLE memory_requests (
    id INTEGER PRIMARY KEY,
    unit TEXT NOT NULL,
    spans TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    batch TEXT,
    place INTEGER NOT NULL DEFAULT 0,
    answered INTEGER NOT NULL DEFAULT 0,
    answer CODED TEXT
);
CREATE INDEX memory_requests_of_units ON memory_requests (unit);

-- The last run of each unit. `ended_ms` is null until all turns are distilled. Tokens and cost are
-- those of the requests; the cost is null if no price is known.
CREATE TABLE memory_runs (
    unit TEXT PRIMARY KEY,
    started_ms INTEGER NOT NULL,
    touched_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    turns INTEGER NOT NULL DEFAULT 0,
    learned INTEGER NOT NULL DEFAULT 0,
    dropped INTEGER NOT NULL DEFAULT 0,
    requests INTEGER NOT NULL DEFAULT 0,
    input_tokens INTEGER NOT NULL DEFAULT 0,
    output_tokens INTEGER NOT NULL DEFAULT 0,
    cost REAL
) WITHOUT ROWID;

-- How many turns of a session mentioned a topic in each week. A week is named by its first day, in
-- days since 1970.
CREATE TABLE memory_topic_weeks (
    session INTEGER NOT NULL,
    name CODED TEXT NOT NULL,
    week INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    PRIMARY KEY (session, name, week)
) WITHOUT ROWID;

-- Areas of a project, as a model described them: how the work in an area went on.
CREATE TABLE memory_areas (
    unit TEXT NOT NULL,
    name CODED TEXT NOT NULL,
    note CODED TEXT NOT NULL,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (unit, name)
) WITHOUT ROWID;
