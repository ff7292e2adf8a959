//! Scripts whose ledger has to wait: for a lock that another process holds, or for a server.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use selvedge_protocol::{
    Answer, ApprovalRequest, CallStatus, ErrorCode, Intent, Ledger, LedgerError, Limits, RunStart,
    ScriptToolCallOutput, Settled, Shelf,
};
use selvedge_script::{RunOptions, Session};
use support::{Bench, Says};
use tokio_util::sync::CancellationToken;

/// A test that hangs ends after this long.
const PATIENCE: Duration = Duration::from_secs(60);
/// Far less than that, and more than a run takes to stop.
const SOON_MS: f64 = 20_000.0;

/// Whose write of one kind, and every write after it, never comes back.
#[derive(Default)]
struct Slow {
    waits_at: &'static str,
    begun: Mutex<Vec<&'static str>>,
    /// Cancelled when that write is begun.
    reached: CancellationToken,
}

impl Slow {
    async fn write(&self, kind: &'static str) {
        self.begun.lock().unwrap().push(kind);
        if kind == self.waits_at {
            self.reached.cancel();
        }
        if self.reached.is_cancelled() {
            std::future::pending().await
        }
    }
}

#[async_trait]
impl Ledger for Slow {
    fn digest_key(&self) -> [u8; 32] {
        [0; 32]
    }
    async fn begin(&self, _: RunStart<'_>) -> Result<(), LedgerError> {
        self.write("begin").await;
        Ok(())
    }
    async fn intend(&self, _: Intent<'_>) -> Result<(), LedgerError> {
        self.write("intend").await;
        Ok(())
    }
    async fn settle(&self, _: Settled<'_>) -> Result<(), LedgerError> {
        self.write("settle").await;
        Ok(())
    }
    async fn ask(&self, _: &str, _: &ApprovalRequest) -> Result<(), LedgerError> {
        self.write("ask").await;
        Ok(())
    }
    async fn answer(&self, _: &str, _: &[String]) -> Result<(), LedgerError> {
        self.write("answer").await;
        Ok(())
    }
    async fn suspend(&self, _: &str, _: Vec<u8>) -> Result<(), LedgerError> {
        self.write("suspend").await;
        Ok(())
    }
    async fn go_on(&self, _: &str) -> Result<(), LedgerError> {
        self.write("go_on").await;
        Ok(())
    }
    async fn end(&self, _: &ScriptToolCallOutput, _: Option<Vec<u8>>) -> Result<(), LedgerError> {
        self.write("end").await;
        Ok(())
    }
    async fn begin_and_end(
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
impl Shelf for Slow {
    async fn get(&self, _: &str) -> Result<Option<String>, LedgerError> {
        self.write("load").await;
        Ok(None)
    }
    async fn put(&self, _: BTreeMap<String, String>) -> Result<(), LedgerError> {
        self.write("put").await;
        Ok(())
    }
    async fn bytes(&self) -> Result<usize, LedgerError> {
        Ok(0)
    }
}

fn run(ledger: &Arc<Slow>, source: &str, change: RunOptions) -> ScriptToolCallOutput {
    let asking = |orchestrator: selvedge_tools::Orchestrator| {
        let person = Arc::new(Says::new(Answer::Once));
        orchestrator
            .with_ledger(ledger.clone())
            .with_approver(person)
    };
    let bench = Bench::with(asking, Limits::default());
    let options = RunOptions {
        session: Session::on(ledger.clone()),
        ..change
    };
    bench.run_with(source, options, PATIENCE)
}

fn slow(waits_at: &'static str) -> Arc<Slow> {
    Arc::new(Slow {
        waits_at,
        ..Slow::default()
    })
}

const PATCH: &str = "return await tools.applyPatch({patch: 'x'})";
const REMOVE: &str = "return await tools.exec({command: ['rm', 'x']})";

#[test]
fn a_deadline_is_kept_while_the_ledger_waits() {
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
        assert!(output.metadata.duration_ms < SOON_MS, "{waits_at}");
        // The end of the run is handed over, and its answer does not wait for it.
        let begun = ledger.begun.lock().unwrap();
        assert_eq!(begun.last(), Some(&"end"), "{waits_at}: {begun:?}");
        let locked = |warning: &String| warning.contains("the journal is locked");
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
        ("go_on", REMOVE),
        ("load", "return load('key')"),
    ] {
        let ledger = slow(waits_at);
        let options = RunOptions {
            cancel: ledger.reached.clone(),
            timeout: Some(PATIENCE),
            ..RunOptions::default()
        };
        let output = run(&ledger, source, options);
        let error = output.error.unwrap();
        assert_eq!(error.code, ErrorCode::ScriptCancelledError, "{waits_at}");
        assert!(output.metadata.duration_ms < SOON_MS, "{waits_at}");
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
fn what_a_script_returned_is_answered_although_its_end_is_not_recorded_yet() {
    for (waits_at, source, expected) in [
        ("end", "return 1", &["the end of the run"][..]),
        (
            "put",
            "store('key', 1); return 1",
            &["what the script stored", "the end of the run"],
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
        assert_eq!(ledger.begun.lock().unwrap().last(), Some(&"end"));
    }
}
