//! Servers that hang, crash, flood their output or list too much. Each affects only calls to it.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use selvedge_mcp::{
    McpTransport, ServerOrigin, ServerRequestHandlers, ServerSettings, ServerState, Servers,
};
use selvedge_protocol::{
    ApprovalPolicy, CallStatus, ErrorCode, EventSink, McpApproval, RunStatus, RuntimeEvent,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Orchestrator, Registry};
use serde_json::json;
use support::{odd, odd_with, program, run, run_with, servers, value};

/// Defines `attempt`, which returns the value or the error of a call.
const TRY: &str = "
    const attempt = async (f) => {
      try {
        return { value: await f() };
      } catch (e) {
        const { name, message, retryable, toolName } = e;
        return { name, message, retryable, toolName };
      }
    };";

#[tokio::test]
async fn a_call_without_a_response_times_out_and_the_server_stays_connected() {
    let mut hanging = odd("odd", "good");
    hanging.options.tool_timeout_sec = 0.3;
    let servers = servers(vec![hanging, odd("other", "good")]);
    let script = format!(
        "{TRY}
        const calls = [attempt(() => odd.hang()), other.echo({{ x: 1 }}), odd.echo({{ x: 2 }})];
        const all = await Promise.all(calls);
        return [...all, await odd.echo({{ x: 3 }})];"
    );
    let got = value(&servers, &script).await;
    assert_eq!(got[0]["name"], "ToolTimeoutError");
    assert_eq!(
        (&got[0]["retryable"], &got[0]["toolName"]),
        (&json!(true), &json!("mcp.odd.hang"))
    );
    assert!(
        got[0]["message"]
            .as_str()
            .unwrap()
            .contains("did not answer within 0.3 s"),
        "{got}"
    );
    assert_eq!(
        (&got[1]["x"], &got[2]["x"], &got[3]["x"]),
        (&json!(1), &json!(2), &json!(3))
    );
}

