//! Opens a journal several times at once, and a journal without a schema version.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Barrier;

use selvedge_journal::{Journal, JournalOptions};

#[test]
fn many_connections_can_create_a_journal_at_the_same_time() {
    const CONNECTIONS: usize = 16;
    for _ in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(CONNECTIONS);
        std::thread::scope(|scope| {
            for number in 0..CONNECTIONS {
                let (dir, barrier) = (dir.path(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    match number % 2 {
                        0 => Journal::open(dir).unwrap(),
                        _ => Journal::open_for_reading(dir, &JournalOptions::default()).unwrap(),
                    }
                });
            }
        });
    }
}

#[test]
fn a_file_with_tables_but_no_schema_version_is_refused_with_a_one_line_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    file.execute_batch("CREATE TABLE runs (id TEXT)").unwrap();
    drop(file);
    for opened in [
        Journal::open(dir.path()),
        Journal::open_for_reading(dir.path(), &JournalOptions::default()),
    ] {
        let message = opened.unwrap_err().to_string();
        let expected = format!(
            "{} has the tables of another, unreleased version of Selvedge",
            dir.path().join("journal.sqlite").display()
        );
        assert_eq!(message, expected);
    }
}

#[test]
fn a_file_that_is_not_a_database_is_reported_with_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("journal.sqlite");
    std::fs::write(&file, "not a database\n".repeat(100)).unwrap();
    let error = Journal::open(dir.path()).unwrap_err();
    let expected = format!("the journal {} is damaged: ", file.display());
    assert!(error.to_string().starts_with(&expected), "{error}");
}
