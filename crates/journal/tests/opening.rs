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
        assert_eq!(
            message,
            "the journal was written by an unreleased version of Selvedge"
        );
    }
}
