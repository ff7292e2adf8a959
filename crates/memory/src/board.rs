//! The announcement board of a session: short notes about fetched turns and documents, which are
//! part of the next five turns' recall and then expire.

use selvedge_database::{Connection, params};
use selvedge_protocol::{DOCUMENT_RETENTION, DocumentInfo, DocumentKind};

use crate::cleaning::collapse_whitespace;
use crate::projects::readable_sessions;
use crate::store::{
    create_session, execute, find_session, lock_session, now_ms, query_rows, require_session,
};
use crate::{Level, Memory, MemoryAccess, MemoryError, parse_turn_number, tokens};

/// For how many turns an announcement is shown.
pub const ANNOUNCEMENT_TURNS: u32 = 5;
/// Longer announcements are cut. The full text was the result of the call that fetched it.
const MAX_ANNOUNCEMENT_TOKENS: u32 = 300;
/// Longer document titles are cut.
const MAX_TITLE_CHARS: usize = 80;

/// Documents of the project that are listed.
const MAX_LISTED_DOCUMENTS: u32 = 5;

/// A note on the announcement board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// The kind of thing it announces: `turn`, `web`, `file`, …
    pub kind: String,
    /// The text for the model.
    pub text: String,
    /// The last turn in which it is shown.
    pub until_turn: u32,
}

impl Memory {
    /// Puts a note on a session's board for the next [`ANNOUNCEMENT_TURNS`] turns.
    pub fn announce(&self, session: &str, kind: &str, text: &str) -> Result<(), MemoryError> {
        self.write(|connection| insert_announcement(connection, session, kind, None, text))
    }

    /// Announces a document of the File Cabinet with the calls that read and save it, and adds it
    /// to the documents of the project. Announcing the same document again prolongs its
    /// announcement.
    pub fn announce_document(
        &self,
        access: &MemoryAccess,
        document: &DocumentInfo,
    ) -> Result<(), MemoryError> {
        let (kind, what) = match document.kind {
            DocumentKind::Page => ("web", "web page"),
            DocumentKind::Prompt => ("prompt", "prompt"),
            DocumentKind::Result => ("file", "result of a background task"),
            _ => ("file", "document"),
        };
        let (key, title) = (&document.key, shorten_title(&document.title));
        let how = match document.kind {
            DocumentKind::Prompt => format!("tools.prompts.get(\"{key}\") reads it"),
            _ => format!(
                "tools.fetchFromFc(\"{key}\") reads it, \
                 tools.writeFile({{ fileKey: \"{key}\", path }}) saves it without reading it"
            ),
        };
        self.announce(&access.session, kind, &format!("{what} \"{title}\": {how}"))?;
        self.write(|connection| {
            let found = require_session(connection, &access.session)?;
            let served = access.folders.is_some();
            let sql = "INSERT INTO memory_documents (session, key, title, saved_ms, turn, served)
                 VALUES (?1, ?2, encrypt(?3), ?4, ?5, ?6) ON CONFLICT DO NOTHING";
            let row = params![
                found.id,
                document.key,
                document.title,
                document.saved_ms,
                found.turn_count,
                served
            ];
            execute(connection, sql, row)?;
            Ok(())
        })
    }

    /// Returns the documents of the project that a session can read and that have not expired, the
    /// newest first, without those on the board of the session.
    pub(crate) fn project_documents(
        &self,
        access: &MemoryAccess,
        board: &[Announcement],
    ) -> Result<Vec<ProjectDocument>, MemoryError> {
        self.read(|reader| {
            let connection = &reader.connection;
            let readable = readable_sessions(connection, access)?;
            // Documents of the agent server are found from their folder only, and its sessions
            // find no others.
            let sql = "SELECT key, decrypt(title), saved_ms FROM memory_documents
                 JOIN memory_sessions ON id = session
                 WHERE saved_ms > ?1 AND (name = ?2 OR ?2 IS NULL)
                 AND (project = ?3 OR ?3 IS NULL)
                 AND (served = 0 OR directory =
                     (SELECT directory FROM memory_sessions WHERE name = ?4))
                 AND (?5 = 0 OR served = 1)
                 ORDER BY saved_ms DESC, key, session";
            let oldest = now_ms() - DOCUMENT_RETENTION.as_millis() as i64;
            let wanted = params![
                oldest,
                readable.session,
                readable.project,
                access.session,
                access.folders.is_some()
            ];
            let mut read = connection.prepare_cached(sql)?;
            let mut rows = read.query(wanted)?;
            let mut documents: Vec<ProjectDocument> = Vec::new();
            while documents.len() < MAX_LISTED_DOCUMENTS as usize
                && let Some(row) = rows.next()?
            {
                let document = ProjectDocument {
                    key: row.get(0)?,
                    title: row.get(1)?,
                    saved_ms: row.get(2)?,
                };
                let quoted = format!("\"{}\"", document.key);
                let is_listed = documents.iter().any(|other| other.key == document.key);
                if !is_listed && !board.iter().any(|entry| entry.text.contains(&quoted)) {
                    documents.push(document);
                }
            }
            Ok(documents)
        })
    }

