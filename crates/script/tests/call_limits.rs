//! Calls have time limits of their own, from scripts and as structured calls alike, and errors
//! about limits say how to raise them.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::time::Duration;

use selvedge_protocol::{
    CallReach, CallStatus, CallTimeout, ErrorCode, EventSink, LimitSurface, Limits,
    ScriptToolCallOutput,
};
use selvedge_script::{Harness, RunOptions, limits_text};
use selvedge_tools::{
    OfferedTool, Orchestrator, Registry, Scope, StructuredCall, ToolRouter, offerable_tools, tool,
};
use serde_json::json;
use support::{TestFixture, run_on_thread};
use tokio_util::sync::CancellationToken;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct WorkArgs {
    ms: u64,
    #[allow(dead_code)]
    timeout_ms: Option<u64>,
}

/// Returns a harness with the tools `work`, `slow` (at most 100 ms unless a call sets more), and
/// `file`, which counts as a file tool.
fn harness(limits: Limits) -> Harness {
    let work = |args: WorkArgs| async move {
        tokio::time::sleep(Duration::from_millis(args.ms)).await;
        Ok(args.ms)
    };
    let timeout = CallTimeout::new(Duration::from_millis(100)).or_requested(TEST_TIMEOUT);
    let registry = Registry::new()
        .with(tool("work", "Works.", work))
        .and_then(|tools| tools.with(tool("slow", "Works slowly.", work).timeout(timeout)))
        .and_then(|tools| tools.with(tool("file", "Reads.", work).reach(CallReach::Local)))
        .unwrap();
    Harness::new(Orchestrator::new(registry))
        .unwrap()
        .with_limits(limits)
}

fn run(harness: &Harness, source: &'static str) -> ScriptToolCallOutput {
    let harness = harness.clone();
    run_on_thread(source, TEST_TIMEOUT, async move {
        let options = RunOptions::default();
        harness.run_with(source.as_bytes(), options).await
    })
}

fn end_of(output: ScriptToolCallOutput) -> String {
    match output.error {
        Some(error) => format!("{}: {}", error.code, error.message),
        None => output.output_json.unwrap_or_default(),
    }
}

#[test]
fn the_limit_of_a_script_does_not_count_while_a_tool_runs() {
    let harness = harness(Limits {
        timeout_ms: 200,
        max_timeout_ms: 2_000,
        ..Limits::default()
    });
    let script_limit = "ScriptTimeoutError: the script ran past its time limit of 200 ms";
    let run_limit =
        "ScriptTimeoutError: the run took longer than its time limit of 2000 ms, calls included";
    for (source, end) in [
        ("return await tools.work({ ms: 500 })", "500"),
        (
            "return await Promise.all([tools.work({ ms: 500 }), tools.work({ ms: 300 })])",
            "[500,300]",
        ),
        ("await tools.work({ ms: 300 }); for (;;) {}", script_limit),
        (
            "await tools.work({ ms: 300 }); await new Promise(r => setTimeout(r, 60_000))",
            script_limit,
        ),
        ("for (;;) await tools.work({ ms: 900 })", run_limit),
        ("await tools.work({ ms: 60_000 })", run_limit),
    ] {
        assert_eq!(end_of(run(&harness, source)), end, "{source}");
    }
}

#[test]
fn a_call_ends_at_its_own_limit_and_the_script_continues() {
    let harness = harness(Limits::default());
    let source = "try { await tools.slow({ ms: 60_000 }) }
        catch (e) { return [e.name, e.message, e.suggestions[0], e instanceof ToolTimeoutError] }";
    assert_eq!(
        run(&harness, source).value(),
        Some(json!([
            "ToolTimeoutError",
            "slow did not end within its time limit of 100 ms",
            "pass `timeoutMs: 200`, or raise `Limits::tool_timeouts_ms` for `slow`",
            true
        ]))
    );
    let longer = "return await tools.slow({ ms: 300, timeoutMs: 10_000 })";
    assert_eq!(end_of(run(&harness, longer)), "300");
    let tool_timeouts_ms = [("slow".to_owned(), 10_000)].into();
    let configured = harness.with_limits(Limits {
        tool_timeouts_ms,
        ..Limits::default()
    });
    assert_eq!(
        end_of(run(&configured, "return await tools.slow({ ms: 300 })")),
        "300"
    );
}

#[test]
fn structured_calls_have_the_same_limit() {
    let harness = harness(Limits::default()).with_surface(LimitSurface::Chat);
    let output = run_on_thread("a structured call", TEST_TIMEOUT, async move {
        let registry = harness.orchestrator().registry();
        let offered = offerable_tools(registry)
            .map(OfferedTool::unmodified)
            .collect();
        let router = ToolRouter::new(harness.orchestrator().clone(), offered);
        let scope = Scope::new(
            "turn".into(),
            harness.scope_limits(),
            &CancellationToken::new(),
            EventSink::default(),
        );
        let call = StructuredCall {
            call_id: "c1".into(),
            name: "slow".into(),
            arguments: json!({"ms": 60_000}).to_string(),
        };
        router.route(&scope, vec![call]).await.pop().unwrap()
    });
    let record = output.records.last().unwrap();
    // The tool did not stop, so what it did is not known.
    assert_eq!(record.status, CallStatus::OutcomeUnknown);
    assert_eq!(
        record.error.as_ref().unwrap().code,
        ErrorCode::ToolTimeoutError
    );
    assert_eq!(
        output.content,
        "error: slow did not end within its time limit of 100 ms\n\
         hint: pass `timeoutMs: 200`, or set slow = 200 under \
         [script_harness.limits.tool_timeouts_ms] in config.toml"
    );
}

