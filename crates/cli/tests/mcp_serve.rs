//! `selvedge mcp serve` over standard input and output, as a client sees it.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use support::{Client, TestWorkspace, value};

fn with_elicitation() -> Value {
    json!({"elicitation": {}})
}

#[test]
fn results_match_the_output_schema() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    let names: Vec<&str> = tools
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["script", "script_wait"]);
    let description = tools[0]["description"].as_str().unwrap();
    assert!(
        description.contains("Promise.all") && description.contains("readFile("),
        "{description}"
    );
    let schema = jsonschema::validator_for(&tools[0]["outputSchema"]).unwrap();
    for (code, status, fails) in [
        ("return 1 + 1", "completed", false),
        (
            "await tools.listDir({ path: '.' }); throw new Error('no')",
            "error",
            true,
        ),
        ("import fs from 'fs'", "rejected", true),
        ("help", "completed", false),
        (
            "text('shown'); console.log('logged'); image('data:image/png;base64,AAAA'); return { message: 'done' }",
            "completed",
            false,
        ),
    ] {
        let result = client.call("script", json!({"code": code}));
        let item = &result["structuredContent"];
        assert_eq!(item["status"], status, "{code}: {item}");
        assert_eq!(result["isError"] == json!(true), fails, "{code}");
        let errors: Vec<String> = schema
            .iter_errors(item)
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{code}: {errors:?} in {item}");
    }
    assert_eq!(client.value("return 1 + 1"), 2);
    let result = client.call(
        "script",
        json!({"code": "text('shown'); image('data:image/png;base64,AAAA'); return [1, 2]"}),
    );
    let kinds: Vec<&str> = result["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|block| block["type"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["text", "image", "text"]);
    assert_eq!(result["content"][2]["text"], "[1,2]");
    assert!(client.close().success());
}

#[test]
fn invalid_requests_are_explained() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let text = |result: &Value| result["content"][0]["text"].as_str().unwrap().to_owned();
    assert!(text(&client.call("script", json!({}))).contains("missing field `code`"));
    assert!(
        text(&client.call("script", json!({"code": "return 1", "timeout": 3})))
            .contains("unknown field `timeout`")
    );
    assert!(
        text(&client.call("script_wait", json!({"id": "scr_x"})))
            .contains("there is no script `scr_x`: no script is running")
    );
    assert!(
        text(&client.call("script", json!({"code": "return 1", "resume": "scr_x"})))
            .contains("scr_x")
    );
    let answer = client.request("tools/call", json!({"name": "exec", "arguments": {}}));
    assert!(
        answer["error"]["message"]
            .as_str()
            .unwrap()
            .contains("there is no tool `exec`: use script or script_wait"),
        "{answer}"
    );
    let failed = client.call(
        "script",
        json!({"code": "await tools.readFile({ path: 'nothing' })\nreturn 1"}),
    );
    assert!(text(&failed).contains("(line 1)"), "{failed}");
}

#[test]
fn help_describes_all_tools() {
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "good"));
    let mut client = Client::start(&workspace, &[], json!({}));
    let all = client.value("help");
    let all = all.as_str().unwrap();
    assert!(
        all.contains("tools.readFile")
            && all.contains("tools.mcp.odd.echo")
            && all.contains("Promise.all"),
        "{all}"
    );
    let one = client.value("help(\"mcp.odd.echo\")");
    assert!(one.as_str().unwrap().contains("x?: number"), "{one}");
}

#[test]
fn a_long_script_returns_a_handle_for_script_wait() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "await new Promise(r => setTimeout(r, 800)); return 'late'";
    let result = client.call("script", json!({"code": code, "yieldAfterMs": 50}));
    let item = &result["structuredContent"];
    assert_eq!(item["status"], "running");
    assert_eq!(result["isError"], json!(false));
    assert!(
        result["content"].to_string().contains("script_wait"),
        "{result}"
    );
    let wait = |client: &mut Client, more: Value| {
        let mut args = json!({"id": item["id"]});
        args.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        client.call("script_wait", args)["structuredContent"].clone()
    };
    assert_eq!(
        wait(&mut client, json!({"timeoutMs": 10}))["status"],
        "running"
    );
    assert_eq!(value(&wait(&mut client, json!({}))), "late");
    // The result can be fetched again.
    assert_eq!(value(&wait(&mut client, json!({}))), "late");
}

