-- What a turn's levels were written from: how many tools it called, and what it is about, as a JSON
-- list of words. NULL in levels written before these columns existed.
ALTER TABLE memory_levels ADD COLUMN tool_calls INTEGER;
ALTER TABLE memory_levels ADD COLUMN topics CODED TEXT;
