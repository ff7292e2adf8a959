//! The traits through which runs and calls are recorded, and through which scripts store values.
//!
//! `journal` implements them; this crate does no I/O.

use std::collections::BTreeMap;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{ApprovalRequest, CallRecord, ScriptToolCallOutput};

/// Records runs and calls before they start and after they end.
///
/// When the future of a write returns `Ok`, the record survives a crash of this process.
///
/// A write may have to wait for other writes, and its future may be dropped meanwhile. Once the
/// future was polled, the write is made in any case: in the order in which the futures were first
/// polled, and before any later read.
#[async_trait]
pub trait Ledger: Send + Sync {
    /// Returns the key of the keyed digests that identify calls.
    fn digest_key(&self) -> [u8; 32];
    /// Records a run before its script starts. A run that is already recorded is not changed.
    async fn record_run_start(&self, run: RunStart<'_>) -> Result<(), LedgerError>;
    /// Records a call before its tool is invoked.
    async fn record_call_start(&self, call: CallStart<'_>) -> Result<(), LedgerError>;
    /// Records the end of a call, or that it never started.
    async fn record_call_end(&self, call: CallEnd<'_>) -> Result<(), LedgerError>;
    /// Records an approval request of a run.
    async fn record_approval_request(
        &self,
        run: &str,
        request: &ApprovalRequest,
    ) -> Result<(), LedgerError>;
    /// Records how an approval request ended: one text per call, in the order of the request.
    async fn record_approval_answers(
        &self,
        request_id: &str,
        answers: &[String],
    ) -> Result<(), LedgerError>;
    /// Stores a snapshot of a run that waits only for approvals; the run may still continue in this
    /// process. The snapshot is deleted as soon as a call or the end of the run is recorded.
    async fn save_suspension(&self, run: &str, state: Vec<u8>) -> Result<(), LedgerError>;
    /// Claims a run before it continues from a suspended state. Only one process can claim a run:
    /// the others get [`LedgerError::ClaimedByOther`], here and for every later record of the run.
    async fn claim_run(&self, run: &str) -> Result<(), LedgerError>;
    /// Returns whether another process requested that the run stops. Polled while a run is active.
    async fn is_cancel_requested(&self, _run: &str) -> bool {
        false
    }
    /// Records the end of a run. `recording` holds what the script received from its host, for
    /// replay; `None` if it is incomplete.
    async fn record_run_end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError>;
    /// Records start and end of a run that made no calls, in one write. If an earlier
    /// `record_run_start` of the run is still queued or was written, only the end is added.
    async fn record_run_start_and_end(
        &self,
        run: RunStart<'_>,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        self.record_run_start(run).await?;
        self.record_run_end(output, recording).await
    }
}

/// Stores the values that scripts of a session share with `store` and `load`, as JSON text. Writes
/// follow the rules of [`Ledger`].
#[async_trait]
pub trait ScriptStoreBackend: Send + Sync {
    /// Returns the value of a key.
    async fn get(&self, key: &str) -> Result<Option<String>, LedgerError>;
    /// Stores all values, or none if it fails.
    async fn put(&self, values: BTreeMap<String, String>) -> Result<(), LedgerError>;
    /// Returns the size of all stored values, in bytes.
    async fn total_bytes(&self) -> Result<usize, LedgerError>;
}

/// A run before it starts.
#[derive(Debug, Clone, Copy)]
pub struct RunStart<'a> {
    /// Id of the run.
    pub id: &'a str,
    /// The script as written.
    pub source: &'a str,
    /// Working directory of the run.
    pub directory: &'a str,
    /// Id of the session the run belongs to.
    pub session: &'a str,
    /// Seed of `Math.random`.
    pub seed: &'a str,
    /// Id of the run that this run resumes.
    pub resumes: Option<&'a str>,
    /// Saved configuration from which the same tools can be assembled when the run is restored.
    pub saved_config: &'a str,
}

/// A call before its tool is invoked.
#[derive(Debug, Clone, Copy)]
pub struct CallStart<'a> {
    /// Id of the run or turn the call belongs to.
    pub run: &'a str,
    /// Id of the call, unique in its run or turn.
    pub id: &'a str,
    /// Canonical name of the tool.
    pub tool: &'a str,
    /// Arguments of the call in canonical form.
    pub args: &'a Value,
    /// Keyed digest of tool and arguments.
    pub digest: &'a str,
    /// Whether the call changes nothing.
    pub read_only: bool,
    /// Line of the call in the script, 1-based. `None` outside scripts.
    pub line: Option<u32>,
    /// Id of the recorded call of the resumed run that this call repeats.
    pub prior_call: Option<&'a str>,
    /// How long the call waited for a free slot, in milliseconds. `None` if it did not wait.
    pub queued_ms: Option<f64>,
}

/// A call that ended or never started.
#[derive(Debug, Clone, Copy)]
pub struct CallEnd<'a> {
    /// Id of the run or turn the call belongs to.
    pub run: &'a str,
    /// Outcome of the call.
    pub record: &'a CallRecord,
    /// Returned value. `None` if the call did not succeed.
    pub value: Option<&'a Value>,
    /// Text that a model read instead of the value; of a cancelled call, what it had written.
    pub shown: Option<&'a str>,
    /// What the call means to a run that resumes this one.
    pub resume_as: ResumeAs,
    /// Details of a call whose start was not recorded. `None` if it was.
    pub start_details: Option<&'a StartDetails>,
}

