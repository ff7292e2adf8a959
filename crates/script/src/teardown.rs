//! Ends a run: stops its calls and collects their records.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use selvedge_protocol::{CallRecord, CallStatus, ErrorCode, Phase, ScriptError};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::call_log::PartialResult;
use crate::clock::sleep_until;
use crate::context::StartMode;
use crate::in_flight::GuestCall;
use crate::run::ScriptRun;
use crate::state::{ActiveRunState, RunExit};
use crate::truncate_json::truncate_json;

/// Time that calls have to stop after they are cancelled. Each call also has its own grace period,
/// which is shorter.
const STOP_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum number of unfinished calls that are described one by one.
const MAX_UNFINISHED_DESCRIBED: usize = 3;

/// A run that has ended in this process.
pub(crate) struct EndedRun {
    pub(crate) exit: RunExit,
    pub(crate) calls: Vec<CallRecord>,
    /// Results of completed calls.
    pub(crate) results: Vec<PartialResult>,
    pub(crate) invoked_calls: u32,
    pub(crate) heap_peak: u64,
}

impl ScriptRun<'_> {
    /// Runs the script, then ends all its calls.
    pub(crate) async fn run_to_end(mut self, script_context_json: Value) -> EndedRun {
        let mut end = match self.drive(script_context_json).await {
            Ok(value) => RunExit::Returned(value),
            Err(end) => end,
        };
        let unfinished = match (&end, self.context.start_mode) {
            (RunExit::Suspended | RunExit::ClaimedByOther, _) => {
                self.calls.drop_pending(CallStatus::NotStarted);
                Vec::new()
            }
            (_, StartMode::Replay(recorded)) => self.calls.end_as_recorded(recorded),
            (end, _) => {
                let wait = matches!(end, RunExit::Returned(_)) && self.context.allow_detached;
                self.stop_calls(wait).await
            }
        };
        self.report_unfinished(&unfinished, &mut end);
        if self.state == ActiveRunState::ClaimedByOther {
            end = RunExit::ClaimedByOther;
        }
        let mut log = self.calls.log;
        if let RunExit::Returned(value) = &end
            && !log.unstoppable.is_empty()
        {
            end = detached_promise_error(&log.unstoppable, value.as_deref()).into();
        }
        for warning in std::mem::take(&mut log.warnings) {
            self.context.lock_output().warn(warning);
        }
        let invoked_calls = log.invoked_count;
        let (calls, results) = log.into_records_and_results();
        EndedRun {
            exit: end,
            calls,
            results,
            invoked_calls,
            heap_peak: self.heap_peak,
        }
    }

    /// Ends all calls and returns those that were pending. With `wait`, they may first run for as
    /// long as the script's time limit; then they are cancelled.
    async fn stop_calls(&mut self, wait: bool) -> Vec<GuestCall> {
        let pending = self.calls.pending_in_order();
        let cancel = self.context.scope.cancel.clone();
        if wait {
            let limit = Instant::now() + self.context.timeout;
            self.handle_reports_until(limit, &cancel).await;
        }
        cancel.cancel();
        let limit = Instant::now() + STOP_TIMEOUT;
        self.handle_reports_until(limit, &CancellationToken::new())
            .await;
        self.calls.drop_pending(CallStatus::OutcomeUnknown);
        pending
    }

    /// Handles reports until no call is pending, `limit` is reached, or `cancel` is cancelled.
    async fn handle_reports_until(&mut self, limit: Instant, cancel: &CancellationToken) {
        while !self.calls.pending.is_empty() && self.state != ActiveRunState::ClaimedByOther {
            tokio::select! {
                biased;
                () = sleep_until(Some(limit)) => return,
                () = cancel.cancelled() => return,
                // An error means that another process took the run over, which the state shows.
                Some(report) = self.calls.reports.recv() => { let _ = self.handle_report(report); }
                Some(()) = self.calls.batches.next(), if !self.calls.batches.is_empty() => {}
            }
        }
    }

    /// Reports calls that were pending at the end in the script's warnings or its error.
    fn report_unfinished(&mut self, unfinished: &[GuestCall], end: &mut RunExit) {
        let described = unfinished
            .iter()
            .filter_map(|call| self.calls.describe_unfinished(call));
        match end {
            RunExit::Returned(_) => {
                let described: Vec<String> = described.collect();
                for description in described.iter().take(MAX_UNFINISHED_DESCRIBED) {
                    self.context.lock_output().warn(format!(
                        "{description}, and was cancelled: write `await` before calls that the \
                         script needs"
                    ));
                }
                let others = described.len().saturating_sub(MAX_UNFINISHED_DESCRIBED);
                if others > 0 {
                    self.context.lock_output().warn(format!(
                        "{others} more calls had not finished when the script ended, and were \
                         cancelled"
                    ));
                }
                // Whether an unawaited call still waited in the queue depends only on timing. So
                // all of them are reported as aborted.
                for call in self.calls.log.records.iter_mut().flatten() {
                    if call.status == CallStatus::NotStarted {
                        call.status = CallStatus::Aborted;
                    }
                }
            }
            RunExit::Failed(error) if error.code == ErrorCode::ScriptRuntimeError => {
                let suggestions = described.map(|description| {
                    format!(
                        "{description}, and was cancelled: await it, or use Promise.allSettled to \
                         let it finish"
                    )
                });
                error
                    .suggestions
                    .extend(suggestions.take(MAX_UNFINISHED_DESCRIBED));
            }
            RunExit::Failed(error)
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

fn detached_promise_error(unstoppable: &[String], value: Option<&str>) -> ScriptError {
    let message = format!(
        "the script ended while calls were running that could not be stopped: {}",
        unstoppable.join(", ")
    );
    let error = ScriptError::new(ErrorCode::DetachedPromiseError, Phase::Finalizing, message)
        .suggest("await every call before the script returns");
    match value.and_then(|json| serde_json::from_str::<Value>(json).ok()) {
        // A preview, so that the metadata stays valid JSON.
        Some(value) => {
            let returned =
                serde_json::from_str(&truncate_json(&value, 8 << 10)).unwrap_or(Value::Null);
            error.with("returned", returned)
        }
        None => error,
    }
}
