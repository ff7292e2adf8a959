//! The scope of calls: the lifetime of a run, turn or task, with its limits and resources.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{ErrorCode, EventSink, LedgerError, Limits, ResumeAs};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{CallFailure, PriorCalls, PriorProgress};

/// The approval key that covers every call. The keys of calls begin with the name of a tool, and
/// those of other actions contain words.
const ALL_CALLS: &str = "*";

/// Owner of calls: their budget, queue, cancellation and resources. Clones share the state.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Id of the run, turn or task, used in events and approval requests.
    pub id: String,
    /// Cancels every call of the scope.
    pub cancel: CancellationToken,
    /// Receives the events of the calls.
    pub events: EventSink,
    /// Source of the script that makes the calls. `None` for structured calls.
    pub source: Option<ScriptSource>,
    /// Recorded calls of the run that the script resumes.
    pub prior_calls: Option<Arc<PriorCalls>>,
    /// Idempotency key for the calls, instead of one per call. Set if the scope repeats a recorded
    /// call.
    pub(crate) idempotency_key: Option<String>,
    /// Whether the owner suspends the scope when an approval is deferred.
    pub suspend_policy: SuspendPolicy,
    pub(crate) limits: ScopeLimits,
    pub(crate) call_slots: Arc<Semaphore>,
    calls_made: Arc<AtomicU32>,
    /// What each recorded call means to a run that resumes this one, by call id.
    recorded_calls: Arc<Mutex<BTreeMap<String, ResumeAs>>>,
    approved_keys: Arc<Mutex<HashSet<String>>>,
    pub(crate) notes: ScopeNotes,
    pub(crate) resources: ScopeResources,
}

/// Whether a scope can be suspended while it waits for an approval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SuspendPolicy {
    /// It cannot be suspended. Calls whose approval is deferred are denied.
    #[default]
    Never,
    /// Its owner suspends it on [`crate::BatchReport::ApprovalDeferred`].
    OnDeferredApproval,
}

/// Budget, approvals and notes of a scope, to restore it in another process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScopeSnapshot {
    calls_made: u32,
    approved_keys: BTreeSet<String>,
    prior: Option<PriorProgress>,
    recorded_calls: BTreeMap<String, ResumeAs>,
    #[serde(default)]
    notes: BTreeMap<String, Value>,
}

/// What calls of a scope note for its later calls, by key. Part of a suspended run's state. Clones
/// share the notes.
#[derive(Debug, Clone, Default)]
pub struct ScopeNotes(Arc<Mutex<BTreeMap<String, Value>>>);

impl ScopeNotes {
    /// Returns the note with this key.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.lock().get(key).cloned()
    }

    /// Sets the note with this key; `None` removes it.
    pub fn set(&self, key: String, note: Option<Value>) {
        match note {
            Some(note) => self.lock().insert(key, note),
            None => self.lock().remove(&key),
        };
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Value>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Resources that outlive their call and end with the scope: background processes, terminals.
/// Clones share them.
#[derive(Clone, Default)]
pub struct ScopeResources(Arc<Mutex<ScopeResourcesState>>);

#[derive(Default)]
struct ScopeResourcesState {
    resources: Vec<Box<dyn Any + Send>>,
    ended: bool,
}

impl ScopeResources {
    /// Owns a resource until the scope ends, then drops it. If the scope has ended, drops it at
    /// once.
    pub fn add(&self, resource: impl Send + 'static) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.ended {
            state.resources.push(Box::new(resource));
        }
    }

    fn release(&self) {
        let resources = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = true;
            std::mem::take(&mut state.resources)
        };
        // Outside the lock: dropping a resource may take long.
        drop(resources);
    }
}

impl std::fmt::Debug for ScopeResources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ScopeResources")
    }
}

/// Source text of a script.
#[derive(Debug, Clone)]
pub struct ScriptSource(pub Arc<str>);

/// Limits of the calls of a scope.
#[derive(Debug, Clone)]
pub struct ScopeLimits {
    /// Number of calls in total.
    pub max_calls: u32,
    /// Number of calls at the same time.
    pub max_concurrent: u32,
    /// How long a cancelled call may take to stop.
    pub abort_grace: Duration,
    /// Time limit of an approval request. `None` waits without limit.
    pub approval_timeout: Option<Duration>,
}

impl From<&Limits> for ScopeLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            max_calls: limits.max_tool_calls,
            max_concurrent: limits.max_concurrent_tool_calls.max(1),
            abort_grace: Duration::from_millis(limits.abort_grace_ms),
            approval_timeout: (limits.approval_timeout_ms > 0)
                .then(|| Duration::from_millis(limits.approval_timeout_ms)),
        }
    }
}

