//! Suspends runs: saves snapshots to the ledger, and claims a saved run before it continues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use selvedge_protocol::{ErrorCode, Ledger, LedgerError, Limits, Phase, ScriptError};
use selvedge_sandbox::{Execution, Fault, GuestSnapshot};
use selvedge_tools::ScopeSnapshot;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use crate::call_log::CallLog;
use crate::clock::RemainingTime;
use crate::context::RunContext;
use crate::in_flight::{CallAnswer, GuestCall};

/// Shortest time between two snapshots of a run that waits for a person while its timers fire.
const SAVE_INTERVAL: Duration = Duration::from_secs(1);

/// Saves snapshots of a run to the ledger.
#[derive(Clone, Copy)]
pub(crate) struct Suspender<'a> {
    ledger: Option<&'a Arc<dyn Ledger>>,
    last_saved: Option<Instant>,
}

/// Why a snapshot was not saved, or why a saved run must not continue here.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SuspendError {
    #[error("another process has claimed the run")]
    ClaimedByOther,
    #[error("cannot save a snapshot of the script: {0}")]
    Snapshot(#[from] Fault),
    #[error("cannot save a snapshot of the script: {0}")]
    Serialize(#[from] serde_json::Error),
    #[error("cannot update the run in the journal: {0}")]
    Ledger(LedgerError),
}

impl From<LedgerError> for SuspendError {
    fn from(error: LedgerError) -> Self {
        match error {
            LedgerError::ClaimedByOther => Self::ClaimedByOther,
            other => Self::Ledger(other),
        }
    }
}

impl From<SuspendError> for ScriptError {
    fn from(error: SuspendError) -> Self {
        let code = ErrorCode::HarnessInternalError;
        Self::new(code, Phase::Executing, error.to_string())
    }
}

impl<'a> Suspender<'a> {
    pub(crate) fn new(ledger: Option<&'a Arc<dyn Ledger>>) -> Self {
        Self {
            ledger,
            last_saved: None,
        }
    }

    /// Whether runs can be suspended. This needs a ledger, which stores the snapshots.
    pub(crate) fn is_enabled(&self) -> bool {
        self.ledger.is_some()
    }

    /// Returns the earliest time of the next snapshot. `None` means now.
    ///
    /// While only timers fire, at most one snapshot per second is saved; an older snapshot stays
    /// valid until the next call.
    pub(crate) fn next_save_time(&self) -> Option<Instant> {
        self.last_saved.map(|saved| saved + SAVE_INTERVAL)
    }

    /// Saves the bytes of a [`Suspension`].
    pub(crate) async fn save(&self, run_id: &str, state: Vec<u8>) -> Result<(), SuspendError> {
        match self.ledger {
            Some(ledger) => Ok(ledger.save_suspension(run_id, state).await?),
            None => Ok(()),
        }
    }

    /// Sets the time of the last saved snapshot to now.
    pub(crate) fn mark_saved(&mut self) {
        self.last_saved = Some(Instant::now());
    }

    /// Claims a saved run for this process, so that no other process restores it.
    pub(crate) async fn claim(&self, run_id: &str) -> Result<(), SuspendError> {
        match self.ledger {
            Some(ledger) => Ok(ledger.claim_run(run_id).await?),
            None => Ok(()),
        }
    }
}

/// A suspended run, as the ledger stores it: everything that another process needs to restore it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Suspension {
    /// The build of the engine that made the snapshot.
    pub(crate) build: String,
    /// The id that the model gave the script call.
    pub(crate) call_id: String,
    pub(crate) seed: u64,
    /// A [`crate::recording::Recording`], replayed if the snapshot cannot be restored.
    pub(crate) recording: Box<RawValue>,
    /// The time limit.
    pub(crate) timeout: Duration,
    /// What remains of the time limit.
    pub(crate) remaining: Duration,
    /// What remains of the time limit of the whole run. `None` in runs that an older version
    /// suspended.
    #[serde(default)]
    pub(crate) run_remaining: Option<Duration>,
    pub(crate) calls: SuspendedCalls,
    /// The [`crate::output_buffer::OutputBuffer`], as JSON.
    pub(crate) output: Box<RawValue>,
    pub(crate) scope: ScopeSnapshot,
    /// The snapshot of the guest. Stored as raw bytes after the JSON.
    #[serde(skip)]
    pub(crate) snapshot_bytes: Vec<u8>,
}

