//! Replays of recorded runs: the same value, output, logs and calls, without any tool.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_protocol::{
    ApprovalPolicy, CallDecision, CallStatus, ErrorCode, EventSink, Limits, ResultView,
    RuntimeEvent, ScriptToolCallOutput, ToolSpec,
};
use selvedge_script::{Harness, RecordedRun, ReplayOptions, RunOptions};
use selvedge_tools::{
    CallContext, CallFuture, Orchestrator, Registry, Tool, ToolOutput, UnconfinedRetry, spec_of,
};
use serde_json::json;
use support::{FixedApprover, MemoryLedger, TestFixture, run_on_thread};

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn record(source: &str) -> (ScriptToolCallOutput, RecordedRun) {
    record_with(source, Limits::default(), RunOptions::default())
}

fn record_with(
    source: &str,
    limits: Limits,
    options: RunOptions,
) -> (ScriptToolCallOutput, RecordedRun) {
    let ledger = Arc::new(MemoryLedger::default());
    let approver = FixedApprover::new(CallDecision::Deny(Some("not today".into())));
    let shared_ledger = ledger.clone();
    let fixture = TestFixture::with(
        move |orchestrator| {
            orchestrator
                .with_ledger(shared_ledger.clone())
                .with_approver(Arc::new(approver.clone()))
                .with_policy(ApprovalPolicy::OnRequest)
        },
        limits,
    );
    let output = fixture.run_with(source, options, TEST_TIMEOUT);
    let recorded_run = ledger.recorded_run(source, &output).unwrap();
    // Serialized, as in a file.
    let recorded_run =
        serde_json::from_str(&serde_json::to_string(&recorded_run).unwrap()).unwrap();
    (output, recorded_run)
}

fn play(recorded_run: RecordedRun, fail: Option<&str>) -> ScriptToolCallOutput {
    let fail = fail.map(str::to_owned);
    run_on_thread(&recorded_run.source.clone(), TEST_TIMEOUT, async move {
        recorded_run
            .replay(ReplayOptions {
                fail_call: fail,
                observer: None,
            })
            .await
            .unwrap()
    })
}

#[test]
fn a_replay_gives_the_recorded_output() {
    for source in [
        // The clock, random numbers, and the order of answers.
        "return [Date.now(), new Date().toISOString(), performance.now(), Math.random(), \
         Math.random(), crypto.randomUUID()]",
        "return await Promise.race([tools.sleep({ms: 30, value: 'slow'}), tools.sleep({ms: 5, \
         value: 'fast'})])",
        "const order = []; await Promise.all([30, 1, 15].map(async ms => { \
         await tools.sleep({ms}); order.push([ms, Date.now()]) })); return order",
        "const order = []; for (const ms of [20, 1, 10]) setTimeout(() => order.push([ms, \
         Date.now()]), ms);
         await new Promise(done => setTimeout(done, 40)); return order",
        "const end = Date.now() + 30; let n = 0; while (Date.now() < end) n++; return n > 0",
        "const end = Date.now() + 30; let n = 0; while (Date.now() < end) n++; return n",
        // Replies of the host.
        "return [context.scriptId, context.sandbox.remainingToolBudget, Object.keys(tools), \
         ALL_TOOLS.length, help('echo'), 'nothing' in tools]",
        "store('k', {a: 1}); return [load('k'), load('other'), await github.list_issues({})]",
        // Failures, denials, exceeded limits, calls that are not awaited.
        "try { await tools.fail({message: 'no'}) } catch (e) { return [e.name, e.message, \
         e.callId, e.stack] }",
        "try { await tools.exec({command: ['rm', 'x']}) } catch (e) { return [e.name, e.message, \
         context.approvals.lastRequestId] }",
        "const args = JSON.parse(`{\"pth\": 1}`); try { await tools.readFile(args) } catch (e) { \
         return e.message }",
        "tools.sleep({ms: 10000}); await tools.echo({value: 1}); return 'left'",
        "const all = await Promise.allSettled(Array.from({length: 40}, (_, \
         i) => tools.echo({value: i}))); return all.map(r => r.status)",
        "await tools.echo({value: 1.1}); await tools.echo({value: 0.1 + 0.2}); \
         throw new Error('at the end')",
        "const r = await tools.echo({value: [1e300, 5e-324, 123456789.123456789, -0]}); return r",
        // Log lines that exceed the rate are joined in the same way.
        "for (let i = 0; i < 60; i++) { console.log('line', i); \
         if (i % 20 === 0) await tools.sleep({ms: 60}) } text('shown'); return 1",
        "exit()",
    ] {
        let (output, recorded_run) = record(source);
        let again = play(recorded_run, None);
        let same = |output: &ScriptToolCallOutput| {
            (
                output.status,
                output.output_json.clone(),
                output.output.clone(),
                output.logs.clone(),
                output.calls.clone(),
            )
        };
        assert_eq!(same(&output), same(&again), "{source}");
        let error = |output: &ScriptToolCallOutput| {
            let error = output.error.clone();
            error.map(|error| (error.code, error.message))
        };
        assert_eq!(error(&output), error(&again), "{source}");
    }
}

