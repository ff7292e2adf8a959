//! [`Journal`]: opening the journal's file or database, and transactions.

use std::collections::HashMap;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use selvedge_database::{
    Connection, ConnectionGuard, NamedLockMode, SharedConnection, TransactionRetry, params,
};
use selvedge_protocol::{Durability, new_id};

use crate::cancel_requests::CancelRequests;
use crate::claims::SessionClaims;
use crate::connection::query_first;
use crate::jobs::{COMMON_QUEUE, JournalJobs};
use crate::liveness::JournalOwner;
use crate::notices::JournalNotices;
use crate::payloads::Payloads;
use crate::write_behind::WriteBehind;
use crate::{JournalError, JournalLocation, LeaseTimes, connection, ledger, schema, sessions};

/// An open journal. Several processes may have the same journal open.
///
/// It has a queue for the work of async callers ([`Journal::for_session`]), and shares everything
/// else with the journals of other queues.
#[derive(Debug)]
pub struct Journal {
    shared: Arc<SharedJournal>,
    /// The number of its queue.
    pub(crate) queue: usize,
    /// A reference to itself for the threads of the journal.
    pub(crate) weak_self: Weak<Self>,
}

/// What the journals of all queues share.
#[derive(Debug)]
pub struct SharedJournal {
    pub(crate) connection: SharedConnection,
    pub(crate) jobs: JournalJobs,
    pub(crate) location: JournalLocation,
    pub(crate) owner: JournalOwner,
    pub(crate) claims: SessionClaims,
    pub(crate) digest_key: [u8; 32],
    pub(crate) payloads: Payloads,
    /// Approval requests that were open when this process claimed their run, by run. They are
    /// closed with the next write for the run.
    pub(crate) inherited_approvals: Mutex<HashMap<String, Vec<String>>>,
    pub(crate) durability: Durability,
    pub(crate) waits_for_space: bool,
    pub(crate) write_behind: Arc<WriteBehind>,
    pub(crate) cancel_requests: Mutex<CancelRequests>,
    pub(crate) notices: JournalNotices,
    /// The number of journals that share this.
    users: AtomicUsize,
}

impl Deref for Journal {
    type Target = SharedJournal;

    fn deref(&self) -> &SharedJournal {
        &self.shared
    }
}

/// Options for opening a journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct JournalOptions {
    /// Whether a finished write survives a crash of the process or also a loss of power.
    pub durability: Durability,
    /// The key that encrypts payloads; `None` stores them unencrypted. Names of tools, times and
    /// states are never encrypted.
    pub encryption_key: Option<[u8; 32]>,
    /// Whether async writes wait for space if the disk is full, or until the database can be
    /// reached, instead of failing.
    pub waits_for_space: bool,
    /// The times of the leases of processes, which must be the same for all processes of a journal.
    /// Without them, processes that share a database have the default times, and those that share a
    /// file have no leases.
    pub leases: Option<LeaseTimes>,
}

impl Journal {
    /// Opens the journal of a folder, and creates it if there is none.
    pub fn open(location: impl Into<JournalLocation>) -> Result<Arc<Self>, JournalError> {
        Self::open_with(location, &JournalOptions::default())
    }

    /// Opens the journal of a folder with these options, and creates it if there is none.
    pub fn open_with(
        location: impl Into<JournalLocation>,
        options: &JournalOptions,
    ) -> Result<Arc<Self>, JournalError> {
        let location = location.into();
        let opened = Self::open_location(&location, options);
        opened.map_err(|error| error.naming_file(&location.name()))
    }

    fn open_location(
        location: &JournalLocation,
        options: &JournalOptions,
    ) -> Result<Arc<Self>, JournalError> {
        let folder = location.folder();
        let file = |error| JournalError::File {
            path: folder.to_owned(),
            error,
        };
        let connection = connection::open_read_write(location, &schema::JOURNAL_SCHEMA)?;
        if options.durability == Durability::Full {
            connection.set_full_durability()?;
        }
        schema::JOURNAL_SCHEMA.migrate(&connection)?;
        check_columns(&connection)?;
        let key = load_or_create_digest_key(&connection)?;
        let shared = location.database().map(|_| LeaseTimes::default());
        let leases = options.leases.or(shared);
        let owner = JournalOwner::new(location, new_id("own"), leases);
        let owner = owner.map_err(file)?;
        Ok(Self::new(connection, location, owner, key, options))
    }

