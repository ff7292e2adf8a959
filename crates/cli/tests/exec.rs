//! `selvedge exec` and `selvedge sessions` through the binary, with a model server on loopback.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[allow(dead_code)]
#[path = "../../agent/tests/support/answer_encoding.rs"]
mod answer_encoding;

#[allow(dead_code)]
#[path = "../../agent/tests/support/server.rs"]
mod server;

#[path = "exec/images.rs"]
mod images;

#[path = "exec/input.rs"]
mod input;

#[path = "exec/limits.rs"]
mod limits;

#[path = "exec/models.rs"]
mod models;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use answer_encoding::{block, call, text, think};
use serde_json::{Value, json};
use server::{Asked, Reply, Server};
use tempfile::TempDir;

/// A home with a provider on loopback, and a project folder.
struct Fixture {
    dir: TempDir,
    server: Server,
    runtime: tokio::runtime::Runtime,
}

impl Fixture {
    fn new(script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = runtime.block_on(Server::start(script));
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("home")).unwrap();
        std::fs::create_dir_all(dir.path().join("work")).unwrap();
        std::fs::write(dir.path().join("work/a.txt"), "one\ntwo\n").unwrap();
        // The models of these tests read whole requests, which must not quote other sessions.
        let config = format!(
            "model = \"mock\"\nmodel_provider = \"mock\"\nmemory.scope = \"session\"\n\
             [model_providers.mock]\nbase_url = \"{}\"\nwire_api = \"chat\"\n\
             [model_providers.keyed]\nbase_url = \"{}\"\nenv_key = \"SELVEDGE_TEST_KEY\"\n\
             [model_providers.keyless]\nbase_url = \"{}\"\n",
            server.url, server.url, server.url
        );
        std::fs::write(dir.path().join("home/config.toml"), config).unwrap();
        Self {
            dir,
            server,
            runtime,
        }
    }

    fn work(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_selvedge"));
        command
            .args(args)
            .current_dir(self.dir.path().join("work"))
            .env("SELVEDGE_HOME", self.dir.path().join("home"));
        command.env_remove("SELVEDGE_TEST_KEY").stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command with `--json`, and returns its events and exit status.
    fn events(&self, args: &[&str]) -> (Vec<Value>, i32) {
        let output = self.run(args);
        let lines = String::from_utf8(output.stdout).unwrap();
        let events = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("not JSON: {line}")));
        (events.collect(), output.status.code().unwrap())
    }
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Answers a prompt with a script and a call, and their results with the final answer.
fn counting(asked: &Asked) -> Reply {
    let messages = asked.body["messages"].as_array().unwrap();
    match messages.last().unwrap()["role"].as_str().unwrap() {
        "user"
            if !messages
                .last()
                .unwrap()
                .to_string()
                .contains("Result of the script") =>
        {
            vec![
                think("Count."),
                text(&format!(
                    "I count.\n{}",
                    block("return (await tools.readFile({ path: 'a.txt' })).totalLines")
                )),
                call("c1", "list_dir", json!({"path": "."})),
            ]
            .into()
        }
        _ => vec![text("Two lines.")].into(),
    }
}

#[test]
fn the_answer_goes_to_stdout_and_progress_to_stderr() {
    let fixture = Fixture::new(counting);
    std::fs::write(fixture.dir.path().join("work/AGENTS.md"), "Count twice.").unwrap();
    let output = fixture.run(&["exec", "How many lines?"]);
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("Two lines.", Some(0)),
        "{}",
        err(&output)
    );
    assert!(err(&output).contains("✓ read_file"), "{}", err(&output));
    let asked = fixture.server.asked();
    assert!(
        asked[0].body.to_string().contains("Count twice."),
        "AGENTS.md is in the prompt"
    );
    // The prompt can come from standard input.
    let mut child = fixture
        .command(&["exec", "-q"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"How many lines?")
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("Two lines.", Some(0))
    );
}

