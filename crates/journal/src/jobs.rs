//! A job queue for async callers, which must not wait for a lock on their thread.
//!
//! Work that need not wait runs on the caller's thread. If another thread uses the connection or
//! another process has locked the file, the work is queued as a job. The journal's own thread runs
//! the queued jobs, and ends when the queue is empty. Queued jobs run in order, also if their
//! callers are dropped, and before any later work.
//!
//! Queueing every write would cost too much: recording the start and the end of a call takes 0.045
//! ms on the caller's thread and 0.12 ms through tokio's blocking pool (medians; optimised build,
//! on a busy machine).
//! The queue has its own thread, because the pool drops work that has not started when its runtime
//! is shut down.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use selvedge_database::{Connection, DatabaseError};
use selvedge_protocol::Durability;
use tokio::sync::oneshot;

#[cfg(doc)]
use crate::JournalOptions;
use crate::connection::BUSY_TIMEOUT;
use crate::journal::in_transaction;
use crate::{Journal, JournalError};

/// How long to wait before a write is repeated that found no space or no database.
const SPACE_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// Runs some work, and returns the function that sends the result to the caller.
type JournalJob = Box<dyn FnOnce(&Journal) -> JournalJobReply + Send>;
type JournalJobReply = Box<dyn FnOnce() + Send>;

/// The queued jobs.
#[derive(Default)]
pub(crate) struct JournalJobs {
    queue: Mutex<JournalJobQueue>,
    /// Locked while a job runs.
    running: Mutex<()>,
}

#[derive(Default)]
struct JournalJobQueue {
    pending: VecDeque<JournalJob>,
    /// Number of waiting jobs, plus one while a job runs.
    unfinished: usize,
}

impl JournalJobs {
    fn queue(&self) -> MutexGuard<'_, JournalJobQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for JournalJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "JournalJobs({})", self.queue().unfinished)
    }
}

/// A connection that does not wait for a lock.
struct NonWaitingConnection<'a>(&'a Connection);

impl<'a> NonWaitingConnection<'a> {
    fn new(connection: &'a Connection) -> Result<Self, DatabaseError> {
        connection.set_busy_timeout(Duration::ZERO)?;
        Ok(Self(connection))
    }
}

impl Drop for NonWaitingConnection<'_> {
    fn drop(&mut self) {
        // Cannot fail: it only sets a number, as the call in `new` did.
        let _ = self.0.set_busy_timeout(BUSY_TIMEOUT);
    }
}

impl Journal {
    /// Writes in one transaction for an async caller. If the disk is full or the database is away,
    /// the write fails, or is repeated until it succeeds ([`JournalOptions::waits_for_space`]).
    pub(crate) async fn write_async<T: Send + 'static>(
        &self,
        work: impl Fn(&Self, &Connection) -> Result<T, JournalError> + Send + Sync + 'static,
    ) -> Result<T, JournalError> {
        let work = Arc::new(work);
        loop {
            let work = work.clone();
            let write = move |journal: &Self, connection: &Connection| {
                journal.begin_lease_if_unused(connection)?;
                in_transaction(connection, |connection| work(journal, connection))
            };
            match self.run_now_or_queue(write).await {
                Err(error)
                    if self.waits_for_space && (error.is_disk_full() || error.is_unavailable()) =>
                {
                    tracing::error!(%error, "waiting for the storage");
                    tokio::time::sleep(SPACE_RETRY_INTERVAL).await;
                }
                done => return done,
            }
        }
    }

    /// Reads or writes for an async caller: on its thread, or through [`Journal::spawn_blocking`]
    /// if the work would have to wait.
    pub(crate) async fn run_now_or_queue<T: Send + 'static>(
        &self,
        work: impl Fn(&Self, &Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        if let Some(done) = self.try_run_now(&work) {
            return done;
        }
        self.spawn_blocking(move |journal| work(journal, &journal.flushed_connection()))
            .await
    }

    /// Runs the work on this thread. Returns `None` and changes nothing if it would have to wait.
    fn try_run_now<T>(
        &self,
        work: impl Fn(&Self, &Connection) -> Result<T, JournalError>,
    ) -> Option<Result<T, JournalError>> {
        // With full durability, a write waits for the disk.
        if self.durability == Durability::Full || self.jobs.queue().unfinished > 0 {
            return None;
        }
        let connection = match self.connection.try_lock() {
            Ok(connection) => connection,
            Err(TryLockError::Poisoned(connection)) => connection.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        if connection.is_remote() {
            return None;
        }
        let connection = NonWaitingConnection::new(&connection).ok()?;
        let done = match self.flush_rows(connection.0) {
            Err(error) if error.is_busy() => Err(error),
            _ => work(self, connection.0),
        };
        match done {
            Err(error) if error.is_busy() => None,
            done => Some(done),
        }
    }

    /// Queues work that may block. It runs on a thread of the journal after all jobs queued before.
    /// This call queues the work, so it runs even if the future is dropped or never polled.
    pub fn spawn_blocking<T, E, W>(
        &self,
        work: W,
    ) -> impl Future<Output = Result<T, E>> + Send + use<T, E, W>
    where
        T: Send + 'static,
        E: From<JournalError> + Send + 'static,
        W: FnOnce(&Self) -> Result<T, E> + Send + 'static,
    {
        let (sender, result) = oneshot::channel();
        self.enqueue_job(Box::new(move |journal| {
            let done = work(journal);
            Box::new(move || _ = sender.send(done))
        }));
        async {
            result
                .await
                .unwrap_or_else(|_| Err(JournalError::Panicked.into()))
        }
    }

    fn enqueue_job(&self, job: JournalJob) {
        let unfinished = {
            let mut queue = self.jobs.queue();
            queue.pending.push_back(job);
            queue.unfinished += 1;
            queue.unfinished
        };
        if unfinished > 1 {
            // The thread that runs the job before runs this one as well.
            return;
        }
        let thread = std::thread::Builder::new().name("selvedge-journal".to_owned());
        let spawned = self
            .weak_self
            .upgrade()
            .and_then(|journal| thread.spawn(move || run_jobs(journal)).ok());
        if spawned.is_none() {
            self.run_queued_jobs();
        }
    }

    /// Runs all queued jobs on this thread.
    pub(crate) fn run_queued_jobs(&self) {
        while let Some((reply, _)) = self.run_next_job() {
            reply();
        }
    }

    /// Waits for the running job, then runs the next one. Returns its reply and the number of jobs
    /// left; `None` if the queue is empty.
    fn run_next_job(&self) -> Option<(JournalJobReply, usize)> {
        let _running = self
            .jobs
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let job = self.jobs.queue().pending.pop_front()?;
        // If the job panics, its sender is dropped, and the caller gets `Panicked`.
        let done = catch_unwind(AssertUnwindSafe(|| job(self)));
        let mut queue = self.jobs.queue();
        queue.unfinished -= 1;
        let reply = done.unwrap_or_else(|_| Box::new(|| ()));
        Some((reply, queue.unfinished))
    }
}

/// Main function of the queue's thread. It drops the journal before the last caller gets its reply,
/// so that this caller can close the journal.
fn run_jobs(journal: Arc<Journal>) {
    while let Some((reply, left)) = journal.run_next_job() {
        if left == 0 {
            drop(journal);
            return reply();
        }
        reply();
    }
}