#[test]
fn each_surface_has_its_own_way_to_raise_a_limit() {
    let limits = Limits {
        timeout_ms: 100,
        max_tool_calls: 1,
        max_file_calls: 2,
        ..Limits::default()
    };
    let harness = harness(limits);
    let endless = "for (;;) {}";
    let calls = "for (;;) await tools.work({ ms: 0 })";
    let files = "for (;;) await tools.file({ ms: 0 })";
    for (surface, source, hint) in [
        (LimitSurface::Library, endless, "raise `Limits::timeout_ms`"),
        (LimitSurface::Run, endless, "pass --timeout 200ms"),
        (
            LimitSurface::Exec,
            calls,
            "the user can raise the limit with --max-calls 2",
        ),
        (
            LimitSurface::Exec,
            endless,
            "start the script with `// @exec: {\"timeout_ms\": 200}`",
        ),
        (
            LimitSurface::Chat,
            files,
            "the user can set max_file_calls = 4 under [script_harness.limits] in config.toml",
        ),
        (LimitSurface::Run, calls, "pass --max-calls 2"),
        (LimitSurface::Run, files, "pass --max-file-calls 4"),
        (
            LimitSurface::Chat,
            endless,
            "start the script with `// @exec: {\"timeout_ms\": 200}`",
        ),
        (
            LimitSurface::Mcp,
            endless,
            "pass `timeoutMs: 200`, or set timeout_ms = 200 under [script_harness.limits] in \
             config.toml",
        ),
        (
            LimitSurface::Mcp,
            files,
            "set max_file_calls = 4 under [script_harness.limits] in config.toml",
        ),
    ] {
        let error = run(&harness.clone().with_surface(surface), source)
            .error
            .unwrap();
        assert_eq!(error.suggestions[1], hint, "{surface:?} {source}");
        if source == files {
            let fewer = "make fewer calls: one search or one command can read many files";
            assert!(error.suggestions[0].starts_with(fewer), "{error:?}");
        }
    }
}

#[test]
fn what_a_script_shows_is_limited_in_all() {
    let fixture = TestFixture::new();
    let caught = "const shown = (f) => { try { f(); return true } catch (e) { return e.name } };";
    for (source, expected) in [
        (
            "text('x'.repeat(1 << 19)); text('x'.repeat(1 << 19)); return shown(() => text('x'))",
            json!("RangeError"),
        ),
        (
            "text('x'.repeat((1 << 20) - 10)); return shown(() => notify('twelve bytes'))",
            json!("RangeError"),
        ),
        (
            "for (let i = 0; i < 100; i++) console.log('x'.repeat(2000));
             return shown(() => text('x'.repeat(900_000)))",
            json!("RangeError"),
        ),
        ("return shown(() => text('x'.repeat(900_000)))", json!(true)),
    ] {
        let output = fixture.run(&format!("{caught} {source}"));
        assert_eq!(output.value(), Some(expected), "{source}");
        let shown = output.output.iter().map(part_bytes).sum::<usize>();
        let logged = output
            .logs
            .iter()
            .map(|line| line.message.len())
            .sum::<usize>();
        assert!(shown + logged <= 1 << 20, "{source}: {shown} + {logged}");
    }
    let output = fixture.run("text('x'.repeat(1 << 20)); console.log('late'); return 1");
    assert!(output.logs.is_empty());
    assert!(
        output.warnings[0].starts_with("1 log lines were dropped"),
        "{:?}",
        output.warnings
    );
}

fn part_bytes(part: &selvedge_protocol::OutputPart) -> usize {
    match part {
        selvedge_protocol::OutputPart::Text { text } => text.len(),
        _ => 0,
    }
}

#[test]
fn help_names_every_limit() {
    let fixture = TestFixture::new();
    let help = fixture.value("return help()");
    let limits = limits_text(&Limits::default());
    assert!(help.as_str().unwrap().contains(&limits), "{help}");
    assert_eq!(
        limits,
        "\
Limits:
  time    30 s for the script without its calls, 30 min in all; waiting for a person does not count
  a call  files 30 s, commands 2 min (timeoutMs), web 30 s, MCP 1 min, agents 30 min
  calls   32 that leave the process (commands, web, MCP, agents), 1000 others, 4 at a time
  size    128 KB returned, 1 MB shown (text, image, notify, logs), 96 MB of memory, 20 KB of source
"
    );
}