#[test]
fn events_are_printed_one_per_line_in_order() {
    let fixture = Fixture::new(counting);
    let (events, status) = fixture.events(&["exec", "--json", "How many lines?"]);
    assert_eq!(status, 0);
    let shape: Vec<String> = events
        .iter()
        .filter(|event| event["type"] != "item.updated" && event["type"] != "item.started")
        .map(|event| match event["item"]["type"].as_str() {
            Some(item) => format!("{} {item}", event["type"].as_str().unwrap()),
            None => event["type"].as_str().unwrap().to_owned(),
        })
        .collect();
    assert_eq!(
        shape,
        [
            "thread.started",
            "turn.started",
            "item.completed reasoning",
            "item.completed message",
            "usage.updated",
            "item.completed script_tool_call",
            "script.started",
            "call.started",
            "call.finished",
            "script.finished",
            "item.completed script_tool_call_output",
            "item.completed function_call",
            "call.started",
            "call.finished",
            "item.completed function_call_output",
            "item.completed message",
            "usage.updated",
            "turn.completed",
        ]
    );
    let thread = events[0]["thread_id"].as_str().unwrap();
    let last = events.last().unwrap();
    assert_eq!(last["usage"]["input_tokens"], 2 * answer_encoding::INPUT);
    assert_eq!(
        last["usage"]["cached_input_tokens"],
        2 * answer_encoding::CACHED
    );
    assert_eq!(last["finish_reason"], "stop");
    // The session continues.
    let (events, status) = fixture.events(&["exec", "--json", "--continue", thread, "Again?"]);
    assert_eq!(
        (
            events[0]["thread_id"].as_str().unwrap(),
            &events[1]["turn"],
            status
        ),
        (thread, &json!(2), 0)
    );
    let asked = fixture.server.asked();
    assert!(
        asked[2].body["messages"].to_string().contains("Two lines."),
        "the prompt has the earlier answer"
    );
    let (events, _) = fixture.events(&["exec", "--last", "Once more?", "--json"]);
    assert_eq!(events[0]["thread_id"], thread);
}

#[test]
fn an_answer_is_corrected_until_it_matches_the_schema() {
    let fixture = Fixture::new(|asked| match asked.number {
        0 => vec![text("It has 2 lines")].into(),
        1 => vec![text("{\"lines\": \"two\"}")].into(),
        _ => vec![text("```json\n{\"lines\": 2}\n```")].into(),
    });
    let schema = json!({"type": "object", "properties": {"lines": {"type": "integer"}}, "required": ["lines"]});
    std::fs::write(
        fixture.dir.path().join("work/schema.json"),
        schema.to_string(),
    )
    .unwrap();
    let output = fixture.run(&["exec", "--output-schema", "schema.json", "How many lines?"]);
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("{\"lines\":2}", Some(0)),
        "{}",
        err(&output)
    );
    let asked = fixture.server.asked();
    assert!(
        asked[0].body["messages"][0]
            .to_string()
            .contains("\\\"lines\\\""),
        "the model knows the schema"
    );
    assert!(
        asked[2].body["messages"]
            .to_string()
            .contains("is not of type"),
        "and what did not match"
    );
    let output = fixture.run(&["exec", "--output-schema", "nowhere.json", "x"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("hint:"));
}

#[test]
fn failed_scripts_and_denied_calls_are_shown() {
    let fixture = Fixture::new(|asked| match asked.body.to_string() {
        body if body.contains("Result of the script") => vec![text("Done.")].into(),
        body if body.contains("spin forever") => vec![text(&block("for (;;) {}"))].into(),
        _ => vec![text(&block(
            "await tools.exec({ command: ['rm', '-rf', '/'] })",
        ))]
        .into(),
    });
    let output = fixture.run(&["exec", "--timeout", "50ms", "spin forever"]);
    let shown = err(&output);
    assert!(
        shown.contains("✗ script  ScriptTimeoutError: ")
            && shown.contains("\nhint: pass --timeout 100ms\n"),
        "{shown}"
    );
    // The model cannot pass a flag.
    let asked = fixture.server.asked();
    let result = asked.last().unwrap().body.to_string();
    assert!(
        result.contains("start the script with") && !result.contains("--timeout"),
        "{result}"
    );
    let output = fixture.run(&["exec", "delete"]);
    let shown = err(&output);
    assert!(
        shown.contains(
            "; `selvedge exec` never asks for approval\nhint: run `selvedge continue` to approve calls in a chat\n"
        ) && shown.contains("✗ script  ApprovalDeniedError: "),
        "{shown}"
    );
}

