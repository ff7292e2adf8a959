//! [`Journal`]: opening the journal's file, and transactions.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use selvedge_database::{Connection, params};
use selvedge_protocol::{Durability, new_id};

use crate::cancel_requests::CancelRequests;
use crate::connection::query_first;
use crate::jobs::JournalJobs;
use crate::liveness::JournalOwner;
use crate::payloads::Payloads;
use crate::write_behind::WriteBehind;
use crate::{JournalError, connection, ledger, schema, sessions};

/// An open journal. Several processes may have the same journal open.
#[derive(Debug)]
pub struct Journal {
    pub(crate) connection: Mutex<Connection>,
    /// A reference to itself for the threads of the journal.
    pub(crate) weak_self: Weak<Self>,
    pub(crate) jobs: JournalJobs,
    pub(crate) folder: PathBuf,
    pub(crate) owner: JournalOwner,
    pub(crate) digest_key: [u8; 32],
    pub(crate) payloads: Payloads,
    /// Approval requests that were open when this process claimed their run, by run. They are
    /// closed with the next write for the run.
    pub(crate) inherited_approvals: Mutex<HashMap<String, Vec<String>>>,
    pub(crate) durability: Durability,
    pub(crate) waits_for_space: bool,
    pub(crate) write_behind: Arc<WriteBehind>,
    pub(crate) cancel_requests: Mutex<CancelRequests>,
}

/// Options for opening a journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalOptions {
    /// Whether a finished write survives a crash of the process or also a loss of power.
    pub durability: Durability,
    /// The key that encrypts payloads; `None` stores them unencrypted. Names of tools, times and
    /// states are never encrypted.
    pub encryption_key: Option<[u8; 32]>,
    /// Whether async writes wait for space if the disk is full, instead of failing.
    pub waits_for_space: bool,
}

impl Journal {
    /// Opens the journal of a folder, and creates it if there is none.
    pub fn open(folder: &Path) -> Result<Arc<Self>, JournalError> {
        Self::open_with(folder, &JournalOptions::default())
    }

    /// Opens the journal of a folder with these options, and creates it if there is none.
    pub fn open_with(folder: &Path, options: &JournalOptions) -> Result<Arc<Self>, JournalError> {
        let file = folder.join(connection::FILE_NAME);
        Self::open_file(folder, options).map_err(|error| error.naming_file(&file))
    }

    fn open_file(folder: &Path, options: &JournalOptions) -> Result<Arc<Self>, JournalError> {
        let file = |error| JournalError::File {
            path: folder.to_owned(),
            error,
        };
        let connection = connection::open_read_write(folder, &schema::JOURNAL_SCHEMA)?;
        if options.durability == Durability::Full {
            connection.set_full_durability()?;
        }
        schema::JOURNAL_SCHEMA.migrate(&connection)?;
        check_columns(&connection)?;
        let key = load_or_create_digest_key(&connection)?;
        let owner = JournalOwner::new(&folder.join("live"), new_id("own")).map_err(file)?;
        Ok(Self::new(connection, folder, owner, key, options))
    }

    pub(crate) fn new(
        connection: Connection,
        folder: &Path,
        owner: JournalOwner,
        key: [u8; 32],
        options: &JournalOptions,
    ) -> Arc<Self> {
        Arc::new_cyclic(|itself| Self {
            connection: Mutex::new(connection),
            weak_self: itself.clone(),
            jobs: JournalJobs::default(),
            folder: folder.to_owned(),
            owner,
            digest_key: key,
            payloads: Payloads::new(options.encryption_key),
            inherited_approvals: Mutex::default(),
            durability: options.durability,
            waits_for_space: options.waits_for_space,
            write_behind: Arc::default(),
            cancel_requests: Mutex::default(),
        })
    }

    /// Returns a handle to this process's lock file for a child process. While any process has it
    /// open, the runs of this process count as alive.
    #[cfg(unix)]
    pub fn owner_lock_fd(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        self.owner.lock_fd()
    }

    pub(crate) fn lock_connection(&self) -> MutexGuard<'_, Connection> {
        self.connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the connection and writes the rows that wait in the write-behind queue.
    pub(crate) fn flushed_connection(&self) -> MutexGuard<'_, Connection> {
        let connection = self.lock_connection();
        // If this fails, the rows stay in the queue.
        let _ = self.flush_rows(&connection);
        connection
    }

    pub(crate) fn is_owner_alive(&self, owner: &str) -> bool {
        JournalOwner::is_alive(&self.folder.join("live"), owner)
    }

    /// Runs `work` in a transaction, which is rolled back if `work` fails.
    pub(crate) fn write<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        in_transaction(&self.flushed_connection(), work)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        let _ = self.flush();
        self.write_behind.close();
    }
}

/// Prepares the statements that insert runs, calls and items, so that a file with other columns is
/// refused before anything runs. The statements stay in the cache for the first writes.
fn check_columns(connection: &Connection) -> Result<(), JournalError> {
    for sql in [
        ledger::INSERT_RUN,
        ledger::RECORD_CALL_END,
        sessions::INSERT_ITEM,
    ] {
        connection.prepare_cached(sql)?;
    }
    Ok(())
}

/// Runs `work` in a transaction, which is rolled back if `work` fails.
pub(crate) fn in_transaction<T>(
    connection: &Connection,
    work: impl FnOnce(&Connection) -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let naming_file = |error: JournalError| match connection.path() {
        Some(file) => error.naming_file(Path::new(file)),
        None => error,
    };
    let transaction = connection.begin_write();
    let transaction = transaction.map_err(|error| naming_file(error.into()))?;
    schema::JOURNAL_SCHEMA
        .refuse_newer(connection)
        .and_then(|()| work(connection))
        .and_then(|value| Ok(transaction.commit().map(|()| value)?))
        .map_err(naming_file)
}

/// Returns the key for digests of arguments, which is created when the journal is first opened.
/// Digests are keyed because a plain digest in a report would confirm a guess of the arguments.
fn load_or_create_digest_key(connection: &Connection) -> Result<[u8; 32], JournalError> {
    // Reading an existing key does not wait for a writer.
    if let Some(stored) = load_digest_key(connection)? {
        return Ok(stored);
    }
    let transaction = connection.begin_write()?;
    let key = match load_digest_key(&transaction)? {
        Some(stored) => stored,
        None => {
            let mut key = [0; 32];
            getrandom::fill(&mut key).map_err(|error| {
                JournalError::Damaged(format!("cannot get random bytes: {error}"))
            })?;
            transaction.execute("INSERT INTO secrets VALUES ('digest', ?1)", params![key])?;
            key
        }
    };
    transaction.commit()?;
    Ok(key)
}

/// Returns the key for digests, or `None` if the file has none.
pub(crate) fn load_digest_key(connection: &Connection) -> Result<Option<[u8; 32]>, JournalError> {
    let sql = "SELECT value FROM secrets WHERE name = 'digest'";
    let stored: Option<Vec<u8>> = query_first(connection, sql, params![])?;
    let sized = |stored: Vec<u8>| {
        stored
            .try_into()
            .map_err(|_| JournalError::Damaged("the key for digests has the wrong size".into()))
    };
    stored.map(sized).transpose()
}
