-- The ids of the sessions that an answer names, separated by spaces: it is deleted with each of them.
-- `*` stands for any session.
ALTER TABLE api_replies ADD COLUMN sessions TEXT NOT NULL DEFAULT '*';