#[test]
fn notifications_of_a_script_arrive_before_its_end() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let long = "notify('half way'); await new Promise(r => setTimeout(r, 1500)); return 'end'";
    let item = client.script(long);
    assert_eq!(
        (&item["status"], &item["output"][0]["text"]),
        (&json!("running"), &json!("half way"))
    );
    let id = item["id"].clone();
    assert_eq!(
        value(&client.call("script_wait", json!({"id": id}))["structuredContent"]),
        "end"
    );
    // A script that ends at once needs no second call.
    let result = client.call("script", json!({"code": "notify('quick'); return 1"}));
    assert_eq!(
        (
            &result["structuredContent"]["status"],
            &result["content"][0]["text"]
        ),
        (&json!("completed"), &json!("quick"))
    );
}

#[test]
fn terminating_a_script_stops_its_commands() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "await tools.exec({ command: ['sh', '-c', 'echo $$ > pid; sleep 1000'], timeoutMs: 600000 })";
    let item = client.call(
        "script",
        json!({"code": code, "yieldAfterMs": 1, "timeoutMs": 600000}),
    )["structuredContent"]
        .clone();
    assert_eq!(item["status"], "running");
    let pid = started_command(&workspace);
    let ended = client.call("script_wait", json!({"id": item["id"], "terminate": true}))["structuredContent"].clone();
    assert_eq!(ended["error"]["code"], "ScriptCancelledError", "{ended}");
    wait_for_exit(&pid);
}

#[test]
fn a_cancelled_request_stops_the_script_and_its_commands() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "await tools.exec({ command: ['sh', '-c', 'echo $$ > pid; sleep 1000'], timeoutMs: 600000 })";
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": code, "timeoutMs": 600000}}),
    );
    let pid = started_command(&workspace);
    client.notify(
        "notifications/cancelled",
        json!({"requestId": id, "reason": "changed my mind"}),
    );
    wait_for_exit(&pid);
    assert_eq!(client.value("return 'still here'"), "still here");
}

#[test]
fn a_cancelled_wait_does_not_cancel_the_script() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "await new Promise(r => setTimeout(r, 1500)); return 'end'";
    let item = client.call("script", json!({"code": code, "yieldAfterMs": 1}))["structuredContent"]
        .clone();
    let waiting = client.ask(
        "tools/call",
        json!({"name": "script_wait", "arguments": {"id": item["id"]}}),
    );
    client.notify("notifications/cancelled", json!({"requestId": waiting}));
    assert_eq!(
        value(&client.call("script_wait", json!({"id": item["id"]}))["structuredContent"]),
        "end"
    );
}

#[test]
fn an_elicitation_is_cancelled_when_the_approval_times_out() {
    let workspace = TestWorkspace::new();
    workspace.config("[script_harness.limits]\napproval_timeout_ms = 300\n");
    let mut client = Client::start(&workspace, &["--approval", "untrusted"], with_elicitation());
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": WRITE}}),
    );
    let question = client.question();
    let item = client.answer_to(id)["result"]["structuredContent"].clone();
    assert_eq!(item["error"]["code"], "ApprovalTimeoutError", "{item}");
    let cancelled = client.wait_for(|message| message["method"] == "notifications/cancelled");
    assert_eq!(cancelled["params"]["requestId"], question["id"]);
}

#[test]
fn scripts_end_when_the_client_disconnects() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "await tools.exec({ command: ['sh', '-c', 'echo $$ > pid; sleep 1000'], timeoutMs: 600000 })";
    client.call(
        "script",
        json!({"code": code, "yieldAfterMs": 1, "timeoutMs": 600000}),
    );
    let pid = started_command(&workspace);
    assert!(client.close().success());
    wait_for_exit(&pid);
}

/// Waits until a script has started its command, and returns the process ids on the host.
fn started_command(workspace: &TestWorkspace) -> Vec<u32> {
    let began = Instant::now();
    while !workspace.work().join("pid").exists() {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "the command did not start"
        );
        std::thread::yield_now();
    }
    sleepers(workspace)
}

/// Returns the `sleep` processes in the workspace.
fn sleepers(workspace: &TestWorkspace) -> Vec<u32> {
    let work = workspace.work().canonicalize().unwrap();
    let all = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let here = std::fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|cwd| cwd == work);
        here && String::from_utf8_lossy(&line).contains("sleep")
    })
    .collect()
}

fn wait_for_exit(pids: &[u32]) {
    let began = Instant::now();
    let alive = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    while pids.iter().any(alive) {
        assert!(
            began.elapsed() < Duration::from_secs(30),
            "a process of the script is still running"
        );
        std::thread::yield_now();
    }
}

