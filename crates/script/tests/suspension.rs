//! Runs that are suspended at a question and restored by another process.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use selvedge_protocol::{
    CallDecision, CallStatus, ErrorCode, Limits, RunStatus, ScriptToolCallOutput,
};
use selvedge_script::{Harness, RestoreInput, RunOptions, ScriptStore};
use selvedge_tools::{Approver, DeferringApprover, Orchestrator, Registry, Risk, tool};
use serde_json::json;
use support::{FixedApprover, MemoryLedger, TestFixture, run_on_thread};
use tokio_util::sync::CancellationToken;

const TEST_TIMEOUT: Duration = Duration::from_secs(60);

/// A run that several processes continue one after the other, with one ledger.
struct RestartTest {
    ledger: Arc<MemoryLedger>,
    session: ScriptStore,
    limits: Limits,
}

impl RestartTest {
    fn new() -> Self {
        Self {
            ledger: Arc::default(),
            session: ScriptStore::default(),
            limits: Limits::default(),
        }
    }

    fn fixture(&self, approver: Arc<dyn Approver>) -> TestFixture {
        let ledger = self.ledger.clone();
        let asking = move |orchestrator: selvedge_tools::Orchestrator| {
            orchestrator
                .with_ledger(ledger.clone())
                .with_approver(approver.clone())
        };
        TestFixture::with(asking, self.limits.clone())
    }

    fn options(&self) -> RunOptions {
        RunOptions {
            id: Some("scr_1".into()),
            store: self.session.clone(),
            ..RunOptions::default()
        }
    }

    fn start(&self, source: &str) -> ScriptToolCallOutput {
        self.fixture(Arc::new(DeferringApprover))
            .run_with(source, self.options(), TEST_TIMEOUT)
    }

    fn restore(&self, source: &str, approver: impl Approver + 'static) -> ScriptToolCallOutput {
        self.restore_from(source, self.state(), approver)
    }

    fn stored(&self, key: &str) -> Option<String> {
        self.session.get(key).now_or_never().unwrap().unwrap()
    }

    fn state(&self) -> Vec<u8> {
        self.ledger
            .suspended
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .clone()
    }

    fn restore_from(
        &self,
        source: &str,
        state: Vec<u8>,
        approver: impl Approver + 'static,
    ) -> ScriptToolCallOutput {
        let harness = self.fixture(Arc::new(approver)).harness;
        let values = self.ledger.values_of("scr_1").into_iter().collect();
        let (source, options) = (source.to_owned(), self.options());
        run_on_thread("restoring", TEST_TIMEOUT, async move {
            harness
                .restore_suspended(&source, &RestoreInput { state, values }, options)
                .await
                .unwrap()
        })
    }

    fn intended(&self) -> usize {
        self.ledger.intended.lock().unwrap().len()
    }
}

/// Changes the build id in a stored state.
fn of_another_build(state: Vec<u8>) -> Vec<u8> {
    let key = b"\"build\":\"";
    let at = state
        .windows(key.len())
        .position(|window| window == key)
        .unwrap()
        + key.len();
    let mut state = state;
    state[at..at + 16].copy_from_slice(b"0123456789abcdef");
    state
}

const TWO_QUESTIONS: &str = "class Box<T> { constructor(public items: T[]) {} get size() { \
    return this.items.length } }
const box = new Box([1, 2]); const seen = new Map([['random', Math.random()]]);
console.log('started at', Date.now()); text('before'); store('key', 'kept');
const before = await tools.echo({value: {n: 1.5}});
setTimeout(() => seen.set('timer', 1), 5);
const one = await tools.exec({command: ['rm', 'one']});
const [two, ok] = await Promise.all([tools.exec({command: ['rm', 'two']}), \
tools.echo({value: 'beside'})]);
await new Promise(done => setTimeout(done, 10));
text('after');
return [box.size, [...seen.keys()], before.n, one.stdout, two.stdout, ok, load('key'), \
seen.get('random') !== Math.random()]";

fn expected() -> serde_json::Value {
    json!([
        2,
        ["random", "timer"],
        1.5,
        "ran rm one\n",
        "ran rm two\n",
        "beside",
        "kept",
        true
    ])
}

