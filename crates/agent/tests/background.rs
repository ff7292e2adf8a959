//! Agents that run in the background: their handle outlives the turn, and later turns pay for them.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Mutex;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use selvedge_agent::{BackgroundPolicy, Session, TurnOptions};
use selvedge_journal::StoredRunState;
use selvedge_protocol::{RuntimeEvent, TurnEnd, WireApi};
use support::answer_encoding::{INPUT, block, text};
use support::server::{Reply, Server};
use support::{TestAgent, history, text_of};

/// Launches an agent, and keeps its handle for later scripts of the session.
const LAUNCH: &str = "const handle = await tools.agents.launch.async('the work');\n\
                      store('handle', handle);\nreturn Object.keys(handle)";
/// Returns the result of that agent in both ways.
const COLLECT: &str = "const { agentId, fileKey } = load('handle');\n\
                       const { message, fileKey: key, status } = await tools.agents.wait(agentId);\n\
                       const { content } = await tools.fetchFromFc(fileKey);\n\
                       return [message, content, status, key === fileKey]";

/// A server that answers `launch` and `collect` with the scripts, and the work of the agent when
/// the returned sender says so.
async fn server() -> (Server, Sender<()>) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        let last = words
            .trim_end()
            .lines()
            .last()
            .unwrap_or_default()
            .to_owned();
        match last.as_str() {
            "the work" => {
                // Tells tokio that this thread blocks, so that its other tasks move to another one.
                tokio::task::block_in_place(|| released.lock().unwrap().recv().unwrap());
                vec![text("the work is done")].into()
            }
            "launch" => vec![text(&block(LAUNCH))].into(),
            "collect" => vec![text(&block(COLLECT))].into(),
            _ => Reply::from(vec![text("ok")]),
        }
    })
    .await;
    (server, release)
}

fn detached(test: &TestAgent) -> TurnOptions {
    TurnOptions {
        background: BackgroundPolicy::Detach,
        ..test.options()
    }
}

/// Returns the state of the only run of an agent.
fn agent_state(test: &TestAgent) -> StoredRunState {
    let runs = test.journal.runs(&Default::default()).unwrap();
    let agents: Vec<_> = runs
        .iter()
        .filter(|run| run.id.starts_with("agt_"))
        .collect();
    assert_eq!(agents.len(), 1);
    agents[0].state
}

/// Waits until the turn that launches an agent has received its two answers.
async fn both_answers(test: &TestAgent) {
    let answered = |event: &RuntimeEvent| matches!(event, RuntimeEvent::UsageUpdated { .. });
    while test.events().iter().filter(|event| answered(event)).count() < 2 {
        test.event_added.notified().await;
    }
}

const COLLECTED: &str =
    "script returned: [\"the work is done\",\"the work is done\",\"stop\",true]";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_background_agent_outlives_its_turn_and_its_result_is_read_later() {
    let (server, release) = server().await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, mut session) = (test.agent(&server), test.session().await);
    let first = agent
        .run_turn(&mut session, "launch", &detached(&test))
        .await;
    assert_eq!(first.end, Ok(TurnEnd::Stop), "{:?}", history(&session));
    assert_eq!(
        history(&session)[2],
        "script returned: [\"agentId\",\"fileKey\"]"
    );
    assert_eq!(agent_state(&test), StoredRunState::Running);

    release.send(()).unwrap();
    agent
        .run_turn(&mut session, "collect", &detached(&test))
        .await;
    assert!(
        history(&session).contains(&COLLECTED.to_owned()),
        "{:?}",
        history(&session)
    );
    // Two requests of each turn and one of the agent, which ended after its turn.
    assert_eq!(session.total_spent().0.input_tokens, 5 * INPUT);

    // Another process reads the result from the journal.
    let id = session.id().to_owned();
    drop((agent, session));
    let (agent, mut session) = (
        test.agent(&server),
        Session::open(&test.journal, &id).await.unwrap(),
    );
    agent
        .run_turn(&mut session, "collect", &test.options())
        .await;
    let collected = history(&session)
        .into_iter()
        .filter(|item| item == COLLECTED);
    assert_eq!(collected.count(), 2, "{:?}", history(&session));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn by_default_a_turn_waits_for_its_background_agents() {
    let (server, release) = server().await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, options) = (test.agent(&server), test.options());
    let mut session = test.session().await;
    let finish_work = async {
        both_answers(&test).await;
        release.send(()).unwrap();
    };
    let turn = agent.run_turn(&mut session, "launch", &options);
    let (outcome, ()) = tokio::join!(turn, finish_work);
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    assert_eq!(agent_state(&test), StoredRunState::Completed);
    assert_eq!(outcome.usage.input_tokens, 3 * INPUT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_interrupt_stops_the_background_agents_of_the_turn() {
    let (server, release) = server().await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, options) = (test.agent(&server), test.options());
    let mut session = test.session().await;
    let stop = async {
        both_answers(&test).await;
        options.cancel.cancel();
    };
    tokio::join!(agent.run_turn(&mut session, "launch", &options), stop);
    assert_eq!(agent_state(&test), StoredRunState::Failed);
    drop(release);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_interrupted_turn_stops_agents_that_would_outlive_it() {
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    // Neither the agent nor the turn gets its next answer.
    let server = Server::start(move |asked| match asked.number {
        0 => vec![text(&block(LAUNCH))].into(),
        _ => {
            let _ = tokio::task::block_in_place(|| released.lock().unwrap().recv());
            Reply::from(vec![text("late")])
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, options) = (test.agent(&server), detached(&test));
    let mut session = test.session().await;
    let stop = async {
        while server.asked().len() < 3 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        options.cancel.cancel();
    };
    let turn = agent.run_turn(&mut session, "launch", &options);
    let (outcome, ()) = tokio::join!(turn, stop);
    assert_eq!(outcome.end, Ok(TurnEnd::Interrupted));
    assert_eq!(agent_state(&test), StoredRunState::Failed);
    drop(release);
}