#[tokio::test]
async fn a_server_that_does_not_start_delays_no_other_server() {
    let mut silent = odd("silent", "silent");
    silent.options.startup_timeout_sec = 0.5;
    let servers = servers(vec![silent, odd("other", "good")]);
    // A script that does not mention the server does not start it.
    let began = Instant::now();
    assert_eq!(
        value(&servers, "return (await other.echo({ x: 1 })).x").await,
        1
    );
    assert!(
        servers
            .status()
            .await
            .iter()
            .any(|status| status.name == "silent" && status.state == ServerState::NotStarted)
    );
    let script = format!(
        "{TRY}
        const first = await attempt(() => silent.anything({{ a: 1 }}));
        return [first, (await other.echo({{ x: 2 }})).x]"
    );
    let got = value(&servers, &script).await;
    assert_eq!(
        (&got[0]["name"], &got[0]["retryable"], &got[1]),
        (&json!("ToolExecutionError"), &json!(true), &json!(2))
    );
    assert!(
        got[0]["message"]
            .as_str()
            .unwrap()
            .contains("did not answer within 0.5 s"),
        "{got}"
    );
    assert!(began.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_server_that_responds_to_no_ping_is_disconnected() {
    let mut hanging = odd("odd", "hangs-all");
    hanging.options.tool_timeout_sec = 0.2;
    let servers = servers(vec![hanging]);
    let script = format!("{TRY} return await attempt(() => odd.echo())");
    assert!(
        value(&servers, &script).await["message"]
            .as_str()
            .unwrap()
            .contains("did not answer")
    );
    // The connection is closed because the ping gets no response.
    while servers.status().await[0].state == ServerState::Ready {}
    let status = servers.status().await;
    assert_eq!(
        (status[0].state, status[0].reason.as_deref()),
        (ServerState::Failed, Some("it did not respond to a ping"))
    );
}

#[tokio::test]
async fn lines_that_are_not_messages_are_skipped_and_reported() {
    let servers = servers(vec![odd("odd", "garbage")]);
    assert_eq!(
        value(&servers, "return (await odd.echo({ x: 5 })).x").await,
        5
    );
    let status = servers.status().await;
    assert!(
        status[0]
            .notes
            .iter()
            .any(|note| note.contains("Welcome to the server!")),
        "{status:?}"
    );
}

#[tokio::test]
async fn a_server_that_floods_its_output_fails_and_delays_no_other_server() {
    let mut flood = odd("flood", "flood");
    flood.options.startup_timeout_sec = 2.0;
    let servers = servers(vec![flood, odd("other", "good")]);
    let script =
        format!("{TRY} return [await attempt(() => flood.x()), (await other.echo({{ x: 2 }})).x]");
    let got = value(&servers, &script).await;
    assert_eq!(
        (&got[0]["name"], &got[0]["retryable"], &got[1]),
        (&json!("ToolExecutionError"), &json!(true), &json!(2))
    );
}

#[tokio::test]
async fn a_server_that_crashes_during_a_call_is_reported_and_restarted() {
    let servers = servers(vec![odd("odd", "good")]);
    let script =
        format!("{TRY} return [await attempt(() => odd.die()), (await odd.echo({{ x: 7 }})).x]");
    let got = value(&servers, &script).await;
    let message = got[0]["message"].as_str().unwrap();
    assert!(
        message.contains("disconnected during the request")
            && message.contains("stderr: fatal error"),
        "{message}"
    );
    assert_eq!((&got[0]["retryable"], &got[1]), (&json!(true), &json!(7)));
    // The call may have had its effect, so that a resumed run must not repeat it unasked.
    let output = run(&servers, "await odd.die()").await;
    assert_eq!(output.calls[0].status, CallStatus::OutcomeUnknown);
    assert_eq!(output.error.unwrap().code, ErrorCode::ToolExecutionError);
}

#[tokio::test]
async fn a_server_that_keeps_failing_is_not_restarted_before_a_delay() {
    let servers = servers(vec![odd("odd", "crash-loop")]);
    let first = run(&servers, "return await odd.echo({ x: 1 })")
        .await
        .error
        .unwrap();
    assert!(
        first.message.contains("bad configuration"),
        "{}",
        first.message
    );
    let began = Instant::now();
    let second = run(&servers, "return await odd.echo({ x: 1 })")
        .await
        .error
        .unwrap();
    assert!(
        second.message.contains("next attempt in"),
        "{}",
        second.message
    );
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_server_is_started_again_after_the_delay() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("ready");
    let servers = servers(vec![odd_with("odd", "flaky", &state)]);
    let script = "return (await odd.echo({ x: 6 })).x";
    assert!(
        run(&servers, script)
            .await
            .error
            .unwrap()
            .message
            .contains("not yet")
    );
    std::fs::write(&state, "").unwrap();
    let began = Instant::now();
    let output = loop {
        let output = run(&servers, script).await;
        if output.error.is_none() || began.elapsed() > Duration::from_secs(30) {
            break output;
        }
    };
    assert_eq!(output.value(), Some(json!(6)), "{:?}", output.error);
}

#[tokio::test]
async fn a_server_that_failed_is_reported_also_when_its_delay_is_over() {
    let mut silent = odd("silent", "silent");
    // Longer than the delay after the first failure of the other server.
    silent.options.startup_timeout_sec = 1.5;
    let servers = servers(vec![program("gone", "/nonexistent/server", &[]), silent]);
    let script = format!(
        "{TRY}
        return await Promise.all([attempt(() => gone.x()), attempt(() => silent.x())])"
    );
    let got = value(&servers, &script).await;
    let message = got[0]["message"].as_str().unwrap();
    assert_eq!(
        message,
        "the MCP server `gone` did not start: `/nonexistent/server` was not found"
    );
}

/// Starts an HTTP server that answers every request with this status line. Returns its URL.
async fn http_server(status: &'static str) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/mcp", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let _ = stream.read(&mut [0; 4096]).await;
            let answer =
                format!("HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno");
            let _ = stream.write_all(answer.as_bytes()).await;
        }
    });
    url
}

