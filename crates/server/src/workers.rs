//! Runs the queued messages of sessions: many sessions at once, the turns of one session in order.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    ApiToken, AuthorKind, EventSink, InboxState, NextMessage, RuntimeEvent, ServerLeaseStore,
    ServerStoreError, SessionError, SessionStore, WaitingSession, since_epoch,
};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::approvals::PendingApprovals;
use crate::client_tools::{ClientTools, SessionClientTools};
use crate::feed::SessionFeeds;
use crate::host::{HostedStep, HostedTurn, SessionHost, SessionWaker};
use crate::message_ends::MessageEnds;
use crate::metrics::ServerMetrics;
use crate::repeated_failure::RepeatedFailure;
use crate::resumed_scripts::ResumedScripts;
use crate::state::{ServerLimits, ServerStores};
use crate::turn_permits::{TurnPermit, TurnPermits};

/// How often the queues are searched for messages that came from other processes.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// First pause before a session that another process uses is tried again. Each further pause is
/// twice as long, up to [`MAX_BUSY_DELAY`].
const BUSY_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Longest pause before a session that another process uses is tried again.
const MAX_BUSY_DELAY: Duration = Duration::from_secs(2);
/// Pause after a failure, such as a full disk.
const FAILURE_RETRY_DELAY: Duration = Duration::from_secs(2);
/// How often the sessions of resumed scripts are checked, if several servers share the database.
const SCRIPT_CHECK_INTERVAL: Duration = Duration::from_secs(2);
/// How long turns may take to stop when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);

/// The sessions whose queues are being worked on.
pub(crate) struct SessionWorkers {
    stores: ServerStores,
    host: Arc<dyn SessionHost>,
    feeds: Arc<SessionFeeds>,
    approvals: Arc<PendingApprovals>,
    client_tools: Arc<ClientTools>,
    metrics: Arc<ServerMetrics>,
    /// Notified when a turn of a session has ended.
    pub(crate) message_ends: MessageEnds,
    running: Mutex<HashMap<String, WorkerState>>,
    next_worker: AtomicU64,
    permits: TurnPermits,
    tasks: TaskTracker,
    /// Cancelled when no further turn starts.
    draining: CancellationToken,
    stopping: CancellationToken,
}

/// The worker of a session.
#[derive(Default)]
struct WorkerState {
    /// Tells the worker from later ones of the same session.
    id: u64,
    /// Whether a message was queued since the worker last looked.
    has_news: bool,
    /// Cancels the turn that runs.
    turn: Option<CancellationToken>,
    /// Cancelled when another server has taken over the session. The turn is then dropped.
    lost: CancellationToken,
}

/// A worker that runs. Its entry is removed with it, also if it panics.
struct RunningWorker {
    workers: Arc<SessionWorkers>,
    session: String,
    id: u64,
}

impl Drop for RunningWorker {
    fn drop(&mut self) {
        let mut running = self.workers.lock_running();
        if running
            .get(&self.session)
            .is_some_and(|state| state.id == self.id)
        {
            running.remove(&self.session);
        }
    }
}

impl SessionWorkers {
    pub(crate) fn new(
        stores: ServerStores,
        host: Arc<dyn SessionHost>,
        feeds: Arc<SessionFeeds>,
        approvals: Arc<PendingApprovals>,
        client_tools: Arc<ClientTools>,
        limits: ServerLimits,
        metrics: Arc<ServerMetrics>,
    ) -> Arc<Self> {
        Arc::new(Self {
            stores,
            host,
            feeds,
            approvals,
            client_tools,
            metrics,
            message_ends: MessageEnds::default(),
            running: Mutex::default(),
            next_worker: AtomicU64::new(0),
            permits: TurnPermits::new(limits.concurrent_turns),
            tasks: TaskTracker::new(),
            draining: CancellationToken::new(),
            stopping: CancellationToken::new(),
        })
    }

