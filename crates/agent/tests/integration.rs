//! The integration tests I1 to I10: complete turns with a model server on loopback, for all three
//! APIs.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use std::sync::Arc;

use selvedge_agent::{Session, TurnOutcome};
use selvedge_protocol::{
    ApprovalPolicy, CallDecision, ErrorCode, RunStatus, RuntimeEvent, ScriptMode, TurnEnd,
    TurnItem, Usage, WireApi,
};
use selvedge_sandbox::WasmRuntime;
use selvedge_tools::DeferringApprover;
use serde_json::{Value, json};
use support::answer_encoding::{
    AnswerPart, CACHED, INPUT, OUTPUT, REASONING, block, call, text, think,
};
use support::server::Server;
use support::{APIS, AgentPerson, TestAgent, brief, history, text_of};

const SCRIPT: &str = r#"const f = await tools.readFile({ path: "a.txt" });
return f.totalLines;"#;

/// Two answers: reasoning, text, a script, text and a structured call; then the final text.
fn mixed() -> Vec<Vec<AnswerPart>> {
    vec![
        vec![
            think("Count first."),
            text(&format!(
                "I count the lines.\n\n{}\n\nThen I read the other one.",
                block(SCRIPT)
            )),
            call("call_b", "read_file", json!({"path": "b.txt"})),
        ],
        vec![text("Three lines, and four.")],
    ]
}

fn expected() -> Vec<String> {
    vec![
        "User: How many lines?".to_owned(),
        "thought: Count first.".to_owned(),
        "Assistant: I count the lines.\n\n".to_owned(),
        format!("script: {SCRIPT}"),
        "script returned: 3".to_owned(),
        "Assistant: \n\nThen I read the other one.".to_owned(),
        "call call_b: read_file {\"path\":\"b.txt\"}".to_owned(),
        "result call_b: L1: four".to_owned(),
        "Assistant: Three lines, and four.".to_owned(),
    ]
}

async fn play(test: &TestAgent, server: &Server, session: &mut Session) -> TurnOutcome {
    test.agent(server)
        .run_turn(session, "How many lines?", &test.options())
        .await
}

/// Runs a mixed turn and checks its history, events, stored items and usage. Returns the requests.
async fn mixed_turn(api: WireApi) -> Vec<Value> {
    let (test, server) = (TestAgent::new(api), Server::saying(mixed()).await);
    let mut session = test.session().await;
    let outcome = play(&test, &server, &mut session).await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    assert_eq!(outcome.message.as_deref(), Some("Three lines, and four."));
    assert_eq!(history(&session), expected(), "{api:?}");
    assert_eq!(
        test.completed_items().iter().map(brief).collect::<Vec<_>>(),
        expected()[1..],
        "{api:?}: events"
    );
    let stored = Session::open(&test.journal, session.id()).await.unwrap();
    assert_eq!(stored.history(), session.history());
    assert_eq!(stored.steps(), session.steps());
    let usage = Usage {
        input_tokens: 2 * INPUT,
        cached_input_tokens: 2 * CACHED,
        output_tokens: 2 * OUTPUT,
        reasoning_output_tokens: if api == WireApi::Messages {
            0
        } else {
            2 * REASONING
        },
        ..Usage::default()
    };
    assert_eq!(outcome.usage, usage, "{api:?}");
    server.asked().into_iter().map(|asked| asked.body).collect()
}

#[tokio::test]
async fn responses_runs_a_script_and_keeps_text_and_reasoning() {
    let asked = mixed_turn(WireApi::Responses).await;
    let input = asked[1]["input"].as_array().unwrap();
    let kinds: Vec<&str> = input
        .iter()
        .map(|item| item["type"].as_str().unwrap_or("message"))
        .collect();
    assert_eq!(
        kinds,
        [
            "message",
            "reasoning",
            "message",
            "function_call",
            "function_call_output",
            "message"
        ]
    );
    let sent = input[2]["content"][0]["text"].as_str().unwrap();
    assert!(
        sent.contains("<tool-calls>") && sent.ends_with("Then I read the other one."),
        "whole: {sent}"
    );
    assert_eq!(input[1]["encrypted_content"], "gAAA");
    assert_eq!(
        (
            &input[5]["role"],
            text_of(&input[5]["content"]).contains("value: 3")
        ),
        (&json!("user"), true)
    );
}

