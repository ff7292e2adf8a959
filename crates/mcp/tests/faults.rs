//! Servers that hang, flood, die, lie or list too much: each is its callers' trouble and nobody else's.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use selvedge_mcp::{Asked, ServerState, Servers};
use selvedge_protocol::{
    ApprovalPolicy, CallStatus, ErrorCode, Event, EventSink, McpApproval, RunStatus,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{Orchestrator, Registry};
use serde_json::json;
use support::{odd, odd_with, program, run, run_with, servers, value};

/// What a script sees of a failure.
const TRY: &str = "const attempt = async (f) => { try { return { value: await f() }; } catch (e) { return { name: e.name, message: e.message, retryable: e.retryable, toolName: e.toolName }; } };";

#[tokio::test]
async fn a_call_that_is_never_answered_is_an_error_of_its_own_and_the_server_lives_on() {
    let mut hanging = odd("odd", "good");
    hanging.options.tool_timeout_sec = 0.3;
    let servers = servers(vec![hanging, odd("other", "good")]);
    let script = format!(
        "{TRY} return await Promise.all([attempt(() => odd.hang()), other.echo({{ x: 1 }}), odd.echo({{ x: 2 }})]).then(async all => [...all, await odd.echo({{ x: 3 }})]);"
    );
    let got = value(&servers, &script).await;
    assert_eq!(got[0]["name"], "ToolExecutionError");
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
async fn a_server_that_never_answers_anything_delays_nobody_else() {
    let mut silent = odd("silent", "silent");
    silent.options.startup_timeout_sec = 0.5;
    let servers = servers(vec![silent, odd("other", "good")]);
    // It is not even started for a script that does not name it.
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
        "{TRY} return [await attempt(() => silent.anything({{ a: 1 }})), (await other.echo({{ x: 2 }})).x]"
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
async fn a_server_that_hangs_for_good_is_replaced() {
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
    // No ping comes back either: the connection is given up, and the next call makes a new one.
    while servers.status().await[0].state == ServerState::Ready {}
    let status = servers.status().await;
    assert_eq!(
        (status[0].state, status[0].why.as_deref()),
        (
            ServerState::Failed,
            Some("it answered nothing any more, not even a ping")
        )
    );
}

#[tokio::test]
async fn garbage_on_standard_output_is_skipped_and_said() {
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
async fn a_flood_is_no_server_and_holds_nobody_up() {
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
async fn a_server_that_dies_mid_call_says_why_and_is_started_again() {
    let servers = servers(vec![odd("odd", "good")]);
    let script =
        format!("{TRY} return [await attempt(() => odd.die()), (await odd.echo({{ x: 7 }})).x]");
    let got = value(&servers, &script).await;
    let message = got[0]["message"].as_str().unwrap();
    assert!(
        message.contains("ended while it was asked") && message.contains("I cannot go on"),
        "{message}"
    );
    assert_eq!((&got[0]["retryable"], &got[1]), (&json!(true), &json!(7)));
    // It may have had its effect: whoever goes on from this run is not to repeat it unawares.
    let output = run(&servers, "await odd.die()").await;
    assert_eq!(output.calls[0].status, CallStatus::OutcomeUnknown);
    assert_eq!(output.error.unwrap().code, ErrorCode::ToolExecutionError);
}

#[tokio::test]
async fn a_server_that_keeps_dying_is_left_alone_for_a_while() {
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
        second.message.contains("is tried again in"),
        "{}",
        second.message
    );
    assert!(began.elapsed() < Duration::from_millis(500));
}

#[tokio::test]
async fn a_server_that_recovers_is_tried_again() {
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
async fn a_call_that_waits_for_its_turn_can_be_stopped() {
    let mut busy = odd("odd", "good");
    busy.options.max_concurrent = 1;
    let servers = servers(vec![busy]);
    servers.prepare_all().await;
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
async fn a_program_that_is_not_there_is_said() {
    let servers = servers(vec![program("gone", "/nonexistent/server", &[])]);
    let error = run(&servers, "return await gone.x()").await.error.unwrap();
    assert!(
        error.message.contains("cannot run `/nonexistent/server`"),
        "{}",
        error.message
    );
    let hint = run(&servers, "return await tools.mcp.nobody.x()")
        .await
        .error
        .unwrap();
    assert!(
        hint.message.contains("there is no tool `mcp.nobody.x`"),
        "{}",
        hint.message
    );
}

#[tokio::test]
async fn two_thousand_tools_are_all_there() {
    let servers = servers(vec![odd("odd", "many")]);
    let got = value(
        &servers,
        "const [found] = await tools.search('tool 1234'); return [ALL_TOOLS.length > 2000, Object.keys(tools.mcp.odd).length, (await tools.mcp.odd.tool_1999({ x: 1 })).called, found.name, (await tools[found.name]({ x: 2 })).called]",
    )
    .await;
    assert_eq!(
        got,
        json!([true, 2000, "tool_1999", "mcp.odd.tool1234", "tool_1234"])
    );
}

#[tokio::test]
async fn a_list_that_never_ends_is_ended() {
    let servers = servers(vec![odd("odd", "pages-forever")]);
    let got = value(&servers, "return Object.keys(tools.mcp.odd)").await;
    assert_eq!(got, json!(["again"]));
}

#[tokio::test]
async fn fifty_megabytes_are_refused_and_the_next_call_works() {
    let servers = servers(vec![odd("odd", "good")]);
    let script =
        format!("{TRY} return [await attempt(() => odd.huge()), (await odd.echo({{ x: 8 }})).x]");
    let got = value(&servers, &script).await;
    assert!(
        got[0]["message"]
            .as_str()
            .unwrap()
            .contains("no answer: it has more than 16 MB"),
        "{got}"
    );
    assert_eq!(got[1], 8);
}

#[tokio::test]
async fn names_that_mean_something_in_javascript_are_only_names() {
    let servers = servers(vec![odd("odd", "odd-names")]);
    let got = value(
        &servers,
        r#"
        const t = tools.mcp.odd;
        const called = [];
        for (const name of ["__proto__", "constructor", "toString", "get-sum", "getSum", "get_sum", "2fa", "_2fa", "a.b", "aB", "with space", "withSpace"])
          called.push((await t[name]({ x: 1 })).called);
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
async fn an_error_result_is_thrown_unless_the_raw_one_was_asked_for() {
    let servers = servers(vec![odd("odd", "good")]);
    let script = format!(
        "{TRY} return [await attempt(() => odd.fail()), await odd.fail.raw(), await odd.echo.raw({{ x: 1 }})]"
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
async fn arguments_are_checked_before_the_server_sees_them() {
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
    // Who asks whether it is there knows that it may not be, and a name of the script's own is its own.
    let asks = "const mine = { gone: () => 1 }; return ['gone' in odd ? await odd.gone() : 'not there', mine.gone()]";
    assert_eq!(value(&servers, asks).await, json!(["not there", 1]));
    assert!(!state.exists());
}

#[tokio::test]
async fn tools_that_come_while_it_runs_are_there_for_the_next_script() {
    let dir = tempfile::tempdir().unwrap();
    let servers = servers(vec![odd_with("odd", "changing", &dir.path().join("state"))]);
    servers.prepare_all().await;
    let learned = servers.generation();
    assert_eq!(
        value(
            &servers,
            "return ['second' in tools.mcp.odd, await odd.first()]"
        )
        .await,
        json!([false, "first"])
    );
    servers.changed_since(learned).await;
    assert_eq!(value(&servers, "return await odd.second()").await, "second");
}

#[tokio::test]
async fn progress_keeps_a_slow_call_alive_and_is_passed_on() {
    let mut slow = odd("odd", "good");
    slow.options.tool_timeout_sec = 0.9;
    let servers = servers(vec![slow]);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = seen.clone();
    let events = EventSink::new(move |event| {
        if let Event::Progress { message, .. } = event {
            kept.lock().unwrap().push(message);
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
        seen.lock()
            .unwrap()
            .iter()
            .any(|message| message.contains("of 4 working")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn what_servers_ask_is_declined_where_nobody_can_answer() {
    let servers = servers(vec![odd("odd", "good")]);
    let got = value(&servers, "return [await odd.ask(), await odd.think()]").await;
    assert_eq!(got[0]["action"], "decline");
    assert!(
        got[1]["message"]
            .as_str()
            .unwrap()
            .contains("there is no model to ask"),
        "{got}"
    );
}

#[tokio::test]
async fn a_server_that_is_selvedge_is_not_used() {
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
async fn what_a_server_says_of_itself_can_make_the_policy_stricter_never_laxer() {
    async fn outcomes(approval: McpApproval, policy: ApprovalPolicy) -> Vec<bool> {
        let mut settings = odd("odd", "annotated");
        settings.options.default_tools_approval_mode = approval;
        let servers = servers(vec![settings]);
        let script = format!(
            "{TRY} return await Promise.all(['look', 'plain', 'wipe'].map(n => attempt(() => tools.mcp.odd[n]({{ x: 1 }}))))"
        );
        let orchestrator = Orchestrator::new(Registry::new()).with_policy(policy);
        let harness = Harness::new(orchestrator).unwrap();
        servers.prepare_for(&harness, script.as_bytes()).await;
        let harness = harness.with_tools(servers.onto(&Registry::new()));
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
}

#[tokio::test]
async fn tools_can_be_allowed_and_denied_by_name() {
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
            .contains("has no tool `fail` here")
    );
}

#[tokio::test]
async fn a_catalogue_is_remembered_and_the_server_started_when_it_is_called() {
    let dir = tempfile::tempdir().unwrap();
    let fresh = || {
        Servers::new(
            vec![odd("odd", "good")],
            Asked::default(),
            Some(dir.path().join("mcp")),
        )
    };
    let first = fresh();
    first.prepare_all().await;
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
async fn servers_end_with_us() {
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
    let alive = || {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        !stat.is_empty() && !stat.contains(") Z ")
    };
    assert!(alive());
    servers.stop().await;
    // The kernel takes a moment to end what it was told to end.
    let began = Instant::now();
    while alive() {
        assert!(
            began.elapsed() < Duration::from_secs(10),
            "the server's own child lives on"
        );
    }
}

#[tokio::test]
async fn a_cancelled_script_stops_its_call() {
    let servers = servers(vec![odd("odd", "good")]);
    servers.prepare_all().await;
    let cancel = tokio_util::sync::CancellationToken::new();
    let stop = cancel.clone();
    let events = EventSink::new(move |event| {
        if matches!(event, Event::CallStarted { .. }) {
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
        servers.prepare_for(&harness, script.as_bytes()).await;
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
