//! Scripts whose ledger does not answer, because another process holds a lock or a server is slow.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use selvedge_protocol::{
    ApprovalRequest, CallDecision, CallEnd, CallStart, CallStatus, ErrorCode, Ledger, LedgerError,
    Limits, RunStart, ScriptStoreBackend, ScriptToolCallOutput,
};
use selvedge_script::{RunOptions, ScriptStore};
use support::{FixedApprover, TestFixture};
use tokio_util::sync::CancellationToken;

/// Time limit of a test that hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);
/// Most milliseconds of a run that is stopped while its ledger waits. Far less than
/// [`TEST_TIMEOUT`].
const MAX_STOP_MS: f64 = 20_000.0;

/// A ledger whose first write of one kind, and every write after it, never returns.
#[derive(Default)]
struct SlowLedger {
    waits_at: &'static str,
    started: Mutex<Vec<&'static str>>,
    /// Cancelled when that write starts.
    reached: CancellationToken,
}

impl SlowLedger {
    async fn write(&self, kind: &'static str) {
        self.started.lock().unwrap().push(kind);
        if kind == self.waits_at {
            self.reached.cancel();
        }
        if self.reached.is_cancelled() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Ledger for SlowLedger {
    fn digest_key(&self) -> [u8; 32] {
        [0; 32]
    }
    async fn record_run_start(&self, _: RunStart<'_>) -> Result<(), LedgerError> {
        self.write("begin").await;
        Ok(())
    }
    async fn record_call_start(&self, _: CallStart<'_>) -> Result<(), LedgerError> {
        self.write("intend").await;
        Ok(())
    }
    async fn record_call_end(&self, _: CallEnd<'_>) -> Result<(), LedgerError> {
        self.write("settle").await;
        Ok(())
    }
    async fn record_approval_request(
        &self,
        _: &str,
        _: &ApprovalRequest,
    ) -> Result<(), LedgerError> {
        self.write("ask").await;
        Ok(())
    }
    async fn record_approval_answers(&self, _: &str, _: &[String]) -> Result<(), LedgerError> {
        self.write("answer").await;
        Ok(())
    }
    async fn save_suspension(&self, _: &str, _: Vec<u8>) -> Result<(), LedgerError> {
        self.write("suspend").await;
        Ok(())
    }
    async fn claim_run(&self, _: &str) -> Result<(), LedgerError> {
        self.write("claim").await;
        Ok(())
    }
    async fn record_run_end(
        &self,
        _: &ScriptToolCallOutput,
        _: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        self.write("end").await;
        Ok(())
    }
    async fn record_run_start_and_end(
        &self,
        _: RunStart<'_>,
        _: &ScriptToolCallOutput,
        _: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        self.write("end").await;
        Ok(())
    }
}

#[async_trait]
impl ScriptStoreBackend for SlowLedger {
    async fn get(&self, _: &str) -> Result<Option<String>, LedgerError> {
        self.write("load").await;
        Ok(None)
    }
    async fn put(&self, _: BTreeMap<String, String>) -> Result<(), LedgerError> {
        self.write("put").await;
        Ok(())
    }
    async fn total_bytes(&self) -> Result<usize, LedgerError> {
        Ok(0)
    }
}

fn run(ledger: &Arc<SlowLedger>, source: &str, options: RunOptions) -> ScriptToolCallOutput {
    let configure = |orchestrator: selvedge_tools::Orchestrator| {
        let approver = Arc::new(FixedApprover::new(CallDecision::Once));
        orchestrator
            .with_ledger(ledger.clone())
            .with_approver(approver)
    };
    let fixture = TestFixture::with(configure, Limits::default());
    let options = RunOptions {
        store: ScriptStore::new(ledger.clone()),
        ..options
    };
    fixture.run_with(source, options, TEST_TIMEOUT)
}

fn slow(waits_at: &'static str) -> Arc<SlowLedger> {
    Arc::new(SlowLedger {
        waits_at,
        ..SlowLedger::default()
    })
}

const PATCH: &str = "return await tools.applyPatch({patch: 'x'})";
const REMOVE: &str = "return await tools.exec({command: ['rm', 'x']})";

#[test]
fn a_script_times_out_while_the_ledger_waits() {
    for (waits_at, source, status) in [
        ("begin", PATCH, None),
        ("intend", PATCH, Some(CallStatus::NotStarted)),
        ("settle", PATCH, Some(CallStatus::Done)),
        ("load", "return load('key')", None),
    ] {
        let ledger = slow(waits_at);
        let options = RunOptions {
            timeout: Some(Duration::from_millis(300)),
            ..RunOptions::default()
        };
        let output = run(&ledger, source, options);
        let error = output.error.unwrap();
        assert_eq!(error.code, ErrorCode::ScriptTimeoutError, "{waits_at}");
        let call = output.calls.first().map(|call| call.status);
        assert_eq!(call, status, "{waits_at}");
        assert!(output.metadata.duration_ms < MAX_STOP_MS, "{waits_at}");
        // The write of the run's end has started, and the result does not wait for it.
        let started = ledger.started.lock().unwrap();
        assert_eq!(started.last(), Some(&"end"), "{waits_at}: {started:?}");
        let locked = |warning: &String| warning.contains("the journal has not answered");
        assert!(output.warnings.iter().any(locked), "{:?}", output.warnings);
    }
}

#[test]
fn a_script_is_cancelled_while_the_ledger_waits() {
    for (waits_at, source) in [
        ("begin", PATCH),
        ("intend", PATCH),
        ("settle", PATCH),
        ("ask", REMOVE),
        ("claim", REMOVE),
        ("load", "return load('key')"),
    ] {
        let ledger = slow(waits_at);
        let options = RunOptions {
            cancel: ledger.reached.clone(),
            timeout: Some(TEST_TIMEOUT),
            ..RunOptions::default()
        };
        let output = run(&ledger, source, options);
        let error = output.error.unwrap();
        assert_eq!(error.code, ErrorCode::ScriptCancelledError, "{waits_at}");
        assert!(output.metadata.duration_ms < MAX_STOP_MS, "{waits_at}");
        let unknown =
            |call: &selvedge_protocol::CallRecord| call.status == CallStatus::OutcomeUnknown;
        assert!(
            !output.calls.iter().any(unknown),
            "{waits_at}: {:?}",
            output.calls
        );
    }
}

#[test]
fn a_result_is_returned_before_the_end_of_the_run_is_written() {
    for (waits_at, source, expected) in [
        (
            "end",
            "return 1",
            &["the end of the run is written when it does"][..],
        ),
        (
            "put",
            "store('key', 1); return 1",
            &[
                "the values that the script stored are saved when it does",
                "the end of the run is written when it does",
            ],
        ),
    ] {
        let ledger = slow(waits_at);
        let output = run(&ledger, source, RunOptions::default());
        assert_eq!(output.output_json.as_deref(), Some("1"));
        assert_eq!(
            output.warnings.len(),
            expected.len(),
            "{:?}",
            output.warnings
        );
        for (warning, expected) in output.warnings.iter().zip(expected) {
            assert!(warning.contains(expected), "{warning}");
        }
        assert_eq!(ledger.started.lock().unwrap().last(), Some(&"end"));
    }
}
