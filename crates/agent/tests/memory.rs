//! Memory in requests: which earlier turns they contain, and that their prefix stays cached.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{
    Agent, AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork, HistoryStrategyKind,
    Session,
};
use selvedge_journal::Redactor;
use selvedge_memory::{
    ANNOUNCEMENT_TURNS, GradientOptions, Level, Memory, MemoryAccess, SmallModel, SmallModelAnswer,
    SmallModelError, get_turn_tool,
};
use selvedge_models::Prices;
use selvedge_protocol::{TurnEnd, Usage, WireApi};
use support::answer_encoding::{block, text};
use support::server::{Asked, Server};
use support::{APIS, TestAgent, text_of};
use tokio::sync::Notify;

/// The token budget of the gradient: room for about forty turns of these tests. Older turns are
/// shortened.
const BUDGET: u32 = 7_000;

fn memory(test: &TestAgent) -> Arc<Memory> {
    Arc::new(Memory::open(&test.dir.path().join("home"), Redactor::new([])).unwrap())
}

fn memory_with(memory: &Arc<Memory>, history: HistoryStrategyKind) -> AgentMemory {
    let settings = AgentMemoryOptions {
        history,
        recall_timeout: Some(Duration::from_secs(20)),
        max_recall_tokens: 600,
        background_work: BackgroundWork::InProcess,
        distill_idle_time: None,
        project: AgentProject::default(),
    };
    AgentMemory::new(memory.clone(), settings, None)
}

/// Returns an agent with memory and the tool that reads turns of this session.
fn agent(test: &TestAgent, server: &Server, memory: &Arc<Memory>, session: &Session) -> Agent {
    let agent = test.agent(server);
    let mut tools = agent.harness().orchestrator().registry().clone();
    tools
        .register(get_turn_tool(
            memory.clone(),
            MemoryAccess::new(session.id()),
        ))
        .unwrap();
    agent.with_tools(tools).with_memory(&memory_with(
        memory,
        HistoryStrategyKind::Gradient(GradientOptions::new(BUDGET)),
    ))
}

/// Returns the prompt of a turn: a unique fact and filler text.
fn message_of(turn: u32) -> String {
    let filler =
        "We went through the list again and no one had anything to add to what was written there. "
            .repeat(3);
    format!(
        "Note {turn}: the code of locker number {turn} is {}. {filler}",
        7_000 + 13 * turn
    )
}

/// Returns the request up to its newest message, without cache markers.
fn before_newest(asked: &Asked, newest: &str) -> String {
    let at = asked
        .raw
        .rfind(newest)
        .unwrap_or_else(|| panic!("{newest} is not in {}", asked.raw));
    // The opening brace of the message does not count.
    let at = asked.raw[..at].rfind("},{").unwrap_or(at);
    asked.raw[..at].replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "")
}