    pub(crate) fn new(
        connection: Connection,
        location: &JournalLocation,
        owner: JournalOwner,
        key: [u8; 32],
        options: &JournalOptions,
    ) -> Arc<Self> {
        let notices = JournalNotices::new(&connection);
        let connection = SharedConnection::new(connection);
        let shared = SharedJournal {
            jobs: JournalJobs::new(connection.max_users()),
            connection,
            location: location.clone(),
            owner,
            claims: SessionClaims::default(),
            digest_key: key,
            payloads: Payloads::new(options.encryption_key),
            inherited_approvals: Mutex::default(),
            durability: options.durability,
            waits_for_space: options.waits_for_space,
            write_behind: Arc::default(),
            cancel_requests: Mutex::default(),
            notices,
            users: AtomicUsize::new(0),
        };
        Self::with_queue(Arc::new(shared), COMMON_QUEUE)
    }

    fn with_queue(shared: Arc<SharedJournal>, queue: usize) -> Arc<Self> {
        shared.users.fetch_add(1, Ordering::Relaxed);
        Arc::new_cyclic(|itself| Self {
            shared,
            queue,
            weak_self: itself.clone(),
        })
    }

    /// Returns this journal with the queue for the work of a session. What is queued for one
    /// session runs in order; what is queued for several runs at the same time, unless the journal
    /// is a file.
    pub fn for_session(&self, session: &str) -> Arc<Self> {
        let queue = self.jobs.queue_of(session);
        match self.weak_self.upgrade() {
            Some(same) if queue == self.queue => same,
            _ => Self::with_queue(self.shared.clone(), queue),
        }
    }

    /// Returns a handle to this process's lock file for a child process. While any process has it
    /// open, the runs of this process count as alive.
    #[cfg(unix)]
    pub fn owner_lock_fd(&self) -> std::io::Result<std::os::fd::OwnedFd> {
        self.owner.lock_fd()
    }

    /// Returns a connection, after it has written the rows that wait in the write-behind queue.
    pub(crate) fn flushed_connection(&self) -> ConnectionGuard<'_> {
        let connection = self.connection.lock();
        // If this fails, the rows stay in the queue.
        let _ = self.flush_rows(&connection);
        connection
    }

    /// Begins the lease of this process if it has none yet. Must precede a write.
    pub(crate) fn begin_lease_if_unused(
        &self,
        connection: &Connection,
    ) -> Result<(), JournalError> {
        match self.owner.lease() {
            Some(lease) if lease.is_unused() => {
                let location = self.location.clone();
                let timeout = lease.answer_timeout();
                let connect =
                    move || connection::open_own(&location, &schema::JOURNAL_SCHEMA, timeout);
                lease.begin(connection, connect)
            }
            _ => Ok(()),
        }
    }

    /// Runs `work` in a transaction, which is rolled back if `work` fails. `work` runs again if
    /// another transaction was in the way, or the connection was lost before the commit.
    pub(crate) fn write<T>(
        &self,
        work: impl FnMut(&Connection) -> Result<T, JournalError>,
    ) -> Result<T, JournalError> {
        let connection = self.flushed_connection();
        self.begin_lease_if_unused(&connection)?;
        in_transaction(&connection, work)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.users.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        let _ = self.flush();
        self.write_behind.close();
        if let Some(lease) = self.owner.lease() {
            lease.close(&self.connection.lock());
        }
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

/// Runs `work` in a transaction, which is rolled back if `work` fails. `work` runs again if another
/// transaction was in the way, or the connection was lost before the commit.
pub(crate) fn in_transaction<T>(
    connection: &Connection,
    mut work: impl FnMut(&Connection) -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let mut retry = TransactionRetry::new(connection);
    loop {
        match try_transaction(connection, &mut work) {
            Err(JournalError::Database(error)) if retry.should_repeat(&error) => {
                tracing::debug!(%error, "repeating a transaction");
            }
            Err(error) => {
                return Err(match connection.path() {
                    Some(file) => error.naming_file(Path::new(file)),
                    None => error,
                });
            }
            done => return done,
        }
    }
}

fn try_transaction<T>(
    connection: &Connection,
    work: &mut impl FnMut(&Connection) -> Result<T, JournalError>,
) -> Result<T, JournalError> {
    let transaction = connection.begin_write()?;
    schema::JOURNAL_SCHEMA.refuse_too_old(connection)?;
    let value = work(connection)?;
    transaction.commit()?;
    Ok(value)
}

/// Returns the key for digests of arguments, which is created when the journal is first opened.
/// Digests are keyed because a plain digest in a report would confirm a guess of the arguments.
fn load_or_create_digest_key(connection: &Connection) -> Result<[u8; 32], JournalError> {
    // Reading an existing key does not wait for a writer.
    if let Some(stored) = load_digest_key(connection)? {
        return Ok(stored);
    }
    let transaction = connection.begin_write()?;
    transaction.lock_name("secrets", NamedLockMode::Exclusive);
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
