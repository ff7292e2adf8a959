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
    -- The process that executes the run; empty if another process took over its session.
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
    tools TEXT,
    -- The newest turn of the session when the run began; null before the first one.
    turn INTEGER
);
CREATE UNIQUE INDEX runs_by_id ON runs (id);
CREATE INDEX open_runs ON runs (owner) WHERE ended_ms IS NULL;
CREATE INDEX resumed_runs ON runs (resumes) WHERE resumes IS NOT NULL;
-- Covers all columns that a list of runs shows or filters by, so that the list reads neither the
-- rows nor the calls. PostgreSQL limits the size of an entry.
-- postgres: CREATE INDEX runs_by_time ON runs (started_ms DESC, id);
-- sqlite-only
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
    -- How long the call waited for a free slot before it started; null if it did not wait.
    queued_ms REAL,
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

-- Leases of the processes that share this database from several machines. A process renews its
-- lease; one whose lease has ended is dead, and loses its claims.
CREATE TABLE owners (
    id TEXT PRIMARY KEY,
    -- When the lease ends, by the clock of the database.
    ends_ms INTEGER NOT NULL,
    -- The host and the process, for people.
    name TEXT NOT NULL,
    -- The workspaces whose sessions a server runs, as JSON; null if the process is no server.
    workspaces TEXT,
    -- The newest schema versions that the process knows, by component, as JSON.
    versions TEXT NOT NULL
) WITHOUT ROWID;

-- Requests to cancel a run, or to stop a turn of a session, that another process executes. That
-- process polls this table.
CREATE TABLE cancel_requests (
    -- The id of the run or session.
    run TEXT PRIMARY KEY,
    asked_ms INTEGER NOT NULL,
    -- The turn of the session; null for a run.
    turn INTEGER
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
    -- The fencing number of the claim, which each new owner increases. A write of an owner fails if
    -- it is not the number of its claim any more.
    fence INTEGER NOT NULL DEFAULT 0,
    -- The session whose agent launched this one, and its newest turn at that time.
    parent TEXT,
    parent_turn INTEGER,
    title TEXT,
    -- The table `[environments.x]` of the configuration that the session works with.
    environment TEXT,
    -- The session whose script created this one, and the number of sessions above it.
    creator TEXT,
    depth INTEGER NOT NULL DEFAULT 0,
    -- What turns of the session may do at most, if a script created it (`TurnPermissions`).
    permissions TEXT,
    -- 1 if the session works in a git worktree of its own.
    worktree INTEGER NOT NULL DEFAULT 0,
    -- The name of the token whose client created the session.
    client TEXT
) WITHOUT ROWID;
CREATE INDEX sessions_by_client ON sessions (client) WHERE client IS NOT NULL;
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
CREATE INDEX sessions_by_time ON sessions (touched_ms DESC);
CREATE INDEX sessions_by_creator ON sessions (creator) WHERE creator IS NOT NULL;

-- Messages that start turns of sessions, in order. A process claims a message, runs the turn and
-- stores the answer.
CREATE TABLE inbox (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    author_kind TEXT NOT NULL,
    author TEXT NOT NULL,
    text BLOB NOT NULL,
    hops INTEGER NOT NULL,
    -- The message or turn that led to this message.
    cause TEXT,
    -- What the turn may do at most (`TurnPermissions`); null if a person sent the message.
    permissions TEXT,
    -- 'queued', 'claimed', 'answered', 'failed' or 'stopped'.
    state TEXT NOT NULL,
    -- The process that claimed the message, and the turn that it starts.
    owner TEXT,
    turn INTEGER,
    -- The final answer of the turn, or the error.
    answer BLOB,
    queued_ms INTEGER NOT NULL,
    ended_ms INTEGER,
    -- The same for every attempt to send the message.
    idempotency_key TEXT,
    -- The name of the token whose client led to the message, and pays for its turn.
    payer TEXT,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE INDEX open_inbox ON inbox (session, number) WHERE ended_ms IS NULL;
CREATE UNIQUE INDEX inbox_by_key ON inbox (idempotency_key) WHERE idempotency_key IS NOT NULL;

CREATE INDEX open_inbox_by_payer ON inbox (payer) WHERE ended_ms IS NULL AND payer IS NOT NULL;

-- Tokens of the clients of the agent server. The secret itself is not stored.
CREATE TABLE api_tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    secret_hash BLOB NOT NULL UNIQUE,
    -- Lists, as JSON.
    scopes TEXT NOT NULL,
    workspaces TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER,
    -- Money: the limit, and what turns have cost, in the currency of the prices of models.
    max_cost REAL,
    spent REAL NOT NULL DEFAULT 0
) WITHOUT ROWID;