#[tokio::test]
async fn requests_keep_their_prefix_until_the_gradient_is_planned_again() {
    const TURNS: u32 = 64;
    const FETCHES: u32 = 13;
    for api in APIS {
        let server = Server::start(|asked| {
            let newest = newest(asked);
            match newest.contains(&message_of(FETCHES)) && !newest.contains("Result of the script")
            {
                true => vec![text(&block(
                    "return await tools.history.getTurn('T-2', 'R')",
                ))]
                .into(),
                false => vec![text("Noted.")].into(),
            }
        })
        .await;
        let test = TestAgent::new(api);
        let memory = memory(&test);
        let mut session = test.session().await;
        let agent = agent(&test, &server, &memory, &session);
        for turn in 1..=TURNS {
            let prompt = if turn % 3 == 0 {
                format!(
                    "{} Which code has locker number {}?",
                    message_of(turn),
                    turn - 2
                )
            } else {
                message_of(turn)
            };
            let outcome = agent.run_turn(&mut session, prompt, &test.options()).await;
            assert_eq!(outcome.end, Ok(TurnEnd::Stop));
        }
        // The first request of each turn.
        let asked = server.asked();
        let first = |turn: u32| {
            asked
                .iter()
                .find(|asked| asked.raw.contains(&message_of(turn)))
                .unwrap()
        };
        let (mut kept, mut planned) = (0, 0);
        for turn in 1..TURNS {
            let (now, next) = (first(turn), first(turn + 1));
            let before = before_newest(now, &message_of(turn));
            let same = before_newest(next, &message_of(turn + 1)).starts_with(&before);
            // The gradient is planned again every ten turns.
            match turn % 10 {
                0 => planned += usize::from(!same),
                _ => {
                    assert!(same, "{api:?}: between turn {turn} and {}", turn + 1);
                    kept += 1;
                }
            }
        }
        assert!(
            kept >= 50 && planned == 6,
            "{api:?}: {kept} kept, {planned} planned again"
        );
        // The gradient, recall and the board were all in use.
        let last = first(TURNS);
        assert!(
            last.raw.contains("<T-60-R>") && !last.raw.contains(&message_of(1)[40..]),
            "{api:?}: {}",
            last.raw
        );
        let recalled = (11..=TURNS)
            .filter(|turn| newest(first(*turn)).contains("<recalled>"))
            .count();
        assert!(recalled >= 8, "{api:?}: {recalled}");
        // The board says what each band shows.
        let bands =
            |turn: u32| newest(first(turn)).contains("Earlier turns in this prompt:\n- T-1 ");
        assert!(!bands(2) && (40..=TURNS).any(bands), "{api:?}");
        let board = |turn: u32| newest(first(turn)).contains("On the board:");
        assert!(
            !board(FETCHES) && (FETCHES + 1..=FETCHES + ANNOUNCEMENT_TURNS).all(board),
            "{api:?}"
        );
        assert!(!board(FETCHES + ANNOUNCEMENT_TURNS + 1), "{api:?}");
        // Recalled text is never stored.
        assert!(
            !session
                .history()
                .iter()
                .any(|(_, item)| format!("{item:?}").contains("<recalled>"))
        );
    }
}

/// Returns the text of a request from its newest prompt on.
fn newest(asked: &Asked) -> String {
    let key = if asked.body["input"].is_array() {
        "input"
    } else {
        "messages"
    };
    let items = asked.body[key].as_array().unwrap();
    let at = items
        .iter()
        .rposition(|item| item["role"] == "user" && text_of(item).contains("Note "))
        .unwrap();
    text_of(&serde_json::json!(items[at..]))
}

#[tokio::test]
async fn a_fact_of_turn_3_is_recalled_in_turn_400() {
    const TURNS: u32 = 400;
    let server = Server::start(|_| vec![text("Noted.")].into()).await;
    let test = TestAgent::new(WireApi::Chat);
    let memory = memory(&test);
    let mut session = test.session().await;
    let agent = agent(&test, &server, &memory, &session);
    for turn in 1..=TURNS {
        let prompt = match turn {
            3 => "Note: the staging database lives on the host heron, port 6543.".to_owned(),
            TURNS => "Note what I need: on which host does the staging database live?".to_owned(),
            turn => message_of(turn),
        };
        agent.run_turn(&mut session, prompt, &test.options()).await;
    }
    let asked = server.asked();
    let newest = newest(asked.last().unwrap());
    assert!(
        newest.contains("on which host") && newest.contains("heron, port 6543"),
        "{newest}"
    );
    // The size of requests is bounded.
    assert!(asked.last().unwrap().raw.len() < 2 * asked[100].raw.len());
}

