//! What the model reads: results of scripts and structured calls, the tools of a request, and the
//! conversation after a compaction.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod support;

use selvedge_agent::{AgentEnvironment, Session, SessionStepKind};
use selvedge_protocol::{ApprovalPolicy, SandboxPolicy, ScriptMode, TurnEnd, WireApi};
use serde_json::{Value, json};
use support::answer_encoding::{AnswerPart, block, call, text};
use support::server::{Asked, Reply, Server};
use support::{APIS, TestAgent, history, text_of};

/// A PNG image of one pixel.
const PIXEL: &str = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9a\
    wAAAABJRU5ErkJggg==";

/// Runs a turn with these answers and returns the requests.
async fn requests(test: &TestAgent, answers: Vec<Vec<AnswerPart>>) -> Vec<Asked> {
    let server = Server::saying(answers).await;
    let mut session = test.session().await;
    let agent = test.agent(&server);
    let outcome = agent.run_turn(&mut session, "go", &test.options()).await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop), "{:?}", history(&session));
    server.asked()
}

/// Runs a script and returns the text of the request with its result.
async fn result_of(test: &TestAgent, code: &str) -> String {
    let answers = vec![vec![text(&block(code))], vec![text("ok")]];
    let asked = requests(test, answers).await;
    let all = text_of(&asked[1].body);
    let at = all.find("Result of the script:").unwrap();
    all[at..].to_owned()
}

#[tokio::test]
async fn strings_and_shown_texts_are_not_escaped() {
    for api in APIS {
        let code = "text('say \"one\"\\n\\tnow'); return 'a \"quoted\"\\nvalue'";
        let result = result_of(&TestAgent::new(api), code).await;
        let expected =
            "status: completed\noutput:\nsay \"one\"\n\tnow\nvalue:\na \"quoted\"\nvalue";
        assert!(result.contains(expected), "{result}");
    }
}

#[tokio::test]
async fn a_long_result_is_cut_to_the_limit_with_its_beginning_and_its_end() {
    let mut test = TestAgent::new(WireApi::Chat);
    test.settings.max_result_tokens = 6_000;
    let result = result_of(
        &test,
        "return 'START\\n' + 'line of a log\\n'.repeat(2570) + 'END'",
    )
    .await;
    // 36,000 characters are about 10,300 tokens.
    assert!(result.len() > 15_000, "only {} bytes", result.len());
    assert!(
        result.contains("START") && result.contains("END"),
        "{result}"
    );
    assert!(result.contains("bytes omitted"), "{result}");
    let rows = "return Array.from({ length: 3000 }, (_, n) => ({ n, name: `row ${n}` }))";
    let result = result_of(&test, rows).await;
    let json = result.lines().find_map(|line| line.strip_prefix("value: "));
    let rows: Vec<Value> = serde_json::from_str(json.unwrap()).unwrap();
    assert_eq!(
        (&rows[0]["n"], &rows.last().unwrap()["n"]),
        (&json!(0), &json!(2999))
    );
    assert!(result.len() > 12_000, "only {} bytes", result.len());
}

#[tokio::test]
async fn an_error_appears_once_and_large_results_by_their_handles() {
    let test = TestAgent::new(WireApi::Chat);
    std::fs::write(test.work().join("large.txt"), "x".repeat(5_000)).unwrap();
    let code = "await tools.readFile({ path: 'large.txt' });\n\
                await tools.readFile({ path: 'b.txt' });\n\
                await tools.readFile({ path: 'missing.txt' });";
    let result = result_of(&test, code).await;
    assert_eq!(result.matches("missing.txt").count(), 1, "{result}");
    assert!(
        result.contains("error: ToolExecutionError at 3:"),
        "{result}"
    );
    assert!(result.contains("- tool_3 read_file: failed"), "{result}");
    assert!(
        !result.contains("xxxx") && result.contains("four"),
        "{result}"
    );
    let handle = result.split("handle: \"").nth(1).unwrap();
    assert!(
        handle.starts_with("scr_") && handle.contains("/tool_1\""),
        "{result}"
    );
}

#[tokio::test]
async fn after_a_denied_command_the_results_before_it_are_listed() {
    let test = TestAgent::new(WireApi::Chat);
    std::fs::write(test.work().join("large.txt"), "x".repeat(90_000)).unwrap();
    let code = "await tools.readFile({ path: 'b.txt' });\n\
                for (let i = 0; i < 12; i++) await tools.readFile({ path: 'large.txt' });\n\
                await tools.exec('echo ran');\n\
                await tools.exec(['rm', '-rf', 'sub']);";
    let result = result_of(&test, code).await;
    assert!(
        result.contains("error: ApprovalDeniedError at 4:"),
        "{result}"
    );
    assert!(
        result.contains("four") && result.contains("ran\\n"),
        "{result}"
    );
    assert!(
        result.contains("/tool_2\" }) to \"scr_") && result.contains("/tool_13\""),
        "{result}"
    );
    assert!(result.contains("- tool_15 exec: failed"), "{result}");
}

