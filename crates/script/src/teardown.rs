//! The end of a run: its calls are stopped, and what they came to is collected.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::clock::sleep_until;
use crate::context::Start;
use crate::in_flight::GuestCall;
use crate::preview::preview;
use crate::run::Run;
use crate::state::{RunEnd, RunState};

/// Time calls have to stop after they are cancelled. Each call has a grace period of its own, which
/// is shorter.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// A run that has ended in this process.
pub(crate) struct EndedRun {
    pub(crate) end: RunEnd,
    pub(crate) calls: Vec<CallRecord>,
    /// Results of finished calls: call, tool, JSON.
    pub(crate) results: Vec<(String, String, String)>,
    pub(crate) dispatched: u32,
    pub(crate) heap_peak: u64,
}

impl Run<'_> {
    /// Runs the script and brings every call to an end.
    pub(crate) async fn run_to_end(mut self, context: Value) -> EndedRun {
        let mut end = match self.drive(context).await {
            Ok(value) => RunEnd::Returned(value),
            Err(end) => end,
        };
        let unfinished = match (&end, self.context.start) {
            (RunEnd::Suspended | RunEnd::TakenOver, _) => {
                self.calls.drop_pending(CallStatus::NotStarted);
                Vec::new()
            }
            (_, Start::Replay(recorded)) => self.calls.end_as_recorded(recorded),
            (end, _) => {
                let wait = matches!(end, RunEnd::Returned(_)) && self.context.allow_detached;
                self.stop_calls(wait).await
            }
        };
        self.mention(&unfinished, &mut end);
        if self.state == RunState::TakenOver {
            end = RunEnd::TakenOver;
        }
        let log = self.calls.log;
        if let RunEnd::Returned(value) = &end
            && !log.unstoppable.is_empty()
        {
            end = RunEnd::Failed(detached(&log.unstoppable, value.as_deref()));
        }
        let dispatched = log.dispatched;
        let (calls, results) = log.finish();
        EndedRun {
            end,
            calls,
            results,
            dispatched,
            heap_peak: self.heap_peak,
        }
    }

    /// Ends every call and returns those that were pending. `wait` gives them as much time as a
    /// script has.
    async fn stop_calls(&mut self, wait: bool) -> Vec<GuestCall> {
        let pending = self.calls.in_order();
        let cancel = self.context.scope.cancel.clone();
        if wait {
            let limit = Instant::now() + self.context.timeout;
            self.settle_until(limit, &cancel).await;
        }
        cancel.cancel();
        let limit = Instant::now() + STOP_TIMEOUT;
        self.settle_until(limit, &CancellationToken::new()).await;
        self.calls.drop_pending(CallStatus::OutcomeUnknown);
        pending
    }

    /// Takes reports until no call is pending, the limit is reached, or `cancel` is cancelled.
    async fn settle_until(&mut self, limit: Instant, cancel: &CancellationToken) {
        while !self.calls.pending.is_empty() && self.state != RunState::TakenOver {
            tokio::select! {
                biased;
                () = sleep_until(Some(limit)) => return,
                () = cancel.cancelled() => return,
                // If another process took the run over, the state says so.
                Some(report) = self.calls.reports.recv() => { let _ = self.take_report(report); }
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
    }

    /// Mentions calls that were pending at the end in the script's warnings or its error.
    fn mention(&mut self, unfinished: &[GuestCall], end: &mut RunEnd) {
        let described = unfinished
            .iter()
            .filter_map(|call| self.calls.describe_unfinished(call));
        match end {
            RunEnd::Returned(_) => {
                for description in described {
                    self.context.output().warn(format!(
                        "{description}, and was stopped: write `await` for what the script should wait for"
                    ));
                }
                // A call in the queue counts as aborted, like one that ran; its error tells them
                // apart.
                for call in self.calls.log.records.iter_mut().flatten() {
                    if call.status == CallStatus::NotStarted {
                        call.status = CallStatus::Aborted;
                    }
                }
            }
            RunEnd::Failed(error) if error.code == ErrorCode::ScriptRuntimeError => {
                let suggestions =
                    described.map(|description| format!("{description}: was it awaited?"));
                error.suggestions.extend(suggestions.take(3));
            }
            RunEnd::Failed(error)
                if error.code == ErrorCode::ScriptTimeoutError && error.line.is_none() =>
            {
                if let Some(first) = unfinished.first() {
                    (error.line, error.column) = first.at.unzip();
                    error.call_id = Some(first.call_id.clone());
                    error.tool_name = Some(first.tool.clone());
                }
            }
            _ => {}
        }
    }
}

fn detached(unstoppable: &[String], value: Option<&str>) -> ScriptError {
    let message = format!(
        "the script ended while calls were running that did not stop: {}",
        unstoppable.join(", ")
    );
    let error = ScriptError::new(ErrorCode::DetachedPromiseError, Phase::Finalizing, message)
        .suggest("await every call before the script returns");
    match value.and_then(|json| serde_json::from_str::<Value>(json).ok()) {
        // Shortened as JSON, so that it stays JSON.
        Some(value) => {
            let returned = serde_json::from_str(&preview(&value, 8 << 10)).unwrap_or(Value::Null);
            error.with("returned", returned)
        }
        None => error,
    }
}
