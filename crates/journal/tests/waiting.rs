//! Async callers of the journal while another process has locked its file.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use rusqlite::Connection;
use selvedge_journal::{Journal, JournalError, StoredCallState, StoredRunState};
use selvedge_protocol::{
    CallEnd, CallRecord, CallStart, CallStatus, Ledger, ResumeAs, RunStart, RunStatus,
    ScriptStoreBackend, ScriptToolCallOutput,
};
use serde_json::json;
use support::WaitForResult;

/// Most time of an operation that does not wait for the lock. Less than the time for which a
/// connection waits for it.
const MAX_UNBLOCKED: Duration = Duration::from_secs(10);

/// A lock on the file, as another process that writes holds it.
struct Lock(Connection);

impl Lock {
    fn take(folder: &Path) -> Self {
        let file = Connection::open(folder.join("journal.sqlite")).unwrap();
        file.busy_timeout(MAX_UNBLOCKED).unwrap();
        file.execute_batch("BEGIN EXCLUSIVE").unwrap();
        Self(file)
    }

    fn release(self) {
        self.0.execute_batch("ROLLBACK").unwrap();
    }
}

fn start(id: &str) -> RunStart<'_> {
    RunStart {
        id,
        source: "return 1",
        directory: "/work",
        session: "s",
        seed: "7",
        resumes: None,
        saved_config: "",
    }
}

async fn start_call(journal: &Journal, id: &str) {
    let args = json!({"path": "a"});
    let start = CallStart {
        run: "scr_a",
        id,
        tool: "exec",
        args: &args,
        digest: "d",
        read_only: false,
        line: None,
        prior_call: None,
        queued_ms: None,
    };
    journal.record_call_start(start).await.unwrap();
}

async fn end_call(journal: &Journal, id: &str) {
    let record = CallRecord {
        id: id.to_owned(),
        tool: "exec".to_owned(),
        status: CallStatus::Done,
        reused: false,
        duration_ms: 1.0,
        args_digest: "d".to_owned(),
        line: None,
        error: None,
        exit_code: None,
    };
    let value = json!(1);
    let end = CallEnd {
        run: "scr_a",
        record: &record,
        value: Some(&value),
        shown: None,
        resume_as: ResumeAs::Reuse,
        start_details: None,
    };
    journal.record_call_end(end).await.unwrap();
}

async fn end(journal: &Journal, id: &str) {
    let mut output = ScriptToolCallOutput::new(id, "call");
    output.status = RunStatus::Completed;
    journal.record_run_end(&output, None).await.unwrap();
}

/// Polls a write once and drops it. It must neither finish nor block the thread.
fn poll_and_drop(write: impl Future<Output = ()>) {
    let began = Instant::now();
    assert_eq!(write.now_or_never(), None, "the file is locked");
    assert!(began.elapsed() < MAX_UNBLOCKED, "{:?}", began.elapsed());
}

fn locked() -> (tempfile::TempDir, Arc<Journal>, Lock) {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    journal.record_run_start(start("scr_a")).wait().unwrap();
    let lock = Lock::take(dir.path());
    (dir, journal, lock)
}

#[test]
fn dropped_writes_are_made_in_order_when_the_lock_is_released() {
    let (_dir, journal, lock) = locked();
    for n in 1..=20 {
        let id = format!("tool_{n}");
        poll_and_drop(start_call(&journal, &id));
        poll_and_drop(end_call(&journal, &id));
    }
    poll_and_drop(end(&journal, "scr_a"));
    lock.release();
    // A later write comes after the queued ones.
    journal.record_run_start(start("scr_b")).wait().unwrap();
    let run = journal.run("scr_a").unwrap();
    assert_eq!(run.summary.state, StoredRunState::Completed);
    let calls: Vec<_> = run
        .calls
        .iter()
        .map(|call| (&call.id[..], call.state))
        .collect();
    let expected: Vec<String> = (1..=20).map(|n| format!("tool_{n}")).collect();
    let done = StoredCallState::Ended(CallStatus::Done);
    let expected: Vec<_> = expected.iter().map(|id| (&id[..], done)).collect();
    assert_eq!(calls, expected);
    let began: Vec<_> = run.calls.iter().map(|call| call.started_ns).collect();
    assert!(began.is_sorted());
}

