//! Live runs: each report is delivered once, and every run ends.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, CallEnd, CallStart, ErrorCode, Ledger,
    LedgerError, Limits, OutputPart, RunStart, RunStatus, ScriptToolCallOutput,
};
use selvedge_script::{
    AnswerDelivery, Harness, LiveRun, LiveRunLimits, LiveRunReport, LiveRuns, QuestionAnswer,
    RunOptions, RunQuestionKind, ScriptContext,
};
use selvedge_tools::{Orchestrator, Registry, Risk, tool};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

/// Longer than any wait in these tests; ends a test that hangs.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);
/// Time after which a run that waits for the gate is still running.
const SHORT_WAIT: Duration = Duration::from_millis(30);

#[derive(Deserialize, JsonSchema)]
struct LiveNoArgs {}

struct LiveFixture {
    live: LiveRuns,
    harness: Harness,
    /// Each permit lets one call of the tool `wait` return.
    gate: Arc<Semaphore>,
}

fn fixture(limits: LiveRunLimits) -> LiveFixture {
    let live = LiveRuns::new(limits);
    let gate = Arc::new(Semaphore::new(0));
    let shared_gate = gate.clone();
    let wait = move |_: LiveNoArgs| {
        let gate = shared_gate.clone();
        async move {
            gate.acquire().await.unwrap().forget();
            Ok("passed")
        }
    };
    let registry = Registry::new()
        .with(tool("wait", "Waits for a permit.", wait))
        .unwrap()
        .with(
            tool("wipe", "Wipes.", |_: LiveNoArgs| async { Ok("wiped") })
                .risk(|_| Risk::NeedsApproval {
                    reason: "it wipes".into(),
                })
                .approval_key(|_| Some(String::new())),
        )
        .unwrap();
    let harness = Harness::new(Orchestrator::new(registry).with_approver(live.approver())).unwrap();
    LiveFixture {
        live,
        harness,
        gate,
    }
}

impl LiveFixture {
    fn start(&self, script: &str) -> LiveRun {
        self.live
            .start(&self.harness, script.into(), RunOptions::default(), None)
            .unwrap()
    }
}

fn value(report: &LiveRunReport) -> serde_json::Value {
    match report {
        LiveRunReport::Ended(output) => output
            .value()
            .unwrap_or_else(|| panic!("{:?}", output.error)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_continues_without_a_client_and_its_output_can_be_read_twice() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture.start("console.log('hello'); return await tools.wait({})");
    assert_eq!(
        run.wait_for_report(SHORT_WAIT).await,
        LiveRunReport::StillRunning
    );
    let handle = run.progress_output(vec!["a word".into()]);
    assert_eq!(
        (handle.status, handle.id.as_str()),
        (RunStatus::Running, run.id())
    );
    assert_eq!(
        handle.output,
        [OutputPart::Text {
            text: "a word".into()
        }]
    );
    assert_eq!(fixture.live.summaries()[0].running_tools, ["wait"]);
    fixture.gate.add_permits(1);
    let found = fixture.live.find(run.id()).unwrap();
    assert_eq!(value(&found.wait_for_report(TEST_TIMEOUT).await), "passed");
    assert_eq!(
        value(
            &fixture
                .live
                .find(run.id())
                .unwrap()
                .wait_for_report(TEST_TIMEOUT)
                .await
        ),
        "passed"
    );
    assert!(fixture.live.find("scr_other").is_none());
}

#[tokio::test]
async fn a_notification_is_reported_once() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture
        .start("notify('one'); await tools.wait({}); yield_control(); return await tools.wait({})");
    assert_eq!(
        run.wait_for_report(TEST_TIMEOUT).await,
        LiveRunReport::Notified(vec!["one".into()])
    );
    assert_eq!(
        run.wait_for_report(SHORT_WAIT).await,
        LiveRunReport::StillRunning
    );
    fixture.gate.add_permits(1);
    assert_eq!(
        run.wait_for_report(TEST_TIMEOUT).await,
        LiveRunReport::Yielded
    );
    assert_eq!(
        run.wait_for_report(SHORT_WAIT).await,
        LiveRunReport::StillRunning
    );
    fixture.gate.add_permits(1);
    assert_eq!(value(&run.wait_for_report(TEST_TIMEOUT).await), "passed");
}

#[tokio::test]
async fn a_notification_is_reported_even_if_the_run_has_ended() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture.start("notify('quick'); return 1");
    run.wait_for_end().await;
    assert_eq!(
        run.wait_for_report(TEST_TIMEOUT).await,
        LiveRunReport::Notified(vec!["quick".into()])
    );
    assert_eq!(value(&run.wait_for_report(TEST_TIMEOUT).await), 1);
}