/// What a recorded call means to a run that resumes its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeAs {
    /// The call failed, never ran, or only read: an identical call runs.
    Rerun,
    /// The call succeeded and changed something or cost money: an identical call returns its
    /// result.
    Reuse,
    /// The call may have changed something and its outcome is unknown: the script has to decide.
    Undecided,
}

impl ResumeAs {
    /// Returns what a run with these calls means as a whole. A failed run should be resumed,
    /// instead of running its script anew, unless this is `Rerun`. If it is `Undecided`, the script
    /// that resumes it has to decide at least one call.
    pub fn of_run(calls: impl IntoIterator<Item = Self>) -> Self {
        calls.into_iter().max().unwrap_or(Self::Rerun)
    }

    /// Returns the meaning of a call that was started and whose end was not recorded.
    pub fn without_end(read_only: bool) -> Self {
        match read_only {
            true => Self::Rerun,
            false => Self::Undecided,
        }
    }

    /// Returns the name that a ledger stores, the same as in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rerun => "rerun",
            Self::Reuse => "reuse",
            Self::Undecided => "undecided",
        }
    }
}

/// Returns the id of the call that retries this one without confinement.
pub fn retry_call_id(id: &str) -> String {
    format!("{id}{RETRY_SUFFIX}")
}

/// Returns the id of the first attempt at a call: its own id, or that of the call it retries.
pub fn first_attempt_id(id: &str) -> &str {
    id.strip_suffix(RETRY_SUFFIX).unwrap_or(id)
}

const RETRY_SUFFIX: &str = ".again";

/// Details of a call whose start was not recorded: it was answered without running, or it started a
/// task.
#[derive(Debug, Clone, PartialEq)]
pub struct StartDetails {
    /// Id of the recorded call of the resumed run that this call reuses or repeats.
    pub prior_call: Option<String>,
    /// Arguments of the call in canonical form.
    pub args: Value,
    /// Whether the call changes nothing.
    pub read_only: bool,
}

/// Why a record could not be written or read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerError {
    /// Another process has claimed the run. This process must not continue it.
    ClaimedByOther,
    /// Another run has already resumed the run. Nothing was recorded.
    AlreadyResumed {
        /// Id of the run to resume.
        run: String,
        /// Id of the run that resumed it.
        by: String,
    },
    /// The disk or a quota is full. The message is one line.
    DiskFull(String),
    /// The database cannot be reached, and nothing was recorded. The message is one line.
    Unavailable(String),
    /// The storage failed. The message is one line.
    Failed(String),
}

impl std::fmt::Display for LedgerError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ClaimedByOther => f.write_str("another process has claimed the run"),
            Self::AlreadyResumed { run, by } => write!(f, "{run} was resumed by {by}"),
            Self::DiskFull(message) | Self::Unavailable(message) | Self::Failed(message) => {
                f.write_str(message)
            }
        }
    }
}

impl std::error::Error for LedgerError {}