#[test]
fn flushing_or_dropping_the_journal_makes_the_queued_writes() {
    let (dir, journal, lock) = locked();
    poll_and_drop(start_call(&journal, "tool_1"));
    let flushing = std::thread::spawn({
        let journal = journal.clone();
        move || journal.flush()
    });
    poll_and_drop(end(&journal, "scr_a"));
    lock.release();
    flushing.join().unwrap().unwrap();
    journal.flush().unwrap();
    let other = Journal::open(dir.path()).unwrap();
    let run = other.run("scr_a").unwrap();
    assert_eq!(
        (run.calls.len(), run.summary.state),
        (1, StoredRunState::Completed)
    );
    // A thread may still make the last write. It keeps the journal open until then.
    let lock = Lock::take(dir.path());
    poll_and_drop(async { journal.record_run_start(start("scr_b")).await.unwrap() });
    poll_and_drop(end(&journal, "scr_b"));
    drop(journal);
    lock.release();
    let began = Instant::now();
    while !other
        .run("scr_b")
        .is_ok_and(|run| run.summary.state == StoredRunState::Completed)
    {
        assert!(began.elapsed() < MAX_UNBLOCKED, "the run was not written");
        std::thread::yield_now();
    }
}

#[test]
fn a_run_whose_start_was_dropped_is_recorded_once_with_its_end() {
    for behind in [false, true] {
        let (_dir, journal, lock) = locked();
        if behind {
            journal.enable_write_behind();
        }
        poll_and_drop(async { journal.record_run_start(start("scr_b")).await.unwrap() });
        poll_and_drop(async { journal.record_run_start(start("scr_b")).await.unwrap() });
        poll_and_drop(async { journal.record_run_start(start("scr_c")).await.unwrap() });
        let mut output = ScriptToolCallOutput::new("scr_b", "call");
        output.status = RunStatus::Completed;
        let ended =
            journal.record_run_start_and_end(start("scr_b"), &output, Some(b"recording".to_vec()));
        assert_eq!(
            ended.now_or_never().is_some(),
            behind,
            "a row is only queued"
        );
        lock.release();
        journal.flush().unwrap();
        let run = journal.run("scr_b").unwrap();
        assert_eq!(run.summary.state, StoredRunState::Completed);
        assert_eq!(run.recording.as_deref(), Some(&b"recording"[..]));
        assert_eq!(
            journal.run("scr_c").unwrap().summary.state,
            StoredRunState::Running
        );
        // A run that has ended cannot start again under its id.
        assert!(journal.record_run_start(start("scr_b")).wait().is_err());
    }
}

#[test]
fn a_read_waits_for_earlier_queued_writes() {
    let (_dir, journal, lock) = locked();
    let script_values = journal.script_values("s");
    poll_and_drop(async {
        script_values
            .put([("key".into(), "1".into())].into())
            .await
            .unwrap()
    });
    let reading = std::thread::spawn(move || script_values.get("key").wait());
    lock.release();
    assert_eq!(reading.join().unwrap().unwrap().as_deref(), Some("1"));
}

#[test]
fn a_job_that_panics_returns_an_error_and_the_next_one_runs() {
    let (_dir, journal, lock) = locked();
    lock.release();
    let broken = journal.spawn_blocking(|_| -> Result<(), JournalError> { panic!("on purpose") });
    let next = journal.spawn_blocking(|journal| journal.run("scr_a"));
    assert!(matches!(broken.wait(), Err(JournalError::Panicked)));
    assert_eq!(next.wait().unwrap().summary.id, "scr_a");
}
