//! Runs, calls, sessions and retention: what is stored, for how long, and how it is read back.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use selvedge_database::params;
use selvedge_journal::{
    Journal, JournalError, JournalOptions, Retention, RunFilter, StoredCallState, StoredRunState,
};
use selvedge_protocol::{
    ApprovalRequest, CallEnd, CallRecord, CallStart, CallStatus, Ledger, LedgerError, ResumeAs,
    RunMetadata, RunStart, RunStatus, ScriptToolCallOutput,
};
use serde_json::{Value, json};
use support::{WaitForResult, database, store, stores_text, uses_files};

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

fn begin(journal: &Journal, id: &str) {
    journal.record_run_start(start(id)).wait().unwrap();
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
        exit_code: None,
    }
}

fn call(journal: &Journal, run: &str, id: &str, value: Option<&Value>) {
    let args = json!({"command": ["echo", "x".repeat(5000)]});
    journal
        .record_call_start(CallStart {
            run,
            id,
            tool: "exec",
            args: &args,
            digest: "d",
            read_only: false,
            line: Some(1),
            prior_call: None,
            queued_ms: None,
        })
        .wait()
        .unwrap();
    if let Some(value) = value {
        let record = record(id, CallStatus::Done);
        journal
            .record_call_end(CallEnd {
                run,
                record: &record,
                value: Some(value),
                shown: None,
                start_details: None,
                resume_as: ResumeAs::Reuse,
            })
            .wait()
            .unwrap();
    }
}

fn end(journal: &Journal, id: &str) {
    journal.record_run_end(&output(id), None).wait().unwrap();
}

fn output(id: &str) -> ScriptToolCallOutput {
    ScriptToolCallOutput {
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
    }
}

#[test]
fn payloads_are_read_back_exactly_and_large_ones_are_stored_once() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
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
            .all(|call| call.value.as_ref() == Some(&large)
                && call.state == StoredCallState::Ended(CallStatus::Done))
    );
    let order: Vec<&str> = run.calls.iter().map(|call| call.id.as_str()).collect();
    assert_eq!(
        (order[1], order[9], order[11]),
        ("tool_2", "tool_10", "tool_12")
    );
    let size: u64 = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert!(size < 1_000_000, "{size} bytes");
    // A prefix of the id must be unique.
    begin(&journal, "scr_b");
    assert_eq!(
        journal.run("scr_b").unwrap().summary.state,
        StoredRunState::Running
    );
    assert!(matches!(
        journal.run("scr_"),
        Err(JournalError::AmbiguousId(_))
    ));
    assert!(matches!(
        journal.run("scr_z"),
        Err(JournalError::RunNotFound(_))
    ));
}

#[test]
fn retention_never_removes_a_run_that_has_not_ended() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    for n in 0..120 {
        let id = format!("scr_{n:03}");
        begin(&journal, &id);
        let mut random = n as u64 + 1;
        let mut letter = || {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            char::from(b'a' + (random >> 40) as u8 % 26)
        };
        let value = json!((0..40_000).map(|_| letter()).collect::<String>());
        call(&journal, &id, "tool_1", Some(&value));
        if n != 3 {
            end(&journal, &id);
        }
    }
    call(&journal, "scr_003", "tool_2", None);
    let removed = journal
        .apply_retention(&Retention {
            days: 1,
            megabytes: 1,
        })
        .unwrap();
    assert!(removed.runs > 0, "nothing was removed");
    let left = journal.runs(&RunFilter::default()).unwrap();
    assert!(
        left.iter().any(|run| run.id == "scr_003") && left.len() < 120,
        "{}",
        left.len()
    );
    let open = journal.run("scr_003").unwrap();
    assert_eq!(open.calls[1].state, StoredCallState::Running);
    assert!(open.calls[0].value.is_some(), "the payload still exists");
    // No run exceeds these limits.
    assert_eq!(
        journal
            .apply_retention(&Retention {
                days: 1,
                megabytes: 1000
            })
            .unwrap()
            .runs,
        0
    );
}