#[tokio::test]
async fn an_http_server_that_fails_is_described_by_its_answer() {
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let closed_url = format!("http://{}/mcp", closed.local_addr().unwrap());
    drop(closed);
    let wrong = http_server("404 Not Found").await;
    let broken = http_server("500 Internal Server Error").await;
    for (url, reason, hint) in [
        (
            wrong.clone(),
            format!("{wrong} answered with HTTP status 404"),
            Some("correct url under [mcp_servers.web] in config.toml"),
        ),
        (
            broken.clone(),
            format!("{broken} answered with HTTP status 500"),
            Some("read the log of the server, then try again"),
        ),
        (
            closed_url.clone(),
            format!("cannot connect to {closed_url}: Connection refused (os error 111)"),
            Some("start the server, or correct url under [mcp_servers.web] in config.toml"),
        ),
    ] {
        let transport = McpTransport::Http {
            url: format!("{url}?token=secret"),
            bearer_token_env_var: None,
            headers: Default::default(),
        };
        let servers = servers(vec![ServerSettings::new("web", transport)]);
        let error = run(&servers, "return await web.x()").await.error.unwrap();
        let message = error.message.replace("ToolExecutionError: ", "");
        assert_eq!(
            message,
            format!("the MCP server `web` did not start: {reason}")
        );
        assert_eq!(error.suggestions.first().map(String::as_str), hint);
    }
}

#[tokio::test]
async fn a_call_that_waits_for_a_permit_can_be_cancelled() {
    let mut busy = odd("odd", "good");
    busy.options.max_concurrent = 1;
    let servers = servers(vec![busy]);
    servers.ensure_all_catalogues().await;
    let output = run(
        &servers,
        "const first = odd.hang(); const second = odd.echo({ x: 1 }); return 'left'",
    )
    .await;
    let states: Vec<&str> = output
        .calls
        .iter()
        .map(|call| call.status.as_str())
        .collect();
    assert_eq!(
        (output.value(), states),
        (Some(json!("left")), vec!["aborted", "aborted"]),
        "{:?}",
        output.error
    );
}

#[tokio::test]
async fn a_missing_program_is_reported() {
    let servers = servers(vec![program("gone", "/nonexistent/server", &[])]);
    let error = run(&servers, "return await gone.x()").await.error.unwrap();
    assert!(
        error
            .message
            .contains("the MCP server `gone` did not start: `/nonexistent/server` was not found"),
        "{}",
        error.message
    );
    assert_eq!(
        error.suggestions,
        ["install it, or change `command` under [mcp_servers.gone] in config.toml"]
    );
    let error = run(&servers, "return await tools.mcp.unknown.x()")
        .await
        .error
        .unwrap();
    assert!(
        error.message.contains("there is no tool `mcp.unknown.x`"),
        "{}",
        error.message
    );
}

#[tokio::test]
async fn a_server_with_two_thousand_tools_is_fully_listed() {
    let servers = servers(vec![odd("odd", "many")]);
    let got = value(
        &servers,
        "const [found] = await tools.search('tool 1234');
        return [
          ALL_TOOLS.length > 2000,
          Object.keys(tools.mcp.odd).length,
          (await tools.mcp.odd.tool_1999({ x: 1 })).called,
          found.name,
          (await tools[found.name]({ x: 2 })).called,
        ]",
    )
    .await;
    assert_eq!(
        got,
        json!([true, 2000, "tool_1999", "mcp.odd.tool1234", "tool_1234"])
    );
}

#[tokio::test]
async fn an_endless_tool_list_is_cut_off() {
    let servers = servers(vec![odd("odd", "pages-forever")]);
    let got = value(&servers, "return Object.keys(tools.mcp.odd)").await;
    assert_eq!(got, json!(["again"]));
}

#[tokio::test]
async fn a_response_of_fifty_megabytes_is_an_error_and_the_next_call_works() {
    let servers = servers(vec![odd("odd", "good")]);
    let script =
        format!("{TRY} return [await attempt(() => odd.huge()), (await odd.echo({{ x: 8 }})).x]");
    let got = value(&servers, &script).await;
    assert!(
        got[0]["message"]
            .as_str()
            .unwrap()
            .contains("sent an invalid response: it is larger than 16 MB"),
        "{got}"
    );
    assert_eq!(got[1], 8);
}