#[tokio::test]
async fn chat_completions_runs_a_script_block() {
    let asked = mixed_turn(WireApi::Chat).await;
    let messages = asked[1]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "user"]);
    assert!(
        messages[2]["content"]
            .as_str()
            .unwrap()
            .contains("<tool-calls>")
    );
    assert_eq!(messages[2]["tool_calls"][0]["id"], "call_b");
    assert!(
        text_of(&messages[4]).contains("value: 3"),
        "a script block's result comes last"
    );
}

#[tokio::test]
async fn messages_keeps_reasoning_and_runs_a_script() {
    let asked = mixed_turn(WireApi::Messages).await;
    let messages = asked[1]["messages"].as_array().unwrap();
    let roles: Vec<&str> = messages
        .iter()
        .map(|message| message["role"].as_str().unwrap())
        .collect();
    assert_eq!(roles, ["user", "assistant", "user"]);
    let answer = messages[1]["content"].as_array().unwrap();
    assert_eq!(
        (&answer[0]["type"], &answer[0]["signature"]),
        (&json!("thinking"), &json!("c2ln"))
    );
    let results = messages[2]["content"].as_array().unwrap();
    assert_eq!(
        (&results[0]["type"], &results[0]["tool_use_id"]),
        (&json!("tool_result"), &json!("call_b"))
    );
    assert!(text_of(&results[1]).contains("value: 3"));
}

#[tokio::test]
async fn one_turn_can_have_structured_calls_the_script_tool_and_blocks() {
    for api in APIS {
        let answers = vec![
            vec![
                text(&block("store('n', 1); return 'block'")),
                call("c1", "script", json!({"code": "return load('n') + 1"})),
                call("c2", "read_file", json!({"path": "a.txt"})),
                call("c3", "list_dir", json!({"path": "."})),
            ],
            vec![text("done")],
        ];
        let (test, server) = (TestAgent::new(api), Server::saying(answers).await);
        let mut session = test.session().await;
        assert_eq!(
            play(&test, &server, &mut session).await.end,
            Ok(TurnEnd::Stop)
        );
        let items = history(&session);
        assert_eq!(
            items[1..5],
            [
                "script: store('n', 1); return 'block'",
                "script returned: \"block\"",
                "script: return load('n') + 1",
                "script returned: 2",
            ],
            "in the order they were written"
        );
        assert!(
            items[5].starts_with("call c2") && items[6].starts_with("call c3"),
            "{items:?}"
        );
        assert!(
            items[7].starts_with("result c2: L1: one") && items[8].starts_with("result c3"),
            "{items:?}"
        );
        // The journal has a run for each script and one for the structured calls.
        let runs = test.journal.runs(&Default::default()).unwrap();
        assert_eq!(
            runs.iter().filter(|run| run.id.starts_with("scr_")).count(),
            2
        );
        assert_eq!(
            runs.iter()
                .filter(|run| run.id.starts_with("trn_"))
                .map(|run| run.calls)
                .collect::<Vec<_>>(),
            [2]
        );
    }
}