#[tokio::test]
async fn an_image_of_a_structured_call_reaches_the_model_as_an_image() {
    for api in APIS {
        let test = TestAgent::new(api);
        let png = decode_base64(PIXEL);
        std::fs::write(test.work().join("pixel.png"), png).unwrap();
        let view = call("c1", "view_image", json!({"path": "pixel.png"}));
        let asked = requests(&test, vec![vec![view], vec![text("a pixel")]]).await;
        let image = match api {
            WireApi::Responses => format!("\"image_url\":\"data:image/png;base64,{PIXEL}\""),
            WireApi::Chat => format!("\"url\":\"data:image/png;base64,{PIXEL}\""),
            WireApi::Messages => format!("\"data\":\"{PIXEL}\""),
        };
        assert!(asked[1].raw.contains(&image), "{}", asked[1].raw);
        assert_eq!(asked[1].raw.matches(PIXEL).count(), 1);
        assert!(text_of(&asked[1].body).contains("1 × 1 image/png"));
    }
}

fn decode_base64(text: &str) -> Vec<u8> {
    let digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = text
        .bytes()
        .filter_map(|c| digits.bytes().position(|digit| digit == c))
        .flat_map(|digit| (0..6).rev().map(move |bit| (digit >> bit) & 1));
    let bits: Vec<usize> = bits.collect();
    let byte = |bits: &[usize]| bits.iter().fold(0, |byte, bit| byte * 2 + *bit as u8);
    bits.chunks_exact(8).map(byte).collect()
}

