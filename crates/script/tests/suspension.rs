//! Scripts that are put away at a question and go on elsewhere.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::FutureExt;
use selvedge_protocol::{Answer, CallStatus, ErrorCode, Limits, RunStatus, ScriptToolCallOutput};
use selvedge_script::{Harness, RunOptions, Session, Suspended};
use selvedge_tools::{Approver, AskLater, Orchestrator, Registry, Risk, tool};
use serde_json::json;
use support::{Bench, Notebook, Says, on_a_thread};
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

/// One process after the other, on one notebook.
struct Desk {
    notebook: Arc<Notebook>,
    session: Session,
    limits: Limits,
}

impl Desk {
    fn new() -> Self {
        Self {
            notebook: Arc::default(),
            session: Session::default(),
            limits: Limits::default(),
        }
    }

    fn bench(&self, approver: Arc<dyn Approver>) -> Bench {
        let ledger = self.notebook.clone();
        let asking = move |orchestrator: selvedge_tools::Orchestrator| {
            orchestrator
                .with_ledger(ledger.clone())
                .with_approver(approver.clone())
        };
        Bench::with(asking, self.limits.clone())
    }

    fn options(&self) -> RunOptions {
        RunOptions {
            id: Some("scr_1".into()),
            session: self.session.clone(),
            ..RunOptions::default()
        }
    }

    fn begin(&self, source: &str) -> ScriptToolCallOutput {
        self.bench(Arc::new(AskLater))
            .run_with(source, self.options(), PATIENCE)
    }

    fn go_on(&self, source: &str, approver: impl Approver + 'static) -> ScriptToolCallOutput {
        self.go_on_from(source, self.state(), approver)
    }

    fn stored(&self, key: &str) -> Option<String> {
        self.session.get(key).now_or_never().unwrap().unwrap()
    }

    fn state(&self) -> Vec<u8> {
        self.notebook
            .suspended
            .lock()
            .unwrap()
            .last()
            .unwrap()
            .clone()
    }

    fn go_on_from(
        &self,
        source: &str,
        state: Vec<u8>,
        approver: impl Approver + 'static,
    ) -> ScriptToolCallOutput {
        let harness = self.bench(Arc::new(approver)).harness;
        let values = self.notebook.values_of("scr_1").into_iter().collect();
        let (source, options) = (source.to_owned(), self.options());
        on_a_thread("going on", PATIENCE, async move {
            harness
                .resume(&source, &Suspended { state, values }, options)
                .await
                .unwrap()
        })
    }

    fn intended(&self) -> usize {
        self.notebook.intended.lock().unwrap().len()
    }
}

/// As if the engine had been built otherwise meanwhile.
fn of_another_build(state: Vec<u8>) -> Vec<u8> {
    let mark = b"\"build\":\"";
    let at = state
        .windows(mark.len())
        .position(|window| window == mark)
        .unwrap()
        + mark.len();
    let mut state = state;
    state[at..at + 16].copy_from_slice(b"0123456789abcdef");
    state
}

const TWICE: &str = "class Box<T> { constructor(public items: T[]) {} get size() { return this.items.length } }
const box = new Box([1, 2]); const seen = new Map([['random', Math.random()]]);
console.log('begun at', Date.now()); text('before'); store('key', 'kept');
const before = await tools.echo({value: {n: 1.5}});
setTimeout(() => seen.set('timer', 1), 5);
const one = await tools.exec({command: ['rm', 'one']});
const [two, ok] = await Promise.all([tools.exec({command: ['rm', 'two']}), tools.echo({value: 'beside'})]);
await new Promise(done => setTimeout(done, 10));
text('after');
return [box.size, [...seen.keys()], before.n, one.stdout, two.stdout, ok, load('key'), seen.get('random') !== Math.random()]";

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
fn two_questions_two_processes_one_script() {
    let desk = Desk::new();
    let first = desk.begin(TWICE);
    assert_eq!((first.status, first.error), (RunStatus::Suspended, None));
    assert_eq!(
        first
            .calls
            .iter()
            .map(|call| call.status)
            .collect::<Vec<_>>(),
        [CallStatus::Done, CallStatus::NotStarted]
    );
    assert_eq!(desk.stored("key"), None, "it has not ended");
    // It is answered, and asks again; nobody is there.
    let once = Says::new(Answer::Once);
    let second = desk.go_on(TWICE, OnlyOnce(once.clone(), AskLater));
    assert_eq!(
        (second.status, &second.id),
        (RunStatus::Suspended, &"scr_1".to_owned()),
        "{:?}",
        second.error
    );
    let third = desk.go_on(TWICE, once);
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
    assert_eq!(desk.intended(), 4, "each call once");
    assert_eq!(desk.stored("key").as_deref(), Some("\"kept\""));
    // What was told over three processes is one recording.
    let cassette = desk.notebook.cassette(TWICE, &third).unwrap();
    let again = on_a_thread("replay", PATIENCE, async move {
        cassette.play(Default::default()).await.unwrap()
    });
    assert_eq!((again.output_json, again.error), (third.output_json, None));
}

