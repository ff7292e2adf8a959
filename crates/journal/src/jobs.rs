//! Work for async callers, which must not wait for a lock on their thread.
//!
//! Work that can be done at once is done on the caller's thread. If another thread uses the connection
//! or another process has locked the file, the work is handed over: it joins a queue, and a thread
//! that lives until the queue is empty waits instead of the caller. Work that was handed over is done
//! in order, whatever becomes of its caller, and before any work that is asked for later.
//!
//! Handing over every write would cost too much: an intent and its result take 0.045 ms on the caller's
//! thread and 0.12 ms through tokio's blocking pool (medians; optimised build, on a busy machine). The
//! queue has a thread of its own, because the pool drops work that it has not begun when its runtime
//! is shut down.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use rusqlite::Connection;
use selvedge_protocol::Durability;
use tokio::sync::oneshot;

use crate::connection::BUSY_TIMEOUT;
use crate::journal::in_one_piece;
use crate::{Journal, JournalError};

/// Does some work, and returns what hands the result to the caller.
type Job = Box<dyn FnOnce(&Journal) -> Reply + Send>;
type Reply = Box<dyn FnOnce() + Send>;

/// Work that was handed over.
#[derive(Default)]
pub(crate) struct Jobs {
    queue: Mutex<Queue>,
    /// Locked while a job is done.
    turn: Mutex<()>,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    /// Jobs that wait, and the one that is being done.
    unfinished: usize,
}

impl Jobs {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Jobs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Jobs({})", self.queue().unfinished)
    }
}

/// A connection that does not wait for a lock.
struct Impatient<'a>(&'a Connection);

impl<'a> Impatient<'a> {
    fn new(connection: &'a Connection) -> rusqlite::Result<Self> {
        connection.busy_timeout(Duration::ZERO)?;
        Ok(Self(connection))
    }
}

impl Drop for Impatient<'_> {
    fn drop(&mut self) {
        // It only sets a number, and has done so before.
        let _ = self.0.busy_timeout(BUSY_TIMEOUT);
    }
}

impl Journal {
    /// Writes, all or nothing, for an async caller.
    pub(crate) async fn write_async<T: Send + 'static>(
        &self,
        work: impl Fn(&Self, &Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        let write = move |journal: &Self, connection: &Connection| {
            in_one_piece(connection, |connection| work(journal, connection))
        };
        self.access(write).await
    }

    /// Reads or writes for an async caller: at once, or through [`Journal::spawn_blocking`] if that would
    /// have to wait.
    pub(crate) async fn access<T: Send + 'static>(
        &self,
        work: impl Fn(&Self, &Connection) -> Result<T, JournalError> + Send + 'static,
    ) -> Result<T, JournalError> {
        if let Some(done) = self.try_access(&work) {
            return done;
        }
        self.spawn_blocking(move |journal| work(journal, &journal.lock()))
            .await
    }

    /// Returns `None`, and has changed nothing, if the work would have to wait.
    fn try_access<T>(
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
        let impatient = Impatient::new(&connection).ok()?;
        let done = match self.flush_through(impatient.0) {
            Err(error) if error.is_busy() => Err(error),
            _ => work(self, impatient.0),
        };
        match done {
            Err(error) if error.is_busy() => None,
            done => Some(done),
        }
    }

    /// Does work that may block, on a thread of the journal, after all work that was handed over before.
    /// It is handed over by this call, and is done also if the future is dropped.
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
        self.hand_over(Box::new(move |journal| {
            let done = work(journal);
            Box::new(move || _ = sender.send(done))
        }));
        async {
            result
                .await
                .unwrap_or_else(|_| Err(JournalError::Panicked.into()))
        }
    }

    fn hand_over(&self, job: Job) {
        let unfinished = {
            let mut queue = self.jobs.queue();
            queue.waiting.push_back(job);
            queue.unfinished += 1;
            queue.unfinished
        };
        if unfinished > 1 {
            // The thread that does the job before does this one, too.
            return;
        }
        let thread = std::thread::Builder::new().name("selvedge-journal".to_owned());
        let spawned = self
            .itself
            .upgrade()
            .and_then(|journal| thread.spawn(move || do_jobs(journal)).ok());
        if spawned.is_none() {
            self.finish_jobs();
        }
    }

    /// Does all jobs on this thread.
    pub(crate) fn finish_jobs(&self) {
        while let Some((reply, _)) = self.next_job() {
            reply();
        }
    }

    /// Does the next job, after the one that is being done. Returns its reply, and how many jobs are
    /// left.
    fn next_job(&self) -> Option<(Reply, usize)> {
        let _turn = self
            .jobs
            .turn
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let job = self.jobs.queue().waiting.pop_front()?;
        // If it panics, its caller is told so.
        let done = catch_unwind(AssertUnwindSafe(|| job(self)));
        let mut queue = self.jobs.queue();
        queue.unfinished -= 1;
        let reply = done.unwrap_or_else(|_| Box::new(|| ()));
        Some((reply, queue.unfinished))
    }
}

/// The thread of the queue. It has closed the journal when the last caller gets its reply.
fn do_jobs(journal: Arc<Journal>) {
    while let Some((reply, left)) = journal.next_job() {
        if left == 0 {
            drop(journal);
            return reply();
        }
        reply();
    }
}
