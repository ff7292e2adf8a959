//! The file changes of turns are stored, bounded, and deleted with their session.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use selvedge_journal::Journal;
use selvedge_protocol::{
    FileSnapshot, FileSnapshotKind, Ledger, MAX_RECORDED_TURNS, RunMetadata, RunStart, RunStatus,
    ScriptToolCallOutput, TurnChangeStore, TurnFileChange, TurnFileChanges,
};
use support::{WaitForResult, store};

fn snapshot(kind: FileSnapshotKind, content: &[u8]) -> Option<FileSnapshot> {
    Some(FileSnapshot {
        kind,
        content: content.to_vec(),
    })
}

fn changes(name: &str) -> TurnFileChanges {
    TurnFileChanges {
        directory: "/w".into(),
        files: vec![
            TurnFileChange {
                path: name.into(),
                before: snapshot(FileSnapshotKind::File, &[0xff; 100_000]),
                after: snapshot(FileSnapshotKind::Executable, b""),
            },
            TurnFileChange {
                path: "link".into(),
                before: None,
                after: snapshot(FileSnapshotKind::Link, b"target"),
            },
        ],
        unrecorded: vec!["large".into()],
    }
}

#[test]
fn the_changes_of_the_last_turns_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let id = journal.begin_session("/w", None).unwrap();
    let read = |turn| journal.recorded_changes(&id, turn).wait().unwrap();
    assert_eq!(read(None), None);
    for turn in 1..=MAX_RECORDED_TURNS + 2 {
        let changes = changes(&format!("file{turn}"));
        journal.record_changes(&id, turn, changes).wait().unwrap();
    }
    let last = MAX_RECORDED_TURNS + 2;
    assert_eq!(read(None), Some((last, changes(&format!("file{last}")))));
    assert_eq!(read(Some(3)), Some((3, changes("file3"))));
    assert_eq!(read(Some(2)), None);
    journal
        .record_changes(&id, 3, changes("again"))
        .wait()
        .unwrap();
    assert_eq!(read(Some(3)), Some((3, changes("again"))));
}

#[test]
fn forgotten_turns_and_sessions_leave_no_changes() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let id = journal.begin_session("/w", None).unwrap();
    for turn in 1..=2 {
        let row = serde_json::json!({"type": "message"});
        let appended = journal.append_rows(&id, turn - 1, turn, vec![row]);
        appended.wait().unwrap();
        journal
            .record_changes(&id, turn, changes("a"))
            .wait()
            .unwrap();
    }
    let keep = |rows, _: &_| rows;
    journal.forget(&id, Some(2), &keep).unwrap();
    assert_eq!(journal.recorded_changes(&id, Some(2)).wait().unwrap(), None);
    assert!(
        journal
            .recorded_changes(&id, Some(1))
            .wait()
            .unwrap()
            .is_some()
    );
    journal.forget(&id, None, &keep).unwrap();
    assert_eq!(journal.recorded_changes(&id, None).wait().unwrap(), None);
}

#[test]
fn a_request_to_stop_concerns_one_turn_and_survives_retention() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    let other = Journal::open(store(dir.path())).unwrap();
    let id = journal.begin_session("/w", None).unwrap();
    other.request_stop(&id, 2).unwrap();
    let retention = selvedge_journal::Retention::default();
    other.apply_retention_while_in_use(&retention).unwrap();
    assert!(journal.is_stop_requested(&id, 2).wait());
    assert!(!journal.is_stop_requested(&id, 1).wait());
    assert!(!journal.is_stop_requested(&id, 3).wait());
    assert!(!journal.is_stop_requested("ses_2", 2).wait());
    // Without a process that uses the session, there is nothing to stop.
    journal.release_session(&id).wait().unwrap();
    other.apply_retention_while_in_use(&retention).unwrap();
    let reader = Journal::open(store(dir.path())).unwrap();
    assert!(!reader.is_stop_requested(&id, 2).wait());
}

/// A client of the agent server may resume a run of a session between its turns.
#[test]
fn a_run_of_another_session_works_in_the_folder_as_well() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let other = journal.begin_session("/w/below", None).unwrap();
    let begin = |id: &str, session: &str| {
        let start = RunStart {
            id,
            source: "return 1",
            directory: "/w",
            session,
            seed: "7",
            resumes: None,
            saved_config: "",
        };
        journal.record_run_start(start).wait().unwrap();
    };
    let end = |id: &str| {
        let output = ScriptToolCallOutput {
            id: id.into(),
            call_id: "c".into(),
            status: RunStatus::Completed,
            output_json: None,
            error: None,
            summary: None,
            output: vec![],
            calls: vec![],
            logs: vec![],
            warnings: vec![],
            metadata: RunMetadata::default(),
        };
        journal.record_run_end(&output, None).wait().unwrap();
    };
    begin("scr_before", &other);
    end("scr_before");
    begin("scr_during", &other);
    let far = journal.begin_session("/wx", None).unwrap();
    begin("scr_elsewhere", &far);
    // The turn begins in a later millisecond than the other session.
    let earlier = "UPDATE sessions SET touched_ms = touched_ms - 1000;
        UPDATE runs SET started_ms = started_ms - 1000, ended_ms = ended_ms - 1000";
    let file = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    file.execute_batch(earlier).unwrap();
    let own = journal.begin_session("/w", None).unwrap();
    let row = serde_json::json!({"type": "message"});
    journal.append_rows(&own, 0, 1, vec![row]).wait().unwrap();
    let is_shared = || journal.is_folder_shared(&own, 1).wait().unwrap();
    assert!(is_shared() && !journal.open_scripts(&other).unwrap().is_empty());
    end("scr_during");
    assert!(is_shared(), "it ended during the turn");
    assert!(journal.open_scripts(&other).unwrap().is_empty());
    file.execute_batch("UPDATE runs SET ended_ms = ended_ms - 1000")
        .unwrap();
    assert!(!is_shared());
    begin("scr_own", &own);
    assert!(!is_shared() && journal.open_scripts(&own).unwrap() == ["scr_own"]);
}