#[test]
fn three_processes_continue_one_script() {
    let test = RestartTest::new();
    let first = test.start(TWO_QUESTIONS);
    assert_eq!((first.status, first.error), (RunStatus::Suspended, None));
    assert_eq!(
        first
            .calls
            .iter()
            .map(|call| call.status)
            .collect::<Vec<_>>(),
        [CallStatus::Done, CallStatus::NotStarted]
    );
    assert_eq!(test.stored("key"), None, "the run has not ended");
    // The first question is answered; the second suspends the run again.
    let once = FixedApprover::new(CallDecision::Once);
    let second = test.restore(
        TWO_QUESTIONS,
        AnswerFirstQuestion(once.clone(), DeferringApprover),
    );
    assert_eq!(
        (second.status, &second.id),
        (RunStatus::Suspended, &"scr_1".to_owned()),
        "{:?}",
        second.error
    );
    let third = test.restore(TWO_QUESTIONS, once);
    assert_eq!(third.value(), Some(expected()), "{:?}", third.error);
    assert_eq!(
        third
            .calls
            .iter()
            .map(|call| call.id.as_str())
            .collect::<Vec<_>>(),
        ["tool_1", "tool_2", "tool_3", "tool_4"]
    );
    assert_eq!(third.logs.len() + third.output.len(), 3);
    assert_eq!(test.intended(), 4, "each call once");
    assert_eq!(test.stored("key").as_deref(), Some("\"kept\""));
    // The inputs of all three processes are one recording.
    let recorded_run = test.ledger.recorded_run(TWO_QUESTIONS, &third).unwrap();
    let again = run_on_thread("replay", TEST_TIMEOUT, async move {
        recorded_run.replay(Default::default()).await.unwrap()
    });
    assert_eq!((again.output_json, again.error), (third.output_json, None));
}

#[test]
fn another_build_of_the_engine_replays_the_recording() {
    let test = RestartTest::new();
    test.start(TWO_QUESTIONS);
    let state = of_another_build(test.state());
    let second = test.restore_from(
        TWO_QUESTIONS,
        state,
        AnswerFirstQuestion(FixedApprover::new(CallDecision::Once), DeferringApprover),
    );
    assert_eq!(second.status, RunStatus::Suspended, "{:?}", second.error);
    assert!(
        second
            .warnings
            .iter()
            .any(|warning| warning.contains("another build")),
        "{:?}",
        second.warnings
    );
    let state = of_another_build(test.state());
    let third = test.restore_from(TWO_QUESTIONS, state, FixedApprover::new(CallDecision::Once));
    assert_eq!(third.value(), Some(expected()), "{:?}", third.error);
    assert_eq!(test.intended(), 4, "each call once");
}

#[test]
fn a_denial_reaches_the_restored_script() {
    let test = RestartTest::new();
    let source =
        "try { await tools.exec({command: ['rm', 'x']}) } catch (e) { return [e.name, e.message] }";
    test.start(source);
    let output = test.restore(
        source,
        FixedApprover::new(CallDecision::Deny(Some("keep it".into()))),
    );
    assert_eq!(
        output.value(),
        Some(json!(["ApprovalDeniedError", "exec was denied: keep it"]))
    );
    assert_eq!(test.intended(), 0);
}

#[test]
fn approvals_and_used_calls_survive_a_restore() {
    let mut test = RestartTest::new();
    test.limits.max_tool_calls = 3;
    let source = "await tools.exec({command: ['rm', '1']}); await tools.exec({command: ['rm', \
        '2']});
        await tools.exec({command: ['ls']}).catch(() => 0); const left = \
        context.sandbox.remainingToolBudget;
        try { await tools.echo({value: 2}) } catch (e) { return [left, e.name] }";
    test.start(source);
    let approver = FixedApprover::new(CallDecision::SimilarCalls);
    let output = test.restore(source, approver.clone());
    assert_eq!(
        output.value(),
        Some(json!([0, "ToolBudgetExceededError"])),
        "{:?}",
        output.error
    );
    assert_eq!(
        approver.asked.lock().unwrap().len(),
        1,
        "the first answer covers the second call"
    );
}

#[test]
fn a_script_is_suspended_on_request_after_its_calls_have_ended() {
    let test = RestartTest::new();
    let source = "const slow = tools.sleep({ms: 300, value: 'slept'}); \
        const [a, b] = await Promise.all([slow, tools.echo({value: 2})]);
        await new Promise(done => setTimeout(done, 20)); return [a, b, Math.random() < 1]";
    let suspend = CancellationToken::new();
    suspend.cancel();
    let options = RunOptions {
        suspend,
        ..test.options()
    };
    let first = test
        .fixture(Arc::new(DeferringApprover))
        .run_with(source, options, TEST_TIMEOUT);
    assert_eq!(first.status, RunStatus::Suspended, "{:?}", first.error);
    assert!(
        first
            .calls
            .iter()
            .all(|call| call.status == CallStatus::Done),
        "{:?}",
        first.calls
    );
    let intended = test.intended();
    let output = test.restore(source, DeferringApprover);
    assert_eq!(
        output.value(),
        Some(json!(["slept", 2, true])),
        "{:?}",
        output.error
    );
    assert_eq!(test.intended(), intended, "no call is made twice");
}

#[test]
fn a_second_process_does_not_continue_a_run() {
    let test = RestartTest::new();
    let source = "await tools.exec({command: ['rm', 'x']}); return 'done'";
    test.start(source);
    // Another process has claimed the run.
    test.ledger.taken.store(true, Ordering::SeqCst);
    let output = test.restore(source, FixedApprover::new(CallDecision::Once));
    assert_eq!(output.status, RunStatus::Suspended);
    assert!(
        output
            .warnings
            .iter()
            .any(|warning| warning.contains("another process has claimed the run")),
        "{:?}",
        output.warnings
    );
    assert_eq!(test.intended(), 0);
}

