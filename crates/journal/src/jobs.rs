//! Job queues for async callers, which must not wait for a lock or an answer on their thread.
//!
//! Work that need not wait runs on the caller's thread. If another thread uses the connection or
//! another process has locked the file, or if the journal is a database, the work is queued as a
//! job. A thread of the queue runs the queued jobs, and ends when the queue is empty. The jobs of a
//! queue run in order, also if their callers are dropped, and before any later work of it.
//!
//! A file has one queue. A database has one for each connection of the process, and one for work
//! that belongs to no session. All work of a session is in the same one, so it stays in order.
//!
//! Queueing every write would cost too much: recording the start and the end of a call takes 0.045
//! ms on the caller's thread and 0.12 ms through tokio's blocking pool (medians; optimised build,
//! on a busy machine).
//! A queue has its own thread, because the pool drops work that has not started when its runtime
//! is shut down.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// The number of the queue for work that belongs to no session.
pub(crate) const COMMON_QUEUE: usize = 0;

/// The queued jobs.
pub(crate) struct JournalJobs {
    queues: Vec<JournalJobQueue>,
}

#[derive(Default)]
struct JournalJobQueue {
    jobs: Mutex<QueuedJobs>,
    /// Locked while a job runs.
    running: Mutex<()>,
}

#[derive(Default)]
struct QueuedJobs {
    pending: VecDeque<JournalJob>,
    /// Number of waiting jobs, plus one while a job runs.
    unfinished: usize,
}

impl JournalJobs {
    /// `max_users` is how many threads can use the connection at the same time.
    pub(crate) fn new(max_users: usize) -> Self {
        let session_queues = if max_users > 1 { max_users } else { 0 };
        let queues = (0..=session_queues).map(|_| JournalJobQueue::default());
        Self {
            queues: queues.collect(),
        }
    }

    /// Returns the number of the queue of a session.
    pub(crate) fn queue_of(&self, session: &str) -> usize {
        match self.queues.len() {
            1 => COMMON_QUEUE,
            queues => {
                let mut hasher = DefaultHasher::new();
                session.hash(&mut hasher);
                1 + (hasher.finish() % (queues as u64 - 1)) as usize
            }
        }
    }
}

impl JournalJobQueue {
    fn lock(&self) -> MutexGuard<'_, QueuedJobs> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the running job, then runs the next one. Returns its reply and the number of jobs
    /// left; `None` if the queue is empty.
    fn run_next(&self, journal: &Journal) -> Option<(JournalJobReply, usize)> {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let job = self.lock().pending.pop_front()?;
        // If the job panics, its sender is dropped, and the caller gets `Panicked`.
        let done = catch_unwind(AssertUnwindSafe(|| job(journal)));
        let mut jobs = self.lock();
        jobs.unfinished -= 1;
        let reply = done.unwrap_or_else(|_| Box::new(|| ()));
        Some((reply, jobs.unfinished))
    }
}

impl std::fmt::Debug for JournalJobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let unfinished: usize = self
            .queues
            .iter()
            .map(|queue| queue.lock().unfinished)
            .sum();
        write!(f, "JournalJobs({unfinished})")
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
        if self.durability == Durability::Full || self.own_queue().lock().unfinished > 0 {
            return None;
        }
        let connection = self.connection.try_lock()?;
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

    /// Queues work that may block. It runs on a thread of the journal after all jobs that were
    /// queued before in the same queue ([`Journal::for_session`]).
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

    fn own_queue(&self) -> &JournalJobQueue {
        &self.jobs.queues[self.queue]
    }

    fn enqueue_job(&self, job: JournalJob) {
        let unfinished = {
            let mut jobs = self.own_queue().lock();
            jobs.pending.push_back(job);
            jobs.unfinished += 1;
            jobs.unfinished
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

    /// Runs the queued jobs of all queues on this thread.
    pub(crate) fn run_queued_jobs(&self) {
        for queue in &self.jobs.queues {
            while let Some((reply, _)) = queue.run_next(self) {
                reply();
            }
        }
    }
}

/// Main function of the queue's thread. It drops the journal before the last caller gets its reply,
/// so that this caller can close the journal.
fn run_jobs(journal: Arc<Journal>) {
    while let Some((reply, left)) = journal.own_queue().run_next(&journal) {
        if left == 0 {
            drop(journal);
            return reply();
        }
        reply();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::FutureExt;
    use selvedge_database::params;
    use serde_json::json;

    use super::*;
    use crate::test_store::{database, store, uses_files};

    fn block_on<F: Future>(future: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(future)
    }

    #[test]
    fn a_session_that_waits_does_not_delay_others_and_its_writes_stay_in_order() {
        if uses_files() {
            // A file has one writer at a time.
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(store(dir.path())).unwrap();
        let blocked = journal.begin_session("/work", None).unwrap();
        let free = loop {
            let session = journal.begin_session("/work", None).unwrap();
            if journal.jobs.queue_of(&session) != journal.jobs.queue_of(&blocked) {
                break session;
            }
        };
        let other = database(dir.path());
        let no_timeout = "SET idle_in_transaction_session_timeout = 0";
        other.execute_batch(no_timeout).unwrap();
        let lock = other.begin_write().unwrap();
        let row = "SELECT id FROM sessions WHERE id = ?1 FOR UPDATE";
        lock.query_row(row, params![blocked], |_| Ok(())).unwrap();

        let view = journal.for_session(&blocked);
        for number in 0..3 {
            let items = vec![json!(number)];
            let dropped = view.append_rows(&blocked, number, 1, items).now_or_never();
            assert!(dropped.is_none(), "the session is locked");
        }
        let own = journal.for_session(&free);
        block_on(own.append_rows(&free, 0, 1, vec![json!("free")])).unwrap();
        assert_eq!(journal.items(&free).unwrap().len(), 1);
        assert_eq!(journal.items(&blocked).unwrap().len(), 0);

        lock.rollback().unwrap();
        // Waits for what was queued before.
        let read = |journal: &Journal| {
            let last = journal.first_item("none")?;
            Ok::<_, JournalError>(last)
        };
        block_on(journal.for_session(&blocked).spawn_blocking(read)).unwrap();
        let items = journal.items(&blocked).unwrap();
        let numbers: Vec<_> = items.into_iter().map(|item| item.item).collect();
        assert_eq!(numbers, [json!(0), json!(1), json!(2)]);
    }
}
