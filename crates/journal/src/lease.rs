//! Leases of processes that share a database from several machines. A process renews its lease
//! until it ends; a process whose lease has ended counts as dead, and others take over its
//! sessions.
//!
//! - The clock of the database decides, so the clocks of the machines do not matter.
//! - A process takes over only if its own renewals succeeded for one duration without a gap
//!   ([`LeaseWatch`]). So after a restart of the database all processes have that time to renew
//!   their leases.
//! - An end of the lease stops no process: fencing numbers refuse its writes (`claims`), and
//!   observers kill what it started ([`LeaseObserver`]).

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use selvedge_database::{Connection, params};
use selvedge_protocol::LeaseObserver;
use tokio::sync::watch;

use crate::JournalError;
use crate::connection::{execute, query_column, query_first};
use crate::liveness::process_name;
use crate::schema::known_versions;

/// How long rows of leases that have ended are kept.
const ENDED_RETENTION: Duration = Duration::from_secs(3600);

/// How long a renewal waits for its answer at least, because a new connection takes time as well.
const MIN_ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// The times of leases. All processes of a database must use the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long a lease lasts after each renewal.
    pub duration: Duration,
    /// How often it is renewed.
    pub renewal: Duration,
}

impl Default for LeaseTimes {
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(10),
            renewal: Duration::from_secs(2),
        }
    }
}

impl LeaseTimes {
    /// How long commands run after a renewal that succeeded: they have ended before another process
    /// can take over.
    fn command_time(self) -> Duration {
        self.duration.saturating_sub(self.renewal)
    }

    /// How long a renewal waits for the answer of the database: after it, another connection can
    /// still renew the lease.
    fn answer_timeout(self) -> Duration {
        (self.renewal * 2).max(MIN_ANSWER_TIMEOUT)
    }

    /// The longest time between two renewals that counts as no gap.
    fn longest_gap(self) -> Duration {
        self.renewal * 2
    }
}

/// How long this process has seen the leases of a database without a gap. All its leases of the
/// database share it.
#[derive(Debug, Default)]
struct LeaseWatch {
    /// Since when all renewals succeeded.
    unbroken_since: Option<Instant>,
    /// When the last renewal that succeeded was sent.
    renewed_at: Option<Instant>,
}

/// The watches of this process by database.
static WATCHES: Mutex<BTreeMap<PathBuf, Arc<Mutex<LeaseWatch>>>> = Mutex::new(BTreeMap::new());

/// The lease of this process.
#[derive(Debug)]
pub(crate) struct OwnerLease {
    owner: String,
    name: String,
    times: LeaseTimes,
    watch: Arc<Mutex<LeaseWatch>>,
    state: Mutex<LeaseState>,
    /// Locked while the lease begins.
    beginning: Mutex<()>,
    /// Notified when the lease is closed.
    closed: Condvar,
    /// How often the lease had ended before it was renewed.
    lapses: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct LeaseState {
    phase: LeasePhase,
    /// When the last renewal that succeeded was sent.
    renewed_at: Option<Instant>,
    workspaces: Option<String>,
    observers: Vec<&'static dyn LeaseObserver>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum LeasePhase {
    /// The process has written nothing yet, so it needs no lease.
    #[default]
    Unused,
    /// A thread renews the lease.
    Renewed,
    Closed,
}

impl OwnerLease {
    /// `database` is the file or address of the database.
    pub(crate) fn new(owner: &str, database: PathBuf, times: LeaseTimes) -> Arc<Self> {
        let mut watches = WATCHES.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::new(Self {
            owner: owner.to_owned(),
            name: process_name(),
            times,
            watch: watches.entry(database).or_default().clone(),
            state: Mutex::default(),
            beginning: Mutex::default(),
            closed: Condvar::new(),
            lapses: watch::Sender::new(0),
        })
    }