#[test]
fn failures_are_reported_by_the_exit_status() {
    let fixture =
        Fixture::new(|_| Reply::Fail(401, json!({"error": {"message": "bad key"}}).to_string()));
    let (events, status) = fixture.events(&["exec", "--json", "go"]);
    let last = events.last().unwrap();
    assert_eq!(
        (
            last["type"].as_str(),
            last["error"]["kind"].as_str(),
            status
        ),
        (Some("turn.failed"), Some("auth"), 1)
    );
    let file = fixture.dir.path().join("home/config.toml");
    assert_eq!(
        last["hint"],
        format!(
            "set env_key = \"VARIABLE\" under [model_providers.mock] in {}, and export VARIABLE",
            file.display()
        )
    );
    let not_found = Fixture::new(|_| Reply::Fail(404, "404 page not found".to_owned()));
    let output = not_found.run(&["exec", "go"]);
    let expected = format!(
        "error: provider `mock`: there is no API at {}/chat/completions (HTTP status 404)\n\
         hint: correct base_url under [model_providers.mock] in ",
        not_found.server.url
    );
    assert!(err(&output).contains(&expected), "{}", err(&output));
    let asked = fixture.server.asked().len();
    let output = fixture.run(&["exec", "--provider", "keyed", "--model", "m", "go"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("SELVEDGE_TEST_KEY"),
        "the error names the variable: {}",
        err(&output)
    );
    for bad in [
        &["exec", "two", "words"][..],
        &["exec"],
        &["exec", "resume"],
        &["exec", "resume", "ses_none", "x"],
        &["exec", "--mode", "x", "y"],
    ] {
        let output = fixture.run(bad);
        assert_eq!(output.status.code(), Some(2), "{bad:?}: {}", err(&output));
        assert!(err(&output).contains("error:"), "{}", err(&output));
    }
    assert_eq!(fixture.server.asked().len(), asked, "no request was sent");
}

#[test]
fn a_failure_after_work_was_done_says_how_to_continue() {
    let fixture = Fixture::new(|asked| match asked.body.to_string() {
        body if body.contains("Result of the script") => {
            Reply::Fail(400, json!({"error": {"message": "no"}}).to_string())
        }
        _ => vec![text(&format!("I count.\n{}", block("return 1")))].into(),
    });
    let output = fixture.run(&["exec", "go"]);
    let stderr = err(&output);
    let (_, hint) = stderr
        .split_once(", then run `selvedge ")
        .unwrap_or_else(|| panic!("{stderr}"));
    let hint = hint.trim_end().trim_end_matches('`').replace('"', "");
    assert!(hint.starts_with("exec --continue ses_"), "{hint}");
    // The command of the hint is accepted.
    let words: Vec<&str> = hint.split(' ').collect();
    let output = fixture.run(&words);
    assert_eq!(output.status.code(), Some(1), "{}", err(&output));
    let output = fixture.run(&words[..3]);
    let expected = format!(
        "hint: pass a prompt: selvedge {} \"PROMPT\"\n",
        words[..3].join(" ")
    );
    assert!(err(&output).ends_with(&expected), "{}", err(&output));
}

#[test]
fn an_mcp_server_that_does_not_start_is_reported_to_the_user_and_the_model() {
    let fixture = Fixture::new(|_| vec![text("Done.")].into());
    let mut config = std::fs::File::options()
        .append(true)
        .open(fixture.dir.path().join("home/config.toml"))
        .unwrap();
    config
        .write_all(b"[mcp_servers.gone]\ncommand = '/nonexistent/server'\n")
        .unwrap();
    let output = fixture.run(&["exec", "go"]);
    let failure = "the MCP server `gone` did not start: `/nonexistent/server` was not found";
    let stderr = err(&output);
    assert_eq!(
        stderr.matches(&format!("warning: {failure}\n")).count(),
        1,
        "{stderr}"
    );
    let asked = fixture.server.asked();
    assert!(
        asked[0].body.to_string().contains(failure),
        "{}",
        asked[0].body
    );
}

#[test]
fn an_unknown_model_suggests_the_list_of_models() {
    let body = json!({"error": {"message": "the model `m` does not exist"}}).to_string();
    let fixture = Fixture::new(move |_| Reply::Fail(404, body.clone()));
    let output = fixture.run(&["exec", "go"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = err(&output);
    assert!(
        stderr.contains("the model `m` does not exist")
            && stderr.contains("hint: run `selvedge models list --provider mock`"),
        "{stderr}"
    );
}

#[cfg(unix)]
#[test]
fn an_interrupt_ends_the_turn_and_the_session_can_continue() {
    let fixture = Fixture::new(|asked| match asked.number {
        0 => vec![text(&block(
            "await tools.exec({ command: ['sleep', '600'], timeoutMs: 600000 })",
        ))]
        .into(),
        _ => vec![text("Back again.")].into(),
    });
    let mut child = fixture
        .command(&["exec", "--json", "wait", "--timeout", "20m"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    let thread: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    lines
        .by_ref()
        .map(Result::unwrap)
        .find(|line| line.contains("call.started"))
        .unwrap();
    let interrupted = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status()
        .unwrap();
    assert!(interrupted.success());
    let last = lines.map(Result::unwrap).last().unwrap();
    assert!(
        last.contains("turn.completed") && last.contains("interrupted"),
        "{last}"
    );
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let thread = thread["thread_id"].as_str().unwrap();
    let output = fixture.run(&["exec", "-q", "--continue", thread, "Are you there?"]);
    assert_eq!(out(&output), "Back again.");
    assert!(
        fixture.server.asked()[1].body["messages"]
            .to_string()
            .contains("ScriptCancelledError")
    );
}

#[test]
fn sessions_can_be_listed_shown_renamed_forked_exported_and_imported() {
    let fixture = Fixture::new(counting);
    let (events, _) = fixture.events(&["exec", "--json", "How many lines?"]);
    let id = events[0]["thread_id"].as_str().unwrap();
    fixture.run(&[
        "exec",
        "-q",
        "resume",
        id,
        "My key is sk-abcdefghijklmnopqrstuvwxyz",
    ]);
    let list: Value =
        serde_json::from_str(&out(&fixture.run(&["sessions", "list", "--json"]))).unwrap();
    assert_eq!(list[0]["id"], id);
    assert!(out(&fixture.run(&["sessions", "list"])).contains("How many lines?"));
    assert!(
        fixture
            .run(&["sessions", "rename", id, "lines"])
            .status
            .success()
    );
    let shown: Value =
        serde_json::from_str(&out(&fixture.run(&["sessions", "show", "lines", "--json"]))).unwrap();
    let kinds: Vec<&str> = shown["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["item"]["type"].as_str().unwrap())
        .collect();
    let turn = [
        "message",
        "reasoning",
        "message",
        "script_tool_call",
        "script_tool_call_output",
        "function_call",
        "function_call_output",
        "message",
    ];
    assert_eq!(kinds, [turn, turn].concat());
    assert!(
        !shown.to_string().contains("sk-abcdef"),
        "no secret is shown"
    );
    let fork = out(&fixture.run(&["sessions", "fork", "lines", "--turn", "1"]));
    let shown: Value =
        serde_json::from_str(&out(&fixture.run(&["sessions", "show", &fork, "--json"]))).unwrap();
    assert_eq!(shown["items"].as_array().unwrap().len(), turn.len());
    // A forked session continues from the turn it was forked at.
    let output = fixture.run(&["exec", "-q", "--continue", &fork, "And now?"]);
    assert_eq!(out(&output), "Two lines.");
    let exported = fixture.work().join("session.jsonl");
    assert!(
        fixture
            .run(&["sessions", "export", "lines", exported.to_str().unwrap()])
            .status
            .success()
    );
    assert!(
        !std::fs::read_to_string(&exported)
            .unwrap()
            .contains("sk-abcdef")
    );
    let imported = out(&fixture.run(&["sessions", "import", exported.to_str().unwrap()]));
    let shown: Value = serde_json::from_str(&out(
        &fixture.run(&["sessions", "show", &imported, "--json"])
    ))
    .unwrap();
    assert_eq!(shown["items"].as_array().unwrap().len(), 2 * turn.len());
    let output = fixture.run(&["sessions", "show", "nothing"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(err(&output).contains("hint:"));
    let _ = &fixture.runtime;
}

#[test]
fn an_event_reports_the_changes_of_a_turn() {
    let fixture = Fixture::new(|asked: &Asked| match asked.number {
        0 => vec![text(&block(
            "await tools.writeFile({ path: 'a.txt', content: 'one\\nthree\\n' })",
        ))]
        .into(),
        _ => vec![text("Done.")].into(),
    });
    let (events, status) = fixture.events(&["exec", "--json", "--approval", "never", "Change it."]);
    assert_eq!(status, 0, "{events:?}");
    let kinds: Vec<&str> = events
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds[kinds.len() - 2..], ["diff.updated", "turn.completed"]);
    let diff = events[events.len() - 2]["diff"].as_str().unwrap();
    assert!(diff.contains("-two\n+three\n"), "{diff}");
}

#[test]
fn mcp_tools_are_called_by_scripts_and_by_structured_calls() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../mcp/tests/servers/odd.py")
        .canonicalize()
        .unwrap();
    let fixture = Fixture::new(|asked: &Asked| match asked.number {
        0 => vec![
            text(&block("return await tools.mcp.odd.echo({ x: 7 })")),
            call(
                "c1",
                "mcp_call_tool",
                json!({"server": "odd", "tool": "echo", "arguments": {"x": 8}}),
            ),
        ]
        .into(),
        _ => vec![text("Done.")].into(),
    });
    let file = fixture.dir.path().join("home/config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    let server = format!(
        "[mcp_servers.odd]\ncommand = \"python3\"\nargs = [{script:?}, \"good\"]\ndefault_tools_approval_mode = \"approve\"\n"
    );
    std::fs::write(&file, config + &server).unwrap();
    let output = fixture.run(&["exec", "Echo."]);
    assert_eq!(out(&output), "Done.", "{}", err(&output));
    let asked = fixture.server.asked();
    let results = asked[1].body["messages"].to_string();
    assert!(
        results.contains("\\\"x\\\":7") && results.contains("\\\"x\\\":8"),
        "{results}"
    );
    let tools: Vec<&str> = asked[0].body["tools"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["function"]["name"].as_str().unwrap())
        .collect();
    assert!(
        !tools.iter().any(|tool| tool.starts_with("mcp")),
        "the tools of servers are only declared: {tools:?}"
    );
    assert!(
        asked[0].body["messages"][0].to_string().contains("odd"),
        "the prompt names the server"
    );
}

/// Appends to config.toml in the home.
fn configured(fixture: &Fixture, more: &str) {
    let file = fixture.dir.path().join("home/config.toml");
    let config = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, config + more).unwrap();
}

#[test]
fn a_cost_limit_needs_prices() {
    let fixture = Fixture::new(|_| vec![call("c", "read_file", json!({"path": "a.txt"}))].into());
    for amount in ["nan", "-1", "inf", "0", "much"] {
        let output = fixture.run(&["exec", &format!("--max-cost={amount}"), "go"]);
        assert_eq!(output.status.code(), Some(2), "{amount}: {}", err(&output));
    }
    let output = fixture.run(&["exec", "--max-cost", "2", "go"]);
    assert_eq!(output.status.code(), Some(2), "{}", err(&output));
    assert!(
        err(&output).contains("error: --max-cost needs the prices of the model mock\n")
            && err(&output).contains("models.\"mock\".prices = { input = 3.0, output = 15.0 }"),
        "{}",
        err(&output)
    );
    assert_eq!(
        out(&fixture.run(&["sessions", "list", "--json"])),
        "[]",
        "no session was created"
    );
    assert!(fixture.server.asked().is_empty());
    // Each request costs 1.
    configured(
        &fixture,
        "[models.mock]\nprices = { input = 10000.0, output = 0.0 }\n",
    );
    let (events, status) = fixture.events(&["exec", "--json", "--max-cost", "2", "go"]);
    assert_eq!(
        (&events.last().unwrap()["finish_reason"], status),
        (&json!("max_cost"), 1)
    );
    assert_eq!(fixture.server.asked().len(), 2);
}

#[test]
fn a_dry_run_checks_scripts_without_running_them() {
    let fixture = Fixture::new(|asked: &Asked| match asked.number {
        0 => vec![text(&block(
            "await tools.writeFile({ path: 'new.txt', content: '' })",
        ))]
        .into(),
        _ => vec![text("It would write.")].into(),
    });
    let output = fixture.run(&["exec", "--dry-run", "Write."]);
    assert_eq!(out(&output), "It would write.", "{}", err(&output));
    assert!(!fixture.work().join("work/new.txt").exists());
    assert_eq!(
        fixture
            .run(&["exec", "--dry-run", "--mode", "enabled", "x"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn a_session_stops_at_its_configured_token_limit() {
    let fixture = Fixture::new(|_| vec![text("One.")].into());
    configured(
        &fixture,
        &format!(
            "[agent]\nsession_max_tokens = {}\n",
            2 * (answer_encoding::INPUT + answer_encoding::OUTPUT)
        ),
    );
    let (events, status) = fixture.events(&["exec", "--json", "go"]);
    let thread = events[0]["thread_id"].as_str().unwrap();
    assert_eq!(status, 0);
    let (events, status) = fixture.events(&["exec", "--json", "--continue", thread, "again"]);
    assert_eq!(
        (&events.last().unwrap()["finish_reason"], status),
        (&json!("stop"), 0)
    );
    let (events, status) = fixture.events(&["exec", "--json", "--continue", thread, "and again"]);
    assert_eq!(
        (&events.last().unwrap()["finish_reason"], status),
        (&json!("max_tokens"), 1)
    );
    assert_eq!(fixture.server.asked().len(), 2);
}

#[test]
fn stop_after_block_ends_the_answer_after_its_block() {
    let fixture = Fixture::new(|asked: &Asked| match asked.number {
        0 => vec![text(&format!("Now\n{}\nIt worked!", block("return 1")))].into(),
        _ => vec![text("One.")].into(),
    });
    configured(&fixture, "[agent]\nstop_after_block = true\n");
    let (events, status) = fixture.events(&["exec", "--json", "go"]);
    assert_eq!(status, 0);
    assert!(
        !events
            .iter()
            .any(|event| event.to_string().contains("It worked")),
        "the answer ended with its block"
    );
    assert!(
        events
            .iter()
            .any(|event| event["item"]["output_json"] == "1"),
        "and the block ran: {events:?}"
    );
}

#[test]
fn an_answer_that_never_matches_the_schema_is_an_error_event() {
    let fixture = Fixture::new(|_| vec![text("It has 2 lines")].into());
    std::fs::write(
        fixture.dir.path().join("work/schema.json"),
        "{\"type\": \"object\"}",
    )
    .unwrap();
    let (events, status) = fixture.events(&[
        "exec",
        "--json",
        "--output-schema",
        "schema.json",
        "How many lines?",
    ]);
    let last = events.last().unwrap();
    assert_eq!((last["type"].as_str(), status), (Some("error"), 1));
    assert!(
        last["message"]
            .as_str()
            .unwrap()
            .contains("does not match the schema"),
        "{last}"
    );
}

#[test]
fn an_output_file_that_cannot_be_written_fails_before_the_first_request() {
    let file = std::sync::Arc::new(std::sync::Mutex::new(None::<std::path::PathBuf>));
    let theirs = file.clone();
    let fixture = Fixture::new(move |_| {
        // While the model answers, a folder replaces the file.
        if let Some(file) = theirs.lock().unwrap().take() {
            std::fs::remove_file(&file).unwrap();
            std::fs::create_dir(&file).unwrap();
        }
        vec![text("Two lines.")].into()
    });
    let output = fixture.run(&["exec", "-o", "nowhere/answer.txt", "How many lines?"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err(&output).contains("cannot write nowhere/answer.txt") && err(&output).contains("hint:")
    );
    assert!(fixture.server.asked().is_empty());
    let output = fixture.run(&["exec", "-o", "answer.txt", "How many lines?"]);
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("Two lines.", Some(0))
    );
    assert_eq!(
        std::fs::read_to_string(fixture.work().join("work/answer.txt")).unwrap(),
        "Two lines."
    );
    *file.lock().unwrap() = Some(fixture.work().join("work/answer.txt"));
    let output = fixture.run(&["exec", "-o", "answer.txt", "How many lines?"]);
    assert_eq!(
        (out(&output).as_str(), output.status.code()),
        ("Two lines.", Some(1)),
        "the answer is not lost"
    );
    assert!(
        err(&output).contains("cannot write answer.txt"),
        "{}",
        err(&output)
    );
}
