-- 1 if turns of the session were taken in the agent server, where memory ends at the folder of a
-- session: what it says changes only lessons that were learned in this folder.
ALTER TABLE memory_sessions ADD COLUMN is_bounded INTEGER NOT NULL DEFAULT 0;

-- When a request was submitted as part of a provider's batch, in milliseconds since 1970.
ALTER TABLE memory_requests ADD COLUMN submitted_ms INTEGER NOT NULL DEFAULT 0;