    fn lock(&self) -> MutexGuard<'_, LeaseState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_watch(&self) -> MutexGuard<'_, LeaseWatch> {
        self.watch.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how long a renewal waits for the answer of the database.
    pub(crate) fn answer_timeout(&self) -> Duration {
        self.times.answer_timeout()
    }

    /// Returns whether the lease has to begin, because the process is about to write.
    pub(crate) fn is_unused(&self) -> bool {
        self.lock().phase == LeasePhase::Unused
    }

    /// Begins the lease on a connection, and starts the thread that renews it with a connection of
    /// its own. Does nothing if another thread has begun it.
    pub(crate) fn begin(
        self: &Arc<Self>,
        connection: &Connection,
        connect: impl Fn() -> Result<Connection, JournalError> + Send + 'static,
    ) -> Result<(), JournalError> {
        let beginning = self.beginning.lock();
        let _beginning = beginning.unwrap_or_else(PoisonError::into_inner);
        if !self.is_unused() {
            return Ok(());
        }
        self.renew(connection)?;
        self.lock().phase = LeasePhase::Renewed;
        let lease = self.clone();
        let thread = std::thread::Builder::new().name("selvedge-lease".to_owned());
        let spawned = thread.spawn(move || lease.renew_until_closed(connect));
        spawned.map(drop).map_err(|error| {
            self.lock().phase = LeasePhase::Unused;
            JournalError::Damaged(format!("cannot start a thread: {error}"))
        })
    }

    /// Ends the lease, so that the claims of this process count no more.
    pub(crate) fn close(&self, connection: &Connection) {
        let phase = std::mem::replace(&mut self.lock().phase, LeasePhase::Closed);
        self.closed.notify_all();
        if phase == LeasePhase::Renewed {
            // If this fails, the lease ends by itself.
            let _ = Self::remove(connection, &self.owner);
        }
    }

    /// Removes the lease of a process that has ended.
    pub(crate) fn remove(connection: &Connection, owner: &str) -> Result<(), JournalError> {
        let sql = "DELETE FROM owners WHERE id = ?1";
        execute(connection, sql, params![owner])
    }

    /// The thread that renews the lease.
    fn renew_until_closed(&self, connect: impl Fn() -> Result<Connection, JournalError>) {
        let (mut connection, mut cleaned_at) = (None, None);
        while self.wait_for_next_renewal() {
            if connection.is_none() {
                connection = connect()
                    .inspect_err(|error| tracing::error!(%error, "cannot renew the lease"))
                    .ok();
            }
            let Some(open) = &connection else { continue };
            let renewed = self.renew(open);
            let renewed = renewed.and_then(|()| self.remove_ended(open, &mut cleaned_at));
            if let Err(error) = renewed {
                tracing::error!(%error, "cannot renew the lease");
                connection = None;
            }
        }
    }

    /// Waits until a renewal is due. Returns `false` if the lease is closed.
    fn wait_for_next_renewal(&self) -> bool {
        let state = self.lock();
        let due = match state.renewed_at {
            Some(sent) => (sent + self.times.renewal).saturating_duration_since(Instant::now()),
            None => Duration::ZERO,
        };
        // After a failure, the next attempt is soon.
        let due = due.max(self.times.renewal / 8);
        let is_open = |state: &mut LeaseState| state.phase != LeasePhase::Closed;
        let waited = self.closed.wait_timeout_while(state, due, is_open);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.phase != LeasePhase::Closed
    }

    /// Renews the lease, or begins it again if it has ended.
    pub(crate) fn renew(&self, connection: &Connection) -> Result<(), JournalError> {
        let (sent, workspaces, observers) = {
            let state = self.lock();
            (
                Instant::now(),
                state.workspaces.clone(),
                state.observers.clone(),
            )
        };
        let marks: Vec<Duration> = observers.iter().map(|observer| observer.now()).collect();
        let now = connection.database_now();
        let duration = self.times.duration.as_millis() as i64;
        let sql = format!(
            "UPDATE owners SET ends_ms = {now} + ?2, workspaces = ?3
             WHERE id = ?1 AND ends_ms > {now}"
        );
        let renewed = connection
            .prepare_cached(&sql)?
            .execute(params![self.owner, duration, workspaces])?;
        if renewed == 0 {
            let sql = format!(
                "INSERT INTO owners (id, ends_ms, name, workspaces, versions)
                 VALUES (?1, {now} + ?2, ?3, ?4, ?5)
                 ON CONFLICT (id) DO UPDATE SET ends_ms = excluded.ends_ms,
                    workspaces = excluded.workspaces"
            );
            let versions = known_versions();
            let row = params![self.owner, duration, self.name, workspaces, versions];
            execute(connection, &sql, row)?;
            if self.lock().phase == LeasePhase::Closed {
                // `close` has deleted the row meanwhile, or is about to.
                return Self::remove(connection, &self.owner);
            }
            if self.lock().renewed_at.is_some() {
                tracing::warn!("the lease of this process had ended");
                self.lapses.send_modify(|lapses| *lapses += 1);
            }
        }
        for (observer, mark) in observers.iter().zip(marks) {
            observer.extend_to(mark + self.times.command_time());
        }
        self.lock().renewed_at = Some(sent);
        let mut watch = self.lock_watch();
        let is_gap =
            |last: Instant| sent.saturating_duration_since(last) > self.times.longest_gap();
        if watch.renewed_at.is_none_or(is_gap) {
            watch.unbroken_since = Some(sent);
        }
        watch.renewed_at = watch.renewed_at.max(Some(sent));
        Ok(())
    }

    /// Removes the rows of processes that ended long ago, from time to time. A process without a
    /// row counts as ended, so all processes must have had the time to renew their leases before.
    fn remove_ended(
        &self,
        connection: &Connection,
        cleaned_at: &mut Option<Instant>,
    ) -> Result<(), JournalError> {
        let is_due = |at: Instant| at.elapsed() >= ENDED_RETENTION;
        if !cleaned_at.is_none_or(is_due) || !self.is_watching() {
            return Ok(());
        }
        let now = connection.database_now();
        let sql = format!("DELETE FROM owners WHERE ends_ms < {now} - ?1");
        let retention = ENDED_RETENTION.as_millis() as i64;
        execute(connection, &sql, params![retention])?;
        *cleaned_at = Some(Instant::now());
        Ok(())
    }

    /// Returns whether the lease of a process has not ended.
    pub(crate) fn is_current(connection: &Connection, owner: &str) -> Result<bool, JournalError> {
        let now = connection.database_now();
        let sql = format!("SELECT 1 FROM owners WHERE id = ?1 AND ends_ms > {now}");
        let found: Option<i64> = query_first(connection, &sql, params![owner])?;
        Ok(found.is_some())
    }

    /// Returns whether this process may take over the sessions of a process: it ended its lease
    /// itself, or the lease has ended and this process would have seen a renewal.
    pub(crate) fn may_replace(
        &self,
        connection: &Connection,
        owner: &str,
    ) -> Result<bool, JournalError> {
        let now = connection.database_now();
        let sql =
            format!("SELECT CASE WHEN ends_ms > {now} THEN 1 ELSE 0 END FROM owners WHERE id = ?1");
        let is_current: Option<i64> = query_first(connection, &sql, params![owner])?;
        Ok(match is_current {
            None => true,
            Some(0) => self.is_watching(),
            Some(_) => false,
        })
    }

    /// Returns whether renewals succeeded for one duration without a gap, until now.
    fn is_watching(&self) -> bool {
        let watch = self.lock_watch();
        let is_recent = |sent: Instant| sent.elapsed() <= self.times.longest_gap();
        watch.renewed_at.is_some_and(is_recent)
            && (watch.unbroken_since).is_some_and(|since| since.elapsed() >= self.times.duration)
    }

    /// Makes renewals extend a lease of commands.
    pub(crate) fn observe(&self, observer: &'static dyn LeaseObserver) {
        let mut state = self.lock();
        let mut known = state.observers.iter();
        if known.any(|known| std::ptr::addr_eq(*known, observer)) {
            return;
        }
        if let Some(sent) = state.renewed_at {
            // Read first: if the process is stopped between both reads, the end is earlier.
            let now = observer.now();
            let left = self.times.command_time().saturating_sub(sent.elapsed());
            observer.extend_to(now + left);
        }
        state.observers.push(observer);
    }

    /// Sets the workspaces whose sessions this process runs, which the next renewal stores. Returns
    /// whether they are others than before.
    pub(crate) fn set_workspaces(&self, workspaces: String) -> bool {
        let mut state = self.lock();
        let is_new = state.workspaces.as_ref() != Some(&workspaces);
        state.workspaces = Some(workspaces);
        is_new
    }

    /// Returns how often the lease had ended before it was renewed.
    pub(crate) fn lapses(&self) -> watch::Receiver<u64> {
        self.lapses.subscribe()
    }

    /// Returns the workspaces of all servers whose leases have not ended, as JSON.
    pub(crate) fn served_workspaces(connection: &Connection) -> Result<Vec<String>, JournalError> {
        let now = connection.database_now();
        let sql = format!(
            "SELECT workspaces FROM owners WHERE ends_ms > {now} AND workspaces IS NOT NULL"
        );
        query_column(connection, &sql, params![])
    }
}
