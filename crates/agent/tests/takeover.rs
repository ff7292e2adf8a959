//! A turn whose session another process takes over meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../../journal/tests/support/store.rs"]
mod store;
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Session, TurnAdditions, TurnCharge, TurnHook};
use selvedge_journal::{Journal, JournalOptions, LeaseTimes};
use selvedge_protocol::{TurnErrorKind, WireApi};
use store::store;
use support::TestAgent;
use support::answer_encoding::{call, text};
use support::server::Server;

/// Counts the turns that are remembered.
#[derive(Default)]
struct RememberedTurns(AtomicUsize);

impl TurnHook for RememberedTurns {
    fn before_turn<'a>(
        &'a self,
        _: &'a Session,
        _: &'a str,
        _: &'a TurnCharge,
    ) -> BoxFuture<'a, TurnAdditions> {
        std::future::ready(TurnAdditions::default()).boxed()
    }

    fn after_turn<'a>(&'a self, _: &'a Session, _: &'a TurnCharge) -> BoxFuture<'a, ()> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::ready(()).boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_turn_that_was_taken_over_ends_and_is_not_remembered() {
    let folder = tempfile::tempdir().unwrap();
    let open = |renewal: Duration| {
        let options = JournalOptions {
            leases: Some(LeaseTimes {
                duration: Duration::from_secs(1),
                renewal,
            }),
            ..JournalOptions::default()
        };
        Journal::open_with(store(folder.path()), &options).unwrap()
    };
    // One process renews its lease never again, as if it were stopped.
    let stopped = open(Duration::from_secs(3600));
    let other = open(Duration::from_millis(200));
    let mut session = Session::begin(&stopped, "/w").await.unwrap();
    let id = session.id().to_owned();
    // Another process takes over while the model answers.
    let server = Server::start(move |_| {
        let start = Instant::now();
        while other.claim_session(&id).is_err() {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(10));
        }
        vec![text("too late")].into()
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let remembered = Arc::<RememberedTurns>::default();
    let agent = test.agent(&server).with_turn_hook(remembered.clone());
    let outcome = agent.run_turn(&mut session, "go", &test.options()).await;
    let error = outcome.end.unwrap_err();
    assert_eq!(error.kind, TurnErrorKind::Journal);
    assert!(
        error.message.contains("was taken over by another server"),
        "{}",
        error.message
    );
    assert!(session.has_open_turn());
    assert_eq!(remembered.0.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_call_does_not_run_if_the_run_of_its_turn_is_not_recorded() {
    let test = TestAgent::new(WireApi::Chat);
    let file = test.dir.path().join("home/journal.sqlite");
    // Refuses the run as a takeover just before it does.
    let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON runs WHEN NEW.id LIKE 'trn%'
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    let raw = rusqlite::Connection::open(file).unwrap();
    raw.execute_batch(refuse).unwrap();
    let args = serde_json::json!({"path": "new.txt", "content": "x"});
    let first = vec![call("c1", "write_file", args)];
    let server = Server::saying(vec![first, vec![text("done")]]).await;
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let _ = agent.run_turn(&mut session, "go", &test.options()).await;
    assert!(!test.work().join("new.txt").exists());
    raw.execute_batch("DROP TRIGGER refuse").unwrap();
    let args = serde_json::json!({"path": "new.txt", "content": "x"});
    let second = vec![call("c2", "write_file", args)];
    let server = Server::saying(vec![second, vec![text("done")]]).await;
    let agent = test.agent(&server);
    agent
        .run_turn(&mut session, "again", &test.options())
        .await
        .end
        .unwrap();
    assert!(test.work().join("new.txt").exists());
}