#[test]
fn a_run_that_timed_out_times_out_at_the_same_point() {
    let limits = Limits {
        timeout_ms: 300,
        max_timeout_ms: 1000,
        ..Limits::default()
    };
    for source in [
        "await tools.echo({value: 1}); await tools.sleep({ms: 20000})",
        "await tools.echo({value: 1}); for (;;) ;",
    ] {
        let (output, recorded_run) = record_with(source, limits.clone(), RunOptions::default());
        let again = play(recorded_run, None);
        assert_eq!(output.error.unwrap().code, ErrorCode::ScriptTimeoutError);
        assert_eq!(
            again.error.unwrap().code,
            ErrorCode::ScriptTimeoutError,
            "{source}"
        );
        assert_eq!(output.calls, again.calls);
    }
}

#[test]
fn a_cancelled_run_and_a_detached_promise_replay_with_the_same_error() {
    let cancel = tokio_util::sync::CancellationToken::new();
    let stop = cancel.clone();
    // Cancelled after its call, while it computes.
    let events = EventSink::new(move |event| {
        if matches!(event, RuntimeEvent::CallFinished { .. }) {
            stop.cancel();
        }
    });
    let options = RunOptions {
        cancel,
        events,
        ..RunOptions::default()
    };
    let (output, recorded_run) = record_with(
        "await tools.echo({value: 1}); for (;;) ;",
        Limits::default(),
        options,
    );
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(
        play(recorded_run, None).error.unwrap().code,
        ErrorCode::ScriptCancelledError
    );
    let (output, recorded_run) =
        record("tools.stubborn({ms: 5000}); await tools.echo({value: 1}); return 'left'");
    assert_eq!(output.error.unwrap().code, ErrorCode::DetachedPromiseError);
    assert_eq!(
        play(recorded_run, None).error.unwrap().code,
        ErrorCode::DetachedPromiseError
    );
}

#[derive(schemars::JsonSchema)]
struct Push {
    /// Whether to run without confinement.
    #[allow(dead_code)]
    free: Option<bool>,
}

/// Succeeds only in the retry without confinement.
struct PushTool;

impl Tool for PushTool {
    fn spec(&self) -> ToolSpec {
        spec_of::<Push, serde_json::Value>("push", "Pushes.")
    }

    fn call(&self, args: serde_json::Value, _: CallContext) -> CallFuture<'_> {
        Box::pin(async move {
            let pushed = args["free"] == json!(true);
            Ok(ToolOutput {
                unconfined_retry: (!pushed).then(|| UnconfinedRetry {
                    args: json!({"free": true}),
                    reason: "confinement blocked it".into(),
                }),
                ..json!({"pushed": pushed}).into()
            })
        })
    }
}

