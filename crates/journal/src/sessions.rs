//! Sessions and their items. They are stored unredacted and do not expire.

use std::ops::RangeInclusive;

use selvedge_database::{Connection, DatabaseError, Params, Row, ToParameter, params};
use selvedge_protocol::new_id;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::claims::FIRST_FENCE;
use crate::connection::{execute, query_column, query_first};
use crate::payloads::select_blob_of;
use crate::time::now_ms;
use crate::{Journal, JournalError};

/// Inserts an item of a session.
pub(crate) const INSERT_ITEM: &str =
    "INSERT INTO items (session, number, turn, item, at_ms) VALUES (?1, ?2, ?3, ?4, ?5)";

/// The overview of a session, as lists show it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SessionSummary {
    /// The id of the session (`ses_…`).
    pub id: String,
    /// The name that a person gave the session. Names are unique.
    pub name: Option<String>,
    /// The working folder of the session.
    pub directory: String,
    /// When the session began, in milliseconds since 1970.
    pub started_ms: i64,
    /// When an item was last appended, in milliseconds since 1970. In a file, no two sessions have
    /// the same.
    pub touched_ms: i64,
    /// The number of items.
    pub items: u32,
    /// The session from which this one was forked.
    pub forked_from: Option<String>,
    /// The session whose agent launched the agent of this one; `None` if a person began it.
    pub parent: Option<String>,
    /// The title that a script gave the session.
    pub title: Option<String>,
    /// The name of the environment that the session works with.
    pub environment: Option<String>,
    /// The session whose script created this one.
    pub creator: Option<String>,
    /// The number of messages that are not answered yet.
    pub queued: u32,
    /// Whether the session works in a git worktree of its own.
    pub worktree: bool,
    /// Whether messages wait and no running server serves the folder. Only with a database that
    /// several servers share.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub unserved: bool,
}

/// A row of a session: an item or a mark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StoredRow {
    /// The position in the session, counted from 1.
    pub number: u32,
    /// The turn that the row belongs to, counted from 1.
    pub turn: u32,
    /// When the row was stored, in milliseconds since 1970.
    pub at_ms: i64,
    /// The content of the row. The journal reads only the text of the first message, for a title.
    pub item: Value,
}

/// The first line of an exported session.
#[derive(Debug, Serialize, Deserialize)]
struct SessionExportHeader {
    session: String,
    name: Option<String>,
    directory: String,
    started_ms: i64,
}

const SELECT_SESSION_SUMMARY: &str =
    "SELECT id, name, directory, started_ms, touched_ms, forked_from,
    (SELECT count(*) FROM items WHERE session = sessions.id), parent, title, environment, creator,
    (SELECT count(*) FROM inbox WHERE session = sessions.id AND ended_ms IS NULL), worktree
    FROM sessions";

/// The SQL of a new `touched_ms`: the time in `?2`, or one millisecond after the last touched
/// session if that is later, so that sessions have a total order.
const NEXT_TOUCHED_MS: &str = "(SELECT CASE WHEN last >= ?2 THEN last + 1 ELSE ?2 END
    FROM (SELECT max(touched_ms) AS last FROM sessions) AS newest)";

impl Journal {
    /// Begins a session that this process has claimed, and returns its id. `parent` is the session
    /// whose agent launches the agent of the new session.
    pub fn begin_session(
        &self,
        directory: &str,
        parent: Option<&str>,
    ) -> Result<String, JournalError> {
        let id = new_id("ses");
        self.write(|connection| {
            insert_session(connection, &id, directory, now_ms(), None)?;
            let sql = "UPDATE sessions SET owner = ?2, parent = ?3, fence = ?4, parent_turn =
                    (SELECT turn FROM items WHERE session = ?3 ORDER BY number DESC LIMIT 1)
                 WHERE id = ?1";
            let claim = params![id, self.owner.id, parent, FIRST_FENCE];
            execute(connection, sql, claim)
        })?;
        self.claims.insert(&id, FIRST_FENCE);
        Ok(id)
    }

    /// Returns the sessions that people began, the last touched one first.
    pub fn sessions(&self, limit: u32) -> Result<Vec<SessionSummary>, JournalError> {
        self.list_sessions("WHERE parent IS NULL", limit, &[])
    }

