//! How a run can end from outside: cancelled at any moment, or with calls that will not stop.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use selvedge_protocol::{
    CallStatus, ErrorCode, Event, EventSink, Limits, RunStatus, ScriptToolCallOutput,
};
use selvedge_sandbox::{Settings, Wasm};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::Orchestrator;
use serde_json::json;
use support::{Bench, Notebook, Says, on_a_thread};
use tokio_util::sync::CancellationToken;

const WAIT: Duration = Duration::from_secs(20);

/// Cancels the run as soon as the script logs, and returns what came of it and how long it took to end.
fn cancelled_at_log(bench: &Bench, source: &str) -> (ScriptToolCallOutput, Duration) {
    let cancel = CancellationToken::new();
    let (theirs, when) = (cancel.clone(), Arc::new(std::sync::Mutex::new(None)));
    let noted = when.clone();
    let events = EventSink::new(move |event| {
        if matches!(event, Event::Log { .. } | Event::ApprovalRequested { .. }) {
            noted.lock().unwrap().get_or_insert_with(Instant::now);
            theirs.cancel();
        }
    });
    let output = bench.run_with(
        source,
        RunOptions {
            cancel,
            events,
            ..RunOptions::default()
        },
        WAIT,
    );
    let took = when
        .lock()
        .unwrap()
        .map_or(Duration::ZERO, |at| at.elapsed());
    (output, took)
}

#[test]
fn cancelled_before_it_starts() {
    let bench = Bench::new();
    let cancel = CancellationToken::new();
    cancel.cancel();
    let output = bench.run_with(
        "await tools.applyPatch({patch: 'x'}); return 1",
        RunOptions {
            cancel,
            ..RunOptions::default()
        },
        WAIT,
    );
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert!(bench.seen.patches.lock().unwrap().is_empty());
}