#[test]
fn the_result_of_a_retry_is_replayed() {
    let ledger = Arc::new(MemoryLedger::default());
    let registry = Registry::new().with(PushTool).unwrap();
    let orchestrator = Orchestrator::new(registry)
        .with_policy(ApprovalPolicy::OnFailure)
        .with_approver(Arc::new(FixedApprover::new(CallDecision::Once)))
        .with_ledger(ledger.clone());
    let harness = Harness::new(orchestrator).unwrap();
    let source = "return (await tools.push({})).pushed";
    let output = run_on_thread(
        source,
        TEST_TIMEOUT,
        async move { harness.run(source).await },
    );
    assert_eq!(output.value(), Some(json!(true)), "{:?}", output.error);
    assert_eq!(
        output
            .calls
            .iter()
            .map(|call| call.id.as_str())
            .collect::<Vec<_>>(),
        ["tool_1", "tool_1.again"]
    );
    // For a run that resumes this one, both are attempts of the same call.
    assert_eq!(output.calls[0].args_digest, output.calls[1].args_digest);
    let recorded_run = ledger.recorded_run(source, &output).unwrap();
    let again = play(recorded_run, None);
    assert_eq!(
        (again.value(), again.calls, again.error),
        (Some(json!(true)), output.calls, None)
    );
}

/// Returns a part of a text file, and warns.
struct LinesTool;

impl Tool for LinesTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            result_view: ResultView::TextLines,
            ..spec_of::<Push, serde_json::Value>("lines", "Reads lines.")
        }
    }

    fn call(&self, _: serde_json::Value, call: CallContext) -> CallFuture<'_> {
        Box::pin(async move {
            call.warn("2 of 9 lines");
            Ok(json!({"text": "a\nb\n", "firstLine": 4}).into())
        })
    }
}

#[test]
fn views_of_results_and_warnings_of_calls_are_replayed() {
    let ledger = Arc::new(MemoryLedger::default());
    let registry = Registry::new().with(LinesTool).unwrap();
    let harness = Harness::new(Orchestrator::new(registry).with_ledger(ledger.clone())).unwrap();
    let source = "const part = await tools.lines({}); return [part, part.numbered]";
    let output = run_on_thread(
        source,
        TEST_TIMEOUT,
        async move { harness.run(source).await },
    );
    let part = json!({"text": "a\nb\n", "firstLine": 4, "content": "a\nb\n"});
    assert_eq!(output.value(), Some(json!([part, "L4: a\nL5: b"])));
    assert_eq!(output.warnings, ["lines: 2 of 9 lines"]);
    let again = play(ledger.recorded_run(source, &output).unwrap(), None);
    assert_eq!(again.error, None);
    assert_eq!(
        (again.output_json, again.warnings),
        (output.output_json, output.warnings)
    );
}

#[test]
fn a_recording_is_not_trusted() {
    let (_, recorded_run) = record("return [Date.now(), Date.now()]");
    let text = serde_json::to_string(&recorded_run).unwrap();
    let at = text.find("\"now\":[").unwrap() + 6;
    let end = text[at..].find(']').unwrap() + at;
    let tampered = format!("{}[{},1]{}", &text[..at], i64::MAX, &text[end + 1..]);
    let again = play(serde_json::from_str(&tampered).unwrap(), None);
    assert_eq!(again.error.unwrap().code, ErrorCode::ReplayDivergenceError);
}

#[test]
fn a_different_script_diverges_from_the_recording() {
    let (_, recorded_run) =
        record("const a = await tools.echo({value: 1}); return [a, Date.now()]");
    for (source, expected) in [
        (
            "const a = await tools.echo({value: 2}); return [a, Date.now()]",
            "the recorded run with [{\"value\":1}]",
        ),
        (
            "const a = await tools.big({ms: 1}); return [a, Date.now()]",
            "the script asks for `resolve` big, the recorded run did not",
        ),
        (
            "const a = await tools.echo({value: 1}); await tools.echo({value: 1}); return a",
            "the script calls echo, the recorded run did not",
        ),
        (
            "const a = await tools.echo({value: 1}); return [a, 5]",
            "the script returned",
        ),
        (
            "Date.now(); const a = await tools.echo({value: 1}); return [a, Date.now()]",
            "the script reads the clock",
        ),
        ("return 1", "the script returned"),
    ] {
        let again = play(
            RecordedRun {
                source: source.to_owned(),
                ..recorded_run.clone()
            },
            None,
        );
        let error = again.error.unwrap_or_else(|| panic!("{source}"));
        assert_eq!(
            error.code,
            ErrorCode::ReplayDivergenceError,
            "{source}: {error:?}"
        );
        assert!(
            error.message.contains(expected),
            "{source}: {}",
            error.message
        );
    }
}

