//! A recorded run, played again: the same value, output, logs and calls, with no tool there.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use selvedge_protocol::{
    Answer, ApprovalPolicy, CallStatus, ErrorCode, Event, EventSink, Limits, ScriptToolCallOutput,
    ToolSpec,
};
use selvedge_script::{Cassette, Harness, Replay, RunOptions};
use selvedge_tools::{Again, Call, CallFuture, Orchestrator, Registry, Tool, ToolOutput, spec_of};
use serde_json::json;
use support::{Bench, Notebook, Says, on_a_thread};

const PATIENCE: Duration = Duration::from_secs(60);

fn record(source: &str) -> (ScriptToolCallOutput, Cassette) {
    record_with(source, Limits::default(), RunOptions::default())
}

fn record_with(
    source: &str,
    limits: Limits,
    options: RunOptions,
) -> (ScriptToolCallOutput, Cassette) {
    let notebook = Arc::new(Notebook::default());
    let says = Says::new(Answer::No(Some("not today".into())));
    let ledger = notebook.clone();
    let bench = Bench::with(
        move |orchestrator| {
            orchestrator
                .with_ledger(ledger.clone())
                .with_approver(Arc::new(says.clone()))
                .with_policy(ApprovalPolicy::OnRequest)
        },
        limits,
    );
    let output = bench.run_with(source, options, PATIENCE);
    let cassette = notebook.cassette(source, &output).unwrap();
    // As a file has it.
    let cassette = serde_json::from_str(&serde_json::to_string(&cassette).unwrap()).unwrap();
    (output, cassette)
}

fn play(cassette: Cassette, fail: Option<&str>) -> ScriptToolCallOutput {
    let fail = fail.map(str::to_owned);
    on_a_thread(&cassette.source.clone(), PATIENCE, async move {
        cassette.play(Replay { fail, watch: None }).await.unwrap()
    })
}

#[test]
fn what_was_told_is_told_again() {
    for source in [
        // The clock, chance, and who came first.
        "return [Date.now(), new Date().toISOString(), performance.now(), Math.random(), Math.random()]",
        "return await Promise.race([tools.sleep({ms: 30, value: 'slow'}), tools.sleep({ms: 5, value: 'fast'})])",
        "const order = []; await Promise.all([30, 1, 15].map(async ms => { await tools.sleep({ms}); order.push([ms, Date.now()]) })); return order",
        "const order = []; for (const ms of [20, 1, 10]) setTimeout(() => order.push([ms, Date.now()]), ms);
         await new Promise(done => setTimeout(done, 40)); return order",
        "const end = Date.now() + 30; let n = 0; while (Date.now() < end) n++; return n > 0",
        "const end = Date.now() + 30; let n = 0; while (Date.now() < end) n++; return n",
        // What the host says.
        "return [context.scriptId, context.sandbox.remainingToolBudget, Object.keys(tools), ALL_TOOLS.length, help('echo'), 'nothing' in tools]",
        "store('k', {a: 1}); return [load('k'), load('other'), await github.list_issues({})]",
        // Failures, denials, budgets, budgets passed, calls nobody awaited.
        "try { await tools.fail({message: 'no'}) } catch (e) { return [e.name, e.message, e.callId, e.stack] }",
        "try { await tools.exec({command: ['rm', 'x']}) } catch (e) { return [e.name, e.message, context.approvals.lastRequestId] }",
        "const args = JSON.parse(`{\"pth\": 1}`); try { await tools.readFile(args) } catch (e) { return e.message }",
        "tools.sleep({ms: 10000}); await tools.echo({value: 1}); return 'left'",
        "const all = await Promise.allSettled(Array.from({length: 40}, (_, i) => tools.echo({value: i}))); return all.map(r => r.status)",
        "await tools.echo({value: 1.1}); await tools.echo({value: 0.1 + 0.2}); throw new Error('at the end')",
        "const r = await tools.echo({value: [1e300, 5e-324, 123456789.123456789, -0]}); return r",
        // Lines that come faster than the rate are joined as they were.
        "for (let i = 0; i < 60; i++) { console.log('line', i); if (i % 20 === 0) await tools.sleep({ms: 60}) } text('shown'); return 1",
        "exit()",
    ] {
        let (output, cassette) = record(source);
        let again = play(cassette, None);
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
        let error = |output: &ScriptToolCallOutput| output.error.clone().map(|error| (error.code, error.message));
        assert_eq!(error(&output), error(&again), "{source}");
    }
}

