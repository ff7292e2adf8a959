//! The announcement board of a session: short notes about fetched turns and documents, which are
//! part of the next five turns' recall and then expire.

use selvedge_database::{Connection, params};
use selvedge_protocol::{DocumentInfo, DocumentKind};

use crate::cleaning::collapse_whitespace;
use crate::store::{create_session, execute, find_session, query_rows, require_session};
use crate::{Level, Memory, MemoryError, parse_turn_number, tokens};

/// For how many turns an announcement is shown.
pub const ANNOUNCEMENT_TURNS: u32 = 5;
/// Longer announcements are cut. The full text was the result of the call that fetched it.
const MAX_ANNOUNCEMENT_TOKENS: u32 = 300;
/// Longer document titles are cut.
const MAX_TITLE_CHARS: usize = 80;

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
        self.write(|connection| insert_announcement(connection, session, kind, 0, text))
    }

    /// Announces a document of the File Cabinet with the calls that read and save it. Announcing
    /// the same document again prolongs its announcement.
    pub fn announce_document(
        &self,
        session: &str,
        document: &DocumentInfo,
    ) -> Result<(), MemoryError> {
        let (kind, what) = match document.kind {
            DocumentKind::Page => ("web", "web page"),
            DocumentKind::Prompt => ("prompt", "prompt"),
            DocumentKind::Result => ("file", "result of a background task"),
            _ => ("file", "document"),
        };
        let DocumentInfo { key, title, .. } = document;
        // A title is untrusted text: on a line of its own it could look like one of our headings.
        let title: String = collapse_whitespace(title)
            .chars()
            .take(MAX_TITLE_CHARS)
            .collect();
        let title = title.replace('"', "'");
        let how = match document.kind {
            DocumentKind::Prompt => format!("tools.prompts.get(\"{key}\") reads it"),
            _ => format!(
                "tools.fetchFromFc(\"{key}\") reads it, \
                 tools.writeFile({{ fileKey: \"{key}\", path }}) saves it without reading it"
            ),
        };
        self.announce(session, kind, &format!("{what} \"{title}\": {how}"))
    }

    /// Returns a turn at a level as text, and announces it on the board. `turn` is any name that
    /// [`parse_turn_number`] accepts.
    pub fn get_turn(&self, session: &str, turn: &str, level: Level) -> Result<String, MemoryError> {
        let turns = self.turn_count(session)?;
        let number = parse_turn_number(turn).filter(|number| *number <= turns);
        let number = number.ok_or_else(|| MemoryError::turn_not_found(session, turn))?;
        let text = self.turn_text_at_level(session, number, level)?;
        self.write(|connection| {
            let note = format!("T-{number} at {}: {text}", level.letter());
            insert_announcement(connection, session, "turn", number, &note)
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

/// Stores an announcement, replaces an equal one, and deletes expired ones. `turn` is the fetched
/// turn, 0 for anything else.
fn insert_announcement(
    connection: &Connection,
    session: &str,
    kind: &str,
    turn: u32,
    text: &str,
) -> Result<(), MemoryError> {
    // A call of the session's first turn runs before that turn is stored.
    create_session(connection, session)?;
    let found = require_session(connection, session)?;
    let text = truncate_to_tokens(text, MAX_ANNOUNCEMENT_TOKENS);
    execute(
        connection,
        "DELETE FROM memory_board
         WHERE session = ?1 AND (until < ?2 OR (kind = ?3 AND text = encrypt(?4)))",
        params![found.id, found.turn_count, kind, text],
    )?;
    execute(
        connection,
        "INSERT INTO memory_board (session, id, kind, turn, text, until)
         SELECT ?1, coalesce(max(id), 0) + 1, ?2, ?3, encrypt(?4), ?5
         FROM memory_board WHERE session = ?1",
        params![
            found.id,
            kind,
            turn,
            text,
            found.turn_count + ANNOUNCEMENT_TURNS
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
