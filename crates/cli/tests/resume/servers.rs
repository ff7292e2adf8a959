//! Calls of MCP servers and HTTP requests of a run that is resumed.

use std::process::Stdio;

use serde_json::{Value, json};

use crate::support::TestWorkspace;
use crate::{code, effect_count, failed, last, resume, run, status_and_stderr, support, until};

/// Configures a server with tools that pay, and one that returns the number of payments.
fn bank(workspace: &TestWorkspace) {
    let effects = workspace.work().join("effects");
    let server = TestWorkspace::odd("bank", "bank");
    workspace.config(&server.replace("\"bank\"]", &format!("\"bank\", {effects:?}]")));
}

#[test]
fn after_a_server_died_changes_are_undecided_and_reads_run_again() {
    let workspace = TestWorkspace::new();
    bank(&workspace);
    // The server dies after it has paid.
    let pay = "if ((await bank.balance({})).paid === 0) await bank.pay({})";
    run(&workspace, &["-e", pay]);
    let id = last(&workspace);
    assert_eq!(effect_count(&workspace), 1);
    for change in [
        "bank.pay({})",
        "tools.mcp.bank.pay.raw({})",
        "tools.mcpCallTool({server: 'bank', tool: 'pay', arguments: {}})",
        "bank.give({})",
    ] {
        let output = resume(&workspace, &id, &format!("await {change}"));
        assert_eq!(
            (code(&output), effect_count(&workspace)),
            ("OutcomeUnknownError", 1),
            "{change}"
        );
    }
    // A tool that the server marks as read-only runs, by either name.
    let look = "return [(await bank.balance({})).paid,
        (await tools.mcpCallTool({server: 'bank', tool: 'balance', arguments: {}})).paid]";
    assert_eq!(resume(&workspace, &id, look)["output_json"], "[1,1]");
    // A script can decide by the current state.
    let careful = "try { await bank.pay({}) } catch (e) {
        const { callId } = e.metadata.undecided[0];
        if ((await bank.balance({})).paid === 0) resume.repeat(callId); else resume.skip(callId);
        await bank.pay({});
    }";
    let output = resume(&workspace, &id, careful);
    assert_eq!(
        (&output["error"], effect_count(&workspace)),
        (&Value::Null, 1)
    );
}

