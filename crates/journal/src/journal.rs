//! The journal's file, and writing to it.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use selvedge_protocol::{
    ApprovalRequest, CallStatus, Intent, Ledger, LedgerError, RunStart, RunStatus, ScriptToolCallOutput, Settled,
    new_id,
};

use crate::live::Owner;
use crate::time::now_ms;
use crate::{JournalError, blobs, schema, tables};

/// One journal, open for reading and writing. Several processes may have it open.
#[derive(Debug)]
pub struct Journal {
    connection: Mutex<Connection>,
    pub(crate) folder: PathBuf,
    owner: Owner,
    key: [u8; 32],
}

impl Journal {
    /// Opens the journal of a folder, making it where there is none.
    pub fn open(folder: &Path) -> Result<Self, JournalError> {
        let file = |error| JournalError::File { path: folder.to_owned(), error };
        let mut connection = tables::connect(folder)?;
        schema::migrate(&mut connection)?;
        let key = key(&mut connection)?;
        let owner = Owner::new(&folder.join("live"), new_id("own")).map_err(file)?;
        Ok(Self { connection: Mutex::new(connection), folder: folder.to_owned(), owner, key })
    }

    /// A file to be kept open by whatever this process starts: as long as anybody has it open, this process's runs
    /// count as going on.
    #[cfg(unix)]
    pub fn hold(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        Ok(self.owner.lock.try_clone()?.into())
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Connection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_alive(&self, owner: &str) -> bool {
        Owner::is_alive(&self.folder.join("live"), owner)
    }

    /// Writes, all or nothing.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let mut connection = self.lock();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let done = work(&transaction)?;
        transaction.commit()?;
        Ok(done)
    }
}

impl Ledger for Journal {
    fn digest_key(&self) -> [u8; 32] {
        self.key
    }

    fn begin(&self, run: &RunStart<'_>) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let source = blobs::put(connection, run.source.as_bytes())?;
            connection
                .prepare_cached(
                    "INSERT INTO runs (id, session, resumes, source, directory, seed, owner, status, started_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'running', ?8)",
                )?
                .execute(params![
                    run.id,
                    run.session,
                    run.resumes,
                    source,
                    run.directory,
                    run.seed,
                    self.owner.id,
                    now_ms()
                ])?;
            Ok(())
        })?)
    }

    fn intend(&self, intent: &Intent<'_>) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let args = blobs::put(connection, intent.args.to_string().as_bytes())?;
            connection
                .prepare_cached(
                    "INSERT INTO calls (run, id, tool, args, digest, read_only, line, state, started_ms)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'intended', ?8)",
                )?
                .execute(params![
                    intent.run,
                    intent.id,
                    intent.tool,
                    args,
                    intent.digest,
                    intent.read_only,
                    intent.line,
                    now_ms()
                ])?;
            Ok(())
        })?)
    }

    fn settle(&self, settled: &Settled<'_>) -> Result<(), LedgerError> {
        let Settled { run, record, value } = settled;
        Ok(self.write(|connection| {
            let value = value.map(|value| blobs::put(connection, value.to_string().as_bytes())).transpose()?;
            let error = record.error.as_ref().map(|error| serde_json::to_string(error).unwrap_or_default());
            connection
                .prepare_cached(
                    "INSERT INTO calls (run, id, tool, digest, read_only, line, state, value, error, reused, started_ms, duration_ms)
                     VALUES (?1, ?2, ?3, ?4, 0, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
                     ON CONFLICT (run, id) DO UPDATE SET state = ?6, value = ?7, error = ?8, reused = ?9, duration_ms = ?11",
                )?
                .execute(params![
                    run,
                    record.id,
                    record.tool,
                    record.args_digest,
                    record.line,
                    record.status.as_str(),
                    value,
                    error,
                    record.reused,
                    now_ms(),
                    record.duration_ms
                ])?;
            Ok(())
        })?)
    }

    fn ask(&self, run: &str, request: &ApprovalRequest) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let text = serde_json::to_string(request).map_err(|error| JournalError::Damaged(error.to_string()))?;
            let request_blob = blobs::put(connection, text.as_bytes())?;
            connection
                .prepare_cached("INSERT INTO approvals (id, run, request, asked_ms) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![request.id, run, request_blob, now_ms()])?;
            Ok(())
        })?)
    }

    fn answer(&self, request_id: &str, answers: &[String]) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let answers = serde_json::to_string(answers).unwrap_or_default();
            connection
                .prepare_cached("UPDATE approvals SET answers = ?2, answered_ms = ?3 WHERE id = ?1")?
                .execute(params![request_id, answers, now_ms()])?;
            Ok(())
        })?)
    }

    fn end(&self, output: &ScriptToolCallOutput) -> Result<(), LedgerError> {
        Ok(self.write(|connection| {
            let text = serde_json::to_string(output).map_err(|error| JournalError::Damaged(error.to_string()))?;
            let stored = blobs::put(connection, text.as_bytes())?;
            // What never got as far as an intent still belongs to the run.
            for record in output.calls.iter().filter(|call| call.status == CallStatus::NotStarted) {
                connection
                    .prepare_cached(
                        "INSERT OR IGNORE INTO calls (run, id, tool, digest, read_only, line, state, started_ms)
                         VALUES (?1, ?2, ?3, ?4, 0, ?5, 'not started', ?6)",
                    )?
                    .execute(params![output.id, record.id, record.tool, record.args_digest, record.line, now_ms()])?;
            }
            connection
                .prepare_cached("UPDATE runs SET status = ?2, output = ?3, ended_ms = ?4 WHERE id = ?1")?
                .execute(params![output.id, status_word(output.status), stored, now_ms()])?;
            Ok(())
        })?)
    }
}

fn status_word(status: RunStatus) -> String {
    serde_json::to_value(status).ok().and_then(|word| word.as_str().map(str::to_owned)).unwrap_or_default()
}

/// The key arguments are digested with: without it, a digest in a report could be guessed from what it digests.
fn key(connection: &mut Connection) -> Result<[u8; 32], JournalError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let stored: Option<Vec<u8>> =
        transaction.query_row("SELECT value FROM secrets WHERE name = 'digest'", [], |row| row.get(0)).optional()?;
    let key = match stored {
        Some(stored) => stored.try_into().map_err(|_| JournalError::Damaged("its key has the wrong size".into()))?,
        None => {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|error| JournalError::Damaged(format!("no random numbers: {error}")))?;
            transaction.execute("INSERT INTO secrets VALUES ('digest', ?1)", params![key])?;
            key
        }
    };
    transaction.commit()?;
    Ok(key)
}