#[test]
fn cancelled_while_it_computes() {
    let (output, took) = cancelled_at_log(&Bench::new(), "console.log('now'); for (;;) {}");
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn cancelled_while_a_call_runs() {
    let bench = Bench::new();
    let source = "const slow = tools.sleep({ms: 60_000}); await tools.sleep({ms: 20}); console.log('now'); await slow";
    let (output, took) = cancelled_at_log(&bench, source);
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(output.calls[0].status, CallStatus::Aborted);
    assert_eq!(bench.seen.stopped.load(Ordering::SeqCst), 1);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn cancelled_from_outside_its_process() {
    let notebook = Arc::new(Notebook::default());
    notebook.stop.store(true, Ordering::SeqCst);
    let ledger = notebook.clone();
    let bench = Bench::with(
        move |orchestrator| orchestrator.with_ledger(ledger.clone()),
        Limits::default(),
    );
    // What ends soon is not asked about.
    let output = bench.run_with(
        "return await tools.echo({value: 1})",
        RunOptions::default(),
        WAIT,
    );
    assert_eq!(
        (output.status, notebook.looks.load(Ordering::SeqCst)),
        (RunStatus::Completed, 0)
    );
    let (cancel, code) = (CancellationToken::new(), "await tools.sleep({ms: 60_000})");
    let output = bench.run_with(
        code,
        RunOptions {
            cancel: cancel.clone(),
            ..RunOptions::default()
        },
        WAIT,
    );
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptCancelledError);
    assert!(
        error.message.contains("`selvedge runs cancel`"),
        "{}",
        error.message
    );
    assert_eq!(
        (
            output.calls[0].status,
            notebook.looks.load(Ordering::SeqCst)
        ),
        (CallStatus::Aborted, 1)
    );
    // Only this run: what else goes on in the turn goes on.
    assert!(!cancel.is_cancelled());
}

#[test]
fn cancelled_while_a_person_is_asked() {
    let bench = Bench::with(
        |orchestrator| orchestrator.with_approver(Arc::new(Says::nothing())),
        Limits::default(),
    );
    let (output, took) = cancelled_at_log(&bench, "await tools.exec({command: ['rm', 'x']})");
    assert_eq!(output.error.unwrap().code, ErrorCode::ScriptCancelledError);
    assert_eq!(output.calls[0].status, CallStatus::NotStarted);
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[test]
fn cancelled_while_it_waits_for_a_place() {
    let settings = Settings {
        max_scripts: 1,
        memory_cap: 64 << 20,
        pooling: false,
    };
    let wasm = Arc::new(Wasm::new(settings).unwrap());
    let seen = Arc::default();
    let harness = Harness::on(wasm, Orchestrator::new(support::registry(&seen)));
    let (first, second) = on_a_thread("two scripts, one place", WAIT, async move {
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
fn scripts_share_a_small_memory_and_all_get_their_turn() {
    // Room for about three at a time.
    let settings = Settings {
        max_scripts: 64,
        memory_cap: 12 << 20,
        pooling: false,
    };
    let harness = Harness::on(
        Arc::new(Wasm::new(settings).unwrap()),
        Orchestrator::new(support::registry(&Arc::default())),
    );
    let values = on_a_thread("forty scripts in a small memory", WAIT, async move {
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
    });
    assert_eq!(values, (0..40).map(|n| Some(json!(n))).collect::<Vec<_>>());
}

#[test]
fn a_call_that_will_not_stop_is_a_detached_promise() {
    let bench = Bench::new();
    let started = Instant::now();
    let output =
        bench.run("tools.stubborn({ms: 60_000}); await tools.echo({value: 1}); return 'mine'");
    let error = output.error.unwrap();
    assert_eq!(
        (error.code, &error.metadata["returned"]),
        (ErrorCode::DetachedPromiseError, &json!("mine"))
    );
    assert_eq!(output.calls[0].status, CallStatus::OutcomeUnknown);
    assert!(started.elapsed() < Duration::from_secs(3));
}

#[test]
fn a_call_that_is_done_in_the_grace_is_done() {
    let output =
        Bench::new().run("tools.stubborn({ms: 100}); await tools.echo({value: 1}); return 'mine'");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Done)
    );
    assert!(output.warnings.is_empty(), "{:?}", output.warnings);
}

#[test]
fn detached_calls_are_waited_for_where_that_is_allowed() {
    let mut bench = Bench::new();
    bench.harness = bench.harness.clone().allow_detached_promises(true);
    let output = bench.run("tools.sleep({ms: 200}); return 1");
    assert_eq!(
        (output.status, output.calls[0].status),
        (RunStatus::Completed, CallStatus::Done)
    );
}

#[test]
fn four_calls_run_at_once_and_the_rest_wait() {
    let bench = Bench::new();
    let source = "return (await Promise.all(Array.from({length: 12}, (_, n) => tools.sleep({ms: 30, value: n})))).length";
    assert_eq!(bench.value(source), json!(12));
    assert_eq!(bench.seen.most_running.load(Ordering::SeqCst), 4);
}

#[test]
fn a_script_seen_before_is_at_hand() {
    let bench = Bench::new();
    assert!(!bench.run("return 1 // cached").metadata.cache_hit);
    assert!(bench.run("return 1 // cached").metadata.cache_hit);
    // The thousand least recently used are kept, and not one more.
    (0..1000).for_each(|n| {
        _ = bench
            .harness
            .check(format!("return {n} // other").as_bytes())
    });
    assert!(!bench.run("return 1 // cached").metadata.cache_hit);
}

#[test]
fn garbage_is_collected_in_a_small_heap() {
    let bench = Bench::limited(Limits {
        memory_mb: 4,
        ..Limits::default()
    });
    let source =
        "for (let i = 0; i < 100_000; i++) { const a = {}, b = {a}; a.b = b } return 'fine'";
    assert_eq!(bench.value(source), json!("fine"));
}

#[test]
fn race_spares_calls_that_are_spread_in() {
    let source =
        "const held = [tools.sleep({ms: 500, value: 'a'}), tools.sleep({ms: 600, value: 'b'})];
        const first = await Promise.race([...held, tools.sleep({ms: 1, value: 'c'})]);
        return [first, ...await Promise.all(held)]";
    assert_eq!(Bench::new().value(source), json!(["c", "a", "b"]));
}

/// Tools that ask models have limits of their own: the script's clock stands still, but not for ever.
#[test]
fn a_script_is_patient_with_models_and_with_nothing_else() {
    #[derive(serde::Deserialize, schemars::JsonSchema)]
    struct For {
        ms: u64,
    }
    let wait = |args: For| async move {
        tokio::time::sleep(Duration::from_millis(args.ms)).await;
        Ok(args.ms)
    };
    let registry = selvedge_tools::Registry::new()
        .with(selvedge_tools::tool("ask", "Asks a model.", wait).takes_its_time())
        .and_then(|registry| registry.with(selvedge_tools::tool("work", "Works.", wait)))
        .unwrap();
    let limits = Limits {
        timeout_ms: 200,
        max_timeout_ms: 1_000,
        ..Limits::default()
    };
    let harness = Harness::new(Orchestrator::new(registry))
        .unwrap()
        .with_limits(limits);
    let run = move |source: &'static str| {
        let harness = harness.clone();
        on_a_thread("being patient", WAIT, async move {
            harness
                .run_with(source.as_bytes(), RunOptions::default())
                .await
        })
    };
    let ended = |output: ScriptToolCallOutput| match output.error {
        Some(error) => format!("{}: {}", error.code, error.message),
        None => output.output_json.unwrap_or_default(),
    };
    assert_eq!(ended(run("return await tools.ask({ ms: 500 })")), "500");
    assert_eq!(
        ended(run(
            "return await Promise.all([tools.ask({ ms: 500 }), tools.ask({ ms: 300 })])"
        )),
        "[500,300]"
    );
    let late = "ScriptTimeoutError: the script ran past its time limit of 200 ms";
    assert_eq!(
        ended(run(
            "return await Promise.all([tools.ask({ ms: 500 }), tools.work({ ms: 60_000 })])"
        )),
        late
    );
    assert_eq!(
        ended(run("await tools.ask({ ms: 300 }); for (;;) {}")),
        late
    );
    let far_too_late = "ScriptTimeoutError: the script ran past its time limit of 2000 ms";
    assert_eq!(
        ended(run("for (;;) await tools.ask({ ms: 900 })")),
        far_too_late
    );
}