#[tokio::test]
async fn raw_turns_keep_arguments_and_results_of_calls_inside_scripts() {
    let script = "const file = await tools.readFile({ path: 'b.txt' });\n\
                  await tools.writeFile({ path: 'c.txt', content: 'x'.repeat(200000) });\n\
                  await tools.writeFile({ path: 'd.txt', content: 'y'.repeat(9000) });\n\
                  return 1";
    let server = Server::start(move |asked| match asked.number {
        0 => vec![text(&block(script))].into(),
        _ => vec![text("ok")].into(),
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let (memory, mut session) = (memory(&test), test.session().await);
    let agent = agent(&test, &server, &memory, &session);
    agent.run_turn(&mut session, "go", &test.options()).await;
    let access = MemoryAccess::new(session.id());
    let raw = memory.get_turn(&access, "T-1", Level::Raw).unwrap();
    let output = raw
        .lines()
        .find(|line| line.contains("script_tool_call_output"));
    let output: serde_json::Value = serde_json::from_str(output.unwrap()).unwrap();
    let calls = &output["calls"];
    assert_eq!(calls[0]["args"]["path"], "b.txt", "{output}");
    assert_eq!(calls[0]["result"]["text"], "four\n", "{output}");
    // Only what is too long is shortened, and not what follows it.
    let content = calls[1]["args"]["content"].as_str().unwrap();
    assert!(
        content.contains("bytes omitted") && (40_000..66_000).contains(&content.len()),
        "{}",
        content.len()
    );
    assert_eq!(calls[2]["args"]["content"], "y".repeat(9_000));
}

#[tokio::test]
async fn turns_from_before_memory_was_enabled_are_stored() {
    let server = Server::start(|_| vec![text("Noted.")].into()).await;
    let test = TestAgent::new(WireApi::Messages);
    let mut session = test.session().await;
    let plain = test.agent(&server);
    for turn in 1..=4 {
        plain
            .run_turn(&mut session, message_of(turn), &test.options())
            .await;
    }
    let memory = memory(&test);
    let agent = agent(&test, &server, &memory, &session);
    agent
        .run_turn(&mut session, "Note what I need.", &test.options())
        .await;
    assert_eq!(memory.turn_count(session.id()).unwrap(), 5);
    assert!(
        memory
            .get_turn(&MemoryAccess::new(session.id()), "T-2", Level::Raw)
            .unwrap()
            .contains(&message_of(2))
    );
    // Nothing is stored twice.
    let mut again = Session::open(&test.journal, session.id()).await.unwrap();
    agent
        .run_turn(&mut again, "Note this as well.", &test.options())
        .await;
    assert_eq!(memory.turn_count(session.id()).unwrap(), 6);
}

#[tokio::test]
async fn a_saved_document_is_on_the_board_for_five_turns() {
    let server = Server::start(|asked| {
        let newest = newest(asked);
        match newest.contains(&message_of(1)) && !newest.contains("Result of the script") {
            true => vec![text(&block(
                "return (await tools.saveToFC('secret words', 'A plan')).title",
            ))]
            .into(),
            false => vec![text("Noted.")].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let memory = memory(&test);
    let mut session = test.session().await;
    let agent = agent(&test, &server, &memory, &session);
    for turn in 1..=ANNOUNCEMENT_TURNS + 2 {
        agent
            .run_turn(&mut session, message_of(turn), &test.options())
            .await;
    }
    // The first turn makes two requests.
    for (turn, asked) in (2..).zip(&server.asked()[2..]) {
        let text = newest(asked);
        let there = text.contains("A plan") && text.contains("tools.writeFile({ fileKey");
        assert_eq!(there, turn <= 1 + ANNOUNCEMENT_TURNS, "{turn}: {text}");
        // After that, the list of the File Cabinet names it.
        let listed = text.contains("File Cabinet of this project") && text.contains("\"A plan\"");
        assert_eq!(listed, !there, "{turn}: {text}");
        assert!(!text.contains("secret words"));
    }
    assert!(
        !session
            .history()
            .iter()
            .any(|(_, item)| format!("{item:?}").contains("tools.fetchFromFc"))
    );
}

/// A small model each of whose answers costs 10.
#[derive(Default)]
struct PricedModel {
    asked: AtomicUsize,
}

impl SmallModel for PricedModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move { Ok(self.ask_counted(prompt).await?.text) }.boxed()
    }

    fn ask_counted<'a>(
        &'a self,
        _: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let usage = Usage {
            input_tokens: 1_000_000,
            ..Usage::default()
        };
        let answer = SmallModelAnswer {
            text: "[1]".to_owned(),
            usage,
            cost: self.cost_of(&usage),
        };
        std::future::ready(Ok(answer)).boxed()
    }

    fn cost_of(&self, usage: &Usage) -> Option<f64> {
        Some(usage.input_tokens as f64 / 100_000.0)
    }
}

/// The time in which a task in the background must have ended on a busy machine.
const BACKGROUND_TIMEOUT: Duration = Duration::from_secs(60);

#[tokio::test]
async fn an_idle_session_is_distilled_if_that_is_due() {
    let server = Server::start(|_| vec![text("Noted.")].into()).await;
    let test = TestAgent::new(WireApi::Chat);
    let memory = memory(&test);
    let settings = AgentMemoryOptions {
        history: HistoryStrategyKind::OneShot,
        recall_timeout: None,
        max_recall_tokens: 600,
        background_work: BackgroundWork::InProcess,
        distill_idle_time: Some(Duration::from_millis(1)),
        project: AgentProject::default(),
    };
    let agent_memory = AgentMemory::new(memory.clone(), settings, None);
    let agent = test.agent(&server).with_memory(&agent_memory);
    let mut session = test.session().await;
    let prompt = "Always indent with tabs.";
    agent.run_turn(&mut session, prompt, &test.options()).await;
    let state = || memory.distill_state(session.id()).unwrap().unwrap();
    assert!(!state().is_due());
    let file = test.dir.path().join("home/journal.sqlite");
    let store = rusqlite::Connection::open(file).unwrap();
    store.busy_timeout(BACKGROUND_TIMEOUT).unwrap();
    let sql = "UPDATE memory_sessions SET created_ms = created_ms - 13 * 3600000";
    store.execute(sql, []).unwrap();
    assert!(state().is_due());
    agent
        .run_turn(&mut session, "Go on.", &test.options())
        .await;
    let learned = async {
        while memory.lessons(None).unwrap().is_empty() {
            tokio::task::yield_now().await;
        }
    };
    let learned = tokio::time::timeout(BACKGROUND_TIMEOUT, learned).await;
    assert_eq!(
        learned,
        Ok(()),
        "the session was idle, and is not distilled"
    );
    assert_eq!(memory.lessons(None).unwrap()[0].content, prompt);
}

/// Waits until the cost of a level, which was written after a turn, is stored.
async fn wait_for_late_cost(test: &TestAgent, session: &str) {
    let file = test.dir.path().join("home/journal.sqlite");
    let store = rusqlite::Connection::open(file).unwrap();
    store.busy_timeout(BACKGROUND_TIMEOUT).unwrap();
    let sql = "SELECT late_cost FROM memory_sessions WHERE name = ?1";
    let cost = || store.query_row(sql, [session], |row| row.get::<_, f64>(0));
    let stored = async {
        while cost().unwrap() < 10.0 {
            tokio::task::yield_now().await;
        }
    };
    let stored = tokio::time::timeout(BACKGROUND_TIMEOUT, stored).await;
    assert_eq!(stored, Ok(()), "the cost of a level is stored");
}

#[tokio::test]
async fn requests_of_the_memory_are_charged_to_the_turn() {
    let server = Server::start(|_| vec![text("Noted.")].into()).await;
    let mut test = TestAgent::new(WireApi::Messages);
    test.model.prices = Some(Prices::default());
    let memory = memory(&test);
    let small = Arc::new(PricedModel::default());
    let asked = || small.asked.load(Ordering::SeqCst);
    let with_memory = |test: &TestAgent| {
        let settings = AgentMemoryOptions {
            history: HistoryStrategyKind::OneShot,
            recall_timeout: Some(Duration::from_secs(20)),
            max_recall_tokens: 600,
            background_work: BackgroundWork::InProcess,
            distill_idle_time: None,
            project: AgentProject::default(),
        };
        let memory = AgentMemory::new(memory.clone(), settings, Some(small.clone()));
        test.agent(&server).with_memory(&memory)
    };
    let (mut session, options) = (test.session().await, test.options());
    let agent = with_memory(&test);
    // Nothing is recalled, and the level of the turn is written after it.
    let first = agent.run_turn(&mut session, message_of(1), &options);
    assert!(first.await.cost.unwrap_or(0.0) < 10.0);
    wait_for_late_cost(&test, session.id()).await;
    // Another process continues the session.
    let agent = with_memory(&test);
    let question = "What is the code of locker number 1?";
    let second = agent.run_turn(&mut session, question, &options);
    let cost = second.await.cost.unwrap();
    // The level of the first turn, the filter and the judgement.
    assert!((30.0..31.0).contains(&cost), "{cost}");
    assert!(session.total_spent().1 >= cost);
    // At the limit, memory works without it.
    test.settings.turn_limits.max_cost = Some(5.0);
    let mut session = test.session().await;
    let agent = with_memory(&test);
    let options = test.options();
    agent.run_turn(&mut session, message_of(2), &options).await;
    wait_for_late_cost(&test, session.id()).await;
    let ended = agent.run_turn(&mut session, question, &options);
    assert_eq!(ended.await.end, Ok(TurnEnd::MaxCost));
    let before = asked();
    let ended = agent.run_turn(&mut session, question, &options);
    assert_eq!(ended.await.end, Ok(TurnEnd::MaxCost));
    assert_eq!(
        asked(),
        before + 1,
        "the filter reaches the limit: no judgement, no level"
    );
}

/// A small model that writes levels when it is released, and records these prompts.
#[derive(Default)]
struct HeldModel {
    prompts: Mutex<Vec<String>>,
    release: Notify,
}

impl SmallModel for HeldModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move {
            let Some((_, turn)) = prompt.split_once("### turn ") else {
                return Ok("[]".to_owned());
            };
            self.prompts.lock().unwrap().push(turn.to_owned());
            self.release.notified().await;
            Ok(serde_json::json!({"compressed": "A code was noted."}).to_string())
        }
        .boxed()
    }
}

