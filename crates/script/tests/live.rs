//! Runs nobody waits for: what is told of them, once each, and that they always come to an end.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use selvedge_protocol::{
    Answer, ApprovalDecision, ApprovalRequest, ErrorCode, Intent, Ledger, LedgerError, OutputPart,
    RunStart, RunStatus, ScriptToolCallOutput, Settled,
};
use selvedge_script::{
    Answered, Facts, Harness, LiveLimits, LiveRun, LiveRuns, QuestionKind, Reply, Report,
    RunOptions,
};
use selvedge_tools::{Orchestrator, Registry, Risk, tool};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Semaphore;

/// Long enough for anything here, short enough to end a test that hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const NOT_LONG: Duration = Duration::from_millis(30);

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

struct Bench {
    live: LiveRuns,
    harness: Harness,
    /// Each permit lets one `wait` return.
    door: Arc<Semaphore>,
}

fn bench(limits: LiveLimits) -> Bench {
    let live = LiveRuns::new(limits);
    let door = Arc::new(Semaphore::new(0));
    let through = door.clone();
    let wait = move |_: Nothing| {
        let door = through.clone();
        async move {
            door.acquire().await.unwrap().forget();
            Ok("through")
        }
    };
    let registry = Registry::new()
        .with(tool("wait", "Waits for the door.", wait))
        .unwrap()
        .with(
            tool("wipe", "Wipes.", |_: Nothing| async { Ok("wiped") })
                .risk(|_| Risk::Ask {
                    reason: "it wipes".into(),
                })
                .agreement(|_| Some(String::new())),
        )
        .unwrap();
    let harness = Harness::new(Orchestrator::new(registry).with_approver(live.approver())).unwrap();
    Bench {
        live,
        harness,
        door,
    }
}

impl Bench {
    fn start(&self, script: &str) -> LiveRun {
        self.live
            .start(&self.harness, script.into(), RunOptions::default(), None)
            .unwrap()
    }
}

