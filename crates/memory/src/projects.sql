-- Projects. A root is the folder that identifies a project: a git common directory, or the folder
-- of a session without git. Several roots may have the same project.
CREATE TABLE memory_projects (root TEXT PRIMARY KEY, project TEXT NOT NULL) WITHOUT ROWID;

-- The project of a session, '' if it belongs to none, null if that is not known yet. The folder of
-- a session, null for imported conversations.
ALTER TABLE memory_sessions ADD COLUMN project TEXT;
ALTER TABLE memory_sessions ADD COLUMN directory TEXT;
CREATE INDEX memory_sessions_of_projects ON memory_sessions (project);

-- The project in which a lesson is used, '' if in all, null if that is not known yet.
ALTER TABLE memory_lessons ADD COLUMN project TEXT;

-- The session of a fetched turn on the board; null for anything else.
ALTER TABLE memory_board ADD COLUMN source INTEGER;

-- Documents of the File Cabinet that turns saved or read. `turn` is the one before, `served` is 1
-- if the session is one of the agent server, whose documents belong to its folder.
CREATE TABLE memory_documents (
    session INTEGER NOT NULL,
    key TEXT NOT NULL,
    title CODED TEXT NOT NULL,
    saved_ms INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    served INTEGER NOT NULL,
    PRIMARY KEY (session, key)
) WITHOUT ROWID;

-- The briefs with which sessions began.
CREATE TABLE memory_briefs (session INTEGER PRIMARY KEY, text CODED TEXT NOT NULL);
