//! The scope of calls: the lifetime of a run, turn or task, with its limits and resources.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    CallReach, ErrorCode, EventSink, LedgerError, LimitKind, LimitSurface, Limits, ResumeAs,
    ToolSpec,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{CallFailure, PriorCalls, PriorProgress};

/// The approval key that covers every call. No other key equals it: keys of calls start with the
/// name of a tool, keys of other actions contain spaces.
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
    /// Recorded calls of the chain that the script resumes, to reuse or to decide.
    pub prior_calls: Option<Arc<PriorCalls>>,
    /// Idempotency key for the calls, instead of one per call. Set if the scope repeats a recorded
    /// call.
    pub(crate) idempotency_key: Option<String>,
    /// Whether the owner suspends the scope when an approval is deferred.
    pub suspend_policy: SuspendPolicy,
    pub(crate) limits: ScopeLimits,
    pub(crate) call_slots: Arc<Semaphore>,
    calls_made: Arc<CallCounts>,
    /// What each recorded call means to a run that resumes this one, by call id.
    resume_as_by_call: Arc<Mutex<BTreeMap<String, ResumeAs>>>,
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

/// Calls that a scope has made.
#[derive(Debug, Default)]
struct CallCounts {
    /// Calls that leave the process.
    leaving: AtomicU32,
    /// Calls that stay in the process.
    local: AtomicU32,
}

impl CallCounts {
    fn of(&self, reach: CallReach) -> &AtomicU32 {
        match reach.leaves_process() {
            true => &self.leaving,
            false => &self.local,
        }
    }
}

/// Budget, approvals and notes of a scope, to restore it in another process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ScopeSnapshot {
    /// Calls that leave the process.
    calls_made: u32,
    /// Calls that stay in the process.
    #[serde(default)]
    file_calls_made: u32,
    approved_keys: BTreeSet<String>,
    prior: Option<PriorProgress>,
    resume_as_by_call: BTreeMap<String, ResumeAs>,
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
    /// Number of calls that leave the process.
    pub max_calls: u32,
    /// Number of other calls.
    pub max_file_calls: u32,
    /// Number of calls at the same time.
    pub max_concurrent: u32,
    /// How long a cancelled call may take to stop.
    pub abort_grace: Duration,
    /// Time limit of an approval request. `None` waits without limit.
    pub approval_timeout: Option<Duration>,
    /// Time limits of single tools in milliseconds, instead of their defaults.
    pub tool_timeouts_ms: Arc<BTreeMap<String, u64>>,
    /// Where the calls come from, which decides how an error says that a limit can be raised.
    pub surface: LimitSurface,
}

impl ScopeLimits {
    /// Returns the limits with another surface.
    pub fn on(mut self, surface: LimitSurface) -> Self {
        self.surface = surface;
        self
    }

    /// Returns the configured time limit of a tool.
    pub(crate) fn configured_timeout(&self, spec: &ToolSpec) -> Option<Duration> {
        let configured = &self.tool_timeouts_ms;
        let ms = configured
            .get(&spec.name)
            .or_else(|| configured.get(&spec.js_name))?;
        Some(Duration::from_millis(*ms))
    }

    /// Returns the failure of a call beyond the limit.
    fn budget_failure(&self, reach: CallReach) -> CallFailure {
        let max = self.max_calls_of(reach);
        let (kind, calls, instead) = match reach.leaves_process() {
            true => (
                LimitKind::Calls,
                "calls that leave the process",
                "make fewer calls: one command can do the work of many; or split the work into \
                 several scripts",
            ),
            false => (
                LimitKind::FileCalls,
                "file calls",
                "make fewer calls: one search or one command can read many files; or split the \
                 work into several scripts",
            ),
        };
        let message = format!("the script reached its limit of {max} {calls}");
        let mut failure = CallFailure::new(ErrorCode::ToolBudgetExceededError, message);
        let limits = Limits {
            max_tool_calls: self.max_calls,
            max_file_calls: self.max_file_calls,
            ..Limits::default()
        };
        failure.suggestions = vec![instead.to_owned()];
        failure
            .suggestions
            .extend(self.surface.raise_hint(kind, &limits));
        let key = LimitKind::METADATA_KEY.to_owned();
        failure.metadata.insert(key, kind.key().into());
        failure
    }

    fn max_calls_of(&self, reach: CallReach) -> u32 {
        match reach.leaves_process() {
            true => self.max_calls,
            false => self.max_file_calls,
        }
    }
}

