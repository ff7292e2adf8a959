//! Turns with errors, interrupts, limits, sub-agents and compaction.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{
    AfterBlock, BudgetLimits, OneShotHistory, Session, SessionStepKind, TurnAdditions, TurnCharge,
    TurnHook,
};
use selvedge_models::Prices;
use selvedge_protocol::{CallStatus, RuntimeEvent, TurnEnd, TurnItem, WireApi};
use serde_json::json;
use support::answer_encoding::{AnswerPart, INPUT, OUTPUT, block, call, text, think};
use support::server::{Reply, Server};
use support::{APIS, TestAgent, brief, history, text_of};

#[tokio::test]
async fn a_block_with_a_syntax_error_is_rejected_with_its_line() {
    for api in APIS {
        let bad = "const a = 1;\nconst b = = 2;\nconst c = 3;\n";
        let answers = vec![
            vec![text(&format!("Now.\n<tool-calls>\n{bad}</tool-calls>"))],
            vec![text("I see.")],
        ];
        let (test, server) = (TestAgent::new(api), Server::saying(answers).await);
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await;
        assert_eq!(outcome.end, Ok(TurnEnd::Stop));
        let items = history(&session);
        assert_eq!(items[1], "Assistant: Now.\n");
        assert!(items[2].starts_with("script: "), "{items:?}");
        assert!(
            items[3].starts_with("script failed: ScriptSyntaxError"),
            "{items:?}"
        );
        let second = text_of(&server.asked()[1].body);
        assert!(second.contains("ScriptSyntaxError at 2:"), "{second}");
        // The stored session has the same steps.
        assert_eq!(
            Session::open(&test.journal, session.id())
                .await
                .unwrap()
                .steps(),
            session.steps()
        );
    }
}

#[tokio::test]
async fn malformed_blocks_run_nothing_and_the_model_reads_why() {
    let answers = vec![vec![text("<tool-calls>return 1")], vec![text("Oh.")]];
    let (test, server) = (TestAgent::new(WireApi::Chat), Server::saying(answers).await);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert!(
        history(&session)[2].contains("`<tool-calls>` is not closed"),
        "{:?}",
        history(&session)
    );
    assert!(text_of(&server.asked()[1].body).contains("is not closed"));
}

#[tokio::test]
async fn blocks_in_reasoning_prompts_and_results_never_run() {
    for api in APIS {
        let bait = block("await tools.writeFile({ path: 'bait.txt', content: '' })");
        let answers = vec![
            vec![
                think(&bait),
                call("c1", "read_file", json!({"path": "bait.md"})),
            ],
            vec![text("Nothing to do.")],
        ];
        let (test, server) = (TestAgent::new(api), Server::saying(answers).await);
        std::fs::write(test.work().join("bait.md"), &bait).unwrap();
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, format!("Look: {bait}"), &test.options())
            .await;
        assert_eq!(outcome.end, Ok(TurnEnd::Stop));
        assert!(!test.work().join("bait.txt").exists());
        assert!(
            !session
                .history()
                .iter()
                .any(|(_, item)| matches!(item, TurnItem::ScriptToolCall(_)))
        );
    }
}

#[tokio::test]
async fn a_truncated_answer_keeps_its_text_and_runs_no_incomplete_script() {
    for api in APIS {
        let answers = vec![vec![
            text("I begin.\n<tool-calls>\nawait tools.writeFile({ path: 'x', con"),
            AnswerPart::Cut,
        ]];
        let (test, server) = (TestAgent::new(api), Server::saying(answers).await);
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await;
        assert_eq!(outcome.end, Ok(TurnEnd::Length), "{api:?}");
        assert_eq!(history(&session).len(), 3, "{:?}", history(&session));
        assert!(
            history(&session).concat().contains("con"),
            "the text is kept"
        );
        assert!(
            !session
                .history()
                .iter()
                .any(|(_, item)| matches!(item, TurnItem::ScriptToolCall(_)))
        );
    }
}

