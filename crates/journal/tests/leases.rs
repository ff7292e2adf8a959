//! Leases of processes that share a database: who may take over a session and when, and that a
//! process that lost a session cannot write to it.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use selvedge_journal::{Journal, JournalError, JournalOptions, LeaseTimes, StoredRunState};
use selvedge_protocol::{
    AuthorKind, CallStart, ChannelStore, InboxState, LeaseObserver, Ledger, LedgerError,
    MessageAuthor, NewChannelMessage, NewInboxMessage, RunStart, ScriptStoreBackend,
    ServerLeaseStore, ServerStoreError, SessionEventStore, SessionInfo, SessionQueueStore,
    SessionState, SessionStore, TurnChangeStore, TurnFileChanges,
};
use serde_json::json;
use support::{WaitForResult, database, store, uses_files};

const TIMES: LeaseTimes = LeaseTimes {
    duration: Duration::from_millis(1000),
    renewal: Duration::from_millis(200),
};
/// How long a test waits for what must happen.
const TIMEOUT: Duration = Duration::from_secs(30);

fn open(folder: &Path, times: LeaseTimes) -> Arc<Journal> {
    let options = JournalOptions {
        leases: Some(times),
        ..JournalOptions::default()
    };
    Journal::open_with(store(folder), &options).unwrap()
}

/// Opens the journal as a process that renews its lease never again, as if it were stopped.
fn open_stopped(folder: &Path) -> Arc<Journal> {
    let times = LeaseTimes {
        renewal: Duration::from_secs(3600),
        ..TIMES
    };
    open(folder, times)
}

