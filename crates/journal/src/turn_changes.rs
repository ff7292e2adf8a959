//! The files that turns changed, for reverting a turn.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use async_trait::async_trait;
use selvedge_database::{Connection, Row, params};
use selvedge_protocol::{
    FileSnapshot, FileSnapshotKind, MAX_RECORDED_TURNS, SessionError, TurnChangeStore,
    TurnFileChange, TurnFileChanges,
};

use crate::connection::{execute, query_column, query_first};
use crate::{Journal, JournalError, StoredRunState};

#[async_trait]
impl TurnChangeStore for Journal {
    async fn record_changes(
        &self,
        session: &str,
        turn: u32,
        changes: TurnFileChanges,
    ) -> Result<(), SessionError> {
        let claim = self.claim_of(session);
        let session = session.to_owned();
        let record = move |journal: &Self, connection: &Connection| {
            journal.check_claim(connection, claim.as_ref())?;
            journal.record_changes_in(connection, &session, turn, &changes)
        };
        Ok(self.write_async(record).await?)
    }

    async fn recorded_changes(
        &self,
        session: &str,
        turn: Option<u32>,
    ) -> Result<Option<(u32, TurnFileChanges)>, SessionError> {
        let session = session.to_owned();
        let read = move |journal: &Self, connection: &Connection| {
            let last = "SELECT max(turn) FROM turn_changes
                 WHERE session = ?1 AND (turn = ?2 OR ?2 IS NULL)";
            let turn: Option<Option<u32>> = query_first(connection, last, params![session, turn])?;
            let Some(turn) = turn.flatten() else {
                return Ok(None);
            };
            let changes = journal.read_changes(connection, &session, turn)?;
            Ok(Some((turn, changes)))
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    async fn changed_turns(&self, session: &str) -> Result<Vec<(u32, u32)>, SessionError> {
        let session = session.to_owned();
        let read = move |_: &Self, connection: &Connection| {
            let mut read = connection.prepare_cached(
                "SELECT turn, count(*) FROM turn_changes WHERE session = ?1
                 GROUP BY turn ORDER BY turn",
            )?;
            let mut rows = read.query(params![session])?;
            let mut turns = Vec::new();
            while let Some(row) = rows.next()? {
                turns.push((row.get(0)?, row.get(1)?));
            }
            Ok(turns)
        };
        Ok(self.run_now_or_queue(read).await?)
    }
}

impl Journal {
    /// Returns whether another session worked in the folder of a session since one of its turns
    /// began: it added items since, one of its messages is being answered, or one of its runs had
    /// not ended. Sessions of launched agents belong to the session that launched them.
    pub async fn is_folder_shared(&self, session: &str, turn: u32) -> Result<bool, SessionError> {
        let session = session.to_owned();
        let read = move |journal: &Self, connection: &Connection| {
            let others = "FROM sessions AS own CROSS JOIN sessions AS other
                 WHERE own.id = ?1 AND other.id <> ?1 AND other.parent IS NULL
                    AND own.worktree = 0 AND other.worktree = 0
                    AND (own.directory = other.directory
                        OR substr(own.directory, 1, length(other.directory) + 1)
                            = other.directory || '/'
                        OR substr(other.directory, 1, length(own.directory) + 1)
                            = own.directory || '/')";
            let begin = "(SELECT min(at_ms) FROM items WHERE session = ?1 AND turn = ?2)";
            let mut read = connection.prepare_cached(&format!(
                "SELECT 1 {others} AND (other.touched_ms >= {begin}
                    OR EXISTS (SELECT 1 FROM inbox WHERE session = other.id
                        AND ended_ms IS NULL AND state = 'claimed'))
                 LIMIT 1"
            ))?;
            if read.exists(params![session, turn])? {
                return Ok(true);
            }
            // A client of the agent server may have resumed a run of a session between its turns.
            let sql = format!(
                "SELECT id FROM runs WHERE (ended_ms IS NULL OR ended_ms >= {begin})
                 AND session IN (SELECT other.id {others})"
            );
            let runs: Vec<String> = query_column(connection, &sql, params![session, turn])?;
            for run in runs {
                if journal.has_worked(connection, &run)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        Ok(self.run_now_or_queue(read).await?)
    }

    /// Returns the runs of a session that have not ended and whose process runs. They are executed,
    /// or wait for approval.
    pub fn open_scripts(&self, session: &str) -> Result<Vec<String>, JournalError> {
        let connection = self.flushed_connection();
        let sql = "SELECT id FROM runs WHERE session = ?1 AND ended_ms IS NULL";
        let open: Vec<String> = query_column(&connection, sql, params![session])?;
        let mut scripts = Vec::new();
        for run in open {
            if self.has_worked(&connection, &run)? {
                scripts.push(run);
            }
        }
        Ok(scripts)
    }

    /// Returns whether a run has ended, is executed now, or waits in a process that runs. Otherwise
    /// its process has ended.
    fn has_worked(&self, connection: &Connection, run: &str) -> Result<bool, JournalError> {
        match self.run_summary(connection, run)?.state {
            StoredRunState::Running | StoredRunState::Completed | StoredRunState::Failed => {
                Ok(true)
            }
            StoredRunState::Died => Ok(false),
            StoredRunState::Suspended => {
                let sql = "SELECT owner FROM runs WHERE id = ?1";
                let owner: Option<String> = query_first(connection, sql, params![run])?;
                self.is_owner_alive(connection, &owner.unwrap_or_default())
            }
        }
    }

    fn record_changes_in(
        &self,
        connection: &Connection,
        session: &str,
        turn: u32,
        changes: &TurnFileChanges,
    ) -> Result<(), JournalError> {
        let delete = "DELETE FROM turn_changes WHERE session = ?1 AND turn = ?2";
        execute(connection, delete, params![session, turn])?;
        let directory = changes.directory.display().to_string();
        let recorded = changes.files.iter();
        let recorded = recorded.map(|file| (&file.path, file.before.as_ref(), file.after.as_ref()));
        let unrecorded = changes.unrecorded.iter().map(|path| (path, None, None));
        for (number, (path, before, after)) in (1u32..).zip(recorded.chain(unrecorded)) {
            let path = path.as_os_str().as_bytes();
            let path = self.payloads.put(connection, path)?;
            let (before_kind, before) = self.snapshot_columns(connection, before)?;
            let (after_kind, after) = self.snapshot_columns(connection, after)?;
            execute(
                connection,
                "INSERT INTO turn_changes (session, turn, number, directory, path, before_kind,
                    before, after_kind, after)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    session,
                    turn,
                    number,
                    directory,
                    path,
                    before_kind,
                    before,
                    after_kind,
                    after
                ],
            )?;
        }
        let old = "DELETE FROM turn_changes WHERE session = ?1 AND turn NOT IN (
                SELECT DISTINCT turn FROM turn_changes WHERE session = ?1
                ORDER BY turn DESC LIMIT ?2)";
        execute(connection, old, params![session, MAX_RECORDED_TURNS])
    }

