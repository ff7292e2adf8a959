-- The tables of the memory, in the journal's file.

CREATE TABLE memory_sessions (
    id INTEGER PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    turns INTEGER NOT NULL DEFAULT 0,
    words INTEGER NOT NULL DEFAULT 0,
    -- Up to which turn the levels are written, by rules and by a model, and lessons are drawn.
    written INTEGER NOT NULL DEFAULT 0,
    summarised INTEGER NOT NULL DEFAULT 0,
    distilled INTEGER NOT NULL DEFAULT 0,
    -- How often a turn was forgotten. While it is unchanged, what was read of earlier turns is still valid.
    forgotten INTEGER NOT NULL DEFAULT 0,
    created_ms INTEGER NOT NULL
);

-- The id of a turn is session << 32 | number. `raw` is exact for ever; its first byte says how it is packed.
CREATE TABLE memory_turns (
    id INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    key TEXT,
    role TEXT NOT NULL,
    speaker TEXT,
    ts TEXT,
    at_ms INTEGER NOT NULL,
    form TEXT NOT NULL,
    raw BLOB NOT NULL
);
CREATE UNIQUE INDEX memory_keys ON memory_turns (session, key) WHERE key IS NOT NULL;

CREATE TABLE memory_levels (
    id INTEGER PRIMARY KEY,
    smoothed TEXT NOT NULL,
    compressed TEXT NOT NULL,
    tiny TEXT NOT NULL,
    made_by TEXT NOT NULL
);

-- The numbers of many turns in one row each: what ranking and planning read of every turn.
CREATE TABLE memory_columns (id INTEGER PRIMARY KEY, data BLOB NOT NULL);

-- Sittings: runs of turns that belong together.
CREATE TABLE memory_parts (
    session INTEGER NOT NULL,
    first INTEGER NOT NULL,
    label TEXT,
    words INTEGER NOT NULL,
    PRIMARY KEY (session, first)
) WITHOUT ROWID;

CREATE TABLE memory_speakers (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;

-- Which turns have a term, and how often. Blocks are as large as a row may be without spilling over.
CREATE TABLE memory_postings (
    term TEXT NOT NULL,
    session INTEGER NOT NULL,
    block INTEGER NOT NULL,
    before INTEGER NOT NULL,
    docs INTEGER NOT NULL,
    last INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (term, session, block)
) WITHOUT ROWID;

-- One text for many old turns: 32 of them, eight times as many, and so on.
CREATE TABLE memory_eras (
    session INTEGER NOT NULL,
    length INTEGER NOT NULL,
    first INTEGER NOT NULL,
    text TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    PRIMARY KEY (session, length, first)
) WITHOUT ROWID;

-- What a prompt begins with until the next plan.
CREATE TABLE memory_gradients (
    session INTEGER NOT NULL,
    budget INTEGER NOT NULL,
    shares TEXT NOT NULL,
    planned INTEGER NOT NULL,
    reserve INTEGER NOT NULL,
    bands TEXT NOT NULL,
    text TEXT NOT NULL,
    PRIMARY KEY (session, budget, shares)
);

-- What was learned. Kinds: lesson, preference, problem, layer; states: used, proposed, declined.
CREATE TABLE memory_lessons (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    status TEXT NOT NULL,
    title TEXT NOT NULL,
    topics TEXT NOT NULL,
    keywords TEXT NOT NULL,
    content TEXT NOT NULL,
    tokens INTEGER NOT NULL,
    weight REAL NOT NULL,
    updated_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE memory_sources (
    lesson TEXT NOT NULL,
    session INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (lesson, session, turn)
) WITHOUT ROWID;
CREATE INDEX memory_sources_of_turns ON memory_sources (session, turn);

CREATE TABLE memory_topics (
    session INTEGER NOT NULL,
    name TEXT NOT NULL,
    category TEXT NOT NULL,
    weight REAL NOT NULL,
    turns INTEGER NOT NULL,
    PRIMARY KEY (session, name)
) WITHOUT ROWID;

-- What models are told for some turns: fetched details, documents, kept files.
CREATE TABLE memory_board (
    session INTEGER NOT NULL,
    id INTEGER NOT NULL,
    kind TEXT NOT NULL,
    turn INTEGER NOT NULL,
    text TEXT NOT NULL,
    until INTEGER NOT NULL,
    PRIMARY KEY (session, id)
) WITHOUT ROWID;

-- Vectors of many turns in one row each.
CREATE TABLE memory_vectors (id INTEGER PRIMARY KEY, encoder TEXT NOT NULL, data BLOB NOT NULL);
CREATE TABLE memory_encoders (session INTEGER PRIMARY KEY, width INTEGER NOT NULL);

-- One row where texts are sealed and terms marked: what shows with which key.
CREATE TABLE memory_seal (proof BLOB NOT NULL);

-- Turns a provider is drawing lessons from: the batch's name there, and the first and last turn of each prompt.
CREATE TABLE memory_batches (
    session INTEGER PRIMARY KEY,
    batch TEXT NOT NULL,
    spans TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    submitted_ms INTEGER NOT NULL
);
