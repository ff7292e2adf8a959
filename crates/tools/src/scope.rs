//! What a group of calls belongs to: a script, a turn, a session. It ends with its scope.

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

/// The owner of calls: their budget, their queue, and the word to stop.
#[derive(Debug, Clone)]
pub struct Scope {
    /// Names the owner in events and requests.
    pub id: String,
    /// Ends every call of the scope.
    pub cancel: CancellationToken,
    /// Where events go.
    pub events: EventSink,
    /// The text the calls come from, for showing the lines around one.
    pub source: Option<Source>,
    /// The recorded calls of the run that the scope's script resumes.
    pub prior: Option<Arc<PriorCalls>>,
    /// Sent with the scope's calls instead of a key of their own: the scope repeats a recorded call.
    pub(crate) idempotency_key: Option<String>,
    /// What becomes of it when a question is answered later.
    pub rest: Rest,
    pub(crate) limits: ScopeLimits,
    pub(crate) places: Arc<Semaphore>,
    made: Arc<AtomicU32>,
    agreed: Arc<Mutex<HashSet<String>>>,
    pub(crate) belongings: Belongings,
}

/// Whether a scope can be put away while a person is asked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Rest {
    /// It must have its answers now.
    #[default]
    Never,
    /// Its owner puts it away when it hears [`crate::Report::Later`].
    AtQuestions,
}

/// What a scope has used and been promised, so that another can stand in its place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Standing {
    made: u32,
    agreed: BTreeSet<String>,
    prior: Option<PriorProgress>,
}

/// What calls leave behind that lives as long as their scope: processes in the background, terminals.
/// Clones share it.
#[derive(Clone, Default)]
pub struct Belongings(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    things: Vec<Box<dyn Any + Send>>,
    ended: bool,
}

impl Belongings {
    /// Keeps something until the scope ends, then drops it; at once where it has ended.
    pub fn keep(&self, thing: impl Send + 'static) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.ended {
            kept.things.push(Box::new(thing));
        }
    }

    fn end(&self) {
        let things = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            kept.ended = true;
            std::mem::take(&mut kept.things)
        };
        drop(things);
    }
}

impl std::fmt::Debug for Belongings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Belongings")
    }
}

/// A script's text.
#[derive(Debug, Clone)]
pub struct Source(pub Arc<str>);

/// How much the calls of a scope may do.
#[derive(Debug, Clone)]
pub struct ScopeLimits {
    /// Calls in all.
    pub max_calls: u32,
    /// Calls at once.
    pub max_concurrent: u32,
    /// Time to stop in.
    pub abort_grace: Duration,
    /// Time a person has to answer; `None` waits for ever.
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
    /// A new scope below `parent`.
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

    /// Ends the scope: its calls are told to stop, and what they left behind is gone when this returns.
    pub fn end(&self) {
        self.cancel.cancel();
        self.belongings.end();
    }

    /// Waits for a write to the ledger; once the scope is cancelled, only as long as its calls have to stop. The
    /// ledger makes the write in any case.
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

    /// Calls that may still be made.
    pub fn calls_left(&self) -> u32 {
        self.limits
            .max_calls
            .saturating_sub(self.made.load(Ordering::Relaxed))
    }

    /// How the scope stands, but for so many calls that will be made anew.
    pub fn standing(&self, but: usize) -> Standing {
        Standing {
            made: self.made.load(Ordering::Relaxed).saturating_sub(but as u32),
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

    /// Stands in the place of another scope.
    pub fn stand_in(&self, place: &Standing) {
        self.made.store(place.made, Ordering::Relaxed);
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(place.agreed.iter().cloned());
        if let Some((prior, progress)) = self.prior.as_ref().zip(place.prior.as_ref()) {
            prior.restore(progress);
        }
    }

    /// Takes one call from the budget, if one is left.
    pub(crate) fn take_call(&self) -> Result<(), CallFailure> {
        let max = self.limits.max_calls;
        let took = |made| (made < max).then_some(made + 1);
        self.made.fetch_update(Ordering::Relaxed, Ordering::Relaxed, took).map(drop).map_err(|_| {
            let message = format!("this script may make {max} tool calls, and has made them all");
            let mut failure = CallFailure::new(ErrorCode::ToolBudgetExceededError, message);
            failure.suggestions.push("do more with each call (a wider pattern, one command for many files), or split the work into several scripts".into());
            failure
        })
    }

    /// Remembers what a person agreed to for the rest of the scope.
    pub(crate) fn agree(&self, to: String) {
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(to);
    }

    pub(crate) fn has_agreed(&self, to: &str) -> bool {
        self.agreed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .contains(to)
    }
}

impl Source {
    /// The line and its neighbours, numbered, the line itself marked.
    pub fn around(&self, line: u32) -> String {
        let first = line.saturating_sub(1).max(1);
        let lines = self.0.lines().enumerate().skip(first as usize - 1).take(3);
        let mut out = String::new();
        for (index, text) in lines {
            let number = index as u32 + 1;
            let mark = if number == line { '>' } else { ' ' };
            out.push_str(&format!("{mark} {number:>3} | {text}\n"));
        }
        out
    }
}
