//! Limits of turns: budgets, last answers, and contexts that are too small.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::time::Duration;

use selvedge_agent::{BudgetLimits, Session, SessionStepKind};
use selvedge_models::Prices;
use selvedge_protocol::{RuntimeEvent, TurnEnd, WireApi};
use serde_json::{Value, json};
use support::answer_encoding::{INPUT, OUTPUT, block, call, text};
use support::server::{Reply, Server};
use support::{APIS, TestAgent, history, text_of};

fn too_long() -> Reply {
    Reply::Fail(
        400,
        json!({"error": {"code": "context_length_exceeded", "message": "too long"}}).to_string(),
    )
}

fn compactions(session: &Session) -> usize {
    session
        .steps()
        .iter()
        .filter(|step| step.kind == SessionStepKind::Compaction)
        .count()
}

#[tokio::test]
async fn a_request_that_stays_too_long_fails_the_turn() {
    let server = Server::start(|asked| match asked.number {
        0..4 => Reply::Counted(
            vec![text(&"words ".repeat(200))],
            asked.raw.len() as u64 / 4,
        ),
        _ => too_long(),
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    // The system prompt is much larger than the conversation that can be compacted.
    test.settings.extra_instructions = Some("Rules. ".repeat(3_000));
    let agent = test.agent(&server);
    let mut session = test.session().await;
    for _ in 0..4 {
        assert_eq!(
            agent
                .run_turn(&mut session, "go on", &test.options())
                .await
                .end,
            Ok(TurnEnd::Stop)
        );
    }
    let outcome = agent
        .run_turn(&mut session, "and on", &test.options())
        .await;
    assert_eq!(outcome.end.unwrap_err().kind.as_str(), "context_too_long");
    assert_eq!(
        (server.asked().len(), compactions(&session)),
        (6, 1),
        "the request is compacted and repeated once"
    );
    // A session with only a user message cannot be compacted.
    let mut session = test.session().await;
    let outcome = agent
        .run_turn(&mut session, "go".repeat(5_000), &test.options())
        .await;
    assert_eq!(outcome.end.unwrap_err().kind.as_str(), "context_too_long");
    assert_eq!((server.asked().len(), compactions(&session)), (7, 0));
}

#[tokio::test]
async fn requests_that_were_too_long_count_as_rounds() {
    // Every second request is too long and succeeds after the conversation was compacted.
    let server = Server::start(|asked| match asked.number % 2 {
        0 => vec![text(&block(&format!("return '{}'", "x".repeat(2_000))))].into(),
        _ => too_long(),
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.settings.turn_limits.max_rounds = Some(6);
    let outcome = test
        .agent(&server)
        .run_turn(&mut test.session().await, "go", &test.options())
        .await;
    assert_eq!(
        (outcome.end, server.asked().len()),
        (Ok(TurnEnd::MaxRounds), 6)
    );
}

#[tokio::test]
async fn a_large_system_prompt_does_not_cause_repeated_compactions() {
    let long = "x".repeat(1_500);
    let server = Server::start(move |asked| {
        let last = asked.body["messages"]
            .as_array()
            .unwrap()
            .last()
            .unwrap()
            .to_string();
        let answer = match last.contains("Result of the script") {
            true => "noted".to_owned(),
            false => block(&format!("return '{long}'")),
        };
        Reply::Counted(vec![text(&answer)], asked.raw.len() as u64 / 4)
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.settings.extra_instructions = Some("Rules. ".repeat(6_000));
    let agent = test.agent(&server);
    let mut session = test.session().await;
    agent.run_turn(&mut session, "TASK", &test.options()).await;
    let fixed = server.asked()[0].raw.len() as u64 / 4;
    // The context has twice the size of the fixed part.
    (test.model.context_window, test.model.max_output_tokens) = (fixed * 2, 500);
    let agent = test.agent(&server);
    for _ in 0..20 {
        assert_eq!(
            agent
                .run_turn(&mut session, "go on", &test.options())
                .await
                .end,
            Ok(TurnEnd::Stop)
        );
    }
    let many = compactions(&session);
    assert!((1..=8).contains(&many), "{many} in 40 requests");
    for event in test.events() {
        if let RuntimeEvent::ThreadCompacted {
            tokens_before,
            tokens_after,
        } = event
        {
            assert!(
                tokens_after < tokens_before && tokens_after > fixed / 2,
                "{tokens_before} → {tokens_after}"
            );
        }
    }
    // Without any room, a warning is emitted and nothing is compacted.
    (test.model.context_window, test.model.max_output_tokens) = (fixed, 500);
    let agent = test.agent(&server);
    test.events.lock().unwrap().clear();
    agent.run_turn(&mut session, "go on", &test.options()).await;
    let is_warning = |event: &RuntimeEvent| matches!(event, RuntimeEvent::Error { message } if message.contains("context tokens"));
    assert_eq!(
        test.events()
            .iter()
            .filter(|event| is_warning(event))
            .count(),
        1,
        "one warning for two requests"
    );
    assert_eq!(compactions(&session), many);
}

#[tokio::test]
async fn a_continued_turn_counts_what_it_spent_before() {
    let server = Server::start(|asked| match asked.number {
        0 => vec![call("c", "read_file", json!({"path": "a.txt"}))].into(),
        1 => Reply::Hang(vec![text(&"Let me see. ".repeat(100))]),
        _ => vec![text("Three lines.")].into(),
    })
    .await;
    let mut test = TestAgent::new(WireApi::Messages);
    test.model.prices = Some(Prices {
        input: 1e4,
        output: 0.0,
        ..Prices::default()
    });
    test.settings.turn_limits.max_rounds = Some(2);
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let options = test.options();
    // The turn is dropped while the second answer arrives.
    tokio::select! {
        outcome = agent.run_turn(&mut session, "go", &options) => panic!("{outcome:?}"),
        () = async {
            test.until(|event| matches!(event, RuntimeEvent::ItemUpdated { delta, .. } if delta.contains("see"))).await;
        } => {}
    }
    let id = session.id().to_owned();
    drop(session);
    let mut session = Session::open(&test.journal, &id).await.unwrap();
    assert!(session.has_open_turn());
    let outcome = agent.run_open_turn(&mut session, &test.options()).await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    assert_eq!(
        (outcome.usage.input_tokens, outcome.usage.output_tokens),
        (2 * INPUT, 2 * OUTPUT)
    );
    assert_eq!(outcome.cost, Some(2.0));
    let last = server.asked().pop().unwrap();
    assert!(
        text_of(&last.body).contains("This is the last answer of this turn"),
        "one of two rounds was left"
    );
    assert!(
        matches!(test.events().last(), Some(RuntimeEvent::TurnCompleted { usage, .. }) if usage.input_tokens == 2 * INPUT)
    );
}

#[tokio::test]
async fn nothing_runs_in_a_last_answer_and_the_cached_prefix_is_unchanged() {
    for api in APIS {
        let server = Server::start(|asked| {
            let write = format!(
                "await tools.writeFile({{ path: 'n{}.txt', content: '' }})",
                asked.number
            );
            vec![
                text(&block(&write)),
                call("s", "script", json!({"code": write})),
                call(
                    "c",
                    "write_file",
                    json!({"path": format!("c{}.txt", asked.number), "content": ""}),
                ),
            ]
            .into()
        })
        .await;
        let mut test = TestAgent::new(api);
        test.settings.turn_limits.max_rounds = Some(2);
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await;
        assert_eq!(outcome.end, Ok(TurnEnd::MaxRounds));
        let exists = |name: &str| test.work().join(name).exists();
        assert!(
            exists("n0.txt") && exists("c0.txt") && !exists("n1.txt") && !exists("c1.txt"),
            "{api:?}"
        );
        let items = history(&session);
        let refused = |start: &str| items.iter().filter(|item| item.starts_with(start)).count();
        assert_eq!(
            refused("script failed: ScriptRejectedError: not run"),
            2,
            "{items:?}"
        );
        assert_eq!(refused("result c: error: not run"), 1, "{items:?}");
        // The second request has the first one as prefix, so the cache is valid.
        let asked = server.asked();
        let (first, second) = (&asked[0].body, &asked[1].body);
        assert_eq!(first["tools"], second["tools"], "{api:?}");
        assert!(
            second["tool_choice"] == "none" || second["tool_choice"]["type"] == "none",
            "{api:?}"
        );
        let key = if api == WireApi::Responses {
            "input"
        } else {
            "messages"
        };
        let sent = text_of(&second[key]);
        assert!(!sent.contains("[called "), "calls stay calls: {sent}");
        let plain = |items: &Value| {
            let items = items.as_array().unwrap().iter().map(Value::to_string);
            items
                .map(|item| item.replace(",\"cache_control\":{\"type\":\"ephemeral\"}", ""))
                .collect::<Vec<_>>()
        };
        let (first, second) = (plain(&first[key]), plain(&second[key]));
        assert_eq!(first[..], second[..first.len()], "{api:?}");
    }
}

#[tokio::test]
async fn a_failed_turn_reports_its_cost() {
    let server = Server::start(|asked| match asked.number {
        0 => vec![call("c", "read_file", json!({"path": "a.txt"}))].into(),
        _ => Reply::Fail(401, "{}".into()),
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.model.prices = Some(Prices {
        input: 1e4,
        output: 0.0,
        ..Prices::default()
    });
    test.agent(&server)
        .run_turn(&mut test.session().await, "go", &test.options())
        .await;
    assert!(
        matches!(test.events().last(), Some(RuntimeEvent::TurnFailed { cost: Some(cost), .. }) if *cost == 1.0)
    );
    // Every completed item has a start event.
    let mut started = Vec::new();
    for event in test.events() {
        match event {
            RuntimeEvent::ItemStarted { item_id, .. } => started.push(item_id),
            RuntimeEvent::ItemCompleted { item_id, item } => {
                assert!(started.contains(&item_id), "{item:?}")
            }
            _ => {}
        }
    }
}

#[tokio::test]
async fn with_a_cost_limit_agents_cannot_use_models_without_prices() {
    let script = "const asked = [tools.agents.llm.chat({ prompt: 'x', model: 'unpriced' }), tools.agents.launch.sync({ prompt: 'x', model: 'unpriced' })];\n\
                  const refused = (await Promise.allSettled(asked)).map(({ reason }) => String(reason.message));\n\
                  return [...refused, (await tools.agents.llm.chat({ prompt: 'x', model: 'priced' })).text];";
    let server = Server::saying(vec![
        vec![text(&block(script))],
        vec![text("counted")],
        vec![text("done")],
    ])
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.model.prices = Some(Prices {
        input: 1.0,
        output: 1.0,
        ..Prices::default()
    });
    test.settings.turn_limits.max_cost = Some(5.0);
    let mut session = test.session().await;
    let outcome = test
        .agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(
        (outcome.end, server.asked().len()),
        (Ok(TurnEnd::Stop), 3),
        "{:?}",
        history(&session)
    );
    assert_eq!(
        history(&session)[2]
            .matches("the prices of model unpriced are not known")
            .count(),
        2,
        "{:?}",
        history(&session)
    );
    assert!(
        history(&session)[2].contains("counted"),
        "{:?}",
        history(&session)
    );
}

/// The script's time limit is shorter than the time that the model takes.
#[tokio::test]
async fn waiting_for_agents_does_not_count_against_the_time_limit_of_a_script() {
    const SLOW: Duration = Duration::from_millis(2600);
    let waits = "// @exec: {\"timeout_ms\": 2500}\n\
                 const a = await tools.agents.llm.chat('slow question');\n\
                 const b = await tools.agents.launch.sync('slow task');\n\
                 const c = await tools.agents.launch.async('slow work');\n\
                 return [a.text, b.message, (await tools.agents.wait(c.agentId)).message];";
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        match () {
            () if words.contains("Result of the script") => vec![text("done")].into(),
            () if words.contains("slow") => {
                std::thread::sleep(SLOW);
                vec![text("at last")].into()
            }
            () => vec![text(&block(waits))].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(
        history(&session)[2],
        "script returned: [\"at last\",\"at last\",\"at last\"]"
    );
}

#[tokio::test]
async fn events_of_a_sub_agent_carry_its_own_ids() {
    let script = "return (await tools.agents.launch.sync('task A')).message";
    let plan = "await tools.updatePlan({ plan: [{ step: 'of the agent', status: 'pending' }] })";
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        match (
            words.contains("Result of the script"),
            words.contains("task A"),
        ) {
            (true, _) => vec![text("done")].into(),
            (false, true) => vec![text(&block(plan))].into(),
            (false, false) => vec![text(&block(script))].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(history(&session)[2], "script returned: \"done\"");
    let events = test.events();
    assert!(events.iter().any(
        |event| matches!(event, RuntimeEvent::CallStarted { tool, .. } if tool == "update_plan")
    ));
    assert!(
        !events
            .iter()
            .any(|event| matches!(event, RuntimeEvent::PlanUpdated { .. })),
        "the plan of the sub-agent is not emitted"
    );
    let links: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            RuntimeEvent::AgentStarted {
                agent_id,
                parent_id,
                call_id,
                session_id,
            } => Some((agent_id, parent_id, call_id, session_id)),
            _ => None,
        })
        .collect();
    let [(agent_id, parent_id, call_id, session_id)] = links[..] else {
        panic!("{links:?}")
    };
    assert!(
        agent_id.starts_with("agt_") && parent_id.starts_with("scr_"),
        "{links:?}"
    );
    let launched = |event: &RuntimeEvent| matches!(event, RuntimeEvent::CallFinished { parent_id: run, call, .. } if run == parent_id && call.id == *call_id && call.tool == "agents.launch.sync");
    assert!(events.iter().any(launched), "{call_id}");
    assert_eq!(test.journal.session(session_id).unwrap().id, *session_id);
}

#[tokio::test]
async fn a_limit_of_one_request_lets_the_model_act_once() {
    let server =
        Server::start(|_| vec![call("c", "read_file", json!({"path": "a.txt"}))].into()).await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.settings.turn_limits = BudgetLimits {
        max_rounds: Some(1),
        ..BudgetLimits::default()
    };
    let mut session = test.session().await;
    let outcome = test
        .agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(
        (outcome.end, server.asked().len()),
        (Ok(TurnEnd::MaxRounds), 1)
    );
    assert!(
        history(&session)[2].starts_with("result c: L1: one"),
        "{:?}",
        history(&session)
    );
}