#[test]
fn a_run_that_was_stopped_is_stopped_at_the_same_place() {
    let limits = Limits {
        timeout_ms: 300,
        ..Limits::default()
    };
    for source in [
        "await tools.echo({value: 1}); await tools.sleep({ms: 20000})",
        "await tools.echo({value: 1}); for (;;) ;",
    ] {
        let (output, cassette) = record_with(source, limits.clone(), RunOptions::default());
        let again = play(cassette, None);
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
fn what_ended_it_from_outside_is_not_taken_for_another_end() {
    let cancel = tokio_util::sync::CancellationToken::new();
    let stop = cancel.clone();
    // Stopped when its call is over, while it computes.
    let events = EventSink::new(move |event| {
        if matches!(event, Event::CallFinished { .. }) {
            stop.cancel();
        }
    });
    let options = RunOptions {
        cancel,
        events,
        ..RunOptions::default()
    };
    let (output, cassette) = record_with(
        "await tools.echo({value: 1}); for (;;) ;",
        Limits::default(),
        options,
    );
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(
        play(cassette, None).error.unwrap().code,
        ErrorCode::ScriptCancelledError
    );
    let (output, cassette) =
        record("tools.stubborn({ms: 5000}); await tools.echo({value: 1}); return 'left'");
    assert_eq!(output.error.unwrap().code, ErrorCode::DetachedPromiseError);
    assert_eq!(
        play(cassette, None).error.unwrap().code,
        ErrorCode::DetachedPromiseError
    );
}

#[derive(schemars::JsonSchema)]
struct Push {
    /// Without the wall.
    #[allow(dead_code)]
    free: Option<bool>,
}

/// Pushes only at the second attempt.
struct PushTool;

impl Tool for PushTool {
    fn spec(&self) -> ToolSpec {
        spec_of::<Push, serde_json::Value>("push", "Pushes.")
    }

    fn call(&self, args: serde_json::Value, _: Call) -> CallFuture<'_> {
        Box::pin(async move {
            let pushed = args["free"] == json!(true);
            Ok(ToolOutput {
                again: (!pushed).then(|| Again {
                    args: json!({"free": true}),
                    reason: "the wall stopped it".into(),
                }),
                ..json!({"pushed": pushed}).into()
            })
        })
    }
}

#[test]
fn a_second_attempt_is_what_the_script_is_told_again() {
    let notebook = Arc::new(Notebook::default());
    let registry = Registry::new().with(PushTool).unwrap();
    let orchestrator = Orchestrator::new(registry)
        .with_policy(ApprovalPolicy::OnFailure)
        .with_approver(Arc::new(Says::new(Answer::Once)))
        .with_ledger(notebook.clone());
    let harness = Harness::new(orchestrator).unwrap();
    let source = "return (await tools.push({})).pushed";
    let output = on_a_thread(source, PATIENCE, async move { harness.run(source).await });
    assert_eq!(output.value(), Some(json!(true)), "{:?}", output.error);
    assert_eq!(
        output
            .calls
            .iter()
            .map(|call| call.id.as_str())
            .collect::<Vec<_>>(),
        ["tool_1", "tool_1.again"]
    );
    // To a run that resumes this one they are attempts at the same call.
    assert_eq!(output.calls[0].args_digest, output.calls[1].args_digest);
    let cassette = notebook.cassette(source, &output).unwrap();
    let again = play(cassette, None);
    assert_eq!(
        (again.value(), again.calls, again.error),
        (Some(json!(true)), output.calls, None)
    );
}

#[test]
fn a_recording_is_not_trusted() {
    let (_, cassette) = record("return [Date.now(), Date.now()]");
    let text = serde_json::to_string(&cassette).unwrap();
    let at = text.find("\"now\":[").unwrap() + 6;
    let end = text[at..].find(']').unwrap() + at;
    let odd = format!("{}[{},1]{}", &text[..at], i64::MAX, &text[end + 1..]);
    let again = play(serde_json::from_str(&odd).unwrap(), None);
    assert_eq!(again.error.unwrap().code, ErrorCode::ReplayDivergenceError);
}

#[test]
fn another_script_is_not_taken_for_the_recorded_one() {
    let (_, cassette) = record("const a = await tools.echo({value: 1}); return [a, Date.now()]");
    for (source, words) in [
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
            Cassette {
                source: source.to_owned(),
                ..cassette.clone()
            },
            None,
        );
        let error = again.error.unwrap_or_else(|| panic!("{source}"));
        assert_eq!(
            error.code,
            ErrorCode::ReplayDivergenceError,
            "{source}: {error:?}"
        );
        assert!(error.message.contains(words), "{source}: {}", error.message);
    }
}