#[tokio::test]
async fn a_refusal_fails_the_turn_with_its_own_kind() {
    for api in APIS {
        let (test, server) = (
            TestAgent::new(api),
            Server::saying(vec![vec![AnswerPart::Refuse]]).await,
        );
        let outcome = test
            .agent(&server)
            .run_turn(&mut test.session().await, "go", &test.options())
            .await;
        assert_eq!(outcome.end.unwrap_err().kind.as_str(), "refused", "{api:?}");
        assert!(
            matches!(test.events().last(), Some(RuntimeEvent::TurnFailed { error, .. }) if error.kind.as_str() == "refused")
        );
    }
}

#[tokio::test]
async fn provider_errors_have_specific_kinds() {
    let cases = [
        (401, "auth"),
        (429, "rate_limit"),
        (400, "invalid_request"),
        (500, "server"),
    ];
    for (status, kind) in cases {
        let server = Server::start(move |_| {
            Reply::Fail(status, json!({"error": {"message": "no"}}).to_string())
        })
        .await;
        let test = TestAgent::new(WireApi::Chat);
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await;
        assert_eq!(outcome.end.unwrap_err().kind.as_str(), kind);
        assert!(
            !session.has_open_turn(),
            "the session can continue with the next turn"
        );
    }
}

#[tokio::test]
async fn every_limit_ends_the_turn_with_complete_results() {
    let endless =
        || Server::start(|_| vec![call("c", "read_file", json!({"path": "a.txt"}))].into());
    let limit = |limits: BudgetLimits| async move {
        let (mut test, server) = (TestAgent::new(WireApi::Messages), endless().await);
        test.settings.turn_limits = limits;
        test.model.prices = Some(Prices {
            input: 1e4,
            output: 0.0,
            ..Prices::default()
        });
        let mut session = test.session().await;
        let outcome = test
            .agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await;
        assert!(!session.has_open_turn());
        // Every call has a result, whichever limit was reached.
        let calls = history(&session)
            .iter()
            .filter(|item| item.starts_with("call"))
            .count();
        let results = history(&session)
            .iter()
            .filter(|item| item.starts_with("result"))
            .count();
        assert_eq!(calls, results);
        (outcome.end.unwrap(), server.asked())
    };
    let (end, asked) = limit(BudgetLimits {
        max_rounds: Some(3),
        ..BudgetLimits::default()
    })
    .await;
    assert_eq!((end, asked.len()), (TurnEnd::MaxRounds, 3));
    assert!(
        text_of(&asked[2].body).contains("This is the last answer of this turn"),
        "the model reads it"
    );
    let tokens = BudgetLimits {
        max_tokens: Some(4 * (INPUT + OUTPUT)),
        ..BudgetLimits::default()
    };
    let (end, asked) = limit(tokens).await;
    assert_eq!((end, asked.len()), (TurnEnd::MaxTokens, 4));
    // Each request costs 1.0.
    let (end, asked) = limit(BudgetLimits {
        max_cost: Some(2.0),
        ..BudgetLimits::default()
    })
    .await;
    assert_eq!((end, asked.len()), (TurnEnd::MaxCost, 2));
    let (end, _) = limit(BudgetLimits {
        max_time: Some(Duration::from_millis(300)),
        ..BudgetLimits::default()
    })
    .await;
    assert_eq!(end, TurnEnd::MaxTime);
}

#[tokio::test]
async fn a_session_has_its_own_limits() {
    let (mut test, server) = (
        TestAgent::new(WireApi::Chat),
        Server::start(|_| vec![text("ok")].into()).await,
    );
    test.settings.session_limits = BudgetLimits {
        max_tokens: Some(2 * (INPUT + OUTPUT)),
        ..BudgetLimits::default()
    };
    let agent = test.agent(&server);
    let mut session = test.session().await;
    for _ in 0..2 {
        assert_eq!(
            agent
                .run_turn(&mut session, "go", &test.options())
                .await
                .end,
            Ok(TurnEnd::Stop)
        );
    }
    let mut session = Session::open(&test.journal, session.id()).await.unwrap();
    assert_eq!(
        agent
            .run_turn(&mut session, "go", &test.options())
            .await
            .end,
        Ok(TurnEnd::MaxTokens)
    );
}