fn claim_when_free(journal: &Journal, session: &str) -> Duration {
    let start = Instant::now();
    loop {
        match journal.claim_session(session) {
            Ok(()) => return start.elapsed(),
            Err(JournalError::SessionInUse(_)) => {}
            Err(error) => panic!("{error}"),
        }
        assert!(
            start.elapsed() < TIMEOUT,
            "the session does not become free"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn append(journal: &Journal, session: &str, turn: u32) -> Result<(), JournalError> {
    let after = journal.items(session)?.len() as u32;
    let row = json!({"type": "message"});
    journal.append_rows(session, after, turn, vec![row]).wait()
}

fn begin_run(journal: &Journal, session: &str, id: &str) -> Result<(), LedgerError> {
    let start = RunStart {
        id,
        source: "return 1",
        directory: "/w",
        session,
        seed: "1",
        resumes: None,
        saved_config: "{}",
    };
    journal.record_run_start(start).wait()
}

fn begin_call(journal: &Journal, run: &str, id: &str) -> Result<(), LedgerError> {
    let start = CallStart {
        run,
        id,
        tool: "exec",
        args: &json!({}),
        digest: "d",
        read_only: false,
        line: None,
        prior_call: None,
        queued_ms: None,
    };
    journal.record_call_start(start).wait()
}

fn send(journal: &Journal, author: MessageAuthor, session: &str) -> NewInboxMessageResult {
    let message = NewInboxMessage {
        session: session.to_owned(),
        author,
        text: "hello".to_owned(),
        permissions: None,
        idempotency_key: None,
        max_open_messages: None,
    };
    journal.send(message).wait()
}

type NewInboxMessageResult =
    Result<selvedge_protocol::InboxMessage, selvedge_protocol::SessionError>;

fn person() -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Person,
        id: "person".to_owned(),
    }
}

fn session_author(id: &str) -> MessageAuthor {
    MessageAuthor {
        kind: AuthorKind::Session,
        id: id.to_owned(),
    }
}

#[test]
fn a_process_that_was_stopped_cannot_write_to_a_session_that_was_taken_over() {
    let dir = tempfile::tempdir().unwrap();
    let (stopped, other) = (open_stopped(dir.path()), open(dir.path(), TIMES));
    let session = stopped.begin_session("/w", None).unwrap();
    let child = stopped.begin_session("/w", Some(&session)).unwrap();
    let message = send(&stopped, person(), &session).unwrap();
    let claimed = stopped.claim_next(&session).wait().unwrap().unwrap();
    assert_eq!(claimed.message.number, message.number);
    append(&stopped, &session, 1).unwrap();
    begin_run(&stopped, &session, "scr_1").unwrap();
    begin_run(&stopped, &child, "scr_2").unwrap();
    begin_call(&stopped, "scr_1", "call_1").unwrap();

    claim_when_free(&other, &session);
    assert_eq!(
        other.run("scr_1").unwrap().summary.state,
        StoredRunState::Died
    );
    // The message of the former owner is claimed again, and its turn has begun.
    let again = other.claim_next(&session).wait().unwrap().unwrap();
    assert!(again.begun);
    append(&other, &session, 1).unwrap();

    let rows = other.items(&session).unwrap().len();
    let check_refused = || {
        let taken = append(&stopped, &session, 1).unwrap_err();
        assert_eq!(
            taken.to_string(),
            format!("session `{session}` was taken over by another server")
        );
        assert!(matches!(
            append(&stopped, &child, 1),
            Err(JournalError::TakenOver(_))
        ));
        assert!(matches!(
            stopped
                .append_events(&session, vec![json!({"type": "error"})])
                .wait(),
            Err(ServerStoreError::TakenOver(_))
        ));
        let refused = [
            begin_run(&stopped, &session, "scr_3"),
            begin_run(&stopped, &child, "scr_4"),
            begin_call(&stopped, "scr_1", "call_2"),
            begin_call(&stopped, "scr_2", "call_3"),
            stopped.save_suspension("scr_1", vec![1]).wait(),
            stopped
                .script_values(&session)
                .put(BTreeMap::from([("a".to_owned(), "1".to_owned())]))
                .wait(),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            assert_eq!(refused, Err(LedgerError::ClaimedByOther), "write {number}");
        }
        let finish = stopped.finish(&claimed.message, InboxState::Failed, String::new());
        let post = NewChannelMessage {
            channel: "news".to_owned(),
            author: session_author(&session),
            text: "hello".to_owned(),
            permissions: None,
            idempotency_key: None,
            max_open_messages: None,
        };
        let changes = TurnFileChanges {
            directory: "/w".into(),
            files: Vec::new(),
            unrecorded: Vec::new(),
        };
        let refused = [
            finish.wait().map_err(|error| error.to_string()),
            send(&stopped, session_author(&session), &child)
                .map(drop)
                .map_err(|error| error.to_string()),
            ChannelStore::post(&*stopped, post)
                .wait()
                .map(drop)
                .map_err(|error| error.to_string()),
            stopped
                .record_changes(&session, 1, changes)
                .wait()
                .map_err(|error| error.to_string()),
        ];
        for (number, refused) in refused.into_iter().enumerate() {
            let error = refused.unwrap_err();
            assert!(error.contains("claimed"), "write {number}: {error}");
        }
    };
    check_refused();
    let lost = vec![session.clone(), child.clone()];
    assert_eq!(stopped.lost_sessions(lost.clone()).wait().unwrap(), lost);
    // Also if the session is free again.
    other.release_session(&session).wait().unwrap();
    check_refused();
    assert_eq!(other.items(&session).unwrap().len(), rows);
    assert_eq!(other.channel_count(), 0);
    assert_eq!(other.events_after(&session, 0, 10).wait().unwrap().len(), 0);
    // A new claim can write; the old runs cannot.
    stopped.claim_session(&session).unwrap();
    append(&stopped, &session, 1).unwrap();
    assert_eq!(
        begin_call(&stopped, "scr_1", "call_4"),
        Err(LedgerError::ClaimedByOther)
    );
    begin_run(&stopped, &session, "scr_5").unwrap();
    begin_call(&stopped, "scr_5", "call_5").unwrap();
}

/// A server stores the last events and the answer of a turn after its session was released.
#[test]
fn the_end_of_a_turn_is_refused_after_another_process_claimed_the_released_session() {
    let dir = tempfile::tempdir().unwrap();
    let (first, other) = (open(dir.path(), TIMES), open(dir.path(), TIMES));
    let session = first.begin_session("/w", None).unwrap();
    send(&first, person(), &session).unwrap();
    let claimed = first.claim_next(&session).wait().unwrap().unwrap();
    first.release_session(&session).wait().unwrap();
    // As long as the session is free, late writes are no conflict.
    let body = || vec![json!({"type": "error"})];
    assert_eq!(first.append_events(&session, body()).wait().unwrap(), 1);

    other.claim_session(&session).unwrap();
    let check_refused = || {
        let finish = first.finish(&claimed.message, InboxState::Answered, "late".to_owned());
        let error = finish.wait().unwrap_err().to_string();
        assert!(error.contains("claimed"), "{error}");
        assert!(matches!(
            first.append_events(&session, body()).wait(),
            Err(ServerStoreError::TakenOver(_))
        ));
    };
    check_refused();
    other.release_session(&session).wait().unwrap();
    check_refused();
    assert_eq!(other.events_after(&session, 0, 10).wait().unwrap().len(), 1);
    let message = other.message(&session, claimed.message.number);
    assert_eq!(message.wait().unwrap().state, InboxState::Claimed);
    // A new claim can write again.
    first.claim_session(&session).unwrap();
    assert_eq!(first.append_events(&session, body()).wait().unwrap(), 2);
}

#[test]
fn a_session_becomes_free_in_the_moment_in_which_its_message_is_answered() {
    let dir = tempfile::tempdir().unwrap();
    let (first, other) = (open(dir.path(), TIMES), open(dir.path(), TIMES));
    let session = first.begin_session("/w", None).unwrap();
    let message = send(&first, person(), &session).unwrap();
    first.claim_next(&session).wait().unwrap().unwrap();
    let refused = other.claim_session(&session);
    assert!(matches!(refused, Err(JournalError::SessionInUse(_))));
    let finish = first.finish_and_release(&message, InboxState::Answered, "done".to_owned());
    finish.wait().unwrap();
    other.claim_session(&session).unwrap();
    let answered = other.message(&session, message.number).wait().unwrap();
    assert_eq!(answered.answer.as_deref(), Some("done"));
    // The end of the session value releases it again, which must not free the claim of the other.
    first.release_session(&session).wait().unwrap();
    append(&other, &session, 1).unwrap();
    let refused = first.claim_session(&session);
    assert!(matches!(refused, Err(JournalError::SessionInUse(_))));
}

trait ChannelCount {
    fn channel_count(&self) -> usize;
}

impl ChannelCount for Journal {
    fn channel_count(&self) -> usize {
        ChannelStore::list(self).wait().unwrap().len()
    }
}

#[test]
fn the_session_of_a_process_that_renews_its_lease_stays_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, other) = (open(dir.path(), TIMES), open(dir.path(), TIMES));
    let session = owner.begin_session("/w", None).unwrap();
    let start = Instant::now();
    while start.elapsed() < TIMES.duration * 4 {
        let refused = other.claim_session(&session);
        assert!(matches!(refused, Err(JournalError::SessionInUse(_))));
        std::thread::sleep(Duration::from_millis(20));
    }
    append(&owner, &session, 1).unwrap();
    // A process that ends gives up its sessions at once.
    drop(owner);
    other.claim_session(&session).unwrap();
}