    /// Like [`Journal::sessions`], for sessions that work in a folder and whose ids begin with
    /// `prefix`.
    pub fn sessions_in(
        &self,
        directory: &str,
        prefix: &str,
        limit: u32,
    ) -> Result<Vec<SessionSummary>, JournalError> {
        // No id contains the last character of Unicode.
        let after = format!("{prefix}{}", char::MAX);
        let which = "WHERE parent IS NULL AND directory = ?2 AND id >= ?3 AND id < ?4";
        self.list_sessions(which, limit, &[&directory, &prefix, &after])
    }

    /// Like [`Journal::sessions`], including sessions of launched agents.
    pub fn all_sessions(&self, limit: u32) -> Result<Vec<SessionSummary>, JournalError> {
        self.list_sessions("", limit, &[])
    }

    /// Returns the sessions that a condition selects. Its parameters are `values`, from `?2` on.
    fn list_sessions(
        &self,
        which: &str,
        limit: u32,
        values: &[&dyn ToParameter],
    ) -> Result<Vec<SessionSummary>, JournalError> {
        let connection = self.flushed_connection();
        let sql = format!("{SELECT_SESSION_SUMMARY} {which} ORDER BY touched_ms DESC, id LIMIT ?1");
        let values = [&[&limit as &dyn ToParameter], values].concat();
        let mut read = connection.prepare_cached(&sql)?;
        let mut sessions: Vec<SessionSummary> = read
            .query_map(&values, read_session_summary)?
            .collect::<Result<_, _>>()?;
        let mut served = None;
        for session in sessions.iter_mut().filter(|session| session.queued > 0) {
            session.unserved = !self.is_served(&connection, &session.directory, &mut served)?;
        }
        Ok(sessions)
    }

    /// Finds a session by its id, a prefix of its id, or its name.
    pub fn session(&self, id: &str) -> Result<SessionSummary, JournalError> {
        let connection = self.flushed_connection();
        // No id contains the last character of Unicode.
        let after = format!("{id}{}", char::MAX);
        // Separate reads, because each of them uses an index.
        let reads: [(&str, Params<'_>); 3] = [
            ("id = ?1", params![id]),
            ("name = ?1", params![id]),
            ("id > ?1 AND id < ?2", params![id, after]),
        ];
        for (condition, values) in reads {
            let sql = format!("{SELECT_SESSION_SUMMARY} WHERE {condition} LIMIT 2");
            let mut read = connection.prepare_cached(&sql)?;
            let mut found: Vec<SessionSummary> = read
                .query_map(values, read_session_summary)?
                .collect::<Result<_, _>>()?;
            match found.len() {
                0 => {}
                1 => return Ok(found.swap_remove(0)),
                _ => return Err(JournalError::AmbiguousId(id.to_owned())),
            }
        }
        Err(JournalError::SessionNotFound(id.to_owned()))
    }

    /// Returns the ids of all sessions that work in one of these folders, in order.
    pub async fn session_ids_in(&self, folders: Vec<String>) -> Result<Vec<String>, JournalError> {
        let read = move |_: &Self, connection: &Connection| {
            let sql = "SELECT id FROM sessions
                 WHERE directory IN (SELECT value FROM json_each(?1)) ORDER BY id";
            query_column(connection, sql, params![serde_json::to_string(&folders)?])
        };
        self.run_now_or_queue(read).await
    }

    /// Names a session. Fails if another session has the name.
    pub fn rename_session(&self, id: &str, name: &str) -> Result<(), JournalError> {
        self.write(|connection| {
            let taken = "SELECT 1 FROM sessions WHERE name = ?1 AND id <> ?2";
            if connection
                .prepare_cached(taken)?
                .exists(params![name, id])?
            {
                return Err(JournalError::NameTaken(name.to_owned()));
            }
            connection.execute(
                "UPDATE sessions SET name = ?2 WHERE id = ?1",
                params![id, name],
            )?;
            Ok(())
        })
    }

    /// Creates a session with copies of the turns of another one up to and including `up_to_turn`,
    /// or of all turns. Returns its id.
    pub fn fork_session(&self, id: &str, up_to_turn: Option<u32>) -> Result<String, JournalError> {
        let fork = new_id("ses");
        self.write(|connection| {
            let sql = "SELECT directory FROM sessions WHERE id = ?1";
            let directory: Option<String> = query_first(connection, sql, params![id])?;
            let directory =
                directory.ok_or_else(|| JournalError::SessionNotFound(id.to_owned()))?;
            insert_session(connection, &fork, &directory, now_ms(), Some(id))?;
            // A fork may do no more than its origin.
            let sql = "UPDATE sessions SET
                    (worktree, environment, creator, depth, permissions, title) =
                    (SELECT worktree, environment, creator, depth, permissions,
                        substr(coalesce(title, name), 1, 100) || ' (fork)'
                     FROM sessions WHERE id = ?2)
                 WHERE id = ?1";
            execute(connection, sql, params![fork, id])?;
            connection.execute(
                "INSERT INTO items (session, number, turn, item, at_ms)
                 SELECT ?1, number, turn, item, at_ms FROM items
                 WHERE session = ?2 AND turn <= ?3",
                params![fork, id, up_to_turn.unwrap_or(u32::MAX)],
            )?;
            connection.execute(
                "INSERT INTO stored (session, key, value, bytes, stored_ms, turn)
                 SELECT ?1, key, value, bytes, stored_ms, turn FROM stored
                 WHERE session = ?2",
                params![fork, id],
            )?;
            Ok(())
        })?;
        Ok(fork)
    }

    /// Appends rows to a turn of a session after the row with number `after`, all or none. Fails
    /// with [`JournalError::SessionInUse`] if `after` is not the last row, because another process
    /// appended rows, and with [`JournalError::TakenOver`] if another process claimed the session.
    pub async fn append_rows(
        &self,
        session: &str,
        after: u32,
        turn: u32,
        items: Vec<Value>,
    ) -> Result<(), JournalError> {
        let (session, at_ms) = (session.to_owned(), now_ms());
        let claim = self.claim_of(&session);
        let numbered: Vec<StoredRow> = (after + 1..)
            .zip(items)
            .map(|(number, item)| StoredRow {
                number,
                turn,
                at_ms,
                item,
            })
            .collect();
        self.write_async(move |journal, connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.check_session_free(connection, &session)?;
            let touch = format!("UPDATE sessions SET touched_ms = {NEXT_TOUCHED_MS} WHERE id = ?1");
            execute(connection, &touch, params![session, at_ms])?;
            let last = "SELECT coalesce(max(number), 0) FROM items WHERE session = ?1";
            let last: Option<u32> = query_first(connection, last, params![session])?;
            if last != Some(after) {
                return Err(JournalError::SessionInUse(session.clone()));
            }
            for item in &numbered {
                journal.insert_item(connection, &session, item)?;
            }
            Ok(())
        })
        .await
    }

