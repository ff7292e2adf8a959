//! The title of a session to which no person and no script gave one: the first line of its first
//! message. It is made when it is read, because a stored title is not encrypted. Messages of
//! channels are not titles: they say more about the channel than about the session.

use std::sync::LazyLock;

use selvedge_database::{Connection, Row, params};
use selvedge_text::truncate_chars;
use serde_json::Value;

use crate::channels::inbox_heading;
use crate::connection::query_first;
use crate::{Journal, JournalError, Redactor};

/// Longest title of this kind, in characters.
const MAX_LINE_CHARS: usize = 60;
/// Most bytes of the line in which secrets are looked for, because a line can be very long.
const MAX_REDACTED_BYTES: usize = 4096;
/// Most messages among which the first one that was sent to the session itself is looked for.
const MAX_READ_MESSAGES: u32 = 50;
/// Finds secrets of known kinds.
static REDACTOR: LazyLock<Redactor> = LazyLock::new(|| Redactor::new([]));

/// The columns of a query about sessions from which [`Journal::title_in_row`] makes a title.
pub(crate) const TITLE_COLUMNS: &str = "
    (SELECT text FROM inbox WHERE session = sessions.id ORDER BY number LIMIT 1),
    (SELECT cause FROM inbox WHERE session = sessions.id ORDER BY number LIMIT 1),
    (SELECT item FROM items WHERE session = sessions.id ORDER BY number LIMIT 1), forked_from";

impl Journal {
    /// Like [`Journal::title_from_message`], from the [`TITLE_COLUMNS`] of a row, of which `first`
    /// is the first one. So a list of sessions needs no queries for each of them, unless its first
    /// message is large or from a channel.
    pub(crate) fn title_in_row(
        &self,
        connection: &Connection,
        session: &str,
        row: Row<'_>,
        first: usize,
    ) -> Result<Option<String>, JournalError> {
        let line = match self.payloads.get(connection, row.get_ref(first)?)? {
            Some(text) => {
                let (text, cause) = (
                    String::from_utf8(text)?,
                    row.get::<Option<String>>(first + 1)?,
                );
                match is_from_channel(&text, cause.as_deref()) {
                    true => self.first_line(connection, session)?,
                    false => line_of(&text),
                }
            }
            None => {
                let item = self
                    .payloads
                    .get_json(connection, row.get_ref(first + 2)?)?;
                item.and_then(|item: Value| line_of(&message_text(&item)))
            }
        };
        let origin: Option<String> = row.get(first + 3)?;
        Ok(line.map(|line| title_of(&line, origin.as_deref())))
    }

    /// Returns the first line of the first message of a session, with secrets redacted. `None` if
    /// it has no message yet. The title of a fork ends with `(fork)`.
    pub(crate) fn title_from_message(
        &self,
        connection: &Connection,
        session: &str,
    ) -> Result<Option<String>, JournalError> {
        let Some(line) = self.first_line(connection, session)? else {
            return Ok(None);
        };
        let sql = "SELECT forked_from FROM sessions WHERE id = ?1";
        let origin: Option<Option<String>> = query_first(connection, sql, params![session])?;
        Ok(Some(title_of(&line, origin.flatten().as_deref())))
    }

    /// Returns the first line with text of the first message that no channel delivered, in the
    /// queue or among the items.
    fn first_line(
        &self,
        connection: &Connection,
        session: &str,
    ) -> Result<Option<String>, JournalError> {
        let sql = "SELECT text, cause FROM inbox WHERE session = ?1 ORDER BY number LIMIT ?2";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![session, MAX_READ_MESSAGES])?;
        let mut has_message = false;
        while let Some(row) = rows.next()? {
            has_message = true;
            let text = self.payloads.require_text(connection, row.get_ref(0)?)?;
            let cause: Option<String> = row.get(1)?;
            if !is_from_channel(&text, cause.as_deref()) {
                return Ok(line_of(&text));
            }
        }
        if has_message {
            return Ok(None);
        }
        let sql = "SELECT item FROM items WHERE session = ?1 ORDER BY number LIMIT 1";
        let mut read = connection.prepare_cached(sql)?;
        let mut rows = read.query(params![session])?;
        let Some(row) = rows.next()? else {
            return Ok(None);
        };
        let item: Value = self.payloads.require_json(connection, row.get_ref(0)?)?;
        Ok(line_of(&message_text(&item)))
    }
}

/// Returns the title of a session whose first message begins with a line. `origin` is the session
/// that it was forked from.
fn title_of(line: &str, origin: Option<&str>) -> String {
    // Before it is truncated: a truncated secret would not be recognised.
    let line = REDACTOR.redact_text(line);
    let title = truncate_chars(&line, MAX_LINE_CHARS);
    match origin {
        Some(_) => format!("{title} (fork)"),
        None => title.into_owned(),
    }
}

/// Returns whether a channel delivered a message. Its cause names the message of the channel.
fn is_from_channel(text: &str, cause: Option<&str>) -> bool {
    let place = cause.and_then(|cause| cause.rsplit_once('#'));
    place.is_some_and(|(channel, number)| text.starts_with(&inbox_heading(channel, number)))
}

/// Returns the first line with text, up to the length in which secrets are looked for.
fn line_of(text: &str) -> Option<String> {
    let mut lines = text.lines().map(str::trim);
    let line = lines.find(|line| !line.is_empty())?;
    let line = &line[..line.floor_char_boundary(MAX_REDACTED_BYTES)];
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the text of a message; empty for other items.
fn message_text(item: &Value) -> String {
    if item["type"] != "message" {
        return String::new();
    }
    match &item["content"] {
        Value::String(text) => text.clone(),
        Value::Array(parts) => {
            let texts = parts.iter().filter_map(|part| part["text"].as_str());
            texts.collect()
        }
        _ => String::new(),
    }
}