#[tokio::test]
async fn a_question_waits_for_the_next_client() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture.start("return await tools.wipe({})");
    let LiveRunReport::Question(question) = run.wait_for_report(TEST_TIMEOUT).await else {
        panic!()
    };
    let RunQuestionKind::Approval(request) = &question.kind else {
        panic!()
    };
    assert_eq!(request.calls[0].tool, "wipe");
    // Reported once, and again after it was put back.
    assert_eq!(
        run.wait_for_report(SHORT_WAIT).await,
        LiveRunReport::StillRunning
    );
    assert!(
        run.progress_output(Vec::new())
            .warnings
            .iter()
            .any(|warning| warning.contains("a person's answer"))
    );
    run.requeue_question(&question.id);
    let LiveRunReport::Question(again) = run.wait_for_report(TEST_TIMEOUT).await else {
        panic!()
    };
    assert_eq!(again.id, question.id);
    let yes = || QuestionAnswer::Approval(ApprovalResponse::Decided(vec![CallDecision::Once]));
    assert_eq!(run.answer(&question.id, yes()), AnswerDelivery::Delivered);
    assert_eq!(run.answer(&question.id, yes()), AnswerDelivery::TooLate);
    assert_eq!(value(&run.wait_for_report(TEST_TIMEOUT).await), "wiped");
}

#[tokio::test]
async fn a_form_is_reported_to_the_client_that_waits() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture.start("return await tools.wait({})");
    let (live, id) = (fixture.live.clone(), run.id().to_owned());
    let form = RunQuestionKind::Form {
        server: "a server".into(),
        form: json!({"message": "which?"}),
    };
    let asked = tokio::spawn(async move { live.ask(&id, form).await });
    let LiveRunReport::Question(question) = run.wait_for_report(TEST_TIMEOUT).await else {
        panic!()
    };
    assert_eq!(
        run.answer(&question.id, QuestionAnswer::Form(json!("this"))),
        AnswerDelivery::Delivered
    );
    assert_eq!(
        asked.await.unwrap(),
        Some(QuestionAnswer::Form(json!("this")))
    );
    let form = RunQuestionKind::Form {
        server: "a server".into(),
        form: json!({}),
    };
    assert_eq!(fixture.live.ask("scr_gone", form).await, None);
}

#[tokio::test]
async fn runs_are_listed_by_name_and_cancelled() {
    let fixture = fixture(LiveRunLimits {
        max_running: 2,
        max_queued: 0,
        ..LiveRunLimits::default()
    });
    let named = |name: &str| {
        let facts = ScriptContext {
            session_id: "ses_1".into(),
            ..ScriptContext::default()
        };
        let options = RunOptions {
            context: facts,
            ..RunOptions::default()
        };
        fixture.live.start(
            &fixture.harness,
            b"return await tools.wait({})".to_vec(),
            options,
            Some(name.into()),
        )
    };
    let first = named("first").unwrap();
    let _second = named("second").unwrap();
    let message = named("third").err().unwrap().to_string();
    assert!(
        message.contains("2 scripts are running")
            && message.contains("(first)")
            && message.contains(first.id()),
        "{message}"
    );
    let names: Vec<_> = fixture
        .live
        .summaries()
        .into_iter()
        .map(|run| (run.name.unwrap(), run.session))
        .collect();
    assert_eq!(
        names,
        [
            ("first".into(), "ses_1".into()),
            ("second".into(), "ses_1".to_owned())
        ]
    );
    first.cancel();
    assert_eq!(
        first.wait_for_end().await.error.as_ref().unwrap().code,
        ErrorCode::ScriptCancelledError
    );
    // The slot is free soon after the run has ended.
    while named("fourth").is_err() {
        tokio::task::yield_now().await;
    }
    fixture.live.cancel_all().await;
}

#[tokio::test]
async fn a_script_beyond_the_limit_of_its_session_waits_in_the_queue() {
    let fixture = fixture(LiveRunLimits {
        max_running_per_session: 2,
        ..LiveRunLimits::default()
    });
    let start = |session: &str, script: &str| {
        let options = RunOptions {
            context: ScriptContext {
                session_id: session.into(),
                ..ScriptContext::default()
            },
            ..RunOptions::default()
        };
        let live = &fixture.live;
        live.start(&fixture.harness, script.into(), options, None)
            .unwrap()
    };
    let wait = "return await tools.wait({})";
    let (first, second) = (start("a", wait), start("a", wait));
    let (third, fourth) = (start("a", "return 3"), start("a", "return 4"));
    // Another session has its own limit.
    let other = start("b", "return 'b'");
    assert_eq!(value(&other.wait_for_report(TEST_TIMEOUT).await), "b");
    assert_eq!(
        third.wait_for_report(SHORT_WAIT).await,
        LiveRunReport::StillRunning
    );
    let queued: Vec<bool> = fixture
        .live
        .summaries()
        .iter()
        .map(|run| run.queued)
        .collect();
    assert_eq!(queued, [false, false, true, true]);
    let handle = third.progress_output(Vec::new());
    assert!(handle.warnings[0].starts_with("queued: "), "{handle:?}");
    // A queued run is cancelled without being started.
    third.cancel();
    let cancelled = third.wait_for_end().await;
    assert_eq!(cancelled.status, RunStatus::Rejected);
    assert_eq!(
        cancelled.error.as_ref().unwrap().code,
        ErrorCode::ScriptCancelledError
    );
    fixture.gate.add_permits(1);
    assert_eq!(value(&fourth.wait_for_report(TEST_TIMEOUT).await), 4);
    fixture.gate.add_permits(1);
    assert_eq!(value(&first.wait_for_report(TEST_TIMEOUT).await), "passed");
    assert_eq!(value(&second.wait_for_report(TEST_TIMEOUT).await), "passed");
}