#[tokio::test]
async fn an_approval_shows_the_script_and_can_be_answered_later() {
    let script = "const a = 1;\nawait tools.writeFile({ path: 'new.txt', content: 'x', approvalContext: 'to see it' });\nreturn a;";
    let answers = vec![vec![text(&block(script))], vec![text("written")]];
    let (mut test, server) = (
        TestAgent::new(WireApi::Responses),
        Server::saying(answers.clone()).await,
    );
    test.policy = ApprovalPolicy::Untrusted;
    let person = AgentPerson::who_says(CallDecision::Once);
    test.approver = Some(person.clone());
    let mut session = test.session().await;
    assert_eq!(
        play(&test, &server, &mut session).await.end,
        Ok(TurnEnd::Stop)
    );
    let asked = person.asked.lock().unwrap().clone();
    let gated = &asked[0].calls[0];
    assert_eq!((gated.tool.as_str(), gated.line), ("write_file", Some(2)));
    assert!(
        gated.snippet.as_ref().unwrap().contains("const a = 1;"),
        "the lines around it"
    );
    assert!(asked[0].scope_id.as_ref().unwrap().starts_with("scr_"));
    assert!(
        test.events()
            .iter()
            .any(|event| matches!(event, RuntimeEvent::ApprovalRequested { .. }))
    );

    // Without an approver the turn is suspended. Another process with an approver continues it.
    let (mut test, server) = (
        TestAgent::new(WireApi::Responses),
        Server::saying(answers).await,
    );
    test.policy = ApprovalPolicy::Untrusted;
    test.approver = Some(Arc::new(DeferringApprover));
    let mut session = test.session().await;
    assert_eq!(
        play(&test, &server, &mut session).await.end,
        Ok(TurnEnd::Suspended)
    );
    assert!(!test.work().join("new.txt").exists() && session.has_open_turn());
    let id = session.id().to_owned();
    drop(session);
    test.approver = Some(AgentPerson::who_says(CallDecision::Once));
    let mut session = Session::open(&test.journal, &id).await.unwrap();
    let outcome = test
        .agent(&server)
        .run_open_turn(&mut session, &test.options())
        .await;
    assert_eq!(
        (outcome.end, outcome.message.as_deref()),
        (Ok(TurnEnd::Stop), Some("written"))
    );
    assert_eq!(
        std::fs::read_to_string(test.work().join("new.txt")).unwrap(),
        "x"
    );
    assert_eq!(history(&session)[2], "script returned: 1");
}

#[tokio::test]
async fn a_timeout_is_in_the_history_and_reported_to_the_model() {
    for api in APIS {
        let answers = vec![
            vec![call(
                "c1",
                "script",
                json!({"code": "await tools.readFile({ path: 'a.txt' }); for (;;) {}", "timeoutMs": 100}),
            )],
            vec![text("too slow")],
        ];
        let (test, server) = (TestAgent::new(api), Server::saying(answers).await);
        let mut session = test.session().await;
        assert_eq!(
            play(&test, &server, &mut session).await.end,
            Ok(TurnEnd::Stop)
        );
        assert!(
            history(&session)[2].starts_with("script failed: ScriptTimeoutError"),
            "{:?}",
            history(&session)
        );
        let second = text_of(&server.asked()[1].body);
        assert!(
            second.contains("ScriptTimeoutError") && second.contains("- tool_1 read_file: done"),
            "{second}"
        );
    }
}

#[tokio::test]
async fn disabled_scripts_are_not_run_and_the_result_says_so() {
    for api in APIS {
        let code = "await tools.writeFile({ path: 'never.txt', content: 'x' }); return 1";
        let answers = vec![
            vec![text(&format!("Now:\n{}", block(code)))],
            vec![text("I see")],
        ];
        let (mut test, server) = (TestAgent::new(api), Server::saying(answers).await);
        test.settings.mode = ScriptMode::Disabled;
        let mut session = test.session().await;
        assert_eq!(
            play(&test, &server, &mut session).await.end,
            Ok(TurnEnd::Stop)
        );
        assert!(!test.work().join("never.txt").exists());
        let asked = server.asked();
        let tools = asked[0].body["tools"].to_string();
        assert!(
            !tools.contains("\"script\"") && tools.contains("read_file"),
            "the script tool is not offered"
        );
        assert!(
            !text_of(&asked[0].body).contains("<tool-calls>"),
            "the system prompt does not explain blocks"
        );
        assert!(text_of(&asked[1].body).contains("scripts are disabled"));
        assert!(history(&session)[3].contains("scripts are disabled"));
        // The mode of the turn overrides the mode of the agent.
        let server =
            Server::saying(vec![vec![text(&block("return 7"))], vec![text("seven")]]).await;
        let mut options = test.options();
        options.mode = Some(ScriptMode::Enabled);
        let agent = test.agent(&server);
        agent.run_turn(&mut session, "again", &options).await;
        assert!(history(&session).contains(&"script returned: 7".to_owned()));
    }
}