-- One-time secrets with which a browser gets a token of its own.
CREATE TABLE api_logins (secret_hash BLOB PRIMARY KEY, expires_ms INTEGER NOT NULL) WITHOUT ROWID;

-- Completed items and state changes of sessions that the agent server runs, for its clients.
CREATE TABLE session_events (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    -- The type of the event.
    kind TEXT NOT NULL,
    body BLOB NOT NULL,
    at_ms INTEGER NOT NULL,
    -- The newest turn of the session when the event was stored; null before the first one.
    turn INTEGER,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;
CREATE INDEX session_events_by_kind ON session_events (session, kind, number);

-- Answers to requests with an idempotency key. Without a status, the owner still handles it. The
-- numbers of a token's rows give the order of insertion, whatever the clock says.
CREATE TABLE api_replies (
    token TEXT NOT NULL,
    key TEXT NOT NULL,
    digest BLOB NOT NULL,
    owner TEXT NOT NULL,
    status INTEGER,
    content_type TEXT,
    body BLOB,
    at_ms INTEGER NOT NULL,
    number INTEGER NOT NULL,
    -- The ids of the sessions that an answer names, separated by spaces: it is deleted with each of
    -- them. `*` stands for any session.
    sessions TEXT NOT NULL DEFAULT '*',
    PRIMARY KEY (token, key)
);
CREATE INDEX api_replies_by_number ON api_replies (token, number);

-- Which token decided about an approval request of a session.
CREATE TABLE approval_deciders (
    approval TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    token TEXT NOT NULL,
    decision TEXT NOT NULL,
    -- Why the calls are denied, for the model.
    reason TEXT,
    decided_ms INTEGER NOT NULL
) WITHOUT ROWID;

-- Approval requests of turns that servers run, for the clients of the other servers.
CREATE TABLE shared_approvals (
    id TEXT PRIMARY KEY,
    session TEXT NOT NULL,
    request BLOB NOT NULL,
    asked_ms INTEGER NOT NULL,
    owner TEXT NOT NULL
) WITHOUT ROWID;

-- Sessions whose turn waits for the answer of another session, and the process that runs that turn.
CREATE TABLE session_waits (
    id TEXT PRIMARY KEY,
    waiter TEXT NOT NULL,
    target TEXT NOT NULL,
    owner TEXT NOT NULL
) WITHOUT ROWID;

-- Channels. A name may end with the owner of the channel, as the keys of documents do.
CREATE TABLE channels (
    name TEXT PRIMARY KEY,
    -- The number of messages, which is the number of the newest one.
    messages INTEGER NOT NULL,
    posted_ms INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE channel_messages (
    channel TEXT NOT NULL,
    number INTEGER NOT NULL,
    author_kind TEXT NOT NULL,
    author TEXT NOT NULL,
    -- The text and its mentions.
    content BLOB NOT NULL,
    hops INTEGER NOT NULL,
    cause TEXT,
    posted_ms INTEGER NOT NULL,
    -- The same for every attempt to post the message.
    idempotency_key TEXT,
    -- The newest turn of the session that posted the message; null for other authors.
    turn INTEGER,
    PRIMARY KEY (channel, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX channel_messages_by_key
    ON channel_messages (idempotency_key) WHERE idempotency_key IS NOT NULL;

-- Sessions that follow a channel.
CREATE TABLE channel_followers (
    channel TEXT NOT NULL,
    session TEXT NOT NULL,
    PRIMARY KEY (channel, session)
) WITHOUT ROWID;
CREATE INDEX followed_channels ON channel_followers (session);

CREATE TABLE items (
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    item BLOB NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (session, number)
) WITHOUT ROWID;

-- Files that turns changed, before and after. A kind is 'file', 'executable' or 'link', or null if
-- the file does not exist. Without a kind on both sides, the contents are not recorded.
CREATE TABLE turn_changes (
    session TEXT NOT NULL,
    turn INTEGER NOT NULL,
    number INTEGER NOT NULL,
    -- The folder, and the path relative to it.
    directory TEXT NOT NULL,
    path BLOB NOT NULL,
    before_kind TEXT,
    before BLOB,
    after_kind TEXT,
    after BLOB,
    PRIMARY KEY (session, turn, number)
) WITHOUT ROWID;

-- Values that scripts of a session saved with `store`.
CREATE TABLE stored (
    session TEXT NOT NULL,
    key TEXT NOT NULL,
    value BLOB NOT NULL,
    bytes INTEGER NOT NULL,
    stored_ms INTEGER NOT NULL,
    -- The newest turn of the session when the value was stored; null before the first one.
    turn INTEGER,
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