#[test]
fn another_build_of_the_engine_tells_the_script_again_what_it_was_told() {
    let desk = Desk::new();
    desk.begin(TWICE);
    let state = of_another_build(desk.state());
    let second = desk.go_on_from(TWICE, state, OnlyOnce(Says::new(Answer::Once), AskLater));
    assert_eq!(second.status, RunStatus::Suspended, "{:?}", second.error);
    assert!(
        second
            .warnings
            .iter()
            .any(|warning| warning.contains("another build")),
        "{:?}",
        second.warnings
    );
    let state = of_another_build(desk.state());
    let third = desk.go_on_from(TWICE, state, Says::new(Answer::Once));
    assert_eq!(third.value(), Some(expected()), "{:?}", third.error);
    assert_eq!(desk.intended(), 4, "each call once");
}

#[test]
fn no_reaches_the_script() {
    let desk = Desk::new();
    let source =
        "try { await tools.exec({command: ['rm', 'x']}) } catch (e) { return [e.name, e.message] }";
    desk.begin(source);
    let output = desk.go_on(source, Says::new(Answer::No(Some("keep it".into()))));
    assert_eq!(
        output.value(),
        Some(json!(["ApprovalDeniedError", "exec was denied: keep it"]))
    );
    assert_eq!(desk.intended(), 0);
}

#[test]
fn what_was_agreed_and_spent_holds_in_the_next_process() {
    let mut desk = Desk::new();
    desk.limits.max_tool_calls = 3;
    let source = "await tools.exec({command: ['rm', '1']}); await tools.exec({command: ['rm', '2']});
        await tools.echo({value: 1}).catch(() => 0); const left = context.sandbox.remainingToolBudget;
        try { await tools.echo({value: 2}) } catch (e) { return [left, e.name] }";
    desk.begin(source);
    let says = Says::new(Answer::ThisScript);
    let output = desk.go_on(source, says.clone());
    assert_eq!(
        output.value(),
        Some(json!([0, "ToolBudgetExceededError"])),
        "{:?}",
        output.error
    );
    assert_eq!(
        says.asked.lock().unwrap().len(),
        1,
        "the second is covered by the first answer"
    );
}

#[test]
fn a_script_is_put_away_when_asked_to_once_its_calls_are_over() {
    let desk = Desk::new();
    let source = "const slow = tools.sleep({ms: 300, value: 'slept'}); const [a, b] = await Promise.all([slow, tools.echo({value: 2})]);
        await new Promise(done => setTimeout(done, 20)); return [a, b, Math.random() < 1]";
    let suspend = CancellationToken::new();
    suspend.cancel();
    let options = RunOptions {
        suspend,
        ..desk.options()
    };
    let first = desk
        .bench(Arc::new(AskLater))
        .run_with(source, options, PATIENCE);
    assert_eq!(first.status, RunStatus::Suspended, "{:?}", first.error);
    assert!(
        first
            .calls
            .iter()
            .all(|call| call.status == CallStatus::Done),
        "{:?}",
        first.calls
    );
    let intended = desk.intended();
    let output = desk.go_on(source, AskLater);
    assert_eq!(
        output.value(),
        Some(json!(["slept", 2, true])),
        "{:?}",
        output.error
    );
    assert_eq!(desk.intended(), intended, "no call is made twice");
}

#[test]
fn whoever_comes_second_does_nothing() {
    let desk = Desk::new();
    let source = "await tools.exec({command: ['rm', 'x']}); return 'done'";
    desk.begin(source);
    // Somebody else has it now.
    desk.notebook.taken.store(true, Ordering::SeqCst);
    let output = desk.go_on(source, Says::new(Answer::Once));
    assert_eq!(output.status, RunStatus::Suspended);
    assert!(
        output
            .warnings
            .iter()
            .any(|warning| warning.contains("answered elsewhere")),
        "{:?}",
        output.warnings
    );
    assert_eq!(desk.intended(), 0);
}