/// Calls and timers of a suspended run.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SuspendedCalls {
    /// Guest ids of timers, with the time until they fire.
    pub(crate) timers: Vec<(u32, Duration)>,
    /// Pending calls, all of which wait for a person.
    pub(crate) waiting: Vec<GuestCall>,
    /// Answers that the guest has not received yet.
    pub(crate) held_answers: Vec<CallAnswer>,
    #[serde(flatten)]
    pub(crate) log: CallLog,
}

/// Why a suspended run cannot be restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    /// The stored state is incomplete.
    #[error("the saved state is truncated")]
    Truncated,
    /// The stored state does not have the form that this version writes.
    #[error("the saved state cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The script no longer compiles.
    #[error("the script does not compile: {0}")]
    Compile(String),
    /// The snapshot needs another build of the engine, and the recording is incomplete.
    #[error(
        "it was suspended by another build of the engine, and its recording is too long to replay"
    )]
    OtherBuild,
}

impl Suspension {
    /// Takes a snapshot of the guest, with its calls. `remaining` is the unused part of its
    /// time limits.
    pub(crate) fn of(
        run: &RunContext<'_>,
        guest: &mut dyn Execution,
        remaining: RemainingTime,
        calls: SuspendedCalls,
    ) -> Result<Self, SuspendError> {
        let snapshot = guest.snapshot()?;
        let open_calls = calls.waiting.iter();
        let open_calls: Vec<_> = open_calls.map(|call| run.reach_of(&call.path)).collect();
        Ok(Self {
            build: snapshot.build_id,
            call_id: run.call_id.to_owned(),
            seed: run.seed,
            recording: to_raw_value(&run.lock_recorder().recording)?,
            timeout: run.timeout,
            remaining: remaining.script,
            run_remaining: Some(remaining.run),
            scope: run.scope.snapshot(&open_calls),
            calls,
            output: to_raw_value(&*run.lock_output())?,
            snapshot_bytes: snapshot.bytes,
        })
    }

    /// Returns what remains of the time limits. The run's cannot exceed the current limits.
    pub(crate) fn remaining_time(&self, limits: &Limits) -> RemainingTime {
        let max = Duration::from_millis(limits.max_timeout_ms);
        RemainingTime {
            script: self.remaining,
            run: self
                .run_remaining
                .map_or(max, |remaining| remaining.min(max)),
        }
    }

    /// Serializes as the length of the JSON, the JSON, and the snapshot.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let json = serde_json::to_vec(self)?;
        let length = (json.len() as u64).to_le_bytes();
        Ok([&length[..], &json, &self.snapshot_bytes].concat())
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, RestoreError> {
        let (length, rest) = bytes.split_first_chunk().ok_or(RestoreError::Truncated)?;
        let length = usize::try_from(u64::from_le_bytes(*length));
        let (json, snapshot) = length
            .ok()
            .and_then(|length| rest.split_at_checked(length))
            .ok_or(RestoreError::Truncated)?;
        let mut suspension: Self = serde_json::from_slice(json)?;
        suspension.snapshot_bytes = snapshot.to_vec();
        Ok(suspension)
    }

    /// Parses one of the parts that are stored as raw JSON.
    pub(crate) fn parse_part<T: DeserializeOwned>(part: &RawValue) -> Result<T, RestoreError> {
        Ok(serde_json::from_str(part.get())?)
    }

    pub(crate) fn snapshot(&self) -> GuestSnapshot {
        GuestSnapshot {
            build_id: self.build.clone(),
            bytes: self.snapshot_bytes.clone(),
        }
    }
}