#[test]
fn a_list_counts_and_filters_calls_of_runs_in_every_state() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    for id in ["scr_open", "scr_over", "scr_given_up"] {
        begin(&journal, id);
        call(&journal, id, "tool_1", Some(&json!(1)));
        call(&journal, id, "tool_2", None);
    }
    let odd = r#"mcp.a"b.c,d"#;
    let never_began = CallRecord {
        tool: odd.into(),
        ..record("tool_3", CallStatus::NotStarted)
    };
    journal
        .record_run_end(
            &ScriptToolCallOutput {
                calls: vec![never_began],
                ..output("scr_over")
            },
            None,
        )
        .wait()
        .unwrap();
    journal
        .cancel_suspended_run(&output("scr_given_up"))
        .unwrap();
    journal
        .record_run_start_and_end(start("scr_computed"), &output("scr_computed"), None)
        .wait()
        .unwrap();
    let listed = |journal: &Journal, tool: Option<&str>| {
        let filter = RunFilter {
            tool: tool.map(str::to_owned),
            ..RunFilter::default()
        };
        let runs = journal.runs(&filter).unwrap();
        let mut runs: Vec<_> = runs
            .iter()
            .map(|run| format!("{} {}", &run.id[4..], run.calls))
            .collect();
        runs.sort();
        runs.join(", ")
    };
    let check = |journal: &Journal| {
        assert_eq!(
            listed(journal, None),
            "computed 0, given_up 2, open 2, over 3"
        );
        assert_eq!(listed(journal, Some("exec")), "given_up 2, open 2, over 3");
        assert_eq!(listed(journal, Some(odd)), "over 3");
        for other in ["exe", "b", "c", "d", "%", "", ","] {
            assert_eq!(listed(journal, Some(other)), "", "{other}");
        }
    };
    check(&journal);
    drop(journal);
    let raw = database(dir.path());
    let counted = "SELECT id, calls, tools FROM runs WHERE tools IS NOT NULL ORDER BY id";
    let mut read = raw.prepare_cached(counted).unwrap();
    let rows = read.query_map(params![], |row| row.try_into()).unwrap();
    let counted: Vec<(String, i64, String)> = rows.collect::<Result<_, _>>().unwrap();
    let given_up = ("scr_given_up".to_owned(), 2, r#"["exec"]"#.to_owned());
    assert!(counted.contains(&given_up), "{counted:?}");
    assert!(
        counted.iter().all(|(id, ..)| id != "scr_open"),
        "{counted:?}"
    );
}

#[test]
fn a_journal_that_requires_a_newer_version_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(Journal::open(store(dir.path())).unwrap());
    let raw = database(dir.path());
    let newer = "UPDATE schema_versions SET version = 99, compatible_since = 99";
    raw.execute(newer, params![]).unwrap();
    drop(raw);
    assert!(matches!(
        Journal::open(store(dir.path())),
        Err(JournalError::NewerSchema { .. })
    ));
}

#[test]
fn a_session_can_be_stored_forked_renamed_exported_and_imported() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let id = journal.begin_session("/work", None).unwrap();
    let items = [
        json!({"type": "message", "text": "hi"}),
        json!({"type": "message", "text": "x".repeat(9000)}),
    ];
    let append = journal.append_rows(&id, 0, 1, items.to_vec());
    append.wait().unwrap();
    let append = journal.append_rows(&id, 2, 2, vec![json!(3)]);
    append.wait().unwrap();
    let fork = journal.fork_session(&id, Some(1)).unwrap();
    journal
        .append_rows(&fork, 2, 2, vec![json!("another way")])
        .wait()
        .unwrap();
    let texts = |id: &str| {
        journal
            .items(id)
            .unwrap()
            .into_iter()
            .map(|item| item.item)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        texts(&fork),
        [items[0].clone(), items[1].clone(), json!("another way")]
    );
    journal.rename_session(&id, "first").unwrap();
    assert!(matches!(
        journal.rename_session(&fork, "first"),
        Err(JournalError::NameTaken(_))
    ));
    assert_eq!(journal.session("first").unwrap().id, id);
    assert_eq!(
        journal
            .session(&fork[..fork.len() - 1])
            .unwrap()
            .forked_from
            .as_deref(),
        Some(id.as_str())
    );
    assert!(matches!(
        journal.session("nothing"),
        Err(JournalError::SessionNotFound(_))
    ));
    assert!(matches!(
        journal.append_rows("nothing", 0, 1, vec![json!(1)]).wait(),
        Err(JournalError::SessionNotFound(_))
    ));
    assert_eq!(
        journal.sessions(10).unwrap()[0].id,
        fork,
        "the last touched session comes first"
    );
    // Retention never removes sessions.
    journal
        .apply_retention(&Retention {
            days: 0,
            megabytes: 0,
        })
        .unwrap();
    let lines = journal.export_session(&id).unwrap();
    let imported = journal.import_session(&lines, |_| Ok(())).unwrap();
    assert_eq!(
        journal.items(&imported).unwrap(),
        journal.items(&id).unwrap()
    );
    assert!(matches!(
        journal.import_session(&[json!({"a": 1})], |_| Ok(())),
        Err(JournalError::InvalidSessionExport(_))
    ));
}

