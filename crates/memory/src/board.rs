//! The announcement board: what a model fetched stays in sight for some turns, then it is gone.

use rusqlite::{Connection, params};
use selvedge_protocol::{DocumentKind, Entry};

use crate::smooth::one_line;
use crate::store::{create_session, execute, find, find_if_any, rows};
use crate::{Level, Memory, MemoryError, tokens, turn_number};

/// Turns an announcement stays.
pub const BOARD_TURNS: u32 = 5;
/// Tokens of one announcement on the board; what is longer was answered in full when it was asked for.
const TOKENS: u32 = 300;
/// Characters of a document's title.
const TITLE: usize = 80;

/// Something to keep in sight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Announcement {
    /// What it is: `turn`, `web`, `file`, …
    pub kind: String,
    /// In words.
    pub text: String,
    /// The last turn it is shown in.
    pub until: u32,
}

impl Memory {
    /// Announces something in a session for the next turns.
    pub fn announce(&self, session: &str, kind: &str, text: &str) -> Result<(), MemoryError> {
        self.write(|connection| announce(connection, session, kind, 0, text))
    }

    /// Announces a document of the File Cabinet, and how to have it. One that is announced already stays longer.
    pub fn announce_document(&self, session: &str, document: &Entry) -> Result<(), MemoryError> {
        let (kind, what) = match document.kind {
            DocumentKind::Page => ("web", "web page"),
            DocumentKind::Prompt => ("prompt", "prompt"),
            DocumentKind::Result => ("file", "what background work came to"),
            _ => ("file", "document"),
        };
        let Entry { key, title, .. } = document;
        // What others wrote stays on its line: it could look like a word of ours.
        let title: String = one_line(title).chars().take(TITLE).collect();
        let title = title.replace('"', "'");
        let how = match document.kind {
            DocumentKind::Prompt => format!("tools.prompts.get(\"{key}\") reads it"),
            _ => format!(
                "tools.fetchFromFC(\"{key}\") reads it, tools.writeFile({{ fileKey: \"{key}\", path }}) saves it unread"
            ),
        };
        self.announce(session, kind, &format!("{what} \"{title}\": {how}"))
    }

    /// A turn of a session at a level, by any of its names, as text. It stays on the board for five turns.
    pub fn get_turn(&self, session: &str, turn: &str, level: Level) -> Result<String, MemoryError> {
        let turns = self.turns(session)?;
        let number = turn_number(turn).filter(|number| *number <= turns);
        let number = number.ok_or_else(|| MemoryError::no_turn(session, turn))?;
        let text = self.level_told(session, number, level)?;
        self.write(|connection| {
            let told = format!("T-{number} at {}: {text}", level.letter());
            announce(connection, session, "turn", number, &told)
        })?;
        Ok(text)
    }

    /// What is on the board of a session now, the newest last.
    pub fn board(&self, session: &str) -> Result<Vec<Announcement>, MemoryError> {
        self.read(|reader| {
            let Some(session) = find_if_any(&reader.connection, session)? else {
                return Ok(Vec::new());
            };
            let sql = "SELECT kind, opened(text), until FROM memory_board
                 WHERE session = ?1 AND until >= ?2 ORDER BY id";
            let shown = params![session.id, session.turns];
            rows(&reader.connection, sql, shown, |row| {
                Ok(Announcement {
                    kind: row.get(0)?,
                    text: row.get(1)?,
                    until: row.get(2)?,
                })
            })
        })
    }
}

fn announce(
    connection: &Connection,
    session: &str,
    kind: &str,
    turn: u32,
    text: &str,
) -> Result<(), MemoryError> {
    // Something may be fetched in the very first turn, before that is stored.
    create_session(connection, session)?;
    let found = find(connection, session)?;
    let text = cut(text, TOKENS);
    execute(
        connection,
        "DELETE FROM memory_board
         WHERE session = ?1 AND (until < ?2 OR (kind = ?3 AND text = sealed(?4)))",
        params![found.id, found.turns, kind, text],
    )?;
    execute(
        connection,
        "INSERT INTO memory_board (session, id, kind, turn, text, until)
         SELECT ?1, coalesce(max(id), 0) + 1, ?2, ?3, sealed(?4), ?5
         FROM memory_board WHERE session = ?1",
        params![found.id, kind, turn, text, found.turns + BOARD_TURNS],
    )?;
    Ok(())
}

/// The beginning of a text, within so many tokens.
pub(crate) fn cut(text: &str, most: u32) -> String {
    // A token is rarely longer than this many characters: what is beyond need not be counted.
    let ahead: String = text.chars().take(most as usize * 8).collect();
    let mut end = ahead.len();
    loop {
        let told = &ahead[..end];
        let whole = end == text.len();
        let mark = if whole { "" } else { "…" };
        let count = tokens::count(told) + u32::from(!whole);
        if count <= most || end == 0 {
            return format!("{}{mark}", told.trim_end());
        }
        let shorter = (end as f64 * f64::from(most) / f64::from(count) * 0.97) as usize;
        end = ahead.floor_char_boundary(shorter.min(end - 1));
    }
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn cutting_keeps_within_the_tokens() {
        assert_eq!(cut("short", 10), "short");
        for text in ["word ".repeat(500), "日本語".repeat(300), "x".repeat(5000)] {
            let told = cut(&text, 50);
            assert!(
                crate::tokens::count(&told) <= 50 && told.ends_with('…') && told.len() > 20,
                "{told}"
            );
        }
        assert_eq!(cut("a b c", 0), "…");
    }
}