#[test]
fn no_session_is_taken_over_for_one_duration_after_the_database_was_away() {
    let dir = tempfile::tempdir().unwrap();
    let (owner, other) = (open(dir.path(), TIMES), open(dir.path(), TIMES));
    let session = owner.begin_session("/w", None).unwrap();
    let free = other.begin_session("/w", None).unwrap();
    std::thread::sleep(TIMES.duration * 2);
    // No process can renew its lease.
    let locking = database(dir.path());
    let lock = match uses_files() {
        true => "BEGIN IMMEDIATE",
        false => "BEGIN; LOCK TABLE owners",
    };
    locking.execute_batch(lock).unwrap();
    std::thread::sleep(TIMES.duration * 2);
    let now = locking.database_now();
    let sql = format!("SELECT count(*) FROM owners WHERE ends_ms > {now}");
    let leases: i64 = locking.query_row(&sql, &[], |row| row.get(0)).unwrap();
    assert_eq!(leases, 0, "the leases have not ended");
    locking.execute_batch("ROLLBACK").unwrap();
    let start = Instant::now();
    while start.elapsed() < TIMES.duration * 3 {
        let refused = other.claim_session(&session);
        assert!(matches!(refused, Err(JournalError::SessionInUse(_))));
        std::thread::sleep(Duration::from_millis(5));
    }
    for (journal, session) in [(&owner, &session), (&other, &free)] {
        append(journal, session, 1).unwrap();
    }
    // A process that is really gone is replaced.
    let stopped = open_stopped(dir.path());
    let lost = stopped.begin_session("/w", None).unwrap();
    claim_when_free(&other, &lost);
}