#[test]
fn an_encrypted_journal_cannot_be_read_without_its_key() {
    let dir = tempfile::tempdir().unwrap();
    let encrypted = JournalOptions {
        encryption_key: Some([9; 32]),
        ..JournalOptions::default()
    };
    let (small, large) = (
        json!({"s": "the small hushed"}),
        json!({"s": "the large hushed ".repeat(500)}),
    );
    {
        let journal = Journal::open_with(store(dir.path()), &encrypted).unwrap();
        begin(&journal, "scr_a");
        call(&journal, "scr_a", "tool_1", Some(&small));
        call(&journal, "scr_a", "tool_2", Some(&large));
        let mut failed = record("tool_3", CallStatus::Failed);
        failed.error = Some(selvedge_protocol::CallError {
            code: selvedge_protocol::ErrorCode::ToolExecutionError,
            message: "the hushed error".into(),
        });
        journal
            .record_call_end(CallEnd {
                run: "scr_a",
                record: &failed,
                value: None,
                shown: None,
                start_details: None,
                resume_as: ResumeAs::Reuse,
            })
            .wait()
            .unwrap();
        journal
            .save_suspension("scr_a", b"the hushed state".repeat(1000))
            .wait()
            .unwrap();
        let run = journal.run("scr_a").unwrap();
        assert_eq!(
            (run.calls[0].value.as_ref(), run.calls[1].value.as_ref()),
            (Some(&small), Some(&large))
        );
        assert_eq!(
            run.calls[2].error.as_ref().unwrap().message,
            "the hushed error"
        );
        assert_eq!(
            journal.read_suspension("scr_a").unwrap().unwrap(),
            b"the hushed state".repeat(1000)
        );
    }
    assert!(!stores_text(dir.path(), "hushed"));
    let others = [
        JournalOptions::default(),
        JournalOptions {
            encryption_key: Some([8; 32]),
            ..JournalOptions::default()
        },
    ];
    for keeping in others {
        let journal = Journal::open_with(store(dir.path()), &keeping).unwrap();
        assert!(matches!(journal.run("scr_a"), Err(JournalError::WrongKey)));
        assert_eq!(
            journal.runs(&RunFilter::default()).unwrap().len(),
            1,
            "the list of runs is not encrypted"
        );
    }
}

/// Waits until the clock is past the time of everything written so far.
fn wait_for_next_millisecond() {
    let now = || {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap()
            .as_millis()
    };
    let before = now();
    while now() <= before + 1 {
        std::thread::yield_now();
    }
}

#[test]
fn a_script_that_is_suspended_repeatedly_does_not_grow_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    begin(&journal, "scr_a");
    let noise = |n: u32| {
        (0..100_000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) ^ n).to_le_bytes()[3])
            .collect::<Vec<u8>>()
    };
    for n in 0..100 {
        journal
            .save_suspension("scr_a", noise(n << 24))
            .wait()
            .unwrap();
    }
    assert_eq!(
        journal.read_suspension("scr_a").unwrap().unwrap(),
        noise(99 << 24)
    );
    drop(journal);
    // PostgreSQL reuses the space after its automatic clean-up only.
    let size = match uses_files() {
        true => dir.path().join("journal.sqlite").metadata().unwrap().len(),
        false => return,
    };
    assert!(size < 2 << 20, "{size} bytes for one state of 100 KB");
}

#[test]
fn retention_keeps_suspended_runs_and_removes_old_dead_ones() {
    let dir = tempfile::tempdir().unwrap();
    {
        let journal = Journal::open(store(dir.path())).unwrap();
        begin(&journal, "scr_waits");
        journal
            .save_suspension("scr_waits", vec![1; 5000])
            .wait()
            .unwrap();
        begin(&journal, "scr_died");
    }
    let journal = Journal::open(store(dir.path())).unwrap();
    wait_for_next_millisecond();
    journal
        .apply_retention(&Retention {
            days: 0,
            megabytes: 1000,
        })
        .unwrap();
    let left = journal.runs(&RunFilter::default()).unwrap();
    assert_eq!(
        left.iter()
            .map(|run| (run.id.as_str(), run.state))
            .collect::<Vec<_>>(),
        [("scr_waits", StoredRunState::Suspended)]
    );
    assert_eq!(
        journal.read_suspension("scr_waits").unwrap().unwrap(),
        [1; 5000]
    );
}

