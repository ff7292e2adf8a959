-- The tables of the memory in the journal's file. `encrypt`, `decrypt` and `keyed_digest` are SQL
-- functions of the connection; without a key they return their argument. A column of the type
-- `CODED TEXT` has texts that are encrypted or digests if there is a key.

CREATE TABLE memory_sessions (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    turns INTEGER NOT NULL DEFAULT 0,
    words INTEGER NOT NULL DEFAULT 0,
    -- The last turn whose levels are written by rules, by a model, and that was distilled.
    written INTEGER NOT NULL DEFAULT 0,
    summarised INTEGER NOT NULL DEFAULT 0,
    distilled INTEGER NOT NULL DEFAULT 0,
    -- The number of forgotten turns. While it is unchanged, cached data of earlier turns is valid.
    forgotten INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL
);

-- The id of a turn is session << 32 | number. `raw` is never changed; its first byte tells whether
-- the rest is compressed.
CREATE TABLE memory_turns (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key CODED TEXT,
    role TEXT NOT NULL,
    speaker CODED TEXT,
    ts TEXT,
    at_ms INTEGER NOT NULL,
    form TEXT NOT NULL,
    raw BLOB NOT NULL
);
CREATE UNIQUE INDEX memory_keys ON memory_turns (session, key) WHERE key IS NOT NULL;

-- The lower levels of turns. `made_by` is `rules`, `model`, or `rules_after_model` if a model was
-- asked and gave no usable answer.
CREATE TABLE memory_levels (
    id INTEGER PRIMARY KEY,
    smoothed CODED TEXT NOT NULL,
    compressed CODED TEXT NOT NULL,
    tiny CODED TEXT NOT NULL,
    made_by TEXT NOT NULL
);

-- Metrics that ranking and planning read of every turn, packed, with many turns in one row.
CREATE TABLE memory_turn_metrics (id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- Parts: runs of turns that belong together, up to the first turn of the next part.
CREATE TABLE memory_parts (
    session INTEGER NOT NULL,
    first INTEGER NOT NULL,
    label CODED TEXT,
    words INTEGER NOT NULL,
    PRIMARY KEY (session, first)
) WITHOUT ROWID;

-- Names of speakers, numbered from 1 in each session.
CREATE TABLE memory_speakers (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    name CODED TEXT NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;

-- The inverted index: the turns that contain a term, and how often. A block is small enough to need
-- no overflow page.
CREATE TABLE memory_postings (
    term CODED TEXT NOT NULL,
    session INTEGER NOT NULL,
    block INTEGER NOT NULL,
    before INTEGER NOT NULL,
    docs INTEGER NOT NULL,
    last INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (term, session, block)
) WITHOUT ROWID;

-- Eras: one text for 32 old turns, for eight times as many, and so on.
CREATE TABLE memory_eras (
    session INTEGER NOT NULL,
    length INTEGER NOT NULL,
    first INTEGER NOT NULL,
    text CODED TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (session, length, first)
) WITHOUT ROWID;

-- Pinned plans and their text, which is the beginning of prompts until the next plan.
CREATE TABLE memory_gradients (
    session INTEGER NOT NULL,
    budget INTEGER NOT NULL,
    shares TEXT NOT NULL,
    planned INTEGER NOT NULL,
    reserve INTEGER NOT NULL,
    bands TEXT NOT NULL,
    text CODED TEXT NOT NULL,
    PRIMARY KEY (session, budget, shares)
);

-- Lessons. Kinds: lesson, preference, problem, layer. States: used, proposed, declined, seen.
CREATE TABLE memory_lessons (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    title CODED TEXT NOT NULL,
    topics CODED TEXT NOT NULL,
    keywords CODED TEXT NOT NULL,
    content CODED TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    weight REAL NOT NULL,
    updated_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- The turns from which lessons were learned.
CREATE TABLE memory_sources (
    lesson TEXT NOT NULL,
    session INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (lesson, session, turn)
) WITHOUT ROWID;
CREATE INDEX memory_sources_of_turns ON memory_sources (session, turn);

-- Topics of sessions, with weights that decay.
CREATE TABLE memory_topics (
    session INTEGER NOT NULL,
    name CODED TEXT NOT NULL,
    category CODED TEXT NOT NULL,
    weight REAL NOT NULL,
    turns INTEGER NOT NULL,
    PRIMARY KEY (session, name)
) WITHOUT ROWID;

-- The announcement board: notes for the model about fetched turns and documents, which expire.
CREATE TABLE memory_board (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn INTEGER NOT NULL,
    text CODED TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;

-- Vectors of turns, with many turns in one row, and the bytes of one vector.
CREATE TABLE memory_vectors (id INTEGER PRIMARY KEY, encoder TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE memory_encoders (session INTEGER PRIMARY KEY, width INTEGER NOT NULL);

-- One row if the memory is encrypted: the fingerprint of its key.
CREATE TABLE memory_encryption (key_fingerprint BLOB NOT NULL);

-- Pending batches at a provider: the batch's id, and the first and last turn of each prompt.
CREATE TABLE memory_batches (
    session INTEGER PRIMARY KEY,
    batch TEXT NOT NULL,
    spans TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    submitted_ms INTEGER NOT NULL
);
