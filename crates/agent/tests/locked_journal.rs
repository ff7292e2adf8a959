//! Scripts on a single-threaded runtime while another process has locked the journal's file.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use selvedge_agent::Session;
use selvedge_journal::{Journal, StoredCallState, StoredRunState};
use selvedge_protocol::{
    CallStatus, ErrorCode, EventSink, RunStatus, RuntimeEvent, ScriptToolCallOutput,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Orchestrator, Registry, tool};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Time limit of each wait. Less than the time for which a connection waits for a lock.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct HeldArgs {}

struct TestSetup {
    dir: tempfile::TempDir,
    journal: Arc<Journal>,
    harness: Harness,
    /// Lets calls of the tool `held` return.
    release: Arc<Notify>,
}

impl TestSetup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let release = Arc::new(Notify::new());
        let mut registry = Registry::new();
        let held = release.clone();
        let held = tool(
            "held",
            "Returns when it is released.",
            move |_: HeldArgs| {
                let held = held.clone();
                async move {
                    held.notified().await;
                    Ok("released")
                }
            },
        );
        registry.register(held).unwrap();
        let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
        Self {
            dir,
            journal,
            harness: Harness::new(orchestrator).unwrap(),
            release,
        }
    }

    fn start(&self, id: &str, source: &'static str, timeout: Duration) -> RunningScript {
        let (sender, events) = mpsc::unbounded_channel();
        let cancel = CancellationToken::new();
        let options = RunOptions {
            id: Some(id.to_owned()),
            events: EventSink::new(move |event| _ = sender.send(event)),
            cancel: cancel.clone(),
            timeout: Some(timeout),
            ..RunOptions::default()
        };
        let harness = self.harness.clone();
        let run = async move { harness.run_with(source.as_bytes(), options).await };
        RunningScript {
            run: tokio::spawn(run),
            events,
            cancel,
        }
    }
}

/// A running script.
struct RunningScript {
    run: JoinHandle<ScriptToolCallOutput>,
    events: mpsc::UnboundedReceiver<RuntimeEvent>,
    cancel: CancellationToken,
}

impl RunningScript {
    async fn wait_for_event(&mut self, matches: fn(&RuntimeEvent) -> bool) {
        let received = async { while !matches(&self.events.recv().await.unwrap()) {} };
        tokio::time::timeout(WAIT_TIMEOUT, received).await.unwrap();
    }

    async fn output(self) -> ScriptToolCallOutput {
        let ended = tokio::time::timeout(WAIT_TIMEOUT, self.run).await;
        ended.unwrap().unwrap()
    }
}

fn lock(folder: &Path) -> Connection {
    let file = Connection::open(folder.join("journal.sqlite")).unwrap();
    file.busy_timeout(WAIT_TIMEOUT).unwrap();
    file.execute_batch("BEGIN EXCLUSIVE").unwrap();
    file
}

fn is_notification(event: &RuntimeEvent) -> bool {
    matches!(event, RuntimeEvent::ScriptNotify { .. })
}

#[tokio::test]
async fn scripts_end_on_time_while_the_journal_is_locked_and_are_recorded_later() {
    let setup = TestSetup::new();
    let minute = Duration::from_secs(60);
    let mut calls = setup.start("scr_calls", "return await tools.held({})", minute);
    let mut ticks = setup.start(
        "scr_ticks",
        "for (;;) { await new Promise((tick) => setTimeout(tick, 100)); notify('tick') }",
        minute,
    );
    calls
        .wait_for_event(|event| matches!(event, RuntimeEvent::CallStarted { .. }))
        .await;
    ticks.wait_for_event(is_notification).await;
    let lock = lock(setup.dir.path());
    let since = Instant::now();
    // A script whose start cannot be recorded before its first call times out.
    let late = setup.start(
        "scr_late",
        "return await tools.held({})",
        Duration::from_millis(300),
    );
    // The call returns, and its result cannot be recorded yet.
    setup.release.notify_one();
    let late = late.output().await;
    assert_eq!(late.error.unwrap().code, ErrorCode::ScriptTimeoutError);
    assert_eq!(late.calls, []);
    // Another script has made progress meanwhile, and continues to.
    ticks.events.try_recv().unwrap();
    ticks.wait_for_event(is_notification).await;
    ticks.cancel.cancel();
    let ticks = ticks.output().await;
    assert_eq!(ticks.error.unwrap().code, ErrorCode::ScriptCancelledError);
    calls.cancel.cancel();
    let output = calls.output().await;
    assert_eq!(output.calls[0].status, CallStatus::Done);
    assert!(since.elapsed() < WAIT_TIMEOUT, "{:?}", since.elapsed());
    // Creating a session waits for the lock without blocking the thread.
    let begin = Session::begin(&setup.journal, "/work");
    tokio::pin!(begin);
    assert!(futures_util::poll!(&mut begin).is_pending());
    lock.execute_batch("ROLLBACK").unwrap();
    let session = begin.await.unwrap();
    let id = session.id().to_owned();
    drop(session);
    setup.journal.flush().unwrap();
    let other = Journal::open(setup.dir.path()).unwrap();
    other.claim_session(&id).unwrap();
    for (id, code) in [
        ("scr_late", ErrorCode::ScriptTimeoutError),
        ("scr_ticks", ErrorCode::ScriptCancelledError),
        ("scr_calls", ErrorCode::ScriptCancelledError),
    ] {
        let run = other.run(id).unwrap();
        let output = run.output.unwrap();
        assert_eq!(
            (run.summary.state, output.status),
            (StoredRunState::Failed, RunStatus::Error)
        );
        assert_eq!(output.error.unwrap().code, code, "{id}");
    }
    let call = &other.run("scr_calls").unwrap().calls[0];
    assert_eq!(call.state, StoredCallState::Ended(CallStatus::Done));
    assert_eq!(call.value, Some("released".into()));
}
