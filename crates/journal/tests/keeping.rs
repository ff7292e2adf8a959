//! What is kept, how long, and what is shown of it.
#![allow(clippy::unwrap_used, missing_docs)]

use selvedge_journal::{CallState, Filter, Journal, JournalError, Redactor, Retention, RunState};
use selvedge_protocol::{
    CallRecord, CallStatus, Intent, Ledger, RunMetadata, RunStart, RunStatus, ScriptToolCallOutput, Settled,
};
use serde_json::{Value, json};

fn begin(journal: &Journal, id: &str) {
    let start =
        RunStart { id, source: "return 1", directory: "/work", session: "s", seed: "7", resumes: None, setting: "" };
    journal.begin(&start).unwrap();
}

fn record(id: &str, status: CallStatus) -> CallRecord {
    CallRecord {
        id: id.into(),
        tool: "exec".into(),
        status,
        reused: false,
        duration_ms: 1.0,
        args_digest: "d".into(),
        line: Some(1),
        error: None,
    }
}

fn call(journal: &Journal, run: &str, id: &str, value: Option<&Value>) {
    let args = json!({"command": ["echo", "x".repeat(5000)]});
    journal
        .intend(&Intent { run, id, tool: "exec", args: &args, digest: "d", read_only: false, line: Some(1) })
        .unwrap();
    if let Some(value) = value {
        let record = record(id, CallStatus::Done);
        journal.settle(&Settled { run, record: &record, value: Some(value) }).unwrap();
    }
}

fn end(journal: &Journal, id: &str) {
    let output = ScriptToolCallOutput {
        id: id.into(),
        call_id: "c".into(),
        status: RunStatus::Completed,
        output_json: Some("1".into()),
        error: None,
        summary: None,
        output: vec![],
        calls: vec![],
        logs: vec![],
        warnings: vec![],
        metadata: RunMetadata::default(),
    };
    journal.end(&output, None).unwrap();
}

#[test]
fn payloads_come_back_exactly_and_large_ones_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let large = json!({"text": "ä\u{0}\"\n".repeat(200_000)});
    begin(&journal, "scr_a");
    for n in 1..=12 {
        call(&journal, "scr_a", &format!("tool_{n}"), Some(&large));
    }
    end(&journal, "scr_a");
    let run = journal.run("scr_a").unwrap();
    assert_eq!(run.calls.len(), 12);
    assert!(
        run.calls
            .iter()
            .all(|call| call.value.as_ref() == Some(&large) && call.state == CallState::Ended(CallStatus::Done))
    );
    let order: Vec<&str> = run.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!((order[1], order[9], order[11]), ("tool_2", "tool_10", "tool_12"));
    let size: u64 = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert!(size < 1_000_000, "{size} bytes");
    // By the beginning of its id, too.
    begin(&journal, "scr_b");
    assert_eq!(journal.run("scr_b").unwrap().summary.state, RunState::Running);
    assert!(matches!(journal.run("scr_"), Err(JournalError::Ambiguous(_))));
    assert!(matches!(journal.run("scr_z"), Err(JournalError::NoRun(_))));
}

#[test]
fn retention_never_touches_an_open_run() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for n in 0..120 {
        let id = format!("scr_{n:03}");
        begin(&journal, &id);
        let mut random = n as u64 + 1;
        let mut letter = || {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (random >> 40) as u8 % 26)
        };
        let value = json!((0..40_000).map(|_| letter()).collect::<String>());
        call(&journal, &id, "tool_1", Some(&value));
        if n != 3 {
            end(&journal, &id);
        }
    }
    call(&journal, "scr_003", "tool_2", None);
    let removed = journal.tidy(&Retention { days: 1, megabytes: 1 }).unwrap();
    assert!(removed.runs > 0, "nothing was removed");
    let left = journal.runs(&Filter::default()).unwrap();
    assert!(left.iter().any(|run| run.id == "scr_003") && left.len() < 120, "{}", left.len());
    let open = journal.run("scr_003").unwrap();
    assert_eq!(open.calls[1].state, CallState::Running);
    assert!(open.calls[0].value.is_some(), "its payload is still there");
    // Nothing is too old.
    assert_eq!(journal.tidy(&Retention { days: 1, megabytes: 1000 }).unwrap().runs, 0);
}

#[test]
fn a_journal_from_the_future_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Journal::open(dir.path()).unwrap());
    let raw = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    raw.execute("INSERT INTO steps VALUES (99, 'something new', 0)", []).unwrap();
    drop(raw);
    assert!(matches!(Journal::open(dir.path()), Err(JournalError::FromTheFuture { .. })));
}

#[test]
fn secrets_are_known_by_their_looks_and_their_names() {
    let redactor = Redactor::new(["my_field".to_owned()]);
    for secret in [
        "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUvWxYz-0123456789",
        "sk-proj-abcdefghijklmnopqrstuvwx",
        "ghp_0123456789abcdefghijklmnopqrstuvwxyz",
        "github_pat_11ABCDEFG0abcdefghij_klmnopqrstuvwxyz",
        "glpat-abcdefghijklmnopqrst",
        "xoxb-123456789012-abcdefghijkl",
        "AKIAIOSFODNN7EXAMPLE",
        "AIzaSyA1234567890abcdefghijklmnopqrstuv",
        "npm_abcdefghijklmnopqrstuvwxyz0123456789",
        "hf_abcdefghijklmnopqrstuvwxyz",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U",
        "sk_live_abcdefghijklmnop",
    ] {
        let text = format!("before {secret} after");
        assert_eq!(redactor.text(&text), "before [redacted] after", "{secret}");
    }
    let key = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXk\n-----END OPENSSH PRIVATE KEY-----";
    assert_eq!(redactor.text(key), "[redacted]");
    assert_eq!(redactor.text("Authorization: Bearer abcdef123456"), "Authorization: Bearer [redacted]");
    assert_eq!(redactor.text("export DB_PASSWORD=hunter22 && x"), "export DB_PASSWORD=[redacted] && x");
    assert_eq!(redactor.text("postgres://me:hunter22@host/db"), "postgres://me:[redacted]@host/db");
    let value =
        json!({"api_key": "short", "my_field": "x", "nested": [{"token": 5, "text": "plain"}], "max_tokens": 10});
    let shown = json!({"api_key": "[redacted]", "my_field": "[redacted]", "nested": [{"token": "[redacted]", "text": "plain"}], "max_tokens": 10});
    assert_eq!(redactor.value(&value), shown);
    for plain in ["the secret of a good token is its taste", "sk-short", "commit 5e1fed9e", "https://host/path?x=1"] {
        assert_eq!(redactor.text(plain), plain);
    }
}
