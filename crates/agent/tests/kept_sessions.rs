//! Sessions that are kept in memory between their turns, and pages of their items.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../../journal/tests/support/store.rs"]
mod store;
mod support;

use selvedge_agent::{Session, SessionPages};
use selvedge_journal::Journal;
use selvedge_protocol::{
    ConversationItem, FunctionCall, FunctionCallKind, MessageRole, RuntimeEvent, TurnItem, WireApi,
};
use store::store;
use support::answer_encoding::{block, text};
use support::server::Server;
use support::{TestAgent, history};

/// Returns a test environment whose journal is in the store of the tests.
fn test_agent() -> TestAgent {
    let mut test = TestAgent::new(WireApi::Chat);
    test.journal = Journal::open(store(&test.dir.path().join("home"))).unwrap();
    test
}

/// Returns a turn with a call.
fn past_turn(number: usize) -> [ConversationItem; 5] {
    let call_id = format!("call_{number}");
    let message = |role, text: String| ConversationItem::message(role, text);
    [
        message(MessageRole::User, format!("question {number}.")),
        message(MessageRole::Assistant, format!("Let me look at {number}.")),
        ConversationItem::FunctionCall(FunctionCall {
            call_id: call_id.clone(),
            name: "read_file".to_owned(),
            arguments: "{}".to_owned(),
            kind: FunctionCallKind::Function,
            native: None,
        }),
        ConversationItem::function_call_output(call_id, format!("file {number}.")),
        message(MessageRole::Assistant, format!("answer {number}.")),
    ]
}

#[tokio::test]
async fn a_kept_session_is_the_stored_one() {
    let server = Server::start(|asked| match asked.number % 2 {
        0 => vec![text(&block("return 6 * 7"))].into(),
        _ => vec![text("forty-two")].into(),
    });
    let (test, server) = (test_agent(), server.await);
    let other = Journal::open(store(&test.dir.path().join("home"))).unwrap();
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let id = session.id().to_owned();
    let mut sizes = Vec::new();
    for turn in 1..=3 {
        agent.run_turn(&mut session, "go", &test.options()).await;
        let kept = session.close().unwrap();
        sizes.push(kept.size());
        session = Session::reopen(&test.journal, &id, Some(kept))
            .await
            .unwrap();
        let stored = Session::open_read_only(&other, &id).unwrap();
        assert_eq!(session.steps(), stored.steps());
        assert_eq!(session.turn_end(), stored.turn_end());
        assert_eq!(session.turn_number(), turn);
        assert_eq!(session.total_spent(), stored.total_spent());
    }
    assert!(0 < sizes[0] && sizes[0] < sizes[1] && sizes[1] < sizes[2]);
}

#[tokio::test]
async fn a_kept_session_is_read_again_after_others_changed_it() {
    let test = test_agent();
    let other = Journal::open(store(&test.dir.path().join("home"))).unwrap();
    let mut session = test.session().await;
    let id = session.id().to_owned();
    session.add_past_turn("first", "one").await.unwrap();
    let kept = session.close().unwrap();
    // The release may be queued.
    test.journal.flush().unwrap();
    let mut theirs = Session::open(&other, &id).await.unwrap();
    theirs.add_past_turn("second", "two").await.unwrap();
    drop(theirs);
    other.flush().unwrap();
    let session = Session::reopen(&test.journal, &id, Some(kept)).await;
    let session = session.unwrap();
    let all = [
        "User: first",
        "Assistant: one",
        "User: second",
        "Assistant: two",
    ];
    assert_eq!(history(&session), all);
    let kept = session.close().unwrap();
    test.journal.flush().unwrap();
    Session::forget(&other, &id, Some(1)).unwrap();
    let session = Session::reopen(&test.journal, &id, Some(kept)).await;
    let remaining = history(&session.unwrap());
    assert!(!remaining.contains(&all[0].to_owned()), "{remaining:?}");
    assert!(remaining.contains(&all[2].to_owned()), "{remaining:?}");
}

#[tokio::test]
async fn a_session_with_an_open_turn_is_not_kept() {
    let server = Server::start(|_| vec![text("ok")].into()).await;
    let test = test_agent();
    let mut session = test.session().await;
    let options = test.options();
    {
        let agent = test.agent(&server);
        let turn = agent.run_turn(&mut session, "go", &options);
        // The turn is dropped after it has begun.
        tokio::select! {
            biased;
            () = test.until(|event| matches!(event, RuntimeEvent::TurnStarted { .. })) => {}
            _ = turn => panic!("the turn has ended"),
        }
    }
    assert!(session.has_open_turn());
    assert!(session.close().is_none());
}

/// Compares pages of all positions and several sizes with the whole history.
fn check_pages(pages: &mut SessionPages, journal: &Journal, id: &str, all: &[(u32, TurnItem)]) {
    for after in 0..=all.len() + 2 {
        for limit in [0, 1, 7, 1000] {
            let page = pages.read(journal, id, after as u64, limit).unwrap();
            let expected: Vec<_> = all.iter().skip(after).take(limit).cloned().collect();
            assert_eq!(page.items, expected, "{limit} after {after}");
            assert_eq!(page.total, all.len() as u64);
        }
    }
}

#[tokio::test]
async fn pages_are_parts_of_the_history() {
    let test = test_agent();
    let other = Journal::open(store(&test.dir.path().join("home"))).unwrap();
    let mut session = test.session().await;
    let id = session.id().to_owned();
    let mut pages = SessionPages::default();
    check_pages(&mut pages, &other, &id, &[]);
    for round in 0..3 {
        for turn in 0..4 {
            let items = past_turn(round * 4 + turn);
            session.add_past_turns(&items).await.unwrap();
        }
        check_pages(&mut pages, &other, &id, &session.history());
    }
    drop(session);
    test.journal.flush().unwrap();
    Session::forget(&other, &id, Some(3)).unwrap();
    let session = Session::open_read_only(&other, &id).unwrap();
    let all = session.history();
    assert!(all.len() < 60, "{}", all.len());
    check_pages(&mut pages, &other, &id, &all);
}