    /// Returns a turn at a level as text, and announces it on the board of the session. `turn` is
    /// any name that [`parse_turn_number`] accepts, or such a name after another session that the
    /// access reaches: `ses_x/T-50`.
    pub fn get_turn(
        &self,
        access: &MemoryAccess,
        turn: &str,
        level: Level,
    ) -> Result<String, MemoryError> {
        let (session, name) = split_turn_name(&access.session, turn);
        let not_found = || MemoryError::turn_not_found(session, name);
        if !self.can_read(access, session)? {
            return Err(not_found());
        }
        let turns = self.turn_count(session)?;
        let number = parse_turn_number(name).filter(|number| *number <= turns);
        let number = number.ok_or_else(not_found)?;
        let text = self.turn_text_at_level(session, number, level)?;
        self.write(|connection| {
            let (source, shown) = match session == access.session {
                true => (None, format!("T-{number}")),
                false => {
                    let source = require_session(connection, session)?.id;
                    (Some(source), format!("{session}/T-{number}"))
                }
            };
            let note = format!("{shown} at {}: {text}", level.letter());
            let fetched = FetchedTurn { source, number };
            insert_announcement(connection, &access.session, "turn", Some(fetched), &note)
        })?;
        Ok(text)
    }

    /// Returns the current announcements of a session, the newest last.
    pub fn board(&self, session: &str) -> Result<Vec<Announcement>, MemoryError> {
        self.read(|reader| {
            let Some(session) = find_session(&reader.connection, session)? else {
                return Ok(Vec::new());
            };
            let sql = "SELECT kind, decrypt(text), until FROM memory_board
                 WHERE session = ?1 AND until >= ?2 ORDER BY id";
            let params = params![session.id, session.turn_count];
            query_rows(&reader.connection, sql, params, |row| {
                Ok(Announcement {
                    kind: row.get(0)?,
                    text: row.get(1)?,
                    until_turn: row.get(2)?,
                })
            })
        })
    }
}

/// A document of the project, for the board.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ProjectDocument {
    pub(crate) key: String,
    pub(crate) title: String,
    pub(crate) saved_ms: i64,
}

/// Returns the title of a document for one line of a prompt.
pub(crate) fn shorten_title(title: &str) -> String {
    // A title is untrusted text: on a line of its own it could look like one of our headings.
    let title = collapse_whitespace(title);
    let title: String = title.chars().take(MAX_TITLE_CHARS).collect();
    title.replace('"', "'")
}

/// A turn that was fetched and is announced.
struct FetchedTurn {
    /// The session of the turn; `None` for the session of the board.
    source: Option<i64>,
    number: u32,
}

/// Splits the name of a turn into its session and its name there: `ses_x/T-50`. A name without a
/// session is one of `own`.
pub(crate) fn split_turn_name<'a>(own: &'a str, turn: &'a str) -> (&'a str, &'a str) {
    // A closing tag, which also has a slash, names no session.
    let split = turn.rsplit_once('/');
    let split = split.filter(|(session, _)| !session.is_empty() && !session.ends_with('<'));
    split.unwrap_or((own, turn))
}

/// Stores an announcement, replaces an equal one, and deletes expired ones. `turn` is the fetched
/// turn; `None` for anything else.
fn insert_announcement(
    connection: &Connection,
    session: &str,
    kind: &str,
    turn: Option<FetchedTurn>,
    text: &str,
) -> Result<(), MemoryError> {
    // A call of the session's first turn runs before that turn is stored.
    create_session(connection, session)?;
    let found = lock_session(connection, session)?;
    let text = truncate_to_tokens(text, MAX_ANNOUNCEMENT_TOKENS);
    execute(
        connection,
        "DELETE FROM memory_board
         WHERE session = ?1 AND (until < ?2 OR (kind = ?3 AND text = encrypt(?4)))",
        params![found.id, found.turn_count, kind, text],
    )?;
    let (source, turn) = turn.map_or((None, 0), |turn| (turn.source, turn.number));
    execute(
        connection,
        "INSERT INTO memory_board (session, id, kind, turn, text, until, source)
         SELECT ?1, coalesce(max(id), 0) + 1, ?2, ?3, encrypt(?4), ?5, ?6
         FROM memory_board WHERE session = ?1",
        params![
            found.id,
            kind,
            turn,
            text,
            found.turn_count + ANNOUNCEMENT_TURNS,
            source
        ],
    )?;
    Ok(())
}

/// Truncates a text to at most `max_tokens` tokens, and marks a cut with `…`.
pub(crate) fn truncate_to_tokens(text: &str, max_tokens: u32) -> String {
    // A token is rarely longer than eight characters: the rest need not be counted.
    let candidate: String = text.chars().take(max_tokens as usize * 8).collect();
    let mut end = candidate.len();
    loop {
        let prefix = &candidate[..end];
        let whole = end == text.len();
        let mark = if whole { "" } else { "…" };
        let count = tokens::count(prefix) + u32::from(!whole);
        if count <= max_tokens || end == 0 {
            return format!("{}{mark}", prefix.trim_end());
        }
        let shorter = (end as f64 * f64::from(max_tokens) / f64::from(count) * 0.97) as usize;
        end = candidate.floor_char_boundary(shorter.min(end - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::truncate_to_tokens;

    #[test]
    fn truncated_text_stays_within_the_token_limit() {
        assert_eq!(truncate_to_tokens("short", 10), "short");
        for text in ["word ".repeat(500), "日本語".repeat(300), "x".repeat(5000)] {
            let short = truncate_to_tokens(&text, 50);
            assert!(
                crate::tokens::count(&short) <= 50 && short.ends_with('…') && short.len() > 20,
                "{short}"
            );
        }
        assert_eq!(truncate_to_tokens("a b c", 0), "…");
    }
}
