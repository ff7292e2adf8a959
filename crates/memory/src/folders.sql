-- The descriptions of areas belong to a folder of a project, because access to memory ends at
-- folders. Earlier ones may mix several.
DROP TABLE memory_areas;
CREATE TABLE memory_areas (
    unit TEXT NOT NULL,
    directory TEXT NOT NULL,
    name CODED TEXT NOT NULL,
    note CODED TEXT NOT NULL,
    updated_ms INTEGER NOT NULL,
    PRIMARY KEY (unit, directory, name)
) WITHOUT ROWID;

-- The turns that contradict a lesson. `note` in `memory_lessons` is what they say.
CREATE TABLE memory_contradictions (
    lesson TEXT NOT NULL,
    session INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    PRIMARY KEY (lesson, session, turn)
) WITHOUT ROWID;
CREATE INDEX memory_contradictions_of_turns ON memory_contradictions (session, turn);
-- Earlier notes could not be forgotten together with all of their turns.
UPDATE memory_lessons SET note = NULL;

-- In the journal, a run is the execution of a script.
ALTER TABLE memory_runs RENAME TO memory_passes;
