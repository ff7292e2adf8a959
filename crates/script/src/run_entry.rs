//! A run's entry in the ledger, written before the script has any effect outside the sandbox.
//!
//! A script that only computes has no effect: its start and its end are one write. The entry of any
//! other run is written before its first call, before it first waits, or when it has computed for
//! [`ENTRY_DELAY`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use selvedge_protocol::{
    ErrorCode, Ledger, LedgerError, Phase, RunStart, ScriptError, ScriptToolCallOutput,
};

/// Time a script may compute before its entry is written.
pub(crate) const ENTRY_DELAY: Duration = Duration::from_millis(20);

/// The entry of one run, and whether it is written.
pub(crate) struct LedgerRunEntry<'a> {
    ledger: &'a Arc<dyn Ledger>,
    start: RunStart<'a>,
    state: Mutex<EntryState>,
}

#[derive(Clone, Copy, PartialEq)]
enum EntryState {
    Unconfirmed,
    Written,
    /// The ledger refused the entry: another run has resumed the run that this one would resume.
    Refused,
}

impl<'a> LedgerRunEntry<'a> {
    pub(crate) fn new(ledger: &'a Arc<dyn Ledger>, start: RunStart<'a>) -> Self {
        Self {
            ledger,
            start,
            state: Mutex::new(EntryState::Unconfirmed),
        }
    }

    /// Writes the entry unless it is written.
    pub(crate) async fn ensure_written(&self) -> Result<(), ScriptError> {
        if *self.state() == EntryState::Written {
            return Ok(());
        }
        let Err(error) = self.ledger.record_run_start(self.start).await else {
            *self.state() = EntryState::Written;
            return Ok(());
        };
        if let LedgerError::AlreadyResumed { by, .. } = &error {
            *self.state() = EntryState::Refused;
            let message = format!("the script was not run: {error}");
            return Err(ScriptError::new(
                ErrorCode::ScriptRejectedError,
                Phase::Executing,
                message,
            )
            .suggest(format!("resume {by} when it has ended")));
        }
        let message = format!(
            "the script was stopped before it had any effect: \
             cannot write the run to the journal: {error}"
        );
        Err(
            ScriptError::new(ErrorCode::HarnessInternalError, Phase::Executing, message)
                .suggest("check free space and permissions of the folder $SELVEDGE_HOME"),
        )
    }

    /// Writes the end of the run. Also writes its entry, unless it is known to be written.
    /// Writes nothing if the ledger refused the entry.
    pub(crate) async fn write_end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let state = *self.state();
        match state {
            EntryState::Refused => Ok(()),
            EntryState::Written => self.ledger.record_run_end(output, recording).await,
            EntryState::Unconfirmed => {
                let start = self.start;
                self.ledger
                    .record_run_start_and_end(start, output, recording)
                    .await
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, EntryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