#[tokio::test]
async fn tools_named_like_javascript_builtins_can_be_called() {
    let servers = servers(vec![odd("odd", "odd-names")]);
    let got = value(
        &servers,
        r#"
        const t = tools.mcp.odd;
        const called = [];
        const names = ["__proto__", "constructor", "toString", "get-sum", "getSum", "get_sum",
          "2fa", "_2fa", "a.b", "aB", "with space", "withSpace"];
        for (const name of names) called.push((await t[name]({ x: 1 })).called);
        return { called, proto: {}.called === undefined, keys: Object.keys(t).sort() };
    "#,
    )
    .await;
    assert_eq!(
        got["called"],
        json!([
            "__proto__",
            "constructor",
            "toString",
            "get-sum",
            "get-sum",
            "get_sum",
            "2fa",
            "2fa",
            "a.b",
            "a.b",
            "with space",
            "with space"
        ])
    );
    assert_eq!(got["proto"], true);
    let keys = [
        "_2fa",
        "__proto__",
        "aB",
        "constructor",
        "getSum",
        "getSum_2",
        "then",
        "toString",
        "withSpace",
    ];
    assert_eq!(got["keys"], json!(keys));
}

#[tokio::test]
async fn an_error_result_is_thrown_but_returned_by_raw() {
    let servers = servers(vec![odd("odd", "good")]);
    let script = format!(
        "{TRY}
        const failed = await attempt(() => odd.fail());
        return [failed, await odd.fail.raw(), await odd.echo.raw({{ x: 1 }})]"
    );
    let got = value(&servers, &script).await;
    assert_eq!(
        (&got[0]["name"], &got[0]["message"]),
        (&json!("ToolExecutionError"), &json!("it did not work"))
    );
    assert_eq!(
        (&got[0]["retryable"], &got[0]["toolName"]),
        (&json!(false), &json!("mcp.odd.fail"))
    );
    assert_eq!(
        (&got[1]["isError"], &got[2]["structuredContent"]),
        (&json!(true), &json!({"x": 1}))
    );
}

#[tokio::test]
async fn arguments_are_validated_before_the_call_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("count");
    let servers = servers(vec![odd_with("odd", "good", &state)]);
    for script in [
        "return await tools.mcp.odd.count({ x: 'no number' })",
        "return await odd.count({ x: 'no number' })",
    ] {
        let output = run(&servers, &format!("await odd.count({{ x: 1 }}); {script}")).await;
        assert_eq!(
            output.error.as_ref().map(|error| error.code.as_str()),
            Some("ToolValidationError")
        );
        assert_eq!(output.status, RunStatus::Rejected);
    }
    let output = run(
        &servers,
        "await odd.count({ x: 1 }); return await odd.cuont({})",
    )
    .await;
    let error = output.error.unwrap();
    assert_eq!(
        (error.code.as_str(), error.suggestions),
        ("ToolNotFoundError", vec!["mcp.odd.count".to_owned()])
    );
    // A guarded call of an unknown tool is accepted, and so is the script's own object.
    let guarded = "const mine = { gone: () => 1 };
        return ['gone' in odd ? await odd.gone() : 'not there', mine.gone()]";
    assert_eq!(value(&servers, guarded).await, json!(["not there", 1]));
    assert!(!state.exists());
}

#[tokio::test]
async fn a_tool_added_by_a_running_server_is_available_to_the_next_script() {
    let dir = tempfile::tempdir().unwrap();
    let servers = servers(vec![odd_with("odd", "changing", &dir.path().join("state"))]);
    servers.ensure_all_catalogues().await;
    let generation = servers.generation();
    assert_eq!(
        value(
            &servers,
            "return ['second' in tools.mcp.odd, await odd.first()]"
        )
        .await,
        json!([false, "first"])
    );
    servers.wait_for_change(generation).await;
    assert_eq!(value(&servers, "return await odd.second()").await, "second");
}

#[tokio::test]
async fn progress_extends_the_timeout_of_a_call_and_is_reported() {
    let mut slow = odd("odd", "good");
    slow.options.tool_timeout_sec = 0.9;
    let servers = servers(vec![slow]);
    let messages = Arc::new(Mutex::new(Vec::new()));
    let sink = messages.clone();
    let events = EventSink::new(move |event| {
        if let RuntimeEvent::ScriptProgress { message, .. } = event {
            sink.lock().unwrap().push(message);
        }
    });
    let output = run_with(
        &servers,
        "return await odd.slow()",
        RunOptions {
            events,
            ..RunOptions::default()
        },
    )
    .await;
    assert_eq!(
        output.value(),
        Some(json!("slow but done")),
        "{:?}",
        output.error
    );
    assert!(
        messages
            .lock()
            .unwrap()
            .iter()
            .any(|message| message.contains("of 4 working")),
        "{messages:?}"
    );
}