#[test]
fn a_suspended_run_belongs_to_one_process_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(store(dir.path())).unwrap();
    begin(&first, "scr_a");
    first
        .save_suspension("scr_a", b"state".to_vec())
        .wait()
        .unwrap();
    let second = Journal::open(store(dir.path())).unwrap();
    second.claim_suspended_run("scr_a").unwrap();
    assert_eq!(
        first.claim_run("scr_a").wait(),
        Err(LedgerError::ClaimedByOther)
    );
    second.claim_run("scr_a").wait().unwrap();
    // The second process ends before it writes anything, so that others can claim the run.
    drop(second);
    assert_eq!(
        first.runs(&RunFilter::default()).unwrap()[0].state,
        StoredRunState::Suspended
    );
    assert_eq!(
        first.claim_run("scr_a").wait(),
        Err(LedgerError::ClaimedByOther),
        "the first process does not get the run back"
    );
    let third = Journal::open(store(dir.path())).unwrap();
    third.claim_suspended_run("scr_a").unwrap();
    assert!(matches!(
        Journal::open(store(dir.path()))
            .unwrap()
            .claim_suspended_run("scr_a"),
        Err(JournalError::ClaimedByOther)
    ));
    // The first write for the run deletes the suspended state.
    call(&third, "scr_a", "tool_1", Some(&json!(1)));
    assert_eq!(third.read_suspension("scr_a").unwrap(), None);
    assert!(matches!(
        first.claim_suspended_run("scr_a"),
        Err(JournalError::NotSuspended(_))
    ));
}

#[test]
fn a_process_that_lost_a_run_cannot_write_to_it() {
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(store(dir.path())).unwrap();
    begin(&first, "scr_a");
    first
        .save_suspension("scr_a", b"at the first question".to_vec())
        .wait()
        .unwrap();
    // Another process restores the run, makes a call, and suspends it again.
    let second = Journal::open(store(dir.path())).unwrap();
    second.claim_suspended_run("scr_a").unwrap();
    call(&second, "scr_a", "tool_1", Some(&json!("done")));
    second
        .save_suspension("scr_a", b"at the second question".to_vec())
        .wait()
        .unwrap();
    drop(second);
    let taken = Err(LedgerError::ClaimedByOther);
    let args = json!({});
    let start = CallStart {
        run: "scr_a",
        id: "tool_2",
        tool: "exec",
        args: &args,
        digest: "d",
        read_only: false,
        line: None,
        prior_call: None,
        queued_ms: None,
    };
    let failed = record("tool_1", CallStatus::Failed);
    assert_eq!(first.claim_run("scr_a").wait(), taken);
    assert_eq!(first.record_call_start(start).wait(), taken);
    assert_eq!(
        first
            .record_call_end(CallEnd {
                run: "scr_a",
                record: &failed,
                value: None,
                shown: None,
                start_details: None,
                resume_as: ResumeAs::Reuse,
            })
            .wait(),
        taken
    );
    assert_eq!(
        first
            .save_suspension("scr_a", b"at the first question".to_vec())
            .wait(),
        taken
    );
    assert_eq!(first.record_run_end(&output("scr_a"), None).wait(), taken);
    let run = first.run("scr_a").unwrap();
    assert_eq!(
        (run.summary.state, run.calls[0].value.as_ref()),
        (StoredRunState::Suspended, Some(&json!("done")))
    );
    let third = Journal::open(store(dir.path())).unwrap();
    third.claim_suspended_run("scr_a").unwrap();
    assert_eq!(
        third.read_suspension("scr_a").unwrap().unwrap(),
        b"at the second question"
    );
    // The recorded end of a call is not overwritten.
    third
        .record_call_end(CallEnd {
            run: "scr_a",
            record: &failed,
            value: None,
            shown: None,
            start_details: None,
            resume_as: ResumeAs::Reuse,
        })
        .wait()
        .unwrap();
    assert_eq!(
        third.run("scr_a").unwrap().calls[0].state,
        StoredCallState::Ended(CallStatus::Done)
    );
}

