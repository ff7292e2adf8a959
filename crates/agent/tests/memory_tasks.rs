//! Background work of memory after turns.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use selvedge_agent::{
    AgentMemory, AgentMemoryOptions, AgentProject, BackgroundWork, HistoryStrategyKind,
};
use selvedge_journal::Redactor;
use selvedge_memory::Memory;
use selvedge_protocol::{TurnEnd, WireApi};
use support::TestAgent;
use support::answer_encoding::text;
use support::server::Server;

/// A server assembles an agent for each turn.
#[tokio::test]
async fn an_agent_that_is_dropped_leaves_no_task_behind() {
    const TURNS: usize = 20;
    let test = TestAgent::new(WireApi::Chat);
    let server = Server::start(|_| vec![text("ok")].into()).await;
    let home = test.dir.path().join("home");
    let memory = Arc::new(Memory::open(&home, Redactor::new([])).unwrap());
    let mut session = test.session().await;
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let mut after_first = None;
    for turn in 0..TURNS {
        let options = AgentMemoryOptions {
            history: HistoryStrategyKind::Regular,
            recall_timeout: None,
            max_recall_tokens: 600,
            distill_idle_time: Some(Duration::from_secs(3600)),
            project: AgentProject::default(),
            background_work: BackgroundWork::InProcess,
        };
        let of_turn = AgentMemory::new(memory.clone(), options, None);
        let agent = test.agent(&server).with_memory(&of_turn);
        let message = format!("turn {turn}");
        let outcome = agent.run_turn(&mut session, message, &test.options()).await;
        assert_eq!(outcome.end, Ok(TurnEnd::Stop));
        after_first.get_or_insert_with(tasks);
    }
    // The work of the last turns ends soon.
    let limit = after_first.unwrap() + TURNS / 2;
    let ended = async {
        while tasks() > limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await;
    assert!(ended.is_ok(), "{} tasks, at most {limit} expected", tasks());
}