#[test]
fn a_state_that_is_cut_short_is_refused() {
    let desk = Desk::new();
    let source = "await tools.exec({command: ['rm', 'x']})";
    desk.begin(source);
    let whole = desk.state();
    for length in [0, 4, 8, 100] {
        let state = whole[..length].to_vec();
        let harness = desk.bench(Arc::new(AskLater)).harness;
        let (source, options) = (source.to_owned(), desk.options());
        let refused = on_a_thread("cut", PATIENCE, async move {
            harness
                .resume(
                    &source,
                    &Suspended {
                        state,
                        ..Suspended::default()
                    },
                    options,
                )
                .await
        });
        assert!(refused.is_err(), "{length}");
    }
}

/// Approves once the run is saved.
struct OnceSaved(Arc<Notebook>);

impl Approver for OnceSaved {
    fn ask<'a>(
        &'a self,
        request: &'a selvedge_protocol::ApprovalRequest,
    ) -> futures_util::future::BoxFuture<'a, selvedge_protocol::ApprovalDecision> {
        Box::pin(async move {
            while self.0.suspended.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            let answers = vec![Answer::Once; request.calls.len()];
            selvedge_protocol::ApprovalDecision::Answered(answers)
        })
    }
}

#[test]
fn a_run_suspended_after_an_answer_is_saved_again() {
    let desk = Desk::new();
    let suspend = CancellationToken::new();
    let options = RunOptions {
        suspend: suspend.clone(),
        ..desk.options()
    };
    // The snapshot that was saved while the question was open does not know of the answer.
    let work = move |_: serde_json::Value| {
        suspend.cancel();
        async {
            tokio::task::yield_now().await;
            Ok("done")
        }
    };
    let ask = |_: &serde_json::Value| Risk::Ask {
        reason: "a person decides".into(),
    };
    let registry = Registry::new().with(tool("work", "Works.", work).risk(ask));
    let orchestrator = Orchestrator::new(registry.unwrap())
        .with_ledger(desk.notebook.clone())
        .with_approver(Arc::new(OnceSaved(desk.notebook.clone())));
    let harness = Harness::new(orchestrator).unwrap();
    let (notebook, again) = (desk.notebook.clone(), desk.options());
    let (first, second) = on_a_thread("suspended after an answer", PATIENCE, async move {
        let source = "return await tools.work({})";
        let first = harness.run_with(source.as_bytes(), options).await;
        let state = notebook.suspended.lock().unwrap().last().unwrap().clone();
        let values = notebook.values_of("scr_1").into_iter().collect();
        let suspended = Suspended { state, values };
        (first, harness.resume(source, &suspended, again).await)
    });
    assert_eq!(first.status, RunStatus::Suspended, "{:?}", first.error);
    assert_eq!(desk.notebook.suspended.lock().unwrap().len(), 2);
    assert_eq!(second.unwrap().value(), Some(json!("done")));
    assert_eq!(desk.intended(), 1, "the call is not repeated");
}

#[test]
fn a_run_that_could_not_be_saved_is_cancelled_when_the_caller_leaves() {
    let desk = Desk::new();
    desk.notebook.full.store(true, Ordering::SeqCst);
    let leave = CancellationToken::new();
    let options = RunOptions {
        leave: leave.clone(),
        ..desk.options()
    };
    let says = Says::nothing();
    let harness = desk.bench(Arc::new(says.clone())).harness;
    let output = on_a_thread("leaving", PATIENCE, async move {
        let source = "await tools.exec({command: ['rm', 'x']})";
        let run = harness.run_with(source.as_bytes(), options);
        let leaving = async {
            while says.asked.lock().unwrap().is_empty() {
                tokio::task::yield_now().await;
            }
            leave.cancel();
        };
        tokio::join!(run, leaving).0
    });
    let error = output.error.unwrap();
    assert_eq!(error.code, ErrorCode::ScriptCancelledError, "{error:?}");
    assert!(
        output
            .warnings
            .iter()
            .any(|words| words.contains("disk full"))
    );
}

/// The first question is for one, every other for another.
struct OnlyOnce(Says, AskLater);

impl Approver for OnlyOnce {
    fn ask<'a>(
        &'a self,
        request: &'a selvedge_protocol::ApprovalRequest,
    ) -> futures_util::future::BoxFuture<'a, selvedge_protocol::ApprovalDecision> {
        let first = self.0.asked.lock().unwrap().is_empty();
        if first {
            self.0.ask(request)
        } else {
            self.1.ask(request)
        }
    }
}