#[test]
fn what_if_a_call_had_failed() {
    let source = "const first = await tools.echo({value: 'a'});
        let second; try { second = await tools.readFile({path: 'README.md'}) } catch (e) { second = {text: e.name} }
        const third = await tools.echo({value: 'c'});
        return [first, second.text.slice(0, 18), third, Date.now() > 0]";
    let (output, cassette) = record(source);
    assert_eq!(output.value().unwrap()[1], json!("# Demo\n\nSee [docs]"));
    let again = play(cassette.clone(), Some("tool_2"));
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
    // It was not caught there.
    let again = play(cassette, Some("tool_1"));
    assert_eq!(
        again.error.map(|error| error.code),
        Some(ErrorCode::ToolExecutionError)
    );
    // Where it then goes, nobody has been.
    let source = "try { await tools.echo({value: 1}) } catch { return await tools.echo({value: 'instead'}) }";
    let (_, cassette) = record(source);
    let error = play(cassette, Some("tool_1")).error.unwrap();
    assert!(
        error.code == ErrorCode::ReplayDivergenceError && error.message.contains("instead"),
        "{}",
        error.message
    );
}

#[test]
fn each_call_can_be_watched() {
    let (_, cassette) =
        record("await tools.echo({value: 'x'}); await tools.fail({message: 'no'}).catch(() => 0)");
    let steps = Arc::new(Mutex::new(Vec::new()));
    let seen = steps.clone();
    let watch = Box::new(move |step: &selvedge_script::Step<'_>| {
        seen.lock().unwrap().push(format!(
            "{} {} {} {}",
            step.call_id,
            step.tool,
            step.args,
            step.answer.is_ok()
        ));
    });
    on_a_thread("watched", PATIENCE, async move {
        cassette
            .play(Replay {
                fail: None,
                watch: Some(watch),
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
fn what_if_a_call_had_failed_and_was_tried_again() {
    let (_, cassette) = record(
        "const retry = async (f) => { try { return await f() } catch { return ['again', await f()] } };
         return await retry(() => tools.echo({value: 'x'}))",
    );
    let output = play(cassette, Some("tool_1"));
    assert_eq!(
        output.output_json.as_deref(),
        Some(r#"["again","x"]"#),
        "{:?}",
        output.error
    );
}

#[test]
fn calls_that_are_alike_are_answered_in_the_order_they_were_made() {
    let (_, cassette) = record(
        "const order = []; const call = (name) => tools.echo({value: 1}).then(() => order.push(name));
         await call('first').catch(() => 0);
         await Promise.all(['u', 'v', 'w', 'x', 'y', 'z'].map(call)); return order",
    );
    let text = serde_json::to_string(&cassette).unwrap();
    let values: std::collections::BTreeSet<_> = (0..8)
        .map(|_| play(serde_json::from_str(&text).unwrap(), Some("tool_1")).output_json)
        .collect();
    assert_eq!(values.len(), 1, "{values:?}");
}

#[test]
fn a_script_that_was_stopped_while_it_said_things_is_as_far_as_it_was() {
    let options = RunOptions {
        timeout: Some(Duration::from_millis(300)),
        ..RunOptions::default()
    };
    let source = "let i = 0; while (true) { i++; if (i % 100000 === 0) console.log(i) }";
    let (output, cassette) = record_with(source, Limits::default(), options);
    assert_eq!(
        output.error.as_ref().unwrap().code,
        ErrorCode::ScriptTimeoutError
    );
    let played = play(cassette, None);
    assert_eq!(played.error, output.error);
    assert_eq!(played.logs, output.logs);
}
