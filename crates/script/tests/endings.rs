//! Runs that are cancelled, that exceed limits, or that end while calls do not stop.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_protocol::{
    CallStatus, ErrorCode, EventSink, Limits, RunStatus, RuntimeEvent, ScriptToolCallOutput,
};
use selvedge_sandbox::{EngineSettings, WasmRuntime};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::Orchestrator;
use serde_json::json;
use support::{FixedApprover, MemoryLedger, TestFixture, run_on_thread};
use tokio_util::sync::CancellationToken;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Cancels the run when the script logs or asks a person. Returns the output and the time it took
/// to end.
fn cancelled_at_log(fixture: &TestFixture, source: &str) -> (ScriptToolCallOutput, Duration) {
    let cancel = CancellationToken::new();
    let (canceller, cancelled_at) = (cancel.clone(), Arc::new(std::sync::Mutex::new(None)));
    let first_event = cancelled_at.clone();
    let events = EventSink::new(move |event| {
        if matches!(
            event,
            RuntimeEvent::ScriptLog { .. } | RuntimeEvent::ApprovalRequested { .. }
        ) {
            first_event.lock().unwrap().get_or_insert_with(Instant::now);
            canceller.cancel();
        }
    });
    let output = fixture.run_with(
        source,
        RunOptions {
            cancel,
            events,
            ..RunOptions::default()
        },
        TEST_TIMEOUT,
    );
    let took = cancelled_at
        .lock()
        .unwrap()
        .map_or(Duration::ZERO, |at| at.elapsed());
    (output, took)
}

#[test]
fn a_run_can_be_cancelled_before_it_starts() {
    let fixture = TestFixture::new();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let output = fixture.run_with(
        "await tools.applyPatch({patch: 'x'}); return 1",
        RunOptions {
            cancel,
            ..RunOptions::default()
        },
        TEST_TIMEOUT,
    );
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert!(fixture.seen.patches.lock().unwrap().is_empty());
}

#[test]
fn a_run_can_be_cancelled_while_it_computes() {
    let (output, took) = cancelled_at_log(&TestFixture::new(), "console.log('now'); for (;;) {}");
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_run_can_be_cancelled_while_a_call_is_running() {
    let fixture = TestFixture::new();
    let source = "const slow = tools.sleep({ms: 60_000}); await tools.sleep({ms: 20}); \
        console.log('now'); await slow";
    let (output, took) = cancelled_at_log(&fixture, source);
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
    assert_eq!(fixture.seen.stopped.load(Ordering::SeqCst), 1);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_run_can_be_cancelled_by_another_process() {
    let ledger = Arc::new(MemoryLedger::default());
    ledger.stop.store(true, Ordering::SeqCst);
    let shared_ledger = ledger.clone();
    let fixture = TestFixture::with(
        move |orchestrator| orchestrator.with_ledger(shared_ledger.clone()),
        Limits::default(),
    );
    // A short run does not check for a cancellation by another process.
    let output = fixture.run_with(
        "return await tools.echo({value: 1})",
        RunOptions::default(),
        TEST_TIMEOUT,
    );
    assert_eq!(
        (output.status, ledger.looks.load(Ordering::SeqCst)),
        (RunStatus::Completed, 0)
    );
    let (cancel, source) = (CancellationToken::new(), "await tools.sleep({ms: 60_000})");
    let output = fixture.run_with(
        source,
        RunOptions {
            cancel: cancel.clone(),
            ..RunOptions::default()
        },
        TEST_TIMEOUT,
    );
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptCancelledError);
    assert!(
        error.message.contains("`selvedge runs cancel`"),
        "{}",
        error.message
    );
    assert_eq!(
        (output.calls[0].status, ledger.looks.load(Ordering::SeqCst)),
        (CallStatus::Aborted, 1)
    );
    // Only this run is cancelled, not the rest of the turn.
    assert!(!cancel.is_cancelled());
}

#[test]
fn a_run_can_be_cancelled_while_a_person_is_asked() {
    let fixture = TestFixture::with(
        |orchestrator| orchestrator.with_approver(Arc::new(FixedApprover::without_answer())),
        Limits::default(),
    );
    let (output, took) = cancelled_at_log(&fixture, "await tools.exec({command: ['rm', 'x']})");
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(output.calls[0].status, CallStatus::NotStarted);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn a_run_can_be_cancelled_while_it_waits_for_a_slot() {
    let settings = EngineSettings {
        max_scripts: 1,
        max_memory_bytes: 64 << 20,
        pooling: false,
    };
    let wasm = Arc::new(WasmRuntime::new(settings).unwrap());
    let seen = Arc::default();
    let harness = Harness::with_runtime(wasm, Orchestrator::new(support::registry(&seen)));
    let (first, second) = run_on_thread("two scripts, one slot", TEST_TIMEOUT, async move {
        let stop = CancellationToken::new();
        let holder = harness.run_with(
            b"await tools.sleep({ms: 3000}); return 1",
            RunOptions::default(),
        );
        let waiter = async {
            let options = RunOptions {
                cancel: stop.clone(),
                ..RunOptions::default()
            };
            tokio::join!(harness.run_with(b"return 2", options), async {
                while seen.running.load(Ordering::SeqCst) == 0 {
                    tokio::task::yield_now().await;
                }
                stop.cancel();
            })
            .0
        };
        tokio::join!(holder, waiter)
    });
    assert_eq!(first.output_json.as_deref(), Some("1"));
    assert_eq!(second.error.unwrap().code, ErrorCode::ScriptCancelledError);
}

#[test]
fn scripts_that_share_a_small_memory_all_run() {
    // Enough memory for about three scripts at a time.
    let settings = EngineSettings {
        max_scripts: 64,
        max_memory_bytes: 12 << 20,
        pooling: false,
    };
    let harness = Harness::with_runtime(
        Arc::new(WasmRuntime::new(settings).unwrap()),
        Orchestrator::new(support::registry(&Arc::default())),
    );
    let values = run_on_thread(
        "forty scripts in a small memory",
        TEST_TIMEOUT,
        async move {
            let runs = (0..40).map(|n| {
                let harness = harness.clone();
                async move {
                    harness
                        .run(&format!("await tools.sleep({{ms: 2}}); return {n}"))
                        .await
                        .value()
                }
            });
            futures_util::future::join_all(runs).await
        },
    );
    assert_eq!(values, (0..40).map(|n| Some(json!(n))).collect::<Vec<_>>());
}

#[test]
fn a_call_that_does_not_stop_is_a_detached_promise() {
    let fixture = TestFixture::new();
    let started = Instant::now();
    let output =
        fixture.run("tools.stubborn({ms: 60_000}); await tools.echo({value: 1}); return 'mine'");
    let error = output.error.unwrap();
    assert_eq!(
        (error.code, &error.metadata["returned"]),
        (ErrorCode::DetachedPromiseError, &json!("mine"))
    );
    assert_eq!(output.calls[0].status, CallStatus::OutcomeUnknown);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_call_that_completes_in_its_grace_period_is_done() {
    let output = TestFixture::new()
        .run("tools.stubborn({ms: 100}); await tools.echo({value: 1}); return 'mine'");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Done)
    );
    assert!(output.warnings.is_empty(), "{:?}", output.warnings);
}

#[test]
fn detached_calls_are_waited_for_if_allowed() {
    let mut fixture = TestFixture::new();
    fixture.harness = fixture.harness.clone().allow_detached_promises(true);
    let output = fixture.run("tools.sleep({ms: 200}); return 1");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Done)
    );
}