#[test]
fn progress_is_sent_only_with_a_progress_token() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let code = "context.emitProgress('half'); await tools.listDir({ path: '.' }); return 1";
    assert_eq!(client.value(code), 1);
    assert!(
        client
            .others()
            .iter()
            .all(|message| message["method"] != "notifications/progress")
    );
    // Repeated, so that a subscription that starts after the script would miss an event.
    for token in 0..100 {
        let progress = progress_of(&mut client, code, token);
        let numbers: Vec<f64> = progress
            .iter()
            .map(|params| params["progress"].as_f64().unwrap())
            .collect();
        assert!(
            numbers.windows(2).all(|pair| pair[0] < pair[1]),
            "{numbers:?}"
        );
        let messages: Vec<&str> = progress
            .iter()
            .map(|params| params["message"].as_str().unwrap())
            .collect();
        assert_eq!(messages, ["half", "list_dir .", "list_dir done"]);
    }
}

/// Runs a script with a progress token, and returns the parameters of its progress notifications.
fn progress_of(client: &mut Client, code: &str, token: i32) -> Vec<Value> {
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": code}, "_meta": {"progressToken": token}}),
    );
    client.answer_to(id);
    let others = client.others().into_iter();
    others
        .filter(|message| message["method"] == "notifications/progress")
        .map(|message| message["params"].clone())
        .filter(|params| params["progressToken"] == token)
        .collect()
}

const WRITE: &str = "await tools.writeFile({ path: 'made.txt', content: 'x' }); return 'made'";

#[test]
fn approvals_are_requested_through_elicitation() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &["--approval", "untrusted"], with_elicitation());
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": WRITE}}),
    );
    let question = client.question();
    let message = question["params"]["message"].as_str().unwrap();
    assert!(
        message.contains("write_file") && message.contains("made.txt"),
        "{message}"
    );
    assert!(!workspace.work().join("made.txt").exists());
    client.reply(
        &question,
        json!({"action": "accept", "content": {"answer": "yes, once"}}),
    );
    assert_eq!(
        value(&client.answer_to(id)["result"]["structuredContent"]),
        "made"
    );
    assert!(workspace.work().join("made.txt").exists());

    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": WRITE}}),
    );
    let question = client.question();
    client.reply(
        &question,
        json!({"action": "accept", "content": {"answer": "no", "reason": "not today"}}),
    );
    let item = client.answer_to(id)["result"]["structuredContent"].clone();
    assert_eq!(item["error"]["code"], "ApprovalDeniedError");
    assert!(
        item["error"]["message"]
            .as_str()
            .unwrap()
            .contains("not today"),
        "{item}"
    );

    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": WRITE}}),
    );
    let question = client.question();
    client.reply(&question, json!({"action": "decline"}));
    assert_eq!(
        client.answer_to(id)["result"]["structuredContent"]["error"]["code"],
        "ApprovalDeniedError"
    );
}

#[test]
fn the_form_of_an_approval_shows_the_end_of_every_call() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &["--approval", "untrusted"], with_elicitation());
    let code = "const dots = '.'.repeat(5000);\n\
         const { sessionId } = await tools.execCommand({ cmd: 'cat', yieldTimeMs: 100 });\n\
         await Promise.allSettled([\n\
           tools.writeStdin({ sessionId, chars: dots + ['typed', 'end'].join('-') }),\n\
           tools.writeFile({ path: 'a.txt', content: dots + ['file', 'end'].join('-') }),\n\
           ...[1, 2, 3, 4, 5, 6].map(n => tools.exec({\n\
             command: ['bash', '-c', `touch ${dots}; ` + ['rm', 'end' + n].join('-')] })),\n\
         ]); return 'done'";
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": code}}),
    );
    let mut shown = String::new();
    let ends = ["typed-end", "file-end", "rm-end1", "rm-end2", "rm-end6"];
    // The calls may come in several questions.
    while !ends.iter().all(|end| shown.contains(end)) {
        let message = client
            .wait_for(|message| message["method"] == "elicitation/create" || message["id"] == id);
        assert!(message["method"].is_string(), "asked only:\n{shown}");
        shown += message["params"]["message"].as_str().unwrap();
        client.reply(
            &message,
            json!({"action": "accept", "content": {"answer": "yes, once"}}),
        );
    }
    assert!(
        shown.contains("types into a terminal in the sandbox:"),
        "{shown}"
    );
}

