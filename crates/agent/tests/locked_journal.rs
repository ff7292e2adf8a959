//! Scripts on one thread while another process has locked the journal's file.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use selvedge_agent::Session;
use selvedge_journal::{CallState, Journal, RunState};
use selvedge_protocol::{CallStatus, ErrorCode, Event, EventSink, RunStatus, ScriptToolCallOutput};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Orchestrator, Registry, tool};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Less than the time for which a connection waits for a lock.
const PATIENCE: Duration = Duration::from_secs(15);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct Nothing {}

struct Desk {
    dir: tempfile::TempDir,
    journal: Arc<Journal>,
    harness: Harness,
    /// Lets calls of the tool `held` return.
    release: Arc<Notify>,
}

impl Desk {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let release = Arc::new(Notify::new());
        let mut registry = Registry::new();
        let held = release.clone();
        let held = tool("held", "Returns when it is released.", move |_: Nothing| {
            let held = held.clone();
            async move {
                held.notified().await;
                Ok("released")
            }
        });
        registry.register(held).unwrap();
        let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
        Self {
            dir,
            journal,
            harness: Harness::new(orchestrator).unwrap(),
            release,
        }
    }

    fn start(&self, id: &str, source: &'static str, timeout: Duration) -> Running {
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
        Running {
            run: tokio::spawn(run),
            events,
            cancel,
        }
    }
}

/// A script that runs.
struct Running {
    run: JoinHandle<ScriptToolCallOutput>,
    events: mpsc::UnboundedReceiver<Event>,
    cancel: CancellationToken,
}

impl Running {
    async fn hears(&mut self, what: fn(&Event) -> bool) {
        let heard = async { while !what(&self.events.recv().await.unwrap()) {} };
        tokio::time::timeout(PATIENCE, heard).await.unwrap();
    }

    async fn ended(self) -> ScriptToolCallOutput {
        let ended = tokio::time::timeout(PATIENCE, self.run).await;
        ended.unwrap().unwrap()
    }
}

fn lock(folder: &Path) -> Connection {
    let file = Connection::open(folder.join("journal.sqlite")).unwrap();
    file.busy_timeout(PATIENCE).unwrap();
    file.execute_batch("BEGIN EXCLUSIVE").unwrap();
    file
}

fn says(event: &Event) -> bool {
    matches!(event, Event::Notify { .. })
}

#[tokio::test]
async fn deadlines_other_scripts_and_cancellation_go_on_and_nothing_is_lost() {
    let desk = Desk::new();
    let minute = Duration::from_secs(60);
    let mut calls = desk.start("scr_calls", "return await tools.held({})", minute);
    let mut ticks = desk.start(
        "scr_ticks",
        "for (;;) { await new Promise((tick) => setTimeout(tick, 100)); notify('tick') }",
        minute,
    );
    calls
        .hears(|event| matches!(event, Event::CallStarted { .. }))
        .await;
    ticks.hears(says).await;
    let locked = lock(desk.dir.path());
    let since = Instant::now();
    // A script that has to be recorded before its first call ends at its deadline.
    let late = desk.start(
        "scr_late",
        "return await tools.held({})",
        Duration::from_millis(300),
    );
    // The result of a call waits to be recorded.
    desk.release.notify_one();
    let late = late.ended().await;
    assert_eq!(late.error.unwrap().code, ErrorCode::ScriptTimeoutError);
    assert_eq!(late.calls, []);
    // Meanwhile another script has made progress, and makes more.
    ticks.events.try_recv().unwrap();
    ticks.hears(says).await;
    ticks.cancel.cancel();
    let ticks = ticks.ended().await;
    assert_eq!(ticks.error.unwrap().code, ErrorCode::ScriptCancelledError);
    calls.cancel.cancel();
    let output = calls.ended().await;
    assert_eq!(output.calls[0].status, CallStatus::Done);
    assert!(since.elapsed() < PATIENCE, "{:?}", since.elapsed());
    // A session can neither be begun nor released, and waits for that without the thread.
    let beginning = Session::begin(&desk.journal, "/work");
    tokio::pin!(beginning);
    assert!(futures_util::poll!(&mut beginning).is_pending());
    locked.execute_batch("ROLLBACK").unwrap();
    let session = beginning.await.unwrap();
    let id = session.id().to_owned();
    drop(session);
    desk.journal.flush().unwrap();
    let other = Journal::open(desk.dir.path()).unwrap();
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
            (RunState::Failed, RunStatus::Error)
        );
        assert_eq!(output.error.unwrap().code, code, "{id}");
    }
    let call = &other.run("scr_calls").unwrap().calls[0];
    assert_eq!(call.state, CallState::Ended(CallStatus::Done));
    assert_eq!(call.value, Some("released".into()));
}