#[tokio::test]
async fn a_terminal_lives_between_structured_calls_until_the_turn_ends() {
    let session_id = |asked: &Asked| -> Option<u32> {
        let all = text_of(&asked.body);
        let id = all.split("still running, session ").nth(1)?;
        id.split_whitespace().next()?.parse().ok()
    };
    let server = Server::start(move |asked| {
        let write = |id: &str| {
            let args = json!({"session_id": session_id(asked), "chars": "hello\n",
                              "yield_time_ms": 2000});
            Reply::from(vec![call(id, "write_stdin", args)])
        };
        match asked.number {
            0 => vec![call(
                "c1",
                "exec_command",
                json!({"cmd": "cat", "yield_time_ms": 300}),
            )]
            .into(),
            1 => write("c2"),
            3 => write("c3"),
            _ => vec![text("done")].into(),
        }
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, mut session) = (test.agent(&server), test.session().await);
    let outcome = agent
        .run_turn(&mut session, "start cat", &test.options())
        .await;
    assert_eq!(outcome.end, Ok(TurnEnd::Stop));
    let items = history(&session).join("\n");
    assert!(
        items.contains("result c2: still running") && items.contains("hello"),
        "{items}"
    );
    agent
        .run_turn(&mut session, "type again", &test.options())
        .await;
    let items = history(&session).join("\n");
    let last = items.split("result c3: ").nth(1).unwrap();
    assert!(
        last.starts_with("error: ") && last.contains("terminal"),
        "{last}"
    );
    // Both tools are defined for structured calls.
    let tools = server.asked()[0].body["tools"].to_string();
    assert!(
        tools.contains("exec_command") && tools.contains("write_stdin"),
        "{tools}"
    );
}

fn defined(asked: &Asked) -> Vec<String> {
    let tools = asked.body["tools"].as_array().unwrap().iter();
    let name = |tool: &Value| tool["function"]["name"].as_str().unwrap().to_owned();
    tools.map(name).collect()
}

#[tokio::test]
async fn a_tool_is_described_once() {
    let answers = || vec![vec![text("hello")]];
    let mut test = TestAgent::new(WireApi::Chat);
    let asked = requests(&test, answers()).await;
    assert_eq!(
        defined(&asked[0]),
        [
            "script",
            "apply_patch",
            "shell",
            "exec_command",
            "read_file",
            "update_plan",
            "view_image",
            "write_stdin",
        ]
    );
    let raw = &asked[0].raw;
    for description in [
        "Reads a text file",
        "Updates, adds, deletes and renames",
        "Reads an image",
    ] {
        assert_eq!(raw.matches(description).count(), 1, "{description}");
    }
    // Every tool is declared with its result.
    let system = text_of(&asked[0].body["messages"][0]);
    for declaration in [
        "listDir(args?: string | { path?: string; ",
        "agents.launch.sync(prompt: string, options?: { tools?: ",
        "text: string; ",
        "exitCode: number; stdout: string; ",
    ] {
        assert!(
            system.contains(declaration),
            "{declaration} is not in {system}"
        );
    }
    assert!(!system.contains("approvalContext"), "{system}");
    // Without scripts, all tools are defined and described.
    test.settings.mode = ScriptMode::Disabled;
    let asked = requests(&test, answers()).await;
    let names = defined(&asked[0]);
    assert!(names.contains(&"list_dir".to_owned()) && !names.contains(&"script".to_owned()));
    assert!(
        asked[0].body["tools"]
            .to_string()
            .contains("Reads a text file")
    );
}

#[tokio::test]
async fn a_tool_that_is_only_declared_can_be_called_directly() {
    let list = call("c1", "list_dir", json!({"path": "."}));
    let test = TestAgent::new(WireApi::Chat);
    let asked = requests(&test, vec![vec![list], vec![text("ok")]]).await;
    assert!(
        text_of(&asked[1].body).contains("b.txt"),
        "{}",
        asked[1].raw
    );
}

fn environment(branch: &str) -> AgentEnvironment {
    AgentEnvironment {
        sandbox: SandboxPolicy::WorkspaceWrite,
        network_access: false,
        protected_paths: vec![".git".to_owned(), ".selvedge".to_owned()],
        approval: ApprovalPolicy::OnRequest,
        date: "2026-11-17".to_owned(),
        branch: Some(branch.to_owned()),
    }
}

#[tokio::test]
async fn the_environment_is_stated_once_per_session() {
    let server = Server::start(|_| vec![text("ok")].into()).await;
    let mut test = TestAgent::new(WireApi::Chat);
    test.settings.environment = Some(environment("main"));
    let mut session = test.session().await;
    test.agent(&server)
        .run_turn(&mut session, "one", &test.options())
        .await;
    // Another process continues the session later, on another branch.
    let id = session.id().to_owned();
    drop(session);
    test.settings.environment = Some(AgentEnvironment {
        date: "2026-11-18".to_owned(),
        ..environment("other")
    });
    let mut session = Session::open(&test.journal, &id).await.unwrap();
    test.agent(&server)
        .run_turn(&mut session, "two", &test.options())
        .await;
    let systems: Vec<String> = server
        .asked()
        .iter()
        .map(|asked| text_of(&asked.body["messages"][0]["content"]))
        .collect();
    assert_eq!(systems[0], systems[1], "the cached prefix stays the same");
    for fact in [
        "workspace-write",
        ".git, .selvedge",
        "Network of commands: off",
        "withEscalatedPermissions: true",
        std::env::consts::OS,
        "began on 2026-11-17 on git branch `main`",
    ] {
        assert!(systems[0].contains(fact), "{fact} is not in {}", systems[0]);
    }
}

#[tokio::test]
async fn a_compaction_keeps_the_newest_results() {
    // About 6,000 tokens, more than the share of recent steps, and the conversation before it fills
    // the rest of the context.
    let long = "return 'FIRST\\n' + 'some words of a result\\n'.repeat(1000) + 'LAST'";
    let server = Server::start(move |asked| {
        let messages = asked.body["messages"].as_array().unwrap();
        let last = text_of(messages.last().unwrap());
        let answer = match last.contains("read it") {
            true => text(&block(long)),
            false => text(&"An answer of some length. ".repeat(120)),
        };
        Reply::Counted(vec![answer], asked.raw.len() as u64 / 4)
    })
    .await;
    let mut test = TestAgent::new(WireApi::Chat);
    (test.model.context_window, test.model.max_output_tokens) = (20_000, 1_000);
    test.settings.max_declaration_tokens = 100;
    let (agent, mut session) = (test.agent(&server), test.session().await);
    let is_compaction =
        |step: &&selvedge_agent::SessionStep| step.kind == SessionStepKind::Compaction;
    let mut compactions = 0;
    for _ in 0..12 {
        agent
            .run_turn(&mut session, "tell me more", &test.options())
            .await;
        let asked_before = server.asked().len();
        agent
            .run_turn(&mut session, "read it", &test.options())
            .await;
        let asked = server.asked();
        // The model that lost the result would run the script again.
        assert_eq!(asked.len() - asked_before, 2);
        let result = text_of(&asked.last().unwrap().body["messages"]);
        let newest = result.rsplit("Result of the script:").next().unwrap();
        let whole = newest.contains("FIRST") && newest.contains("LAST");
        assert!(whole && !newest.contains("omitted"), "{newest}");
        assert!(asked.last().unwrap().raw.len() < 20_000 * 4, "it fits");
        compactions = session.steps().iter().filter(is_compaction).count();
    }
    assert!(compactions > 0);
    // Compaction starts when the context is nearly full: not after every other turn.
    assert!(compactions < 12, "{compactions}");
}

#[tokio::test]
async fn what_a_script_showed_can_be_recalled_after_a_compaction() {
    let shown = "text('a long text\\n'.repeat(300)); return 1";
    let server = Server::start(move |asked| match asked.number {
        0 => vec![text(&block(shown))].into(),
        _ => vec![text(&"An answer of some length. ".repeat(80))].into(),
    })
    .await;
    let test = TestAgent::new(WireApi::Chat);
    let (agent, mut session) = (test.agent(&server), test.session().await);
    for prompt in ["show it", "and", "more"] {
        agent.run_turn(&mut session, prompt, &test.options()).await;
    }
    agent.compact(&mut session).await.unwrap().unwrap();
    agent
        .run_turn(&mut session, "what was it", &test.options())
        .await;
    let last = text_of(&server.asked().last().unwrap().body["messages"]);
    assert!(
        last.contains("text of 3600 bytes (scr_") && last.contains("/output)"),
        "{last}"
    );
}