#[test]
fn calls_are_denied_if_the_client_has_no_elicitation() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &["--approval", "untrusted"], json!({}));
    let item = client.script(WRITE);
    assert_eq!(item["error"]["code"], "ApprovalDeniedError");
    assert!(
        item["error"]["message"]
            .as_str()
            .unwrap()
            .contains("this MCP client does not support elicitation"),
        "{item}"
    );
    assert!(!workspace.work().join("made.txt").exists());
}

#[test]
fn an_approval_counts_after_the_request_has_ended() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &["--approval", "untrusted"], with_elicitation());
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": WRITE, "yieldAfterMs": 300}}),
    );
    let question = client.question();
    let item = client.answer_to(id)["result"]["structuredContent"].clone();
    assert_eq!(item["status"], "running");
    assert!(
        item["warnings"].to_string().contains("a person's answer"),
        "{item}"
    );
    client.reply(
        &question,
        json!({"action": "accept", "content": {"answer": "yes, once"}}),
    );
    assert_eq!(
        value(&client.call("script_wait", json!({"id": item["id"]}))["structuredContent"]),
        "made"
    );
}

#[test]
fn a_corrected_script_resumes_the_failed_one() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    let broken = "await tools.exec({ command: ['sh', '-c', 'echo x >> log'] }); nonsense()";
    let item = client.script(broken);
    assert_eq!(item["status"], "error");
    assert!(
        item["error"]["suggestions"].to_string().contains("resume"),
        "{item}"
    );
    let fixed = "await tools.exec({ command: ['sh', '-c', 'echo x >> log'] }); return 'done'";
    let result = client.call("script", json!({"code": fixed, "resume": item["id"]}));
    let item = &result["structuredContent"];
    assert_eq!(
        (value(item), &item["calls"][0]["reused"]),
        (json!("done"), &json!(true))
    );
    assert_eq!(
        std::fs::read_to_string(workspace.work().join("log")).unwrap(),
        "x\n"
    );
}

#[test]
fn stored_values_last_for_the_session() {
    let workspace = TestWorkspace::new();
    let mut client = Client::start(&workspace, &[], json!({}));
    assert_eq!(client.value("store('k', { a: 1 }); return 1"), 1);
    assert_eq!(client.value("return load('k')"), json!({"a": 1}));
    let mut other = Client::start(&workspace, &[], json!({}));
    assert_eq!(other.value("return load('k') ?? 'nothing'"), "nothing");
}

#[test]
fn elicitations_of_servers_are_passed_to_the_client() {
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "good"));
    let mut client = Client::start(&workspace, &[], with_elicitation());
    assert_eq!(
        client.value("return (await tools.mcp.odd.echo({ x: 5 })).x"),
        5
    );
    let id = client.ask(
        "tools/call",
        json!({"name": "script", "arguments": {"code": "return await odd.ask()"}}),
    );
    let question = client.question();
    assert_eq!(
        question["params"]["message"],
        "The server odd asks: Which one?"
    );
    client.reply(
        &question,
        json!({"action": "accept", "content": {"choice": "the blue one"}}),
    );
    let got = value(&client.answer_to(id)["result"]["structuredContent"]);
    assert_eq!(
        (&got["action"], &got["content"]["choice"]),
        (&json!("accept"), &json!("the blue one"))
    );
}

#[test]
fn selvedge_as_its_own_server_is_disabled() {
    let workspace = TestWorkspace::new();
    workspace.config(&format!(
        "[mcp_servers.me]\ncommand = {:?}\nargs = [\"mcp\", \"serve\"]\nenv = {{ SELVEDGE_HOME = {:?} }}\n",
        env!("CARGO_BIN_EXE_selvedge"),
        workspace.home()
    ));
    let mut client = Client::start(&workspace, &[], json!({}));
    let item = client.script("return await tools.mcp.me.script({ code: 'return 1' })");
    assert!(
        item["error"]["message"]
            .as_str()
            .unwrap()
            .contains("is Selvedge itself"),
        "{item}"
    );
    let listed = workspace.command(&["mcp", "list"]).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    assert!(
        text.contains("– me") && text.contains("is Selvedge itself"),
        "{text}"
    );
}

#[test]
fn the_client_is_notified_of_new_tools() {
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "good"));
    let mut client = Client::start(&workspace, &[], json!({}));
    client.wait_for(|message| message["method"] == "notifications/tools/list_changed");
    let tools = client.request("tools/list", json!({}))["result"]["tools"].clone();
    assert!(
        tools[0]["description"]
            .as_str()
            .unwrap()
            .contains("odd (10)"),
        "{tools}"
    );
}
