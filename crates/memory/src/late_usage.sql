-- What the small model used for a session after its last turn had ended. The next turn counts it.
ALTER TABLE memory_sessions ADD COLUMN late_input_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory_sessions ADD COLUMN late_output_tokens INTEGER NOT NULL DEFAULT 0;
ALTER TABLE memory_sessions ADD COLUMN late_cost REAL NOT NULL DEFAULT 0.0;

-- The vector of a lesson or layer, and the encoder that computed it. It is deleted with the lesson.
ALTER TABLE memory_lessons ADD COLUMN encoder TEXT;
ALTER TABLE memory_lessons ADD COLUMN vector BLOB;