impl Scope {
    /// Creates a scope that is cancelled with `parent`.
    pub fn new(
        id: String,
        limits: ScopeLimits,
        parent: &CancellationToken,
        events: EventSink,
    ) -> Self {
        Self {
            id,
            cancel: parent.child_token(),
            events,
            source: None,
            prior_calls: None,
            idempotency_key: None,
            suspend_policy: SuspendPolicy::Never,
            call_slots: Arc::new(Semaphore::new(limits.max_concurrent as usize)),
            limits,
            calls_made: Arc::default(),
            recorded_calls: Arc::default(),
            approved_keys: Arc::default(),
            notes: ScopeNotes::default(),
            resources: ScopeResources::default(),
        }
    }

    /// Ends the scope: cancels its calls and drops its resources before it returns.
    pub fn end(&self) {
        self.cancel.cancel();
        self.resources.release();
    }

    /// Waits for a write to the ledger. After the scope is cancelled, waits at most for the time
    /// that its calls have to stop. The ledger makes the write in any case.
    pub async fn wait_for_write(
        &self,
        write: impl Future<Output = Result<(), LedgerError>>,
    ) -> Result<(), LedgerError> {
        let stopped = async {
            self.cancel.cancelled().await;
            tokio::time::sleep(self.limits.abort_grace).await;
        };
        tokio::select! {
            biased;
            written = write => written,
            () = stopped => Ok(()),
        }
    }

    /// Returns how many more calls the scope may make.
    pub fn calls_left(&self) -> u32 {
        self.limits
            .max_calls
            .saturating_sub(self.calls_made.load(Ordering::Relaxed))
    }

    /// Returns what the calls recorded so far mean as a whole to a run that resumes this one.
    pub fn resume_as(&self) -> ResumeAs {
        ResumeAs::of_run(self.lock_recorded_calls().values().copied())
    }

    /// Takes note of what a recorded call means to a run that resumes this one.
    pub(crate) fn note_resume_as(&self, call_id: &str, resume_as: ResumeAs) {
        self.lock_recorded_calls()
            .insert(call_id.to_owned(), resume_as);
    }

    fn lock_recorded_calls(&self) -> MutexGuard<'_, BTreeMap<String, ResumeAs>> {
        self.recorded_calls
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a snapshot for another process. `open_calls` calls are not counted, because the
    /// restored scope makes them again.
    pub fn snapshot(&self, open_calls: usize) -> ScopeSnapshot {
        let made = self.calls_made.load(Ordering::Relaxed);
        ScopeSnapshot {
            calls_made: made.saturating_sub(open_calls as u32),
            approved_keys: self
                .approved_keys
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .cloned()
                .collect(),
            prior: self.prior_calls.as_ref().map(|prior| prior.snapshot()),
            recorded_calls: self.lock_recorded_calls().clone(),
            notes: self.notes.lock().clone(),
        }
    }

    /// Restores budget, approvals and notes from a snapshot.
    pub fn restore(&self, snapshot: &ScopeSnapshot) {
        self.calls_made
            .store(snapshot.calls_made, Ordering::Relaxed);
        self.lock_recorded_calls()
            .extend(snapshot.recorded_calls.clone());
        self.notes.lock().extend(snapshot.notes.clone());
        self.approved_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(snapshot.approved_keys.iter().cloned());
        if let Some((prior, progress)) = self.prior_calls.as_ref().zip(snapshot.prior.as_ref()) {
            prior.restore(progress);
        }
    }

    /// Takes one call from the budget. The error says that none is left.
    pub(crate) fn reserve_call(&self) -> Result<(), CallFailure> {
        let max = self.limits.max_calls;
        let increment = |made| (made < max).then_some(made + 1);
        let updated = self
            .calls_made
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment);
        updated.map(drop).map_err(|_| {
            let message = format!("the script reached its limit of {max} tool calls");
            let mut failure = CallFailure::new(ErrorCode::ToolBudgetExceededError, message);
            failure.suggestions.push(
                "do more with each call (a wider pattern, one command for many files), or split \
                 the work into several scripts"
                    .into(),
            );
            failure
        })
    }

    /// Stores an approval for the rest of the scope.
    pub(crate) fn remember_approval(&self, approval_key: String) {
        self.approved_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(approval_key);
    }

    /// Stores an approval of every later call of the scope.
    pub(crate) fn approve_rest(&self) {
        self.remember_approval(ALL_CALLS.to_owned());
    }

    /// Returns whether an earlier approval in this scope covers the key.
    pub(crate) fn is_approved(&self, approval_key: &str) -> bool {
        let approved = self
            .approved_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        approved.contains(approval_key) || approved.contains(ALL_CALLS)
    }
}

impl ScriptSource {
    /// Returns a line and its neighbours with line numbers, the line itself marked with `>`.
    pub fn excerpt(&self, line: u32) -> String {
        let first = line.saturating_sub(1).max(1);
        let lines = self.0.lines().enumerate().skip(first as usize - 1).take(3);
        let mut out = String::new();
        for (index, text) in lines {
            let number = index as u32 + 1;
            let marker = if number == line { '>' } else { ' ' };
            out.push_str(&format!("{marker} {number:>3} | {text}\n"));
        }
        out
    }
}
