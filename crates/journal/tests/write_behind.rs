//! Write-behind: rows of runs without calls are written shortly after the run has ended.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::{Duration, Instant};

use selvedge_database::params;
use selvedge_journal::{
    Durability, Journal, JournalError, JournalOptions, RunFilter, StoredRunState,
};
use selvedge_protocol::{Ledger, RunStart, RunStatus, ScriptToolCallOutput};
use support::{WaitForResult, database, store, uses_files};

/// Longer than any test here takes; ends a test that hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

fn start<'a>(id: &'a str, resumes: Option<&'a str>) -> RunStart<'a> {
    RunStart {
        id,
        source: "return 1",
        directory: "/work",
        session: "s",
        seed: "7",
        resumes,
        saved_config: "",
    }
}

fn compute(journal: &Journal, id: &str) {
    let mut output = ScriptToolCallOutput::new(id.to_owned(), "call".to_owned());
    output.status = RunStatus::Completed;
    output.output_json = Some("2".to_owned());
    journal
        .record_run_start_and_end(start(id, None), &output, Some(b"recording".to_vec()))
        .wait()
        .unwrap();
}

fn ids(journal: &Journal) -> Vec<String> {
    journal
        .runs(&RunFilter::default())
        .unwrap()
        .into_iter()
        .map(|run| run.id)
        .collect()
}

#[test]
fn every_read_and_write_flushes_queued_rows_in_order() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    journal.enable_write_behind();
    for n in 0..200 {
        compute(&journal, &format!("scr_{n:03}"));
        if n % 50 == 0 {
            journal
                .record_run_start(start(&format!("scr_{n:03}b"), None))
                .wait()
                .unwrap();
        }
    }
    let run = journal.run("scr_199").unwrap();
    assert_eq!(
        (run.summary.state, run.output.unwrap().output_json),
        (StoredRunState::Completed, Some("2".to_owned()))
    );
    assert_eq!(run.recording.as_deref(), Some(&b"recording"[..]));
    assert_eq!(ids(&journal).len(), 204);
    let mut expected: Vec<String> = ids(&journal);
    expected.sort_by(|a, b| b.cmp(a));
    let written: Vec<String> = {
        let file = database(dir.path());
        // In the order of insertion.
        let order = if uses_files() { "rowid" } else { "ctid" };
        let sql = format!("SELECT id FROM runs ORDER BY {order} DESC");
        let mut read = file.prepare_cached(&sql).unwrap();
        read.query_map(params![], |row| row.get(0))
            .unwrap()
            .map(Result::unwrap)
            .collect()
    };
    assert_eq!(written, expected);
}

#[test]
fn another_process_sees_a_row_soon_and_at_once_after_a_flush() {
    let dir = tempfile::tempdir().unwrap();
    let (journal, other) = (
        Journal::open(store(dir.path())).unwrap(),
        Journal::open(store(dir.path())).unwrap(),
    );
    journal.enable_write_behind();
    compute(&journal, "scr_a");
    let since = Instant::now();
    while ids(&other).is_empty() {
        assert!(since.elapsed() < TEST_TIMEOUT, "the row was not written");
        std::thread::yield_now();
    }
    compute(&journal, "scr_b");
    // Dropping the journal is not enough, because the writer thread may still hold it.
    journal.flush().unwrap();
    assert_eq!(ids(&other).len(), 2);
}

#[test]
fn resuming_runs_and_runs_with_full_durability_are_written_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let keeping = JournalOptions {
        durability: Durability::Full,
        ..JournalOptions::default()
    };
    let (journal, other) = (
        Journal::open_with(store(dir.path()), &keeping).unwrap(),
        Journal::open(store(dir.path())).unwrap(),
    );
    journal.enable_write_behind();
    compute(&journal, "scr_a");
    assert_eq!(ids(&other), ["scr_a"]);
    let journal = Journal::open(store(dir.path())).unwrap();
    journal.enable_write_behind();
    let output = ScriptToolCallOutput::new("scr_b".to_owned(), "call".to_owned());
    journal
        .record_run_start_and_end(start("scr_b", Some("scr_a")), &output, None)
        .wait()
        .unwrap();
    assert_eq!(other.resumed_by("scr_a").unwrap().as_deref(), Some("scr_b"));
    let output = ScriptToolCallOutput::new("scr_c".to_owned(), "call".to_owned());
    let refused = journal
        .record_run_start_and_end(start("scr_c", Some("scr_a")), &output, None)
        .wait()
        .unwrap_err();
    assert!(
        refused.to_string().contains("scr_a was resumed by scr_b"),
        "{refused}"
    );
}

#[test]
fn a_failed_flush_keeps_the_rows_and_the_next_run_gets_the_error() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(store(dir.path())).unwrap();
    journal.enable_write_behind();
    let other = database(dir.path());
    other
        .execute_batch("ALTER TABLE runs RENAME TO elsewhere")
        .unwrap();
    compute(&journal, "scr_a");
    let failed = journal.flush();
    assert!(matches!(failed, Err(JournalError::UnknownSchema { .. })));
    let output = ScriptToolCallOutput::new("scr_b".to_owned(), "call".to_owned());
    journal
        .record_run_start_and_end(start("scr_b", None), &output, None)
        .wait()
        .unwrap_err();
    other
        .execute_batch("ALTER TABLE elsewhere RENAME TO runs")
        .unwrap();
    assert_eq!(ids(&journal), ["scr_a"]);
}