#[tokio::test]
async fn a_dry_run_checks_and_reports() {
    for api in APIS {
        let code = "await tools.writeFile({ path: 'never.txt', content: 'x' }); await tools.readFil({ path: 'a' })";
        let answers = vec![vec![text(&block(code))], vec![text("I see")]];
        let (mut test, server) = (TestAgent::new(api), Server::saying(answers).await);
        test.settings.mode = ScriptMode::DryRun;
        let mut session = test.session().await;
        assert_eq!(
            play(&test, &server, &mut session).await.end,
            Ok(TurnEnd::Stop)
        );
        assert!(!test.work().join("never.txt").exists());
        let output = session
            .history()
            .into_iter()
            .find_map(|(_, item)| match item {
                TurnItem::ScriptToolCallOutput(output) => Some(output),
                _ => None,
            });
        let output = output.unwrap();
        assert_eq!(output.status, RunStatus::DryRun);
        assert_eq!(
            output.error.as_ref().unwrap().code,
            ErrorCode::ToolNotFoundError
        );
        assert!(
            text_of(&server.asked()[1].body).contains("readFile"),
            "the error suggests the nearest name"
        );
    }
}

#[tokio::test]
async fn a_turn_is_the_same_on_another_runtime() {
    let mut all = Vec::new();
    for runtime in [
        None,
        Some(Arc::new(
            WasmRuntime::new(selvedge_sandbox::EngineSettings {
                max_scripts: 2,
                pooling: false,
                ..Default::default()
            })
            .unwrap(),
        ) as _),
    ] {
        let (mut test, server) = (
            TestAgent::new(WireApi::Messages),
            Server::saying(mixed()).await,
        );
        test.runtime = runtime;
        let mut session = test.session().await;
        assert_eq!(
            play(&test, &server, &mut session).await.end,
            Ok(TurnEnd::Stop)
        );
        all.push((
            history(&session),
            server
                .asked()
                .into_iter()
                .map(|asked| asked.body["messages"].clone())
                .collect::<Vec<_>>(),
        ));
    }
    assert_eq!(all[0], all[1]);
}

#[tokio::test]
async fn every_api_gives_the_same_order_of_items_and_events() {
    let mut all = Vec::new();
    for api in APIS {
        let (test, server) = (TestAgent::new(api), Server::saying(mixed()).await);
        let mut session = test.session().await;
        play(&test, &server, &mut session).await;
        let events: Vec<String> = test
            .events()
            .iter()
            .filter_map(|event| match event {
                RuntimeEvent::ItemCompleted { item, .. } => Some(item.kind().to_owned()),
                RuntimeEvent::ScriptStarted { .. } => Some("script.started".to_owned()),
                RuntimeEvent::ScriptFinished { .. } => Some("script.finished".to_owned()),
                RuntimeEvent::CallStarted { tool, .. } => Some(format!("call.started {tool}")),
                RuntimeEvent::TurnStarted { .. } => Some("turn.started".to_owned()),
                RuntimeEvent::TurnCompleted { finish_reason, .. } => {
                    Some(format!("turn.completed {}", finish_reason.as_str()))
                }
                _ => None,
            })
            .collect();
        all.push((history(&session), events));
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    assert_eq!(
        all[0].1,
        [
            "turn.started",
            "reasoning",
            "message",
            "script_tool_call",
            "script.started",
            "call.started read_file",
            "script.finished",
            "script_tool_call_output",
            "message",
            "function_call",
            "call.started read_file",
            "function_call_output",
            "message",
            "turn.completed stop",
        ]
    );
}
