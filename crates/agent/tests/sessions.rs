//! Claims on sessions, and sessions that are forked, exported and imported.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Arc;

use selvedge_agent::{AgentError, Session};
use selvedge_journal::{Journal, JournalError};
use selvedge_protocol::{TurnEnd, WireApi};
use serde_json::{Value, json};
use support::answer_encoding::{block, call, text};
use support::server::Server;
use support::{TestAgent, history};

fn other_process(test: &TestAgent) -> Arc<Journal> {
    Journal::open(&test.dir.path().join("home")).unwrap()
}

fn in_use(resumed: Result<Session, AgentError>) -> bool {
    matches!(
        resumed,
        Err(AgentError::Journal(JournalError::SessionInUse(_)))
    )
}

#[tokio::test]
async fn a_session_belongs_to_one_process_at_a_time() {
    let (test, server) = (
        TestAgent::new(WireApi::Chat),
        Server::start(|_| vec![text("ok")].into()).await,
    );
    let mut session = test.session().await;
    let id = session.id().to_owned();
    let elsewhere = other_process(&test);
    assert!(in_use(Session::open(&elsewhere, &id).await));
    assert!(
        Session::open_read_only(&elsewhere, &id).is_ok(),
        "reading does not require a claim"
    );
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert!(in_use(Session::open(&elsewhere, &id).await));
    drop(session);
    let theirs = Session::open(&elsewhere, &id).await.unwrap();
    assert!(in_use(Session::open(&test.journal, &id).await));
    // A process that ended without releasing its session does not own it any more.
    std::mem::forget(theirs);
    drop(elsewhere);
    let taken = Session::open(&test.journal, &id).await;
    assert!(
        in_use(taken),
        "the process of the leaked session is still running"
    );
}

#[tokio::test]
async fn a_stale_session_cannot_append_after_another_one_did() {
    let answers = |asked: &support::server::Asked| match asked.number {
        0 => vec![text("one")].into(),
        _ => vec![call(
            "c1",
            "write_file",
            json!({"path": "late.txt", "content": "x"}),
        )]
        .into(),
    };
    let (test, server) = (TestAgent::new(WireApi::Chat), Server::start(answers).await);
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let mut stale = Session::open(&test.journal, session.id()).await.unwrap();
    agent.run_turn(&mut session, "first", &test.options()).await;
    let outcome = agent.run_turn(&mut stale, "second", &test.options()).await;
    assert_eq!(outcome.end.unwrap_err().kind.as_str(), "journal");
    assert!(!test.work().join("late.txt").exists());
    assert_eq!(
        history(&Session::open_read_only(&test.journal, session.id()).unwrap()),
        ["User: first", "Assistant: one"]
    );
}

/// Returns the exported lines of a session up to its first answer, which was never run.
fn export_interrupted(test: &TestAgent, session: &Session) -> Vec<Value> {
    let mut lines = test.journal.export_session(session.id()).unwrap();
    let answered = lines
        .iter()
        .position(|line| line["item"]["type"] == "answer")
        .unwrap();
    lines.truncate(answered + 1);
    lines
}

#[tokio::test]
async fn an_imported_session_does_not_run_its_unfinished_answer() {
    let script = block("await tools.writeFile({ path: 'log.txt', content: 'script' })");
    let answers = move |asked: &support::server::Asked| match asked.number {
        0 => vec![
            text(&script),
            call(
                "c1",
                "write_file",
                json!({"path": "call.txt", "content": "call"}),
            ),
        ]
        .into(),
        _ => vec![text("Then not.")].into(),
    };
    let (test, server) = (TestAgent::new(WireApi::Chat), Server::start(answers).await);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    let lines = export_interrupted(&test, &session);
    let files = [test.work().join("log.txt"), test.work().join("call.txt")];
    assert!(files.iter().all(|file| std::fs::remove_file(file).is_ok()));
    let mut imported = Session::import(&test.journal, lines).await.unwrap();
    assert!(!imported.has_open_turn());
    let outcome = test
        .agent(&server)
        .run_turn(&mut imported, "and now?", &test.options())
        .await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    assert!(
        !files.iter().any(|file| file.exists()),
        "neither the script nor the call runs"
    );
    let history = history(&imported).join("\n");
    assert!(
        history.contains("OutcomeUnknownError") && history.contains("result c1: outcome unknown"),
        "{history}"
    );
}

#[tokio::test]
async fn an_imported_session_is_validated_before_it_is_stored() {
    let (test, server) = (
        TestAgent::new(WireApi::Chat),
        Server::start(|_| vec![text("ok")].into()).await,
    );
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    test.journal
        .rename_session(session.id(), "the parser")
        .unwrap();
    let lines = test.journal.export_session(session.id()).unwrap();
    for (field, value) in [
        ("turn", json!(4_294_967_295u32)),
        ("turn", json!(3)),
        ("item", json!({"type": "nonsense"})),
    ] {
        let mut lines = lines.clone();
        lines[1][field] = value;
        assert!(
            Session::import(&test.journal, lines).await.is_err(),
            "{field}"
        );
    }
    assert_eq!(
        test.journal.sessions(10).unwrap().len(),
        1,
        "nothing of an invalid session is stored"
    );
    let elsewhere = tempfile::tempdir().unwrap();
    let journal = Journal::open(elsewhere.path()).unwrap();
    let imported = Session::import(&journal, lines).await.unwrap();
    assert_eq!(history(&imported), history(&session));
    assert_eq!(
        journal.session("the parser").unwrap().id,
        imported.id(),
        "the name is kept if it is not in use"
    );
}

#[tokio::test]
async fn a_fork_has_the_values_that_scripts_stored() {
    let answers = |asked: &support::server::Asked| match asked.number {
        0 => vec![text(&block("store('n', 42); return 1"))].into(),
        2 => vec![text(&block("return load('n')"))].into(),
        _ => vec![text("ok")].into(),
    };
    let (test, server) = (TestAgent::new(WireApi::Chat), Server::start(answers).await);
    let agent = test.agent(&server);
    let mut session = test.session().await;
    agent
        .run_turn(&mut session, "keep it", &test.options())
        .await;
    let mut fork = Session::fork(&test.journal, session.id(), None)
        .await
        .unwrap();
    agent
        .run_turn(&mut fork, "what was it?", &test.options())
        .await;
    assert!(
        history(&fork).contains(&"script returned: 42".to_owned()),
        "{:?}",
        history(&fork)
    );
}

#[tokio::test]
async fn a_long_result_contains_the_handle_that_reads_it() {
    let long: String = (0..600)
        .map(|n| format!("line {n} of many, and each of them says a little more\n"))
        .collect();
    let (test, server) = (
        TestAgent::new(WireApi::Chat),
        Server::saying(vec![
            vec![call("c1", "read_file", json!({"path": "long.txt"}))],
            vec![text("ok")],
        ])
        .await,
    );
    std::fs::write(test.work().join("long.txt"), &long).unwrap();
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    let history = history(&session).join("\n");
    let handle = history
        .split("handle: \"")
        .nth(1)
        .and_then(|rest| rest.split('"').next())
        .unwrap();
    let (run, call) = handle.split_once('/').unwrap();
    let run = test.journal.run(run).unwrap();
    let value = run
        .calls
        .iter()
        .find(|made| made.id == call)
        .unwrap()
        .value
        .as_ref()
        .unwrap();
    assert!(!history.contains("line 300 of") && value.to_string().contains("line 300 of"));
}