#[test]
fn four_calls_run_at_once_and_the_rest_wait() {
    let fixture = TestFixture::new();
    let source = "const sleep = (_, n) => tools.sleep({ms: 30, value: n}); \
        return (await Promise.all(Array.from({length: 12}, sleep))).length";
    assert_eq!(fixture.value(source), json!(12));
    assert_eq!(fixture.seen.max_running.load(Ordering::SeqCst), 4);
}

#[test]
fn compiled_scripts_are_cached() {
    let fixture = TestFixture::new();
    assert!(!fixture.run("return 1 // cached").metadata.cache_hit);
    assert!(fixture.run("return 1 // cached").metadata.cache_hit);
    // A thousand other scripts evict it.
    (0..1000).for_each(|n| {
        _ = fixture
            .harness
            .check(format!("return {n} // other").as_bytes())
    });
    assert!(!fixture.run("return 1 // cached").metadata.cache_hit);
}

#[test]
fn garbage_is_collected_in_a_small_heap() {
    let fixture = TestFixture::limited(Limits {
        memory_mb: 4,
        ..Limits::default()
    });
    let source =
        "for (let i = 0; i < 100_000; i++) { const a = {}, b = {a}; a.b = b } return 'fine'";
    assert_eq!(fixture.value(source), json!("fine"));
}

#[test]
fn race_does_not_cancel_calls_that_are_spread_into_it() {
    let source =
        "const held = [tools.sleep({ms: 500, value: 'a'}), tools.sleep({ms: 600, value: 'b'})];
        const first = await Promise.race([...held, tools.sleep({ms: 1, value: 'c'})]);
        return [first, ...await Promise.all(held)]";
    assert_eq!(TestFixture::new().value(source), json!(["c", "a", "b"]));
}

#[test]
fn the_hint_to_resume_names_a_call_that_may_have_changed_something() {
    let ledger = Arc::new(MemoryLedger::default());
    let fixture = TestFixture::with(
        |orchestrator| orchestrator.with_ledger(ledger.clone()),
        Limits::default(),
    );
    let source = "void tools.sleep({ms: 60000}); void tools.stubborn({ms: 60000});
        await tools.echo({value: 1}); throw new Error('x')";
    let output = fixture.run_with(source, RunOptions::default(), TEST_TIMEOUT);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
    let suggestions = output.error.unwrap().suggestions.join("\n");
    let decision = format!("resume.repeat(\"{}/tool_2\")", output.id);
    assert!(suggestions.contains(&decision), "{suggestions}");
}