#[test]
fn a_run_counts_as_running_while_its_server_runs() {
    let workspace = TestWorkspace::new();
    bank(&workspace);
    let script = "await bank.pay_slowly({})";
    let mut command = workspace.command(&["run", "-q", "-e", script]);
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    until(|| {
        let listed = workspace
            .command(&["runs", "list", "--json"])
            .output()
            .unwrap();
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed[0]["id"].as_str().is_some_and(|id| {
            let shown = workspace.command(&["runs", "show", id]).output().unwrap();
            String::from_utf8_lossy(&shown.stdout).contains("bank.pay_slowly")
        })
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let id = last(&workspace);
    let careful = format!(
        "try {{ {script} }} catch (e) {{ resume.skip(e.metadata.undecided[0].callId); {script} }}"
    );
    until(|| {
        let (status, stderr) =
            status_and_stderr(&run(&workspace, &["--resume", &id, "-e", &careful]));
        assert!(
            status == 0 || stderr.contains("is still running"),
            "{stderr}"
        );
        status == 0
    });
    assert_eq!(effect_count(&workspace), 1);
}

#[test]
fn an_invalid_response_leaves_the_outcome_unknown() {
    let workspace = TestWorkspace::new();
    bank(&workspace);
    let script = "await bank.pay_loudly({})";
    let (status, stderr) = status_and_stderr(&run(&workspace, &["-e", script]));
    assert!(
        status == 1 && stderr.contains("it is larger than 16 MB"),
        "{stderr}"
    );
    let output = resume(&workspace, &last(&workspace), script);
    assert_eq!(
        (code(&output), effect_count(&workspace)),
        ("OutcomeUnknownError", 1)
    );
}

#[test]
fn a_request_that_was_sent_and_not_answered_is_not_sent_again() {
    not_sent_again("");
}

#[test]
fn a_request_with_an_unreadable_response_is_not_sent_again() {
    not_sent_again("HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 2\r\n\r\nxx");
}

#[test]
fn a_request_with_a_server_error_is_not_sent_again() {
    not_sent_again("HTTP/1.1 504 Gateway Timeout\r\ncontent-length: 0\r\n\r\n");
}

fn not_sent_again(answer: &'static str) {
    let workspace = TestWorkspace::new();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (received, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut text = [0; 4096];
            let read = std::io::Read::read(&mut stream, &mut text);
            if read.is_ok_and(|bytes| bytes > 0) && received.send(()).is_err() {
                return;
            }
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
            open.push(stream);
        }
    });
    workspace.config(&format!(
        "sandbox_mode = 'danger-full-access'\n[script_harness.expose]\nenable_http = true\n\
         [web]\nallow_hosts = ['127.0.0.1:{port}']\nallow_private_hosts = ['127.0.0.1']\n"
    ));
    let post = |timeout: u32| {
        format!(
            "await tools.http({{url: 'http://127.0.0.1:{port}/pay', method: 'POST', body: 'pay 100', timeoutMs: {timeout}}})"
        )
    };
    let (_, stderr) = status_and_stderr(&run(&workspace, &["-e", &post(3000)]));
    assert!(
        requests.recv_timeout(support::TEST_TIMEOUT).is_ok(),
        "{stderr}"
    );
    for timeout in [3000, 5000] {
        let output = resume(&workspace, &last(&workspace), &post(timeout));
        assert_eq!(code(&output), "OutcomeUnknownError", "{output:#}");
    }
    assert!(requests.try_recv().is_err(), "it was sent again");
}

#[test]
fn a_raw_result_with_an_error_runs_again() {
    let workspace = TestWorkspace::new();
    workspace.config(&TestWorkspace::odd("odd", "good"));
    let script = "await odd.echo.raw({x: 1}); await odd.fail.raw({})";
    let id = failed(&workspace, script);
    let output = resume(&workspace, &id, script);
    let reused = |call: usize| &output["calls"][call]["reused"];
    assert_eq!(
        (reused(0), reused(1)),
        (&json!(true), &json!(false)),
        "{output:#}"
    );
}

#[test]
fn a_page_that_cost_money_is_not_fetched_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (received, requests) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().map_while(Result::ok) {
            let mut text = [0; 4096];
            let read = std::io::Read::read(&mut stream, &mut text);
            if read.is_ok_and(|bytes| bytes > 0) && received.send(()).is_err() {
                return;
            }
            let body = json!({"success": true, "data": {"markdown": "# Page"}}).to_string();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\
                 content-length: {}\r\n\r\n{body}",
                body.len()
            );
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        }
    });
    let workspace = TestWorkspace::new();
    workspace.config(&format!(
        "sandbox_mode = 'danger-full-access'\n[web]\nfirecrawl_url = 'http://127.0.0.1:{port}'\n"
    ));
    // A public address, which only Firecrawl is asked for.
    let fetch = "await tools.fetchUrl({urls: 'https://192.31.196.1/', fresh: true})";
    let run = |args: &[&str]| {
        let mut command = workspace.command(&["run", "-q", "--json"]);
        let command = command.env("FIRECRAWL_API_KEY", "fc-secret").args(args);
        let output = command.stdin(Stdio::null()).output().unwrap();
        serde_json::from_slice::<Value>(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {output:?}"))
    };
    let first = run(&["-e", &format!("{fetch}; throw 'later'")]);
    assert_eq!(first["calls"][0]["status"], "done", "{first:#}");
    let id = first["id"].as_str().unwrap();
    let second = run(&["--resume", id, "-e", fetch]);
    assert_eq!(second["calls"][0]["reused"], true, "{second:#}");
    assert!(requests.try_recv().is_ok() && requests.try_recv().is_err());
}
