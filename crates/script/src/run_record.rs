//! Records the start of a run in the ledger, before the script has any effect outside the sandbox,
//! and its end.
//!
//! A script that only computes has no effect: its start and its end are one write. The start of any
//! other run is recorded before its first call, before it first waits, or when it has computed for
//! [`RUN_START_DELAY`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    ErrorCode, Ledger, LedgerError, Phase, RunStart, ScriptError, ScriptToolCallOutput,
};

/// Time a script may compute before its start is recorded.
pub(crate) const RUN_START_DELAY: Duration = Duration::from_millis(20);

/// Records the start and the end of one run. Knows whether the start is recorded.
pub(crate) struct RunRecord<'a> {
    ledger: &'a Arc<dyn Ledger>,
    start: RunStart<'a>,
    state: Mutex<RunStartState>,
}

/// Whether the start of a run is recorded.
#[derive(Clone, Copy, PartialEq)]
enum RunStartState {
    /// It is not recorded, or the result of the write is not known: its future was dropped.
    Unconfirmed,
    Recorded,
    /// The ledger refused to record the start: another run has resumed the run that this one would
    /// resume.
    Refused,
}

impl<'a> RunRecord<'a> {
    pub(crate) fn new(ledger: &'a Arc<dyn Ledger>, start: RunStart<'a>) -> Self {
        Self {
            ledger,
            start,
            state: Mutex::new(RunStartState::Unconfirmed),
        }
    }

    /// Records the start unless it is recorded.
    pub(crate) async fn ensure_start_recorded(&self) -> Result<(), ScriptError> {
        if *self.state() == RunStartState::Recorded {
            return Ok(());
        }
        let Err(error) = self.ledger.record_run_start(self.start).await else {
            *self.state() = RunStartState::Recorded;
            return Ok(());
        };
        if let LedgerError::AlreadyResumed { by, .. } = &error {
            *self.state() = RunStartState::Refused;
            let message = format!("the script was stopped before it had any effect: {error}");
            return Err(ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Executing,
                message,
            )
            .suggest(format!("resume {by} when it has ended")));
        }
        let message = format!("the script was stopped before it had any effect: {error}");
        let hint = match error {
            LedgerError::DiskFull(_) => "free disk space, then run the script again",
            LedgerError::Unavailable(_) => {
                "run the script again when the database of the key `store` can be reached"
            }
            _ => "check the permissions of the folder $SELVEDGE_HOME",
        };
        Err(
            ScriptError::new(ErrorCode::HarnessInternalError, Phase::Executing, message)
                .suggest(hint),
        )
    }

    /// Records the end of the run. Also records its start, unless that is known to be recorded.
    /// Records nothing if the ledger refused the start.
    pub(crate) async fn record_end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let state = *self.state();
        match state {
            RunStartState::Refused => Ok(()),
            RunStartState::Recorded => self.ledger.record_run_end(output, recording).await,
            RunStartState::Unconfirmed => {
                let start = self.start;
                self.ledger
                    .record_run_start_and_end(start, output, recording)
                    .await
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, RunStartState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