#[test]
fn no_session_is_taken_over_at_once_after_the_database_was_away_for_hours() {
    let dir = tempfile::tempdir().unwrap();
    let owner = open_stopped(dir.path());
    let session = owner.begin_session("/w", None).unwrap();
    let age = "UPDATE owners SET ends_ms = ends_ms - 7200000";
    let database = database(dir.path());
    database.execute_batch(age).unwrap();
    // The first process that can write again, which has not watched the leases yet.
    let times = LeaseTimes {
        duration: TIMEOUT,
        ..TIMES
    };
    let other = open(dir.path(), times);
    other.begin_session("/w", None).unwrap();
    let refused = other.claim_session(&session);
    assert!(matches!(refused, Err(JournalError::SessionInUse(_))));
    append(&owner, &session, 1).unwrap();
}

#[test]
fn rows_of_leases_that_ended_long_ago_are_removed() {
    let dir = tempfile::tempdir().unwrap();
    let journal = open(dir.path(), TIMES);
    let database = database(dir.path());
    let row = "INSERT INTO owners (id, ends_ms, name, versions) VALUES ('gone', 1, 'x', '{}')";
    database.execute_batch(row).unwrap();
    journal.begin_session("/w", None).unwrap();
    let rows = || -> i64 {
        let sql = "SELECT count(*) FROM owners WHERE id = 'gone'";
        database.query_row(sql, &[], |row| row.get(0)).unwrap()
    };
    let start = Instant::now();
    while rows() > 0 {
        assert!(start.elapsed() < TIMEOUT, "the row is not removed");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn the_queue_tells_which_sessions_are_free_and_which_no_server_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (server, other) = (open_stopped(dir.path()), open(dir.path(), TIMES));
    let session = server.begin_session("/w/app", None).unwrap();
    let state = || -> SessionInfo { SessionStore::get(&*other, &session).wait().unwrap() };
    assert_eq!(state().state, SessionState::Busy);
    server.release_session(&session).wait().unwrap();
    assert_eq!(state().state, SessionState::Idle);
    send(&other, person(), &session).unwrap();
    assert_eq!(state().state, SessionState::Unserved);
    assert!(other.sessions(10).unwrap()[0].unserved);
    other
        .declare_workspaces(vec!["/x".to_owned()])
        .wait()
        .unwrap();
    assert_eq!(state().state, SessionState::Unserved);
    server
        .declare_workspaces(vec!["/w".to_owned()])
        .wait()
        .unwrap();
    assert_eq!(state().state, SessionState::Idle);
    assert!(!other.sessions(10).unwrap()[0].unserved);
    let waiting = || other.waiting_sessions().wait().unwrap().remove(0);
    assert!(waiting().is_free);
    server.claim_session(&session).unwrap();
    assert!(!waiting().is_free);
    assert_eq!(waiting().owner.as_deref(), Some(server.owner()));
    let start = Instant::now();
    while !waiting().is_free {
        assert!(
            start.elapsed() < TIMEOUT,
            "the session does not become free"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(state().state, SessionState::Unserved);
}

/// A clock that runs with the test, and the last end of the lease.
#[derive(Debug)]
struct ObservedLease(Instant, AtomicU64);

impl LeaseObserver for ObservedLease {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn extend_to(&self, end: Duration) {
        self.1.fetch_max(end.as_millis() as u64, Ordering::SeqCst);
    }
}

#[test]
fn renewals_extend_the_lease_of_commands_to_a_time_before_its_end() {
    let dir = tempfile::tempdir().unwrap();
    let observed: &'static ObservedLease =
        Box::leak(Box::new(ObservedLease(Instant::now(), AtomicU64::new(0))));
    let journal = open(dir.path(), TIMES);
    journal.observe_lease(observed);
    assert_eq!(observed.1.load(Ordering::SeqCst), 0);
    journal.begin_session("/w", None).unwrap();
    let first = observed.1.load(Ordering::SeqCst);
    let latest = observed.now() + TIMES.duration - TIMES.renewal;
    assert!(first > 0 && u128::from(first) <= latest.as_millis());
    let start = Instant::now();
    while observed.1.load(Ordering::SeqCst) == first {
        assert!(start.elapsed() < TIMEOUT, "the lease is not renewed");
        std::thread::sleep(Duration::from_millis(10));
    }
}
