//! A run's first line in the ledger, written before the script touches anything outside itself.
//!
//! A script that only computes touches nothing: its beginning and its end are one write. Any other is written down
//! before its first call, before it first waits, and when it computes for longer than [`SOON`], so that others see it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use selvedge_protocol::{
    ErrorCode, Ledger, LedgerError, Phase, RunStart, ScriptError, ScriptToolCallOutput,
};

/// How long a script may compute before it is written down that it runs.
pub(crate) const SOON: Duration = Duration::from_millis(20);

pub(crate) struct FirstLine<'a> {
    ledger: &'a Arc<dyn Ledger>,
    start: RunStart<'a>,
    written: AtomicBool,
    /// Another run does what is left to do.
    refused: AtomicBool,
}

impl<'a> FirstLine<'a> {
    pub(crate) fn new(ledger: &'a Arc<dyn Ledger>, start: RunStart<'a>) -> Self {
        Self {
            ledger,
            start,
            written: AtomicBool::new(false),
            refused: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.written.load(Ordering::Relaxed)
    }

    /// Writes it, unless it is written.
    pub(crate) fn write(&self) -> Result<(), ScriptError> {
        if self.is_written() {
            return Ok(());
        }
        let begun = self.ledger.begin(&self.start);
        self.written.store(begun.is_ok(), Ordering::Relaxed);
        begun.map_err(|error| {
            if let LedgerError::AlreadyResumed { by, .. } = &error {
                self.refused.store(true, Ordering::Relaxed);
                return ScriptError::new(
                    ErrorCode::ScriptRejectedError,
                    Phase::Executing,
                    format!("nothing was done: {error}"),
                )
                .suggest(format!("resume {by} when it has ended"));
            }
            let message = format!(
                "the script was stopped before it did anything, because that it runs could not be written down: {error}"
            );
            ScriptError::new(ErrorCode::HarnessInternalError, Phase::Executing, message)
        })
    }

    /// The last line, and the first with it where it is missing.
    pub(crate) fn end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<&[u8]>,
    ) -> Result<(), LedgerError> {
        if self.refused.load(Ordering::Relaxed) {
            // It never was.
            return Ok(());
        }
        match self.is_written() {
            true => self.ledger.end(output, recording),
            false => self.ledger.begin_and_end(&self.start, output, recording),
        }
    }
}