    /// Returns the first item of a session.
    pub fn first_item(&self, session: &str) -> Result<Option<Value>, JournalError> {
        let connection = self.flushed_connection();
        let mut read = connection
            .prepare_cached("SELECT item FROM items WHERE session = ?1 ORDER BY number LIMIT 1")?;
        let mut rows = read.query(params![session])?;
        let row = rows.next()?;
        row.map(|row| self.payloads.require_json(&connection, row.get_ref(0)?))
            .transpose()
    }

    /// Returns the items of a session, in order.
    pub fn items(&self, session: &str) -> Result<Vec<StoredRow>, JournalError> {
        self.items_from(&self.flushed_connection(), session, 0)
    }

    /// Returns the items of a session from a turn on, in order.
    pub(crate) fn items_from(
        &self,
        connection: &Connection,
        session: &str,
        turn: u32,
    ) -> Result<Vec<StoredRow>, JournalError> {
        let condition = "session = ?1 AND turn >= ?2";
        self.read_items(connection, condition, params![session, turn])
    }

    /// Returns the items of a session whose numbers are in a range, in order.
    pub fn items_between(
        &self,
        session: &str,
        numbers: RangeInclusive<u32>,
    ) -> Result<Vec<StoredRow>, JournalError> {
        let condition = "session = ?1 AND number >= ?2 AND number <= ?3";
        let (first, last) = numbers.into_inner();
        let connection = self.flushed_connection();
        self.read_items(&connection, condition, params![session, first, last])
    }

    /// Returns how many items of a session have a smaller number, and the last number of all.
    pub fn count_items_before(
        &self,
        session: &str,
        number: u32,
    ) -> Result<(u32, u32), JournalError> {
        let connection = self.flushed_connection();
        let count = "SELECT count(*) FROM items WHERE session = ?1 AND number < ?2";
        let count: Option<u32> = query_first(&connection, count, params![session, number])?;
        let last = "SELECT coalesce(max(number), 0) FROM items WHERE session = ?1";
        let last: Option<u32> = query_first(&connection, last, params![session])?;
        Ok((count.unwrap_or(0), last.unwrap_or(0)))
    }