    fn lock_running(&self) -> MutexGuard<'_, HashMap<String, WorkerState>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a worker look at the queue of a session.
    pub(crate) fn wake(self: &Arc<Self>, session: &str) {
        if self.is_draining() {
            return;
        }
        let mut running = self.lock_running();
        if let Some(worker) = running.get_mut(session) {
            worker.has_news = true;
            return;
        }
        let id = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let state = WorkerState {
            id,
            ..WorkerState::default()
        };
        running.insert(session.to_owned(), state);
        let worker = RunningWorker {
            workers: self.clone(),
            session: session.to_owned(),
            id,
        };
        let stopping = self.stopping.clone();
        self.tasks.spawn(async move {
            tokio::select! {
                () = worker.workers.work(&worker.session) => {}
                // The turn is dropped where it is, as if the process were killed. The next server
                // continues it from what the journal has.
                () = stopping.cancelled() => {}
            }
        });
    }

    /// Returns what tells the workers about new messages, as long as the server runs.
    fn waker(self: &Arc<Self>) -> SessionWaker {
        let workers = Arc::downgrade(self);
        SessionWaker::new(move |session| {
            if let Some(workers) = workers.upgrade() {
                workers.wake(session);
            }
        })
    }

    /// Runs other work of a session. A server that stops waits for it as for turns.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(work);
    }

    /// Interrupts the turn of a session. Returns whether one was running.
    pub(crate) fn interrupt(&self, session: &str) -> bool {
        let running = self.lock_running();
        let turn = running.get(session).and_then(|worker| worker.turn.as_ref());
        turn.inspect(|turn| turn.cancel()).is_some()
    }

    /// Wakes workers for messages from other processes, until the server stops. Also continues the
    /// turns that an earlier server left open.
    pub(crate) async fn poll_queues(self: Arc<Self>) {
        let mut notices_seen = 0;
        let mut failure = RepeatedFailure::default();
        loop {
            let woken = self.wake_waiting().await;
            if let Some(error) = failure.new_error(&woken) {
                tracing::error!(%error, "cannot read the queues");
            }
            tokio::select! {
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                () = self.stores.queues.queues_changed(&mut notices_seen) => {}
                () = self.draining.cancelled() => return,
            }
        }
    }

    /// Wakes a worker for each session with a queue in a workspace of a valid token. Stops turns of
    /// tokens that are not valid any more; their messages fail when they are claimed.
    async fn wake_waiting(self: &Arc<Self>) -> Result<(), ServerStoreError> {
        let waiting = self.stores.queues.waiting_sessions().await?;
        if waiting.is_empty() && self.stores.leases.is_none() {
            return Ok(());
        }
        let now = since_epoch().as_millis() as i64;
        let tokens = self.stores.tokens.tokens().await?;
        self.declare_workspaces(&tokens).await?;
        let valid = || tokens.iter().filter(|token| token.is_valid_at(now));
        for session in waiting {
            let has_payer = |token: &ApiToken| session.payer.as_ref() == Some(&token.name);
            let is_refused = session.payer.is_some() && !valid().any(has_payer);
            if is_refused {
                self.interrupt(&session.id);
            }
            let is_served = valid().any(|token| token.works_in(&session.directory))
                && self.host.serves(&session.directory);
            if self.can_claim(&session) && (is_served || is_refused) {
                self.wake(&session.id);
            }
        }
        Ok(())
    }

    /// Returns whether a worker may claim a session. If it may not, a later poll finds the session
    /// again when it is free. Without other servers, a worker waits for the session.
    fn can_claim(&self, session: &WaitingSession) -> bool {
        self.stores.leases.as_ref().is_none_or(|leases| {
            session.is_free || session.owner.as_deref() == Some(leases.owner())
        })
    }

    /// Declares the workspaces that this server serves, if several servers share the database.
    async fn declare_workspaces(&self, tokens: &[ApiToken]) -> Result<(), ServerStoreError> {
        let Some(leases) = &self.stores.leases else {
            return Ok(());
        };
        let now = since_epoch().as_millis() as i64;
        let valid = tokens.iter().filter(|token| token.is_valid_at(now));
        let workspaces: BTreeSet<&String> = valid.flat_map(|token| &token.workspaces).collect();
        let served = workspaces
            .into_iter()
            .filter(|folder| self.host.serves(folder));
        leases.declare_workspaces(served.cloned().collect()).await
    }

    /// Drops the turns and stops the resumed scripts of sessions that other servers have taken
    /// over, again and again.
    pub(crate) async fn watch_lease(self: Arc<Self>, scripts: Arc<ResumedScripts>) {
        let Some(leases) = self.stores.leases.clone() else {
            return;
        };
        let mut lapses_seen = 0;
        let (mut failure, mut reported) = (RepeatedFailure::default(), BTreeSet::new());
        loop {
            tokio::select! {
                // Others can take over sessions only after the lease has ended.
                () = leases.lapse(&mut lapses_seen) => self.drop_lost_turns(&*leases).await,
                // Scripts run under leases of their own.
                () = tokio::time::sleep(SCRIPT_CHECK_INTERVAL) => {}
            }
            let lost = self.host.lost_scripts().await;
            if let Some(error) = failure.new_error(&lost.as_ref().map_err(|error| &error.message)) {
                tracing::error!(%error, "cannot check the sessions of scripts");
            }
            if let Ok(lost) = lost {
                reported = stop_lost_scripts(lost, &scripts, &reported);
            }
        }
    }

    async fn drop_lost_turns(&self, leases: &dyn ServerLeaseStore) {
        let mut failure = RepeatedFailure::default();
        let lost = loop {
            let running: Vec<String> = self.lock_running().keys().cloned().collect();
            let lost = leases.lost_sessions(running).await;
            if let Some(error) = failure.new_error(&lost) {
                tracing::error!(%error, "cannot check sessions");
            }
            if let Ok(lost) = lost {
                break lost;
            }
            tokio::time::sleep(FAILURE_RETRY_DELAY).await;
        };
        for session in lost {
            tracing::warn!(session, "another server has taken over the session");
            if let Some(worker) = self.lock_running().get(&session) {
                worker.lost.cancel();
            }
        }
    }

    /// Returns whether no further turn starts, because the server stops.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Starts no further turn, and waits until the running ones have ended or the time has passed.
    pub(crate) async fn drain(&self, timeout: Duration) {
        self.draining.cancel();
        self.tasks.close();
        // Turns that still run then are stopped.
        let _ = tokio::time::timeout(timeout, self.tasks.wait()).await;
    }

    /// Stops all turns, and waits until they have stopped.
    pub(crate) async fn stop(&self) {
        self.draining.cancel();
        self.stopping.cancel();
        self.tasks.close();
        if tokio::time::timeout(STOP_TIMEOUT, self.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("turns did not stop in time");
        }
    }

    /// Runs turns of a session until its queue is empty.
    async fn work(self: &Arc<Self>, session: &str) {
        let mut busy_delay = BUSY_RETRY_DELAY;
        while !self.is_draining() {
            if let Some(worker) = self.lock_running().get_mut(session) {
                worker.has_news = false;
            }
            let step = match self.next_message(session).await {
                Ok(None) => Ok(HostedStep::Idle),
                Ok(Some((number, sender))) => {
                    let running = tokio::select! {
                        running = self.permits.acquire(&sender) => running,
                        () = self.draining.cancelled() => return,
                    };
                    self.run_turn(session, number, running.permit()).await
                }
                Err(error) => Err(error.to_string()),
            };
            match step {
                Ok(HostedStep::Ended) => busy_delay = BUSY_RETRY_DELAY,
                Ok(HostedStep::Idle) => {
                    let mut running = self.lock_running();
                    if running.get(session).is_none_or(|worker| !worker.has_news) {
                        running.remove(session);
                        return;
                    }
                }
                Ok(HostedStep::OtherServer) => {
                    self.lock_running().remove(session);
                    return;
                }
                Ok(HostedStep::Busy) => {
                    tokio::time::sleep(busy_delay).await;
                    busy_delay = (busy_delay * 2).min(MAX_BUSY_DELAY);
                }
                Err(error) => {
                    tracing::error!(session, %error, "cannot run the queue");
                    tokio::time::sleep(FAILURE_RETRY_DELAY).await;
                }
            }
        }
    }

    /// Returns the number of the oldest message that is not answered, and its sender.
    async fn next_message(&self, session: &str) -> Result<Option<(u32, String)>, SessionError> {
        let next = self.stores.queues.next_message(session).await;
        let next = next.map_err(|error| SessionError::NotRun(error.to_string()))?;
        match next {
            Some(next) => Ok(Some((next.number, self.sender(&next).await?))),
            None => Ok(None),
        }
    }

    /// Returns who is limited in the number of turns at once: the token whose client led to the
    /// message, or without one the author, or the first session of the chain of sessions that
    /// created the author. So a turn cannot start more turns at once through sessions that it
    /// creates or sends to.
    async fn sender(&self, message: &NextMessage) -> Result<String, SessionError> {
        if let Some(payer) = &message.payer {
            return Ok(format!("token {payer}"));
        }
        let author = &message.author;
        match author.kind {
            AuthorKind::Person => return Ok(format!("person {}", author.id)),
            AuthorKind::Client => return Ok(format!("token {}", author.id)),
            AuthorKind::Run => return Ok(format!("run {}", author.id)),
            AuthorKind::Session => {}
        }
        let mut id = author.id.clone();
        loop {
            let creator = match SessionStore::get(&*self.stores.sessions, &id).await {
                // The creator was deleted.
                Err(SessionError::NotFound(_)) => None,
                info => info?.creator,
            };
            match creator {
                Some(creator) => id = creator,
                None => return Ok(format!("session {id}")),
            }
        }
    }

    /// Emits why a message failed without a turn: its token may not be used any more.
    async fn report_refusal(&self, session: &str, number: u32, events: &EventSink) {
        let message = self.stores.sessions.message(session, number).await;
        if let Ok(message) = message
            && message.state == InboxState::Failed
            && let Some(answer) = message.answer
        {
            events.emit(RuntimeEvent::Error { message: answer });
        }
    }

    /// Runs the turn of the oldest message, which has this number.
    async fn run_turn(
        self: &Arc<Self>,
        session: &str,
        number: u32,
        permit: TurnPermit,
    ) -> Result<HostedStep, String> {
        let (cancel, lost) = (CancellationToken::new(), CancellationToken::new());
        if let Some(worker) = self.lock_running().get_mut(session) {
            worker.turn = Some(cancel.clone());
            worker.lost = lost.clone();
        }
        let _counted = self.metrics.running_turns.enter();
        let (events, flush) = self.feeds.feed(session).sink();
        let turn = HostedTurn {
            events: events.clone(),
            flush: flush.clone(),
            approver: self.approvals.approver(session),
            cancel,
            permit,
            client_tools: SessionClientTools {
                tools: self.client_tools.clone(),
                session: session.to_owned(),
            },
            waker: self.waker(),
        };
        let step = tokio::select! {
            step = self.host.run_next(session, turn) => step,
            () = lost.cancelled() => Ok(HostedStep::OtherServer),
        };
        self.message_ends.notify(session);
        if step == Ok(HostedStep::Busy) {
            self.report_refusal(session, number, &events).await;
        }
        // The events of a turn are stored before those of the next one.
        let _ = flush.wait().await;
        if let Some(worker) = self.lock_running().get_mut(session) {
            worker.turn = None;
        }
        if step == Ok(HostedStep::Ended) {
            self.metrics.turns_ended.add(1);
        }
        step.map_err(|error| error.to_string())
    }
}

/// Stops scripts of sessions that other servers have taken over, and returns these sessions. One
/// whose script ends slowly is lost at several checks; the log gets those that are not `reported`.
fn stop_lost_scripts(
    lost: Vec<String>,
    scripts: &ResumedScripts,
    reported: &BTreeSet<String>,
) -> BTreeSet<String> {
    for session in &lost {
        if !reported.contains(session) {
            tracing::warn!(
                session,
                "another server has taken over the session of a script"
            );
        }
        scripts.stop(session);
    }
    lost.into_iter().collect()
}