#[tokio::test]
async fn an_interrupt_during_an_answer_keeps_its_text() {
    for api in APIS {
        let server = Server::start(|asked| match asked.number {
            0 => Reply::Hang(vec![text(&"I think about it for a long time. ".repeat(40))]),
            _ => vec![text("Yes.")].into(),
        })
        .await;
        let test = TestAgent::new(api);
        let (agent, options, mut session) =
            (test.agent(&server), test.options(), test.session().await);
        let stop = async {
            test.until(|event| matches!(event, RuntimeEvent::ItemUpdated { .. }))
                .await;
            options.cancel.cancel();
        };
        let (outcome, ()) = tokio::join!(agent.run_turn(&mut session, "go", &options), stop);
        assert_eq!(outcome.end, Ok(TurnEnd::Interrupted));
        assert!(
            history(&session)[1].starts_with("Assistant: I think about it"),
            "{api:?}: {:?}",
            history(&session)
        );
        // The session continues.
        let outcome = agent.run_turn(&mut session, "And?", &test.options()).await;
        assert_eq!(outcome.message.as_deref(), Some("Yes."));
    }
}

#[tokio::test]
async fn one_interrupt_stops_script_structured_call_and_sub_agent_and_all_are_in_the_journal() {
    // The script waits for a hanging call and for an agent whose own structured call hangs.
    let script =
        "await Promise.all([tools.hang({}), tools.agents.launch.sync({ prompt: 'you hang' })])";
    let server = Server::start(move |asked| {
        match text_of(&asked.body).contains("you hang")
            && !text_of(&asked.body).contains("main task")
        {
            true => vec![call("sub", "hang", json!({}))].into(),
            false => vec![
                call("s", "script", json!({"code": script})),
                call("h", "hang", json!({})),
            ]
            .into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Messages);
    let (agent, options, mut session) = (test.agent(&server), test.options(), test.session().await);
    let stop = async {
        let hangs = |event: &RuntimeEvent| matches!(event, RuntimeEvent::CallStarted { tool, .. } if tool == "hang");
        // The call of the script and the call of the sub-agent.
        while test.events().iter().filter(|event| hangs(event)).count() < 2 {
            test.event_added.notified().await;
        }
        let running = test.journal.runs(&Default::default()).unwrap();
        let kinds: Vec<&str> = running.iter().map(|run| &run.id[..4]).collect();
        assert!(
            kinds.contains(&"scr_") && kinds.contains(&"agt_") && kinds.contains(&"trn_"),
            "{kinds:?}"
        );
        assert!(
            running.iter().all(|run| run.ended_ms.is_none()),
            "all runs are running"
        );
        options.cancel.cancel();
    };
    let (outcome, ()) = tokio::join!(agent.run_turn(&mut session, "main task", &options), stop);
    assert_eq!(outcome.end, Ok(TurnEnd::Interrupted));
    let ended = test.journal.runs(&Default::default()).unwrap();
    assert!(
        ended.iter().all(|run| run.ended_ms.is_some()),
        "all runs have ended: {ended:?}"
    );
    let stopped = ended
        .iter()
        .flat_map(|run| test.journal.run(&run.id).unwrap().calls);
    assert!(
        stopped
            .into_iter()
            .all(|call| call.state != selvedge_journal::StoredCallState::Ended(CallStatus::Done))
    );
    assert!(
        history(&session)
            .iter()
            .any(|item| item.starts_with("script failed: ScriptCancelledError")),
        "{:?}",
        history(&session)
    );
    assert!(
        history(&session)
            .iter()
            .any(|item| item.starts_with("result h: ")),
        "every call has a result"
    );
}

#[tokio::test]
async fn sub_agents_share_one_budget_and_have_a_maximum_depth() {
    let script = "const [a, b] = await Promise.all([tools.agents.launch.sync({ prompt: 'task A', tools: ['readFile'] }), tools.agents.llm.chat({ prompt: 'question B' })]);\n\
                  const c = await tools.agents.launch.async('task C');\nreturn [a.message, b.text, (await tools.agents.wait(c.agentId)).message];";
    let deep = "return (await tools.agents.launch.sync({ prompt: 'deeper' })).message";
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        match () {
            () if words.contains("Result of the script") => vec![text(
                words
                    .rsplit("Result of the script:")
                    .next()
                    .unwrap_or_default()
                    .trim(),
            )]
            .into(),
            () if words.contains("task A") => {
                assert!(
                    asked.body["tools"].to_string().contains("read_file")
                        && !asked.body["tools"].to_string().contains("write_file")
                );
                vec![text("A done")].into()
            }
            () if words.contains("question B") => vec![text("B answered")].into(),
            () if words.contains("task C") => vec![text("C done")].into(),
            () if words.contains("deeper") => vec![text(&block(deep))].into(),
            () => vec![text(&block(script))].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let outcome = agent.run_turn(&mut session, "go", &test.options()).await;
    assert_eq!(
        history(&session)[2],
        "script returned: [\"A done\",\"B answered\",\"C done\"]"
    );
    // Two requests of the agent and three of its sub-agents count in one budget.
    assert_eq!(outcome.usage.input_tokens, 5 * INPUT);
    // The session counts them as well, also when it is read again.
    let again = Session::open_read_only(&test.journal, session.id()).unwrap();
    assert_eq!(
        (
            session.total_spent().0.input_tokens,
            again.total_spent().0.input_tokens
        ),
        (5 * INPUT, 5 * INPUT)
    );
    let sessions = test.journal.all_sessions(10).unwrap();
    assert_eq!(sessions.len(), 3, "each agent has its own session");
    let people = test.journal.sessions(10).unwrap();
    assert_eq!(
        people.iter().map(|own| own.id.as_str()).collect::<Vec<_>>(),
        [session.id()],
        "sessions of sub-agents are not listed"
    );
    assert!(
        sessions
            .iter()
            .all(|own| own.id == session.id() || own.parent.as_deref() == Some(session.id()))
    );
    assert!(
        !test
            .completed_items()
            .iter()
            .any(|item| brief(item) == "Assistant: A done"),
        "messages of sub-agents are not emitted"
    );
    // An agent that launches an agent that launches another one.
    let outcome = agent
        .run_turn(&mut test.session().await, "deeper", &test.options())
        .await;
    assert!(outcome.message.unwrap().contains("at most 2 levels deep"));
}

#[tokio::test]
async fn a_resumed_script_does_not_reuse_an_agent_of_an_earlier_turn() {
    let script = "const { agentId } = await tools.agents.launch.async('work');\n\
                  await tools.agents.wait(agentId);\nthrow 'later'";
    let server = Server::start(move |asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let is_agent = messages.last().unwrap()["content"] == "work";
        match text_of(&asked.body["messages"]).contains("Result of the script") || is_agent {
            true => vec![text("done")].into(),
            false => vec![text(&block(script))].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    let items = session.history();
    let first = items.iter().find_map(|(_, item)| match item {
        TurnItem::ScriptToolCall(call) => Some(call.id.clone()),
        _ => None,
    });
    let pragma = format!("// @exec: {{\"resume\": \"{}\"}}\n", first.unwrap());
    let again = block(&format!("{pragma}{script}"));
    let server = Server::saying(vec![vec![text(&again)], vec![text("I see.")]]).await;
    test.agent(&server)
        .run_turn(&mut session, "again", &test.options())
        .await;
    let failed: Vec<String> = history(&session)
        .into_iter()
        .filter(|item| item.starts_with("script failed"))
        .collect();
    assert!(failed[0].contains("later"), "{failed:?}");
    assert!(
        failed[1].starts_with("script failed: OutcomeUnknownError"),
        "{failed:?}"
    );
}

#[tokio::test]
async fn structured_calls_and_agents_cannot_be_resumed() {
    let test = TestAgent::new(WireApi::Chat);
    let mut session = test.session().await;
    let write = call("c1", "write_file", json!({"path": "a", "content": "x"}));
    let launch = block("await tools.agents.launch.sync('work')");
    let server = Server::saying(vec![
        vec![write, text(&launch)],
        vec![text("worked")],
        vec![text("done")],
    ])
    .await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    let runs = test.journal.runs(&Default::default()).unwrap();
    for kind in ["trn_", "agt_"] {
        let run = runs.iter().find(|run| run.id.starts_with(kind)).unwrap();
        let script = format!("// @exec: {{\"resume\": \"{}\"}}\nreturn 1", run.id);
        let server = Server::saying(vec![vec![text(&block(&script))], vec![text("ok")]]).await;
        test.agent(&server)
            .run_turn(&mut session, "again", &test.options())
            .await;
        let stored = history(&session).join("\n");
        let refused = format!("{} is not the run of a script", run.id);
        assert!(stored.contains(&refused), "{stored}");
    }
}

#[tokio::test]
async fn a_full_context_is_compacted_and_the_originals_remain() {
    let long = "x".repeat(3_000);
    let server = Server::start(move |asked| {
        let last = asked.body["messages"].as_array().unwrap().last().unwrap().to_string();
        let plan = "await tools.updatePlan({ plan: [{ step: 'find the cause', status: 'in_progress' }] });";
        let answer = match last.contains("Result of the script") {
            true => "noted".to_owned(),
            false => block(&format!("{plan}\nreturn {{ n: {}, s: '{long}' }}", asked.number)),
        };
        Reply::Counted(vec![text(&answer)], asked.body["messages"].to_string().len() as u64 / 4 + 100)
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    (test.model.context_window, test.model.max_output_tokens) = (16_000, 1_000);
    test.settings.max_declaration_tokens = 100;
    let agent = test.agent(&server);
    let mut session = test.session().await;
    for turn in 0..20 {
        let prompt = if turn == 0 {
            "TASK: find out why it fails"
        } else {
            "please go on"
        };
        assert_eq!(
            agent
                .run_turn(&mut session, prompt, &test.options())
                .await
                .end,
            Ok(TurnEnd::Stop),
            "{turn}"
        );
    }
    let compactions = session
        .steps()
        .iter()
        .filter(|step| step.kind == SessionStepKind::Compaction)
        .count();
    assert!(compactions > 0);
    assert!(test.events().iter().any(
        |event| matches!(event, RuntimeEvent::ThreadCompacted { tokens_before, tokens_after } if tokens_after < tokens_before)
    ));
    let last = text_of(&server.asked().last().unwrap().body["messages"]);
    assert!(
        last.contains("TASK: find out why it fails"),
        "the task: {last}"
    );
    assert!(last.contains("[in_progress] find the cause"), "the plan");
    assert!(last.contains("please go on"), "the latest request");
    assert!(last.len() < 60_000, "{}", last.len());
    // Handles refer to the original results.
    let handle = last
        .split_whitespace()
        .find(|word| word.starts_with("scr_") && word.len() > 10)
        .unwrap();
    let run = test.journal.run(handle).unwrap();
    assert!(run.output.unwrap().output_json.unwrap().contains("xxxx"));
    // The history is complete, and the stored session has the same steps.
    assert_eq!(
        history(&session)
            .iter()
            .filter(|item| item.starts_with("script returned"))
            .count(),
        20
    );
    assert_eq!(
        Session::open(&test.journal, session.id())
            .await
            .unwrap()
            .steps(),
        session.steps()
    );
}

#[tokio::test]
async fn everything_before_the_newest_message_is_unchanged() {
    struct Recalls;
    impl TurnHook for Recalls {
        fn before_turn<'a>(
            &'a self,
            session: &'a Session,
            prompt: &'a str,
            _: &'a TurnCharge,
        ) -> BoxFuture<'a, TurnAdditions> {
            let recalled = format!("[recalled for {}: {prompt}]", session.turn_number());
            let additions = TurnAdditions {
                message_text: Some(recalled),
                ..TurnAdditions::default()
            };
            std::future::ready(additions).boxed()
        }
    }
    for api in APIS {
        let (test, server) = (
            TestAgent::new(api),
            Server::start(|asked| {
                match text_of(&asked.body).contains("go 1") && asked.number == 1 {
                    true => vec![text(&block("return 1"))].into(),
                    false => vec![text("ok")].into(),
                }
            })
            .await,
        );
        let agent = test.agent(&server).with_turn_hook(Arc::new(Recalls));
        let mut session = test.session().await;
        for turn in 0..4 {
            agent
                .run_turn(&mut session, format!("go {turn}"), &test.options())
                .await;
        }
        assert!(
            !history(&session).concat().contains("recalled"),
            "recalled text is never stored"
        );
        let key = if api == WireApi::Responses {
            "input"
        } else {
            "messages"
        };
        let asked: Vec<Vec<serde_json::Value>> = server
            .asked()
            .iter()
            .map(|asked| asked.body[key].as_array().unwrap().clone())
            .collect();
        for pair in asked.windows(2) {
            // Everything before the newest message of the earlier request is the same in the later
            // one.
            let newest = pair[0]
                .iter()
                .rposition(|item| item.to_string().contains("recalled"))
                .unwrap();
            let plain = |items: &[serde_json::Value]| {
                items
                    .iter()
                    .map(|item| {
                        item.to_string()
                            .replace(",\"cache_control\":{\"type\":\"ephemeral\"}", "")
                    })
                    .collect::<Vec<_>>()
            };
            assert_eq!(
                plain(&pair[0][..newest]),
                plain(&pair[1][..newest]),
                "{api:?}"
            );
        }
        assert!(asked.iter().all(|items| {
            items
                .iter()
                .filter(|item| item.to_string().contains("recalled"))
                .count()
                == 1
        }));
    }
}

#[tokio::test]
async fn the_one_shot_strategy_sends_no_earlier_turns() {
    let (test, server) = (
        TestAgent::new(WireApi::Chat),
        Server::start(|_| vec![text("ok")].into()).await,
    );
    let agent = test.agent(&server).with_strategy(Arc::new(OneShotHistory));
    let mut session = test.session().await;
    for prompt in ["first", "second"] {
        agent.run_turn(&mut session, prompt, &test.options()).await;
    }
    // The messages after the system prompt.
    let second = text_of(&json!(
        server.asked()[1].body["messages"].as_array().unwrap()[1..]
    ));
    assert!(second.contains("second") && !second.contains("first"));
    assert_eq!(history(&session).len(), 4);
}

#[tokio::test]
async fn with_after_block_stop_an_answer_ends_after_its_block() {
    let answers = vec![
        vec![text(&format!("Now\n{}\nIt worked!", block("return 1")))],
        vec![text("One.")],
    ];
    let (mut test, server) = (
        TestAgent::new(WireApi::Messages),
        Server::saying(answers).await,
    );
    test.settings.after_block = AfterBlock::Stop;
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(
        history(&session)[1..],
        [
            "Assistant: Now\n",
            "script: return 1",
            "script returned: 1",
            "Assistant: One."
        ]
    );
    let sent = &server.asked()[1].body["messages"][1]["content"][0]["text"];
    assert!(
        sent.as_str().unwrap().trim_end().ends_with("</tool-calls>"),
        "{sent}"
    );
}

#[tokio::test]
async fn a_failed_script_can_be_resumed() {
    let first =
        "await tools.writeFile({ path: 'log.txt', content: 'once' });\nthrow new Error('oops');";
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        match words.split("status: error, run ").nth(1).map(|rest| rest[..20].to_owned()) {
            None => vec![text(&block(first))].into(),
            Some(_) if asked.number == 2 => vec![text("done")].into(),
            Some(run) => vec![text(&block(&format!("// @exec: {{\"resume\": \"{run}\"}}\nawait tools.writeFile({{ path: 'log.txt', content: 'once' }});\nreturn 'fine';")))].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    let outputs: Vec<_> = session
        .history()
        .into_iter()
        .filter_map(|(_, item)| match item {
            TurnItem::ScriptToolCallOutput(output) => Some(output),
            _ => None,
        })
        .collect();
    assert_eq!(
        outputs[1].output_json.as_deref(),
        Some("\"fine\""),
        "{outputs:?}"
    );
    assert!(outputs[1].calls[0].reused, "the file was not written twice");
}

#[tokio::test]
async fn freeform_scripts_on_responses() {
    let answers = vec![
        vec![AnswerPart::Freeform {
            id: "c1".into(),
            name: "script".into(),
            input: "return 1 + 1".into(),
        }],
        vec![text("two")],
    ];
    let (mut test, server) = (
        TestAgent::new(WireApi::Responses),
        Server::saying(answers).await,
    );
    test.model.freeform_tools = true;
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "go", &test.options())
        .await;
    assert_eq!(history(&session)[2], "script returned: 2");
    let asked = server.asked();
    let tools = asked[0].body["tools"].as_array().unwrap();
    assert_eq!(
        tools.iter().find(|tool| tool["name"] == "script").unwrap()["type"],
        "custom"
    );
    let sent = asked[1].body["input"].as_array().unwrap();
    assert!(
        sent.iter()
            .any(|item| item["type"] == "custom_tool_call_output" && item["call_id"] == "c1")
    );
}

#[tokio::test]
async fn a_failed_request_is_retried_and_the_answer_is_emitted_once() {
    let server = Server::start(|asked| match asked.number {
        0 => Reply::Fail(503, "{}".into()),
        _ => vec![text("Hello.")].into(),
    })
    .await;
    let test = TestAgent::new(WireApi::Responses);
    let mut provider = test.client(&server).provider().clone();
    provider.retries.request_max_retries = 2;
    let agent = test.agent(&server);
    let model = agent.model().clone();
    let agent = agent.with_model(selvedge_models::ModelClient::new(provider).unwrap(), model);
    let outcome = agent
        .run_turn(&mut test.session().await, "go", &test.options())
        .await;
    assert_eq!(outcome.message.as_deref(), Some("Hello."));
    assert!(test.events().iter().any(
        |event| matches!(event, RuntimeEvent::Error { message } if message.contains("; retry 1 in "))
    ));
}

#[tokio::test]
async fn servers_may_give_every_call_the_same_id() {
    let answers = vec![
        vec![call("call_0", "read_file", json!({"path": "a.txt"}))],
        vec![call("call_0", "read_file", json!({"path": "b.txt"}))],
        vec![text("done")],
    ];
    let (test, server) = (TestAgent::new(WireApi::Chat), Server::saying(answers).await);
    let mut session = test.session().await;
    assert_eq!(
        test.agent(&server)
            .run_turn(&mut session, "go", &test.options())
            .await
            .end,
        Ok(TurnEnd::Stop)
    );
    assert!(
        history(&session)[4].ends_with("L1: four"),
        "{:?}",
        history(&session)
    );
}

#[tokio::test]
async fn an_item_names_the_language_of_its_block() {
    for (fence, language) in [("js", "js"), ("javascript", "js"), ("ts", "ts")] {
        let answer = format!("```{fence} tool-calls\nreturn 1\n```\n");
        let server = Server::saying(vec![vec![text(&answer)], vec![text("done")]]).await;
        let test = TestAgent::new(WireApi::Chat);
        let mut session = test.session().await;
        let agent = test.agent(&server);
        agent.run_turn(&mut session, "go", &test.options()).await;
        let items = test.completed_items();
        let written = items.iter().find_map(|item| match item {
            TurnItem::ScriptToolCall(call) => Some(call.language.as_str()),
            _ => None,
        });
        assert_eq!(written, Some(language), "{fence}");
    }
}

#[tokio::test]
async fn an_agent_cannot_give_another_agent_more_tools_than_it_has() {
    let launch = |prompt: &str, tools: &str| {
        block(&format!(
            "return (await tools.agents.launch.sync({{ prompt: '{prompt}'{tools} }})).message"
        ))
    };
    let outer = launch("outer", ", tools: ['readFile', 'agents.launch.sync']");
    let inner = launch("inner", "");
    let server = Server::start(move |asked| {
        let words = text_of(&asked.body["messages"]);
        match words.trim_end().lines().last().unwrap_or_default() {
            "go" => vec![text(&outer)].into(),
            "outer" => vec![text(&inner)].into(),
            "inner" => {
                let offered = asked.body["tools"].to_string();
                let has = |name: &str| offered.contains(&format!("\"{name}\""));
                vec![text(&format!("{} {}", has("read_file"), has("write_file")))].into()
            }
            last => Reply::from(vec![text(last)]),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let agent = test.agent(&server);
    let mut session = test.session().await;
    let outcome = agent.run_turn(&mut session, "go", &test.options()).await;
    assert!(
        outcome.message.unwrap().contains("true false"),
        "{:?}",
        history(&session)
    );
}