#[tokio::test]
async fn the_next_turn_does_not_interrupt_the_levels_of_the_one_before() {
    let small = Arc::new(HeldModel::default());
    let of_server = small.clone();
    let server = Server::start(move |asked| {
        if asked.number > 0 {
            // The second turn has begun.
            of_server.release.notify_one();
        }
        vec![text("Noted.")].into()
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let memory = memory(&test);
    let mut session = test.session().await;
    for turn in 1..=2 {
        let settings = AgentMemoryOptions {
            history: HistoryStrategyKind::OneShot,
            recall_timeout: None,
            max_recall_tokens: 600,
            background_work: BackgroundWork::InProcess,
            distill_idle_time: None,
            project: AgentProject::default(),
        };
        // Each turn in a server has its own.
        let agent_memory = AgentMemory::new(memory.clone(), settings, Some(small.clone()));
        let agent = test.agent(&server).with_memory(&agent_memory);
        agent
            .run_turn(&mut session, message_of(turn), &test.options())
            .await;
        let asked = async {
            while small.prompts.lock().unwrap().len() < turn as usize {
                tokio::task::yield_now().await;
            }
        };
        let asked = tokio::time::timeout(BACKGROUND_TIMEOUT, asked).await;
        assert_eq!(asked, Ok(()), "the level of turn {turn} is requested");
    }
    small.release.notify_one();
    let store = rusqlite::Connection::open(test.dir.path().join("home/journal.sqlite")).unwrap();
    store.busy_timeout(BACKGROUND_TIMEOUT).unwrap();
    let written = async {
        let sql = "SELECT count(*) FROM memory_levels WHERE made_by = 'model'";
        while store
            .query_row(sql, [], |row| row.get::<_, u32>(0))
            .unwrap()
            < 2
        {
            tokio::task::yield_now().await;
        }
    };
    let written = tokio::time::timeout(BACKGROUND_TIMEOUT, written).await;
    assert_eq!(written, Ok(()), "the levels of both turns are written");
    assert_eq!(small.prompts.lock().unwrap().len(), 2);
}
