//! Many processes that start at the same time with the same home.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::process::{Child, Stdio};

use support::TestWorkspace;

const PROCESSES: usize = 16;

fn start_all(workspace: &TestWorkspace) -> Vec<Child> {
    let start = |_| {
        workspace
            .command(&["run", "-q", "-e", "return 1"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    (0..PROCESSES).map(start).collect()
}

fn all_succeed(processes: Vec<Child>) {
    for process in processes {
        let output = process.wait_with_output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert_eq!(output.stdout, b"1\n", "{error}");
    }
}

#[test]
fn processes_that_start_at_once_on_an_empty_home_all_succeed() {
    for _ in 0..50 {
        all_succeed(start_all(&TestWorkspace::new()));
    }
}

#[test]
fn processes_that_start_at_once_after_a_crash_all_succeed() {
    let crashed = TestWorkspace::new();
    all_succeed(start_all(&crashed));
    // While a connection is open, its writes stay in the log. A copy of these files is the state
    // that a killed process leaves.
    let file = rusqlite::Connection::open(crashed.home().join("journal.sqlite")).unwrap();
    file.execute_batch("CREATE TABLE written_before_the_crash (x)")
        .unwrap();
    for _ in 0..10 {
        let workspace = TestWorkspace::new();
        for name in ["journal.sqlite", "journal.sqlite-wal"] {
            std::fs::copy(crashed.home().join(name), workspace.home().join(name)).unwrap();
        }
        all_succeed(start_all(&workspace));
        let file = rusqlite::Connection::open(workspace.home().join("journal.sqlite")).unwrap();
        let tables = "SELECT count(*) FROM sqlite_master WHERE name = 'written_before_the_crash'";
        let recovered: i64 = file.query_row(tables, [], |row| row.get(0)).unwrap();
        assert_eq!(recovered, 1);
    }
}

/// SQLite does not wait for this lock, so a start without a retry would fail.
#[test]
#[cfg(target_os = "linux")]
fn processes_wait_for_one_that_creates_the_journal() {
    let workspace = TestWorkspace::new();
    let file = workspace.home().join("journal.sqlite");
    let creating = rusqlite::Connection::open(&file).unwrap();
    creating.execute_batch("BEGIN IMMEDIATE").unwrap();
    let mut processes = start_all(&workspace);
    let has_opened = |process: &Child| {
        let open = std::fs::read_dir(format!("/proc/{}/fd", process.id()));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| target == file))
    };
    for process in &mut processes {
        while !has_opened(process) && process.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
    }
    creating.execute_batch("COMMIT").unwrap();
    all_succeed(processes);
}