#[test]
fn retention_keeps_runs_that_an_open_run_resumed_and_ignores_the_size_of_sessions() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    begin(&journal, "scr_first");
    end(&journal, "scr_first");
    let resumed = RunStart {
        resumes: Some("scr_first"),
        ..start("scr_open")
    };
    journal.record_run_start(resumed).wait().unwrap();
    begin(&journal, "scr_other");
    end(&journal, "scr_other");
    wait_for_next_millisecond();
    journal
        .apply_retention(&Retention {
            days: 0,
            megabytes: 1000,
        })
        .unwrap();
    let left = |journal: &Journal| {
        let mut ids: Vec<String> = journal
            .runs(&RunFilter::default())
            .unwrap()
            .into_iter()
            .map(|run| run.id)
            .collect();
        ids.sort();
        ids
    };
    assert_eq!(left(&journal), ["scr_first", "scr_open"]);
    // Several megabytes of session items, which retention never removes.
    let session = journal.begin_session("/", None).unwrap();
    let noise = |n: u64| {
        json!(
            (0..40_000u64)
                .map(|i| (i * 7919 + n).wrapping_mul(0x9e37_79b9_7f4a_7c15))
                .collect::<Vec<_>>()
        )
    };
    journal
        .append_rows(&session, 0, 1, (0..6).map(noise).collect::<Vec<_>>())
        .wait()
        .unwrap();
    begin(&journal, "scr_new");
    end(&journal, "scr_new");
    journal
        .apply_retention(&Retention {
            days: 10,
            megabytes: 1,
        })
        .unwrap();
    assert_eq!(left(&journal), ["scr_first", "scr_new", "scr_open"]);
}

#[test]
fn runs_that_resumed_each_other_are_kept_or_removed_together() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let runs = [
        ("scr_a", None),
        ("scr_b", Some("scr_a")),
        ("scr_c", Some("scr_b")),
        ("scr_alone", None),
    ];
    let runs: Vec<_> = runs
        .into_iter()
        .chain([("tsk_of_a", None), ("tsk_alone", None)])
        .collect();
    for (id, resumes) in &runs {
        journal
            .record_run_start(RunStart {
                resumes: *resumes,
                ..start(id)
            })
            .wait()
            .unwrap();
    }
    // A task is a run, and also a call of the script that started it.
    let file = database(dir.path());
    let row = "INSERT INTO calls (run, id, tool, digest, read_only, state, reused, started_ms)";
    for (run, id) in [("scr_a", "tsk_of_a"), ("scr_alone", "tsk_alone")] {
        file.execute(
            &format!("{row} VALUES ('{run}', '{id}', 'spawn.exec', '', 0, 'done', 0, 0)"),
            params![],
        )
        .unwrap();
    }
    drop(file);
    runs.iter().for_each(|(id, _)| end(&journal, id));
    let age = |ids: &str| {
        let file = database(dir.path());
        let long_ago = "UPDATE runs SET started_ms = started_ms - 1000000000,
             ended_ms = ended_ms - 1000000000";
        file.execute_batch(&format!("{long_ago} WHERE id IN ({ids})"))
            .unwrap();
    };
    let tidied = || {
        journal
            .apply_retention(&Retention {
                days: 5,
                megabytes: 1000,
            })
            .unwrap();
        let mut ids: Vec<String> = journal
            .runs(&RunFilter::default())
            .unwrap()
            .into_iter()
            .map(|run| run.id)
            .collect();
        ids.sort();
        ids
    };
    age("'scr_a', 'scr_b', 'scr_alone', 'tsk_of_a', 'tsk_alone'");
    assert_eq!(tidied(), ["scr_a", "scr_b", "scr_c", "tsk_of_a"]);
    // The last run of the chain becomes old as well.
    age("'scr_c'");
    assert!(tidied().is_empty());
}

/// Without the lock, another program that reads the file and closes it deletes the log.
#[cfg(target_os = "linux")]
#[test]
fn another_handle_of_the_process_does_not_release_the_lock_on_the_file() {
    use std::os::unix::fs::MetadataExt;
    if !uses_files() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let first = Journal::open(store(dir.path())).unwrap();
    let _second = Journal::open(store(dir.path())).unwrap();
    drop(Journal::open(store(dir.path())).unwrap());
    first.runs(&RunFilter::default()).unwrap();
    let inode = dir.path().join("journal.sqlite").metadata().unwrap().ino();
    let locks = std::fs::read_to_string("/proc/locks").unwrap();
    let process = format!(" {} ", std::process::id());
    let is_locked = |line: &str| line.contains(&process) && line.contains(&format!(":{inode} "));
    assert!(locks.lines().any(is_locked), "{inode}: {locks}");
}