    /// Returns the two columns of a snapshot, which are null if there is none.
    fn snapshot_columns(
        &self,
        connection: &Connection,
        snapshot: Option<&FileSnapshot>,
    ) -> Result<(Option<&'static str>, Option<Vec<u8>>), JournalError> {
        let Some(snapshot) = snapshot else {
            return Ok((None, None));
        };
        let kind = match snapshot.kind {
            FileSnapshotKind::File => "file",
            FileSnapshotKind::Executable => "executable",
            FileSnapshotKind::Link => "link",
        };
        let content = self.payloads.put(connection, &snapshot.content)?;
        Ok((Some(kind), Some(content)))
    }

    fn read_changes(
        &self,
        connection: &Connection,
        session: &str,
        turn: u32,
    ) -> Result<TurnFileChanges, JournalError> {
        let mut read = connection.prepare_cached(
            "SELECT directory, path, before_kind, before, after_kind, after FROM turn_changes
             WHERE session = ?1 AND turn = ?2 ORDER BY number",
        )?;
        let mut rows = read.query(params![session, turn])?;
        let mut changes = TurnFileChanges::default();
        while let Some(row) = rows.next()? {
            let directory: String = row.get(0)?;
            changes.directory = Path::new(&directory).to_owned();
            let path = self.payloads.require_bytes(connection, row.get_ref(1)?)?;
            let path = PathBuf::from(OsString::from_vec(path));
            let before = self.read_snapshot(connection, row, 2)?;
            let after = self.read_snapshot(connection, row, 4)?;
            match before.is_none() && after.is_none() {
                true => changes.unrecorded.push(path),
                false => changes.files.push(TurnFileChange {
                    path,
                    before,
                    after,
                }),
            }
        }
        Ok(changes)
    }

    /// Reads a snapshot from two columns: its kind, and its content after that.
    fn read_snapshot(
        &self,
        connection: &Connection,
        row: Row<'_>,
        column: usize,
    ) -> Result<Option<FileSnapshot>, JournalError> {
        let Some(kind) = row.get::<Option<String>>(column)? else {
            return Ok(None);
        };
        Ok(Some(FileSnapshot {
            kind: serde_json::from_value(kind.into())?,
            content: self
                .payloads
                .require_bytes(connection, row.get_ref(column + 1)?)?,
        }))
    }
}