#[tokio::test]
async fn elicitation_and_sampling_are_declined_without_handlers() {
    let servers = servers(vec![odd("odd", "good")]);
    let got = value(&servers, "return [await odd.ask(), await odd.think()]").await;
    assert_eq!(got[0]["action"], "decline");
    assert!(
        got[1]["message"]
            .as_str()
            .unwrap()
            .contains("no model is available"),
        "{got}"
    );
}

#[tokio::test]
async fn a_server_that_is_selvedge_itself_is_disabled() {
    let servers = servers(vec![odd("again", "ourselves")]);
    let error = run(&servers, "return await again.echo({ x: 1 })")
        .await
        .error
        .unwrap();
    assert!(
        error.message.contains("is Selvedge itself"),
        "{}",
        error.message
    );
    assert_eq!(servers.status().await[0].state, ServerState::Disabled);
}

#[tokio::test]
async fn annotations_of_a_server_can_only_add_approvals() {
    async fn outcomes(approval: McpApproval, policy: ApprovalPolicy) -> Vec<bool> {
        outcomes_of(ServerOrigin::User, approval, policy).await
    }
    async fn outcomes_of(
        origin: ServerOrigin,
        approval: McpApproval,
        policy: ApprovalPolicy,
    ) -> Vec<bool> {
        let mut settings = odd("odd", "annotated");
        settings.origin = origin;
        settings.options.default_tools_approval_mode = approval;
        let servers = servers(vec![settings]);
        let script = format!(
            "{TRY}
            const call = n => attempt(() => tools.mcp.odd[n]({{ x: 1 }}));
            return await Promise.all(['look', 'plain', 'wipe'].map(call))"
        );
        let orchestrator = Orchestrator::new(Registry::new()).with_policy(policy);
        let harness = Harness::new(orchestrator).unwrap();
        servers
            .ensure_catalogues_for_script(&harness, script.as_bytes())
            .await;
        let harness = harness.with_tools(servers.script_registry(&Registry::new()));
        let output = harness.run(&script).await;
        let value = output.value().unwrap();
        value
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one.get("value").is_some())
            .collect()
    }
    use ApprovalPolicy::{Never, OnRequest, Untrusted};
    assert_eq!(
        outcomes(McpApproval::Auto, OnRequest).await,
        [true, true, false]
    );
    assert_eq!(
        outcomes(McpApproval::Auto, Untrusted).await,
        [false, false, false]
    );
    assert_eq!(
        outcomes(McpApproval::Auto, Never).await,
        [true, true, false]
    );
    assert_eq!(
        outcomes(McpApproval::Prompt, OnRequest).await,
        [false, false, false]
    );
    assert_eq!(
        outcomes(McpApproval::Approve, Untrusted).await,
        [true, true, true]
    );
    // Files of a project neither approve their own servers, nor are their declarations believed.
    for approval in [McpApproval::Auto, McpApproval::Approve] {
        for (policy, expected) in [
            (Untrusted, [false, false, false]),
            (OnRequest, [false, false, false]),
            (ApprovalPolicy::OnFailure, [true, true, false]),
            (Never, [true, true, false]),
        ] {
            assert_eq!(
                outcomes_of(ServerOrigin::Project, approval, policy).await,
                expected,
                "{approval:?} {policy:?}"
            );
        }
    }
}

#[tokio::test]
async fn tools_can_be_enabled_and_disabled_by_name() {
    let mut settings = odd("odd", "good");
    settings.options.enabled_tools = Some(vec!["echo".into(), "fail".into()]);
    settings.options.disabled_tools = vec!["fail".into()];
    let servers = servers(vec![settings]);
    assert_eq!(
        value(&servers, "return Object.keys(tools.mcp.odd)").await,
        json!(["echo"])
    );
    let output = run(
        &servers,
        "return await tools.mcpCallTool({ server: 'odd', tool: 'fail' })",
    )
    .await;
    assert!(
        output
            .error
            .unwrap()
            .message
            .contains("has no enabled tool `fail`")
    );
}

