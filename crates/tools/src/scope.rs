//! The scope of calls: the lifetime of a run, turn or task, with its limits and resources.

use std::any::Any;
use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use selvedge_protocol::{ErrorCode, EventSink, LedgerError, Limits};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{CallFailure, PriorCalls, PriorProgress};

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
    pub source: Option<Source>,
    /// Recorded calls of the run that the script resumes.
    pub prior: Option<Arc<PriorCalls>>,
    /// Idempotency key for the calls, instead of one per call. Set if the scope repeats a recorded
    /// call.
    pub(crate) idempotency_key: Option<String>,
    /// Whether the owner suspends the scope when an approval is deferred.
    pub rest: Rest,
    pub(crate) limits: ScopeLimits,
    pub(crate) places: Arc<Semaphore>,
    made: Arc<AtomicU32>,
    agreed: Arc<Mutex<HashSet<String>>>,
    pub(crate) belongings: Belongings,
}

/// Whether a scope can be suspended while it waits for an approval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rest {
    /// It cannot be suspended. Calls whose approval is deferred are denied.
    #[default]
    Never,
    /// Its owner suspends it on [`crate::Report::Later`].
    AtQuestions,
}

/// Budget and approvals that a scope has used, to restore it in another process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    #[serde(rename = "made")]
    made: u32,
    #[serde(rename = "agreed")]
    agreed: BTreeSet<String>,
    prior: Option<PriorProgress>,
}

/// Resources that outlive their call and end with the scope: background processes, terminals.
/// Clones share them.
#[derive(Clone, Default)]
pub struct Belongings(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    things: Vec<Box<dyn Any + Send>>,
    ended: bool,
}

impl Belongings {
    /// Owns a resource until the scope ends, then drops it. If the scope has ended, drops it at
    /// once.
    pub fn keep(&self, resource: impl Send + 'static) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !state.ended {
            state.things.push(Box::new(resource));
        }
    }

    fn end(&self) {
        let resources = {
            let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            state.ended = true;
            std::mem::take(&mut state.things)
        };
        // Outside the lock: dropping a resource may take long.
        drop(resources);
    }
}

impl std::fmt::Debug for Belongings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Belongings")
    }
}

/// Source text of a script.
#[derive(Debug, Clone)]
pub struct Source(pub Arc<str>);

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
            prior: None,
            idempotency_key: None,
            rest: Rest::Never,
            places: Arc::new(Semaphore::new(limits.max_concurrent as usize)),
            limits,
            made: Arc::default(),
            agreed: Arc::default(),
            belongings: Belongings::default(),
        }
    }

    /// Ends the scope: cancels its calls and drops its resources before it returns.
    pub fn end(&self) {
        self.cancel.cancel();
        self.belongings.end();
    }

    /// Waits for a write to the ledger. After the scope is cancelled, waits at most for the time
    /// that its calls have to stop. The ledger makes the write in any case.
    pub async fn written(
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
            .saturating_sub(self.made.load(Ordering::Relaxed))
    }

    /// Returns a snapshot for another process. `open_calls` calls are not counted, because the
    /// restored scope makes them again.
    pub fn standing(&self, open_calls: usize) -> Standing {
        let made = self.made.load(Ordering::Relaxed);
        Standing {
            made: made.saturating_sub(open_calls as u32),
            agreed: self
                .agreed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .iter()
                .cloned()
                .collect(),
            prior: self.prior.as_ref().map(|prior| prior.snapshot()),
        }
    }

    /// Restores budget and approvals from a snapshot.
    pub fn stand_in(&self, snapshot: &Standing) {
        self.made.store(snapshot.made, Ordering::Relaxed);
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(snapshot.agreed.iter().cloned());
        if let Some((prior, progress)) = self.prior.as_ref().zip(snapshot.prior.as_ref()) {
            prior.restore(progress);
        }
    }

    /// Takes one call from the budget. The error says that none is left.
    pub(crate) fn take_call(&self) -> Result<(), CallFailure> {
        let max = self.limits.max_calls;
        let increment = |made| (made < max).then_some(made + 1);
        let updated = self
            .made
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
    pub(crate) fn agree(&self, approval_key: String) {
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(approval_key);
    }

    /// Returns whether an earlier approval in this scope covers the key.
    pub(crate) fn has_agreed(&self, approval_key: &str) -> bool {
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(approval_key)
    }
}

impl Source {
    /// Returns a line and its neighbours with line numbers, the line itself marked with `>`.
    pub fn around(&self, line: u32) -> String {
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