fn value(report: &Report) -> serde_json::Value {
    match report {
        Report::Ended(output) => output
            .value()
            .unwrap_or_else(|| panic!("{:?}", output.error)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_run_goes_on_while_nobody_waits_and_its_end_can_be_asked_for_twice() {
    let bench = bench(LiveLimits::default());
    let run = bench.start("console.log('hello'); return await tools.wait({})");
    assert_eq!(run.report(NOT_LONG).await, Report::StillRunning);
    let handle = run.so_far(vec!["a word".into()]);
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
    assert_eq!(bench.live.list()[0].calling, ["wait"]);
    bench.door.add_permits(1);
    let found = bench.live.find(run.id()).unwrap();
    assert_eq!(value(&found.report(PATIENCE).await), "through");
    assert_eq!(
        value(&bench.live.find(run.id()).unwrap().report(PATIENCE).await),
        "through"
    );
    assert!(bench.live.find("scr_other").is_none());
}

#[tokio::test]
async fn what_it_says_is_told_once() {
    let bench = bench(LiveLimits::default());
    let run = bench
        .start("notify('one'); await tools.wait({}); yield_control(); return await tools.wait({})");
    assert_eq!(run.report(PATIENCE).await, Report::Says(vec!["one".into()]));
    assert_eq!(run.report(NOT_LONG).await, Report::StillRunning);
    bench.door.add_permits(1);
    assert_eq!(run.report(PATIENCE).await, Report::Yields);
    assert_eq!(run.report(NOT_LONG).await, Report::StillRunning);
    bench.door.add_permits(1);
    assert_eq!(value(&run.report(PATIENCE).await), "through");
}

#[tokio::test]
async fn what_it_said_before_its_end_is_told_also_to_who_comes_after_it() {
    let bench = bench(LiveLimits::default());
    let run = bench.start("notify('quick'); return 1");
    run.ended().await;
    assert_eq!(
        run.report(PATIENCE).await,
        Report::Says(vec!["quick".into()])
    );
    assert_eq!(value(&run.report(PATIENCE).await), 1);
}

#[tokio::test]
async fn a_question_waits_for_whoever_comes() {
    let bench = bench(LiveLimits::default());
    let run = bench.start("return await tools.wipe({})");
    let Report::Asks(question) = run.report(PATIENCE).await else {
        panic!()
    };
    let QuestionKind::Approval(request) = &question.kind else {
        panic!()
    };
    assert_eq!(request.calls[0].tool, "wipe");
    // Told once; given back, told again.
    assert_eq!(run.report(NOT_LONG).await, Report::StillRunning);
    assert!(
        run.so_far(Vec::new())
            .warnings
            .iter()
            .any(|warning| warning.contains("a person's answer"))
    );
    run.give_back(&question.id);
    let Report::Asks(again) = run.report(PATIENCE).await else {
        panic!()
    };
    assert_eq!(again.id, question.id);
    let yes = || Reply::Approval(ApprovalDecision::Answered(vec![Answer::Once]));
    assert_eq!(run.answer(&question.id, yes()), Answered::InTime);
    assert_eq!(run.answer(&question.id, yes()), Answered::TooLate);
    assert_eq!(value(&run.report(PATIENCE).await), "wiped");
}

#[tokio::test]
async fn a_form_is_put_to_whoever_waits() {
    let bench = bench(LiveLimits::default());
    let run = bench.start("return await tools.wait({})");
    let (live, id) = (bench.live.clone(), run.id().to_owned());
    let form = QuestionKind::Form {
        from: "a server".into(),
        form: json!({"message": "which?"}),
    };
    let asked = tokio::spawn(async move { live.ask(&id, form).await });
    let Report::Asks(question) = run.report(PATIENCE).await else {
        panic!()
    };
    assert_eq!(
        run.answer(&question.id, Reply::Form(json!("this"))),
        Answered::InTime
    );
    assert_eq!(asked.await.unwrap(), Some(Reply::Form(json!("this"))));
    let form = QuestionKind::Form {
        from: "a server".into(),
        form: json!({}),
    };
    assert_eq!(bench.live.ask("scr_gone", form).await, None);
}

#[tokio::test]
async fn runs_are_listed_by_name_and_cancelled() {
    let bench = bench(LiveLimits {
        running: 2,
        ..LiveLimits::default()
    });
    let named = |name: &str| {
        let facts = Facts {
            session_id: "ses_1".into(),
            ..Facts::default()
        };
        let options = RunOptions {
            facts,
            ..RunOptions::default()
        };
        bench.live.start(
            &bench.harness,
            b"return await tools.wait({})".to_vec(),
            options,
            Some(name.into()),
        )
    };
    let first = named("first").unwrap();
    let _second = named("second").unwrap();
    let full = named("third").err().unwrap();
    let words = full.to_string();
    assert!(
        words.contains("2 scripts are running")
            && words.contains("(first)")
            && words.contains(first.id()),
        "{words}"
    );
    let names: Vec<_> = bench
        .live
        .list()
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
        first.ended().await.error.as_ref().unwrap().code,
        ErrorCode::ScriptCancelledError
    );
    // The place is free as soon as the end is told to everybody.
    while named("fourth").is_err() {
        tokio::task::yield_now().await;
    }
    bench.live.stop_all().await;
}

#[tokio::test]
async fn ended_runs_are_forgotten_oldest_first() {
    let bench = bench(LiveLimits {
        kept: 1,
        ..LiveLimits::default()
    });
    let first = bench.start("return 1");
    first.ended().await;
    while !bench.live.list().is_empty() {
        tokio::task::yield_now().await;
    }
    let second = bench.start("return 2");
    second.ended().await;
    while bench.live.find(first.id()).is_some() {
        tokio::task::yield_now().await;
    }
    assert!(bench.live.find(second.id()).is_some());
}

#[tokio::test]
async fn the_script_may_wish_to_be_waited_for_later() {
    let bench = bench(LiveLimits::default());
    let run = bench.start("// @exec: {\"yield_time_ms\": 1500}\nreturn 1");
    assert_eq!(run.yield_after(), Some(Duration::from_millis(1500)));
    assert_eq!(bench.start("return 1").yield_after(), None);
}

/// Writes nothing down and does not come back from the end of a run.
struct Stuck(Mutex<mpsc::Receiver<()>>);

#[async_trait]
impl Ledger for Stuck {
    fn digest_key(&self) -> [u8; 32] {
        [0; 32]
    }
    async fn begin(&self, _: RunStart<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn intend(&self, _: Intent<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn settle(&self, _: Settled<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn ask(&self, _: &str, _: &ApprovalRequest) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn answer(&self, _: &str, _: &[String]) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn suspend(&self, _: &str, _: Vec<u8>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn go_on(&self, _: &str) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn end(&self, _: &ScriptToolCallOutput, _: Option<Vec<u8>>) -> Result<(), LedgerError> {
        let _ = self.0.lock().unwrap().recv();
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn control_comes_back_from_a_run_that_holds_its_thread() {
    let live = LiveRuns::new(LiveLimits {
        grace: Duration::from_millis(50),
        ..LiveLimits::default()
    });
    let (release, stuck) = mpsc::channel();
    let orchestrator =
        Orchestrator::new(Registry::new()).with_ledger(Arc::new(Stuck(Mutex::new(stuck))));
    let harness = Harness::new(orchestrator).unwrap();
    let options = RunOptions {
        timeout: Some(Duration::from_millis(50)),
        ..RunOptions::default()
    };
    let run = live
        .start(&harness, b"return 1".to_vec(), options, None)
        .unwrap();
    let Report::Ended(output) = run.report(PATIENCE).await else {
        panic!()
    };
    let error = output.error.as_ref().unwrap();
    assert_eq!(error.code, ErrorCode::HarnessInternalError);
    assert!(
        error.message.contains("did not end when its time was up"),
        "{}",
        error.message
    );
    release.send(()).unwrap();
}

#[tokio::test]
async fn a_long_question_is_not_taken_for_a_run_that_hangs() {
    let bench = bench(LiveLimits {
        grace: Duration::from_millis(1),
        ..LiveLimits::default()
    });
    let options = RunOptions {
        timeout: Some(Duration::from_millis(300)),
        ..RunOptions::default()
    };
    let run = bench
        .live
        .start(
            &bench.harness,
            b"return await tools.wipe({})".to_vec(),
            options,
            None,
        )
        .unwrap();
    let Report::Asks(question) = run.report(PATIENCE).await else {
        panic!()
    };
    // Three times as long as the script itself may take.
    assert_eq!(
        run.report(Duration::from_millis(900)).await,
        Report::StillRunning
    );
    run.answer(
        &question.id,
        Reply::Approval(ApprovalDecision::Answered(vec![Answer::Once])),
    );
    assert_eq!(value(&run.report(PATIENCE).await), "wiped");
}
