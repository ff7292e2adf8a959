//! Several processes that use one memory: of two machines if the store is PostgreSQL, else of one.
#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../../journal/tests/support/mod.rs"]
mod support;

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_database::params;
use selvedge_journal::{JournalLocation, Redactor};
use selvedge_memory::{Memory, MemoryError, NewTurn, SmallModel, SmallModelError};
use support::{database, store, uses_files};
use tokio::sync::Semaphore;

/// Opens the memory of a folder twice. With PostgreSQL, the second process has another folder.
fn two_processes(home: &tempfile::TempDir, other: &tempfile::TempDir) -> [Arc<Memory>; 2] {
    let first = store(home.path());
    let second = match first.database() {
        None => first.clone(),
        Some(database) => JournalLocation::postgres(other.path(), database.clone()),
    };
    [first, second].map(|location| Arc::new(Memory::open(location, Redactor::new([])).unwrap()))
}

/// A model that answers when it may.
struct BlockedModel {
    asked: Semaphore,
    may_answer: Semaphore,
}

impl SmallModel for BlockedModel {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        self.asked.add_permits(1);
        async move {
            let _answering = self.may_answer.acquire().await;
            Ok(r#"{"lessons": []}"#.to_owned())
        }
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_at_a_time_distills_a_session() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [first, second] = two_processes(&home, &other);
    let turn = NewTurn::text("user", "Always lock the gate.");
    first.append("s", &turn).unwrap();
    let model = Arc::new(BlockedModel {
        asked: Semaphore::new(0),
        may_answer: Semaphore::new(0),
    });
    let pass = {
        let (memory, model) = (first.clone(), model.clone());
        tokio::spawn(async move { memory.distill("s", Some(&*model)).await })
    };
    let _asked = model.asked.acquire().await.unwrap();
    let is_running = || second.distill_state("s").unwrap().unwrap().running;
    assert!(is_running());
    let refused = second.distill("s", None).await;
    assert!(matches!(refused, Err(MemoryError::DistillLocked(name)) if name == "s"));
    model.may_answer.add_permits(1);
    assert_eq!(pass.await.unwrap().unwrap().distilled_turns, 1);
    // The lock is free, and nothing is distilled again.
    let again = second.distill("s", None).await.unwrap();
    assert_eq!(again.distilled_turns, 0);
    assert!(!is_running());
}

#[tokio::test]
async fn the_pass_of_a_machine_that_died_continues_when_its_lease_has_ended() {
    if uses_files() {
        return;
    }
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [first, _second] = two_processes(&home, &other);
    let turn = NewTurn::text("user", "Always lock the gate.");
    first.append("s", &turn).unwrap();
    let database = database(home.path());
    let now = database.database_now();
    let sql = format!(
        "INSERT INTO memory_locks (unit, holder, ends_ms)
         SELECT 'session-' || CAST(id AS TEXT), 'other', {now} + ?1 FROM memory_sessions"
    );
    database.execute(&sql, params![60_000_i64]).unwrap();
    let refused = first.distill("s", None).await;
    assert!(matches!(refused, Err(MemoryError::DistillLocked(_))));
    let sql = format!("UPDATE memory_locks SET ends_ms = {now} - ?1");
    database.execute(&sql, params![1_i64]).unwrap();
    let done = first.distill("s", None).await.unwrap();
    assert_eq!(done.distilled_turns, 1);
}

#[test]
fn a_turn_that_two_processes_store_is_stored_once() {
    let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let [first, second] = two_processes(&home, &other);
    let turn = |text| [NewTurn::text("user", text)];
    // A process that was stopped after it had read that there is no turn.
    assert_eq!(first.turn_count("s").unwrap(), 0);
    second.append_missing("s", 1, &turn("Lock it.")).unwrap();
    first.append_missing("s", 1, &turn("Lock it.")).unwrap();
    assert_eq!(second.turn_count("s").unwrap(), 1);
    second.append_missing("s", 2, &turn("Open it.")).unwrap();
    assert_eq!(first.turn_count("s").unwrap(), 2);
    assert_eq!(first.turn("s", 2).unwrap().raw, b"Open it.");
}