#[tokio::test]
async fn a_cached_catalogue_is_used_until_the_server_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = || {
        Servers::new(
            vec![odd("odd", "good")],
            ServerRequestHandlers::default(),
            Some(dir.path().join("mcp")),
        )
    };
    let first = fresh();
    first.ensure_all_catalogues().await;
    first.stop().await;
    let second = fresh();
    assert_eq!(value(&second, "return 'echo' in tools.mcp.odd").await, true);
    assert_eq!(second.status().await[0].state, ServerState::NotStarted);
    assert_eq!(
        value(&second, "return (await odd.echo({ x: 4 })).x").await,
        4
    );
    assert_eq!(second.status().await[0].state, ServerState::Ready);
}

#[tokio::test]
async fn stopping_a_server_ends_its_child_processes() {
    let dir = tempfile::tempdir().unwrap();
    let servers = servers(vec![program(
        "shell",
        "sh",
        &[
            "-c",
            &format!(
                "sleep 1000 & echo $! > {}; exec python3 {}/tests/servers/odd.py good",
                dir.path().join("pid").display(),
                env!("CARGO_MANIFEST_DIR")
            ),
        ],
    )]);
    assert_eq!(
        value(&servers, "return (await shell.echo({ x: 1 })).x").await,
        1
    );
    let pid = std::fs::read_to_string(dir.path().join("pid")).unwrap();
    let is_running = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    assert!(is_running());
    servers.stop().await;
    // A signal is delivered asynchronously.
    let began = Instant::now();
    while is_running() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the child process of the server is still running"
        );
    }
}

#[tokio::test]
async fn cancelling_a_script_cancels_its_call() {
    let servers = servers(vec![odd("odd", "good")]);
    servers.ensure_all_catalogues().await;
    let cancel = tokio_util::sync::CancellationToken::new();
    let stop = cancel.clone();
    let events = EventSink::new(move |event| {
        if matches!(event, RuntimeEvent::CallStarted { .. }) {
            stop.cancel();
        }
    });
    let options = RunOptions {
        cancel,
        events,
        ..RunOptions::default()
    };
    let output = run_with(&servers, "return await odd.hang()", options).await;
    assert_eq!(
        output.error.map(|error| error.code.as_str()),
        Some("ScriptCancelledError")
    );
    assert_eq!(
        value(&servers, "return (await odd.echo({ x: 1 })).x").await,
        1
    );
}

#[tokio::test]
async fn only_the_servers_that_a_script_may_call_are_started() {
    let prepared = async |script: &str| {
        let servers = servers(vec![odd("odd", "good"), odd("my-other", "good")]);
        let harness = Harness::new(Orchestrator::new(Registry::new())).unwrap();
        servers
            .ensure_catalogues_for_script(&harness, script.as_bytes())
            .await;
        let status = servers.status().await;
        servers.stop().await;
        let ready = |server: &selvedge_mcp::ServerStatus| server.state == ServerState::Ready;
        status.iter().map(ready).collect::<Vec<_>>()
    };
    for (script, started) in [
        ("return 'odd' // or tools.mcp.odd", [false, false]),
        (
            "const odd = 1; return odd + context.sessionId",
            [false, false],
        ),
        ("this does not compile: odd.echo()", [false, false]),
        ("return await tools.mcp.odd.echo({ x: 1 })", [true, false]),
        ("return await odd.echo({ x: 1 })", [true, false]),
        ("return tools['mcp']['my-other']['echo']", [false, true]),
        (
            "const name = 'echo'; return tools.mcp.myOther[name]",
            [false, true],
        ),
        (
            "return tools.spawn.exec('mcp.odd.echo', { x: 1 }).id",
            [true, false],
        ),
        (
            "return tools.spawn.exec({ command: ['odd'] }).id",
            [false, false],
        ),
        ("const name = 'odd'; return tools.mcp[name]", [true, true]),
        ("const t = tools; return t.mcp.odd", [true, true]),
        ("const { mcp } = tools; return mcp", [true, true]),
        (
            "const name = 'x'; return tools.spawn.exec(name, {}).id",
            [true, true],
        ),
        (
            "const start = tools.spawn.exec; return start('mcp.odd.echo').id",
            [true, true],
        ),
        (
            "return await tools.mcpCallTool({ server: 'odd', tool: 'echo' })",
            [true, true],
        ),
        ("return context.capabilities.tools", [true, true]),
        ("return help('mcp.odd')", [true, true]),
        ("return await tools.search('echo')", [true, true]),
    ] {
        assert_eq!(prepared(script).await, started, "{script}");
    }
}