#[tokio::test]
async fn the_oldest_ended_runs_are_dropped_first() {
    let fixture = fixture(LiveRunLimits {
        max_ended: 1,
        ..LiveRunLimits::default()
    });
    let first = fixture.start("return 1");
    first.wait_for_end().await;
    while !fixture.live.summaries().is_empty() {
        tokio::task::yield_now().await;
    }
    let second = fixture.start("return 2");
    second.wait_for_end().await;
    while fixture.live.find(first.id()).is_some() {
        tokio::task::yield_now().await;
    }
    assert!(fixture.live.find(second.id()).is_some());
}

#[tokio::test]
async fn a_script_can_set_its_yield_time() {
    let fixture = fixture(LiveRunLimits::default());
    let run = fixture.start("// @exec: {\"yield_time_ms\": 1500}\nreturn 1");
    assert_eq!(run.yield_after(), Some(Duration::from_millis(1500)));
    assert_eq!(fixture.start("return 1").yield_after(), None);
}

/// A ledger that stores nothing and blocks at the end of a run.
struct BlockedLedger(Mutex<mpsc::Receiver<()>>);

#[async_trait]
impl Ledger for BlockedLedger {
    fn digest_key(&self) -> [u8; 32] {
        [0; 32]
    }
    async fn record_run_start(&self, _: RunStart<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_call_start(&self, _: CallStart<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_call_end(&self, _: CallEnd<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_approval_request(
        &self,
        _: &str,
        _: &ApprovalRequest,
    ) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_approval_answers(&self, _: &str, _: &[String]) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn save_suspension(&self, _: &str, _: Vec<u8>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn claim_run(&self, _: &str) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_run_end(
        &self,
        _: &ScriptToolCallOutput,
        _: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_blocks_its_thread_is_aborted() {
    let live = LiveRuns::new(LiveRunLimits {
        grace: Duration::from_millis(50),
        ..LiveRunLimits::default()
    });
    let (release, stuck) = mpsc::channel();
    let orchestrator =
        Orchestrator::new(Registry::new()).with_ledger(Arc::new(BlockedLedger(Mutex::new(stuck))));
    let harness = Harness::new(orchestrator).unwrap().with_limits(Limits {
        max_timeout_ms: 50,
        ..Limits::default()
    });
    let run = live
        .start(&harness, b"return 1".to_vec(), RunOptions::default(), None)
        .unwrap();
    let LiveRunReport::Ended(output) = run.wait_for_report(TEST_TIMEOUT).await else {
        panic!()
    };
    let error = output.error.as_ref().unwrap();
    assert_eq!(error.code, ErrorCode::HarnessInternalError);
    assert!(
        error.message.contains("did not end within its time limit"),
        "{}",
        error.message
    );
    release.send(()).unwrap();
}

#[tokio::test]
async fn waiting_for_a_person_does_not_make_a_run_overdue() {
    let fixture = fixture(LiveRunLimits {
        grace: Duration::from_millis(1),
        ..LiveRunLimits::default()
    });
    let harness = fixture.harness.clone().with_limits(Limits {
        max_timeout_ms: 300,
        ..Limits::default()
    });
    let run = fixture
        .live
        .start(
            &harness,
            b"return await tools.wipe({})".to_vec(),
            RunOptions::default(),
            None,
        )
        .unwrap();
    let LiveRunReport::Question(question) = run.wait_for_report(TEST_TIMEOUT).await else {
        panic!()
    };
    // Three times the time limit of the run.
    assert_eq!(
        run.wait_for_report(Duration::from_millis(900)).await,
        LiveRunReport::StillRunning
    );
    run.answer(
        &question.id,
        QuestionAnswer::Approval(ApprovalResponse::Decided(vec![CallDecision::Once])),
    );
    assert_eq!(value(&run.wait_for_report(TEST_TIMEOUT).await), "wiped");
}
