//! Opening a journal: several times at once, and one that has no version.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::Barrier;

use selvedge_journal::{Journal, Keeping};

#[test]
fn a_new_journal_is_opened_by_many_at_once() {
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
                        _ => Journal::open_to_read(dir, &Keeping::default()).unwrap(),
                    }
                });
            }
        });
    }
}

#[test]
fn a_file_with_tables_of_an_unreleased_version_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = rusqlite::Connection::open(dir.path().join("journal.sqlite")).unwrap();
    file.execute_batch("CREATE TABLE runs (id TEXT)").unwrap();
    drop(file);
    for opened in [
        Journal::open(dir.path()),
        Journal::open_to_read(dir.path(), &Keeping::default()),
    ] {
        let message = opened.unwrap_err().to_string();
        assert_eq!(
            message,
            "the journal was written by an unreleased version of Selvedge"
        );
    }
}
