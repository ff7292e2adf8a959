//! The memory on a single-threaded runtime while another process has locked the journal's file.
#![allow(missing_docs, clippy::unwrap_used)]

use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rusqlite::Connection;
use selvedge_journal::Redactor;
use selvedge_memory::{
    Memory, NewTurn, RecallDeadlines, RecallRequest, SmallModel, SmallModelError,
};
use tokio::sync::Notify;

/// Less than the time for which a connection waits for a lock.
const WAIT_TIMEOUT: Duration = Duration::from_secs(15);

/// A memory with one turn whose lower levels are not written.
fn memory() -> (tempfile::TempDir, Arc<Memory>) {
    let dir = tempfile::tempdir().unwrap();
    let memory = Memory::open(dir.path(), Redactor::new([])).unwrap();
    add_turn(&memory);
    (dir, Arc::new(memory))
}

fn add_turn(memory: &Memory) {
    let turn = NewTurn::text("user", "I prefer the staging database heron-7 in Oslo.");
    memory.append("s", &turn).unwrap();
}

fn lock(folder: &Path) -> Connection {
    let file = Connection::open(folder.join("journal.sqlite")).unwrap();
    file.busy_timeout(WAIT_TIMEOUT).unwrap();
    file.execute_batch("BEGIN EXCLUSIVE").unwrap();
    file
}

/// A model that locks the file before it answers.
struct LockingModel<'a> {
    folder: &'a Path,
    lock: Mutex<Option<Connection>>,
    asked: Notify,
}

impl SmallModel for LockingModel<'_> {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        *self.lock.lock().unwrap() = Some(lock(self.folder));
        self.asked.notify_one();
        std::future::ready(Ok("[]".to_owned())).boxed()
    }
}

/// Answers each prompt with an empty list.
struct EmptyAnswer;

impl SmallModel for EmptyAnswer {
    fn ask<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        std::future::ready(Ok("[]".to_owned())).boxed()
    }
}

#[tokio::test]
async fn distilling_and_summarising_wait_for_the_lock_without_blocking_the_thread() {
    let (dir, memory) = memory();
    let held = lock(dir.path());
    let mut distill = pin!(memory.distill("s", None));
    let mut summarise = pin!(memory.summarise("s", &EmptyAnswer));
    assert!(futures_util::poll!(&mut distill).is_pending());
    assert!(futures_util::poll!(&mut summarise).is_pending());
    drop(held);
    assert_eq!(distill.await.unwrap().distilled_turns, 1);
    assert_eq!(summarise.await.unwrap(), 1);
}

#[tokio::test]
async fn storing_the_answers_of_a_model_waits_for_the_lock_without_blocking_the_thread() {
    let (dir, memory) = memory();
    let model = LockingModel {
        folder: dir.path(),
        lock: Mutex::default(),
        asked: Notify::new(),
    };
    let mut distill = pin!(memory.distill("s", Some(&model)));
    tokio::select! {
        biased;
        () = model.asked.notified() => {}
        done = &mut distill => panic!("did not wait for the lock: {done:?}"),
    }
    model.lock.lock().unwrap().take();
    assert_eq!(distill.await.unwrap().distilled_turns, 1);
    let mut summarise = pin!(memory.summarise("s", &model));
    tokio::select! {
        biased;
        () = model.asked.notified() => {}
        done = &mut summarise => panic!("did not wait for the lock: {done:?}"),
    }
    model.lock.lock().unwrap().take();
    assert_eq!(summarise.await.unwrap(), 1);
}

#[tokio::test]
async fn recall_keeps_its_deadline_while_levels_cannot_be_written() {
    let (dir, memory) = memory();
    let held = lock(dir.path());
    let since = Instant::now();
    let request = RecallRequest {
        deadlines: RecallDeadlines::within(Duration::from_secs(5)),
        ..RecallRequest::new("s", "which staging database do we use?")
    };
    let recalled = memory.recall(&request).await;
    assert!(since.elapsed() < WAIT_TIMEOUT, "{:?}", since.elapsed());
    let missing = recalled.missing.join("\n");
    assert_eq!(recalled.hits.len(), 1, "{missing}");
    assert!(recalled.text.contains("T-1-R"), "{missing}");
    drop(held);
}