#[test]
fn a_replay_can_make_a_call_fail() {
    let source = "const first = await tools.echo({value: 'a'});
        let second; try { second = await tools.readFile({path: 'README.md'}) } catch (e) { \
        second = {text: e.name} }
        const third = await tools.echo({value: 'c'});
        return [first, second.text.slice(0, 18), third, Date.now() > 0]";
    let (output, recorded_run) = record(source);
    assert_eq!(output.value().unwrap()[1], json!("# Demo\n\nSee [docs]"));
    let again = play(recorded_run.clone(), Some("tool_2"));
    assert_eq!(
        again.value(),
        Some(json!(["a", "ToolExecutionError", "c", true])),
        "{:?}",
        again.error
    );
    let states: Vec<CallStatus> = again.calls.iter().map(|call| call.status).collect();
    assert_eq!(
        states,
        [CallStatus::Done, CallStatus::Failed, CallStatus::Done]
    );
    // The script does not catch this failure.
    let again = play(recorded_run, Some("tool_1"));
    assert_eq!(
        again.error.map(|error| error.code),
        Some(ErrorCode::ToolExecutionError)
    );
    // The script then makes a call that is not in the recording.
    let source = "try { await tools.echo({value: 1}) } catch { \
        return await tools.echo({value: 'instead'}) }";
    let (_, recorded_run) = record(source);
    let error = play(recorded_run, Some("tool_1")).error.unwrap();
    assert!(
        error.code == ErrorCode::ReplayDivergenceError && error.message.contains("instead"),
        "{}",
        error.message
    );
}

#[test]
fn each_replayed_call_can_be_observed() {
    let (_, recorded_run) =
        record("await tools.echo({value: 'x'}); await tools.fail({message: 'no'}).catch(() => 0)");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let watch = Box::new(move |step: &selvedge_script::ReplayedCall<'_>| {
        seen.lock().unwrap().push(format!(
            "{} {} {} {}",
            step.call_id,
            step.tool,
            step.args,
            step.answer.is_ok()
        ));
    });
    run_on_thread("observed replay", TEST_TIMEOUT, async move {
        recorded_run
            .replay(ReplayOptions {
                fail_call: None,
                observer: Some(watch),
            })
            .await
            .unwrap()
    });
    let steps = steps.lock().unwrap();
    assert_eq!(
        *steps,
        [
            "tool_1 echo [{\"value\":\"x\"}] true",
            "tool_2 fail [{\"message\":\"no\"}] false"
        ]
    );
}

#[test]
fn a_call_that_is_made_to_fail_can_be_retried() {
    let (_, recorded_run) = record(
        "const retry = async (f) => { try { return await f() } catch { return ['again', \
         await f()] } };
         return await retry(() => tools.echo({value: 'x'}))",
    );
    let output = play(recorded_run, Some("tool_1"));
    assert_eq!(
        output.output_json.as_deref(),
        Some(r#"["again","x"]"#),
        "{:?}",
        output.error
    );
}

#[test]
fn equal_calls_are_answered_in_the_order_of_the_calls() {
    let (_, recorded_run) = record(
        "const order = []; const call = (name) => tools.echo({value: 1}).then(() => \
         order.push(name));
         await call('first').catch(() => 0);
         await Promise.all(['u', 'v', 'w', 'x', 'y', 'z'].map(call)); return order",
    );
    let text = serde_json::to_string(&recorded_run).unwrap();
    let values: std::collections::BTreeSet<_> = (0..8)
        .map(|_| play(serde_json::from_str(&text).unwrap(), Some("tool_1")).output_json)
        .collect();
    assert_eq!(values.len(), 1, "{values:?}");
}

#[test]
fn a_script_that_timed_out_while_logging_replays_with_the_same_logs() {
    let options = RunOptions {
        timeout: Some(Duration::from_millis(300)),
        ..RunOptions::default()
    };
    let source = "let i = 0; while (true) { i++; if (i % 100000 === 0) console.log(i) }";
    let (output, recorded_run) = record_with(source, Limits::default(), options);
    assert_eq!(
        output.error.as_ref().unwrap().code,
        ErrorCode::ScriptTimeoutError
    );
    let played = play(recorded_run, None);
    assert_eq!(played.error, output.error);
    assert_eq!(played.logs, output.logs);
}