#[test]
fn a_truncated_state_is_refused() {
    let test = RestartTest::new();
    let source = "await tools.exec({command: ['rm', 'x']})";
    test.start(source);
    let whole = test.state();
    for length in [0, 4, 8, 100] {
        let state = whole[..length].to_vec();
        let harness = test.fixture(Arc::new(DeferringApprover)).harness;
        let (source, options) = (source.to_owned(), test.options());
        let refused = run_on_thread("truncated state", TEST_TIMEOUT, async move {
            harness
                .restore_suspended(
                    &source,
                    &RestoreInput {
                        state,
                        ..RestoreInput::default()
                    },
                    options,
                )
                .await
        });
        assert!(refused.is_err(), "{length}");
    }
}

/// Approves after the run was saved.
struct ApproveAfterSave(Arc<MemoryLedger>);

impl Approver for ApproveAfterSave {
    fn ask<'a>(
        &'a self,
        request: &'a selvedge_protocol::ApprovalRequest,
    ) -> futures_util::future::BoxFuture<'a, selvedge_protocol::ApprovalResponse> {
        Box::pin(async move {
            while self.0.suspended.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let answers = vec![CallDecision::Once; request.calls.len()];
            selvedge_protocol::ApprovalResponse::Decided(answers)
        })
    }
}

#[test]
fn a_run_suspended_after_an_answer_is_saved_again() {
    let test = RestartTest::new();
    let suspend = CancellationToken::new();
    let options = RunOptions {
        suspend: suspend.clone(),
        ..test.options()
    };
    // The snapshot that was saved while the question was open does not contain the answer.
    let work = move |_: serde_json::Value| {
        suspend.cancel();
        async {
            tokio::task::yield_now().await;
            Ok("done")
        }
    };
    let ask = |_: &serde_json::Value| Risk::NeedsApproval {
        reason: "a person decides".into(),
    };
    let registry = Registry::new().with(tool("work", "Works.", work).risk(ask));
    let orchestrator = Orchestrator::new(registry.unwrap())
        .with_ledger(test.ledger.clone())
        .with_approver(Arc::new(ApproveAfterSave(test.ledger.clone())));
    let harness = Harness::new(orchestrator).unwrap();
    let (ledger, again) = (test.ledger.clone(), test.options());
    let (first, second) = run_on_thread("suspended after an answer", TEST_TIMEOUT, async move {
        let source = "return await tools.work({})";
        let first = harness.run_with(source.as_bytes(), options).await;
        let state = ledger.suspended.lock().unwrap().last().unwrap().clone();
        let values = ledger.values_of("scr_1").into_iter().collect();
        let suspended = RestoreInput { state, values };
        (
            first,
            harness.restore_suspended(source, &suspended, again).await,
        )
    });
    assert_eq!(first.status, RunStatus::Suspended, "{:?}", first.error);
    assert_eq!(test.ledger.suspended.lock().unwrap().len(), 2);
    assert_eq!(second.unwrap().value(), Some(json!("done")));
    assert_eq!(test.intended(), 1, "the call is not repeated");
}

#[test]
fn a_run_that_could_not_be_saved_is_cancelled_if_the_caller_is_gone() {
    let test = RestartTest::new();
    test.ledger.full.store(true, Ordering::SeqCst);
    let disconnect = CancellationToken::new();
    let options = RunOptions {
        caller_gone: disconnect.clone(),
        ..test.options()
    };
    let approver = FixedApprover::without_answer();
    let harness = test.fixture(Arc::new(approver.clone())).harness;
    let output = run_on_thread("caller gone", TEST_TIMEOUT, async move {
        let source = "await tools.exec({command: ['rm', 'x']})";
        let run = harness.run_with(source.as_bytes(), options);
        let caller_gone = async {
            while approver.asked.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            disconnect.cancel();
        };
        tokio::join!(run, caller_gone).0
    });
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptCancelledError, "{error:?}");
    assert!(
        output
            .warnings
            .iter()
            .any(|warning| warning.contains("disk full"))
    );
}

#[test]
fn a_call_that_is_not_recorded_is_not_said_to_have_run() {
    let test = RestartTest::new();
    test.ledger.full.store(true, Ordering::SeqCst);
    let error = test
        .start("await tools.exec({command: ['ls']})")
        .error
        .unwrap();
    assert_eq!(
        (error.message.as_str(), error.suggestions.as_slice()),
        (
            "exec did not run: disk full",
            &["free disk space, then run the script again".to_owned()][..]
        )
    );
}

/// Answers the first question and defers every other.
struct AnswerFirstQuestion(FixedApprover, DeferringApprover);

impl Approver for AnswerFirstQuestion {
    fn ask<'a>(
        &'a self,
        request: &'a selvedge_protocol::ApprovalRequest,
    ) -> futures_util::future::BoxFuture<'a, selvedge_protocol::ApprovalResponse> {
        let first = self.0.asked.lock().unwrap().is_empty();
        if first {
            self.0.ask(request)
        } else {
            self.1.ask(request)
        }
    }
}