/// A request of an older version, for example.
#[test]
fn a_run_can_be_used_although_an_approval_request_of_it_cannot_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    begin(&journal, "scr_a");
    for id in ["apr_1", "apr_2"] {
        let request = ApprovalRequest {
            id: id.to_owned(),
            scope_id: None,
            calls: Vec::new(),
            expires_ms: None,
        };
        journal
            .record_approval_request("scr_a", &request)
            .wait()
            .unwrap();
    }
    end(&journal, "scr_a");
    let file = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    file.execute("UPDATE approvals SET request = 'x' WHERE id = 'apr_1'", [])
        .unwrap();
    let run = journal.run("scr_a").unwrap();
    assert_eq!(run.summary.state, StoredRunState::Completed);
    assert_eq!(journal.approvals_of("scr_a").unwrap().len(), 1);
}

#[test]
fn a_run_of_another_folder_is_no_start_of_a_list() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    for (id, directory) in [("scr_1", "/a"), ("scr_2", "/b"), ("scr_3", "/a/sub")] {
        let run = RunStart {
            directory,
            ..start(id)
        };
        journal.record_run_start(run).wait().unwrap();
    }
    let after = |folder: Option<&str>, id: &str| {
        let filter = RunFilter {
            workspaces: folder.map(|folder| vec![folder.to_owned()]),
            after: Some(id.to_owned()),
            ..RunFilter::default()
        };
        let runs = journal.runs(&filter).unwrap();
        runs.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    // Runs of the same millisecond are in the order of their ids.
    let all = journal.runs(&RunFilter::default()).unwrap();
    let own: Vec<&str> = all
        .iter()
        .map(|run| &*run.id)
        .filter(|id| *id != "scr_2")
        .collect();
    assert_eq!(after(Some("/a"), own[0]), own[1..]);
    assert_eq!(after(None, &all[0].id).len(), 2);
    for folder in ["/a", "/b"] {
        assert_eq!(after(Some(folder), "scr_0"), [""; 0]);
    }
    assert_eq!(after(Some("/a"), "scr_2"), [""; 0]);
    assert_eq!(after(Some("/b"), own[0]), [""; 0]);
}

#[test]
fn a_call_is_refused_if_its_run_is_not_recorded() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let args = json!({});
    let start = CallStart {
        run: "trn_a",
        id: "tool_1",
        tool: "exec",
        args: &args,
        digest: "d",
        read_only: false,
        line: None,
        prior_call: None,
        queued_ms: None,
    };
    let refused = journal.record_call_start(start).wait().unwrap_err();
    assert_eq!(refused.to_string(), "there is no run `trn_a`");
}

#[test]
fn lists_select_the_runs_of_a_session_and_the_sessions_of_a_folder() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    for (id, session) in [("scr_1", "ses_a"), ("scr_2", "ses_b"), ("scr_3", "ses_a")] {
        let run = RunStart {
            session,
            ..start(id)
        };
        journal.record_run_start(run).wait().unwrap();
    }
    let runs_of = |session: &str| {
        let filter = RunFilter {
            session: Some(session.to_owned()),
            ..RunFilter::default()
        };
        let runs = journal.runs(&filter).unwrap();
        let mut ids: Vec<_> = runs.into_iter().map(|run| run.id).collect();
        ids.sort();
        ids
    };
    assert_eq!(runs_of("ses_a"), ["scr_1", "scr_3"]);
    assert_eq!(runs_of("ses_none"), [""; 0]);
    let ids = ["/a", "/b", "/a"].map(|folder| journal.begin_session(folder, None).unwrap());
    let sessions_in = |folder: &str, prefix: &str, limit: u32| {
        let sessions = journal.sessions_in(folder, prefix, limit).unwrap();
        let ids = sessions.into_iter().map(|session| session.id);
        ids.collect::<Vec<_>>()
    };
    let newest_first = [ids[2].clone(), ids[0].clone()];
    assert_eq!(sessions_in("/a", "", 10), newest_first);
    assert_eq!(sessions_in("/a", "", 1), newest_first[..1]);
    assert_eq!(sessions_in("/a", &ids[0], 10), newest_first[1..]);
    assert_eq!(sessions_in("/b", "ses_", 10), ids[1..2]);
    assert_eq!(sessions_in("/b", "x", 10), [""; 0]);
}