    fn read_items(
        &self,
        connection: &Connection,
        condition: &str,
        values: Params<'_>,
    ) -> Result<Vec<StoredRow>, JournalError> {
        let blob = select_blob_of("item");
        let mut read = connection.prepare_cached(&format!(
            "SELECT number, turn, item, at_ms, {blob} FROM items
             WHERE {condition} ORDER BY number"
        ))?;
        let mut rows = read.query(values)?;
        let mut items = Vec::new();
        while let Some(row) = rows.next()? {
            let (item, blob) = (row.get_ref(2)?, row.get_ref(4)?);
            let item = self.payloads.require_joined_json(item, blob)?;
            items.push(StoredRow {
                number: row.get(0)?,
                turn: row.get(1)?,
                at_ms: row.get(3)?,
                item,
            });
        }
        Ok(items)
    }

    /// Exports a session as JSON lines: a header, then the items. Nothing is redacted.
    pub fn export_session(&self, id: &str) -> Result<Vec<Value>, JournalError> {
        let session = self.session(id)?;
        let head = SessionExportHeader {
            session: session.id.clone(),
            name: session.name,
            directory: session.directory,
            started_ms: session.started_ms,
        };
        let mut lines = vec![serde_json::to_value(head)?];
        for item in self.items(&session.id)? {
            lines.push(serde_json::to_value(item)?);
        }
        Ok(lines)
    }

    /// Imports an exported session under a new id, which it returns. The session keeps its name if
    /// the name is not in use. `check` validates the items.
    pub fn import_session(
        &self,
        lines: &[Value],
        check: impl FnOnce(&[StoredRow]) -> Result<(), JournalError>,
    ) -> Result<String, JournalError> {
        let invalid =
            |error: serde_json::Error| JournalError::InvalidSessionExport(error.to_string());
        let (head, rest) = lines
            .split_first()
            .ok_or_else(|| JournalError::InvalidSessionExport("the file is empty".into()))?;
        let head: SessionExportHeader = serde_json::from_value(head.clone()).map_err(invalid)?;
        let items: Vec<StoredRow> = rest
            .iter()
            .map(|line| serde_json::from_value(line.clone()))
            .collect::<Result<_, _>>()
            .map_err(invalid)?;
        check(&items)?;
        let id = new_id("ses");
        self.write(|connection| {
            insert_session(connection, &id, &head.directory, head.started_ms, None)?;
            connection.execute(
                "UPDATE sessions SET name = ?2
                 WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM sessions WHERE name = ?2)",
                params![id, head.name],
            )?;
            for (number, item) in (1..).zip(&items) {
                self.insert_item(
                    connection,
                    &id,
                    &StoredRow {
                        number,
                        ..item.clone()
                    },
                )?;
            }
            Ok(())
        })?;
        Ok(id)
    }

    pub(crate) fn insert_item(
        &self,
        connection: &Connection,
        session: &str,
        item: &StoredRow,
    ) -> Result<(), JournalError> {
        let payload = self.payloads.put_json(connection, &item.item)?;
        execute(
            connection,
            INSERT_ITEM,
            params![session, item.number, item.turn, payload, item.at_ms],
        )
    }
}

pub(crate) fn insert_session(
    connection: &Connection,
    id: &str,
    directory: &str,
    started_ms: i64,
    forked_from: Option<&str>,
) -> Result<(), JournalError> {
    connection.execute(
        &format!(
            "INSERT INTO sessions (id, touched_ms, directory, started_ms, forked_from)
             VALUES (?1, {NEXT_TOUCHED_MS}, ?3, ?4, ?5)"
        ),
        params![id, now_ms(), directory, started_ms, forked_from],
    )?;
    Ok(())
}

fn read_session_summary(row: Row<'_>) -> Result<SessionSummary, DatabaseError> {
    Ok(SessionSummary {
        id: row.get(0)?,
        name: row.get(1)?,
        directory: row.get(2)?,
        started_ms: row.get(3)?,
        touched_ms: row.get(4)?,
        forked_from: row.get(5)?,
        items: row.get(6)?,
        parent: row.get(7)?,
        title: row.get(8)?,
        environment: row.get(9)?,
        creator: row.get(10)?,
        queued: row.get(11)?,
        worktree: row.get(12)?,
        unserved: false,
    })
}