impl From<&Limits> for ScopeLimits {
    fn from(limits: &Limits) -> Self {
        Self {
            max_calls: limits.max_tool_calls,
            max_file_calls: limits.max_file_calls,
            max_concurrent: limits.max_concurrent_tool_calls.max(1),
            abort_grace: Duration::from_millis(limits.abort_grace_ms),
            approval_timeout: (limits.approval_timeout_ms > 0)
                .then(|| Duration::from_millis(limits.approval_timeout_ms)),
            tool_timeouts_ms: Arc::new(limits.tool_timeouts_ms.clone()),
            surface: LimitSurface::default(),
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
            resume_as_by_call: Arc::default(),
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

    /// Returns how many more calls that leave the process the scope may make.
    pub fn calls_left(&self) -> u32 {
        let made = self.calls_made.leaving.load(Ordering::Relaxed);
        self.limits.max_calls.saturating_sub(made)
    }

    /// Returns whether the scope has made no call.
    pub fn is_unused(&self) -> bool {
        let CallCounts { leaving, local } = &*self.calls_made;
        [leaving, local]
            .iter()
            .all(|made| made.load(Ordering::Relaxed) == 0)
    }

    /// Returns what the calls recorded so far mean as a whole to a run that resumes this one.
    pub fn resume_as(&self) -> ResumeAs {
        ResumeAs::of_run(self.lock_resume_as_by_call().values().copied())
    }

    /// Returns the ids of the recorded calls that a run that resumes this one has to decide.
    pub fn undecided_calls(&self) -> BTreeSet<String> {
        let by_call = self.lock_resume_as_by_call();
        let undecided = by_call
            .iter()
            .filter(|(_, as_)| **as_ == ResumeAs::Undecided);
        undecided.map(|(id, _)| id.clone()).collect()
    }

    /// Takes note of what a recorded call means to a run that resumes this one.
    pub(crate) fn note_resume_as(&self, call_id: &str, resume_as: ResumeAs) {
        self.lock_resume_as_by_call()
            .insert(call_id.to_owned(), resume_as);
    }

    fn lock_resume_as_by_call(&self) -> MutexGuard<'_, BTreeMap<String, ResumeAs>> {
        self.resume_as_by_call
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a snapshot for another process. The open calls, of which the reach is given, are not
    /// counted, because the restored scope makes them again.
    pub fn snapshot(&self, open_calls: &[CallReach]) -> ScopeSnapshot {
        let made = |reach: CallReach| {
            let open = open_calls
                .iter()
                .filter(|open| open.leaves_process() == reach.leaves_process());
            let made = self.calls_made.of(reach).load(Ordering::Relaxed);
            made.saturating_sub(open.count() as u32)
        };
        ScopeSnapshot {
            calls_made: made(CallReach::Service),
            file_calls_made: made(CallReach::Local),
            approved_keys: self
                .approved_keys
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .cloned()
                .collect(),
            prior: self.prior_calls.as_ref().map(|prior| prior.snapshot()),
            resume_as_by_call: self.lock_resume_as_by_call().clone(),
            notes: self.notes.lock().clone(),
        }
    }

    /// Restores budget, approvals and notes from a snapshot.
    pub fn restore(&self, snapshot: &ScopeSnapshot) {
        let CallCounts { leaving, local } = &*self.calls_made;
        leaving.store(snapshot.calls_made, Ordering::Relaxed);
        local.store(snapshot.file_calls_made, Ordering::Relaxed);
        self.lock_resume_as_by_call()
            .extend(snapshot.resume_as_by_call.clone());
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
    pub(crate) fn reserve_call(&self, reach: CallReach) -> Result<(), CallFailure> {
        let max = self.limits.max_calls_of(reach);
        let increment = |made| (made < max).then_some(made + 1);
        let made = self.calls_made.of(reach);
        let updated = made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, increment);
        updated
            .map(drop)
            .map_err(|_| self.limits.budget_failure(reach))
    }

    /// Stores an approval for the rest of the scope.
    pub(crate) fn remember_approval(&self, approval_key: String) {
        self.approved_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(approval_key);
    }

    /// Stores an approval of every later call of the scope.
    pub(crate) fn approve_all_later_calls(&self) {
        self.remember_approval(ALL_CALLS.to_owned());
    }

    /// Returns whether an earlier approval in this scope covers the key.
    pub(crate) fn is_approved(&self, approval_key: &str) -> bool {
        self.is_key_approved(approval_key) || self.is_key_approved(ALL_CALLS)
    }

    /// Returns whether an approval of similar calls covers the key.
    pub(crate) fn is_key_approved(&self, approval_key: &str) -> bool {
        self.approved_keys
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(approval_key)
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
