//! How long a turn waits for a memory that does not answer.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::net::TcpListener;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rusqlite::Connection;
use selvedge_agent::{
    AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork, HistoryStrategyKind,
    RemoteEncoder,
};
use selvedge_journal::Redactor;
use selvedge_memory::{Encoder, GradientOptions, Memory, NewTurn, ProjectPlace};
use selvedge_models::Provider;
use selvedge_protocol::{TurnEnd, WireApi};
use support::TestAgent;
use support::answer_encoding::text;
use support::server::Server;

/// The time limit of memory, and what a busy machine may add to it.
const MAX_DELAY: Duration = Duration::from_millis(1_200 + 2_800);
/// How long the lock is held if no request comes. Less than the time for which a connection waits.
const MAX_LOCK_TIME: Duration = Duration::from_secs(12);

/// Locks the memory until a message comes.
fn lock(folder: &std::path::Path, release: Receiver<()>) -> std::thread::JoinHandle<()> {
    let file = Connection::open(folder.join("journal.sqlite")).unwrap();
    file.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::spawn(move || {
        let _ = release.recv_timeout(MAX_LOCK_TIME);
        file.execute_batch("ROLLBACK").unwrap();
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_locked_memory_delays_a_turn_until_the_deadline_and_the_brief_comes_later() {
    let test = TestAgent::new(WireApi::Chat);
    let folder = test.dir.path().join("memory");
    let memory = Arc::new(Memory::open(&folder, Redactor::new([])).unwrap());
    let place = ProjectPlace {
        directory: "/work".to_owned(),
        root: "/work".to_owned(),
    };
    memory.join_project("earlier", &place).unwrap();
    let decided = NewTurn::text("user", "We decided to keep sessions in Redis.");
    memory.append("earlier", &decided).unwrap();
    let (released, release) = channel();
    let asked: Arc<Mutex<(Option<Instant>, Sender<()>)>> = Arc::new(Mutex::new((None, released)));
    let seen = asked.clone();
    let server = Server::start(move |_| {
        let mut seen = seen.lock().unwrap();
        seen.0.get_or_insert_with(Instant::now);
        let _ = seen.1.send(());
        vec![text("Noted.")].into()
    })
    .await;
    let options = AgentMemoryOptions {
        history: HistoryStrategyKind::Gradient(GradientOptions::new(7_000)),
        recall_timeout: Some(Duration::from_millis(1_200)),
        max_recall_tokens: 600,
        background_work: BackgroundWork::InProcess,
        distill_idle_time: None,
        project: AgentProject {
            place: Some(place),
            max_brief_tokens: 1_500,
            ..AgentProject::default()
        },
    };
    let agent = test.agent(&server);
    let agent = agent.with_memory(&AgentMemory::new(memory.clone(), options, None));
    let mut session = test.session().await;
    let lock = lock(&folder, release);
    let begun = Instant::now();
    let outcome = agent
        .run_turn(&mut session, "Note one.", &test.options())
        .await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    let delay = asked.lock().unwrap().0.unwrap() - begun;
    assert!(delay < MAX_DELAY, "{delay:?}");
    lock.join().unwrap();
    agent
        .run_turn(&mut session, "Note two.", &test.options())
        .await;
    let requests = server.asked();
    assert!(!requests[0].raw.contains("Redis"), "{}", requests[0].raw);
    assert!(requests[1].raw.contains("Redis"), "{}", requests[1].raw);
    // Each turn is stored once, although storing was late.
    assert_eq!(memory.turn_count(session.id()).unwrap(), 2);
}

#[test]
fn the_vector_of_a_question_does_not_wait_for_those_of_turns() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1", listener.local_addr().unwrap());
    let provider = Provider::new("mine", &url, WireApi::Chat);
    let encoder = Arc::new(RemoteEncoder::new(provider, "embed").unwrap());
    let of_turns = encoder.clone();
    let turns = std::thread::spawn(move || of_turns.encode(&["a turn"]));
    // The server accepts the request, and does not answer.
    let (held, _) = listener.accept().unwrap();
    let begun = Instant::now();
    assert!(encoder.encode_question("where?").is_err());
    let delay = begun.elapsed();
    assert!(delay < MAX_DELAY, "{delay:?}");
    drop((held, listener));
    assert!(turns.join().unwrap().is_err());
}
