-- Which process distills a unit, if several machines share the database.
CREATE TABLE memory_locks (
    unit TEXT PRIMARY KEY,
    -- The process: its lock file and its machine.
    holder TEXT NOT NULL,
    -- When its lease ends, by the clock of the database.
    ends_ms INTEGER NOT NULL
) WITHOUT ROWID;
