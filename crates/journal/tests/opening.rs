//! Opening one journal several times at once.
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
