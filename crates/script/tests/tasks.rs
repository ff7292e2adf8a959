//! Work in the background: it outlives its script, is gated and written down like any call, and ends with the session.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use selvedge_protocol::{Answer, ApprovalPolicy, ErrorCode, ScriptToolCallOutput};
use selvedge_script::{Harness, Resume, RunOptions};
use selvedge_tools::{
    Call, Orchestrator, PriorCall, PriorCalls, PriorOutcome, Registry, Risk, Tasks, ToolError,
    tool, tool_with_call,
};
use serde::Deserialize;
use serde_json::{Value, json};
use support::{Notebook, Says};
use tokio::sync::Notify;

#[derive(Deserialize, JsonSchema)]
struct Word {
    /// What to say when it is done.
    word: Option<String>,
}

/// A session: scripts one after the other, with one set of tasks.
struct Session {
    harness: Harness,
    tasks: Tasks,
    notebook: Arc<Notebook>,
    /// Lets `slow` come to its end.
    go: Arc<Notify>,
    begun: Arc<AtomicU32>,
    stopped: Arc<AtomicU32>,
}

impl Session {
    fn new(answer: Answer) -> Self {
        let (go, begun, stopped) = (
            Arc::new(Notify::new()),
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicU32::new(0)),
        );
        let (tasks, notebook) = (Tasks::default(), Arc::<Notebook>::default());
        let mut registry = Registry::new();
        let (going, beginning, stopping) = (go.clone(), begun.clone(), stopped.clone());
        let slow = tool_with_call("slow", "Takes its time.", move |args: Word, call| {
            let (go, stopped) = (going.clone(), stopping.clone());
            beginning.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::select! {
                    () = go.notified() => Ok(args.word.unwrap_or_default()),
                    () = call.cancel.cancelled() => {
                        stopped.fetch_add(1, Ordering::SeqCst);
                        Err(ToolError::new("stopped"))
                    }
                }
            }
        });
        registry.register(slow).unwrap();
        let fails =
            |_: Word| async { Err::<Value, _>(ToolError::new("it broke").suggest("mend it")) };
        registry.register(tool("fails", "Fails.", fails)).unwrap();
        let risky = tool("risky", "Is asked for.", |args: Word| async {
            Ok(args.word)
        });
        registry
            .register(risky.risk(|_| Risk::Ask {
                reason: "it is risky".into(),
            }))
            .unwrap();
        let keyed = |_: Word, call: Call| std::future::ready(Ok(call.idempotency_key));
        registry
            .register(tool_with_call("keyed", "Tells its key.", keyed))
            .unwrap();
        registry
            .register(tool("look", "Looks.", |_: Word| async { Ok("as it is") }).read_only())
            .unwrap();
        tasks.register(&mut registry).unwrap();
        let orchestrator = Orchestrator::new(registry)
            .with_policy(ApprovalPolicy::OnRequest)
            .with_approver(Arc::new(Says::new(answer)))
            .with_ledger(notebook.clone());
        let harness = Harness::new(orchestrator).unwrap().with_tasks(&tasks);
        Self {
            harness,
            tasks,
            notebook,
            go,
            begun,
            stopped,
        }
    }

    async fn run(&self, source: &str) -> ScriptToolCallOutput {
        let run = self.harness.run(source);
        tokio::time::timeout(Duration::from_secs(60), run)
            .await
            .unwrap()
    }

    async fn value(&self, source: &str) -> Value {
        let output = self.run(source).await;
        assert!(output.error.is_none(), "{:?}", output.error);
        output.value().unwrap_or_default()
    }

    async fn failed(&self, source: &str) -> (ErrorCode, String) {
        let error = self.run(source).await.error.unwrap();
        (error.code, error.message)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_outlives_its_script_and_a_later_one_waits_for_it() {
    let session = Session::new(Answer::Once);
    let output = session
        .run("const task = tools.spawn.exec('slow', { word: 'done' }); return task")
        .await;
    assert!(
        output.warnings.is_empty(),
        "nobody has to wait for it: {:?}",
        output.warnings
    );
    let id = output.value().unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(session.tasks.running(), 1);
    session.go.notify_one();
    assert_eq!(
        session
            .value(&format!("return await tools.spawn.wait({{ id: '{id}' }})"))
            .await,
        json!("done")
    );
    assert_eq!(
        session
            .value(&format!("return await tools.spawn.wait('{id}')"))
            .await,
        json!("done")
    );
    assert_eq!(
        session
            .value(&format!("return await tools.spawn.cancel('{id}')"))
            .await,
        json!(false)
    );
    let (code, message) = session
        .failed("return await tools.spawn.wait('tsk_none')")
        .await;
    assert_eq!(
        (code, message.as_str()),
        (
            ErrorCode::ToolExecutionError,
            "there is no task `tsk_none` in this session"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn done_and_cancel_are_on_the_task_itself() {
    let session = Session::new(Answer::Once);
    session.go.notify_one();
    assert_eq!(
        session.value("const t = tools.spawn.exec('slow', { word: 'x' }); return [await t.done, await t.done]").await,
        json!(["x", "x"])
    );
    let source = "const t = tools.spawn.exec('slow', {});
        const cancelled = await t.cancel();
        try { await t.done } catch (error) { return [cancelled, error.name, error.message] }";
    let told = session.value(source).await;
    // Before it ran or after, as it comes.
    assert!(
        told[2].as_str().unwrap().starts_with("slow was cancelled"),
        "{told}"
    );
    assert_eq!(
        (&told[0], &told[1]),
        (&json!(true), &json!("ToolExecutionError"))
    );
    let source = "try { await tools.spawn.exec('fails').done } catch (error) { return [error.message, error.suggestions, error.metadata.code] }";
    assert_eq!(
        session.value(source).await,
        json!(["it broke", ["mend it"], "ToolExecutionError"])
    );
    for (source, told) in [
        (
            "tools.spawn.exec('spawn.exec', { tool: 'slow' })",
            "a task cannot start a task",
        ),
        (
            "tools.spawn.exec(...[3])",
            "spawn.exec takes a tool's name and its arguments",
        ),
    ] {
        assert_eq!(session.failed(source).await.1, told);
    }
    let source = "try { await tools.spawn.exec('nonsense', {}).done } catch (error) { return [error.message, error.metadata.code] }";
    let told = session.value(source).await;
    assert!(
        told[0]
            .as_str()
            .unwrap()
            .starts_with("there is no tool `nonsense`")
            && told[1] == "ToolNotFoundError",
        "{told}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_asked_for_and_written_down_like_any_call() {
    let session = Session::new(Answer::No(None));
    let source = "try { await tools.spawn.exec('risky', { word: 'x' }).done } catch (error) { return error.metadata.code }";
    assert_eq!(session.value(source).await, json!("ApprovalDeniedError"));
    let session = Session::new(Answer::Once);
    assert_eq!(
        session
            .value("return await tools.spawn.exec('risky', { word: 'x' }).done")
            .await,
        json!("x")
    );
    let values = session.notebook.values.lock().unwrap();
    let (_, call, value) = values
        .iter()
        .find(|(run, ..)| run.starts_with("tsk_"))
        .unwrap();
    assert_eq!((call.as_str(), value), ("tool_1", &json!("x")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_unknown_outcome_is_decided_like_any_call() {
    let session = Session::new(Answer::Once);
    let start = "const start = () => tools.spawn.exec('keyed', {});";
    session.value(&format!("{start} await start().done")).await;
    let digest = {
        let digests = session.notebook.digests.lock().unwrap();
        let task = digests.iter().find(|(id, _)| id.starts_with("tsk_"));
        task.unwrap().1.clone()
    };
    let resumed = async |source: &str| {
        let first = PriorCall {
            id: "tsk_first".into(),
            tool: "spawn.exec".into(),
            args: json!({"tool": "keyed", "args": {}}),
            digest: digest.clone(),
            outcome: PriorOutcome::Unknown,
            idempotency_key: "tsk_first.tool_1".into(),
        };
        let options = RunOptions {
            resume: Some(Resume {
                run: "scr_first".into(),
                calls: Arc::new(PriorCalls::new(
                    "scr_first",
                    vec![first],
                    Default::default(),
                )),
                seed: None,
                is_recovery: false,
            }),
            ..Default::default()
        };
        let source = format!("{start} {source}");
        let output = session.harness.run_with(source.as_bytes(), options).await;
        assert!(output.error.is_none(), "{:?}", output.error);
        output.value()
    };
    let told = resumed("try { start() } catch (error) { return error.name }").await;
    assert_eq!(told, Some(json!("OutcomeUnknownError")));
    let told = resumed(
        "resume.repeat('tsk_first');
         const first = await start().done;
         return [first, await start().done === first]",
    )
    .await;
    assert_eq!(told, Some(json!(["tsk_first.tool_1", false])));
    let told = resumed("resume.skip('tsk_first', 'paid'); return await start().done").await;
    assert_eq!(told, Some(json!("paid")));
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_few_and_end_with_their_session() {
    let session = Session::new(Answer::Once);
    let source =
        "for (let i = 0; i < 8; i++) tools.spawn.exec('slow', {}); tools.spawn.exec('slow', {})";
    assert_eq!(
        session.failed(source).await.1,
        "8 tasks are running, which is the limit"
    );
    while session.begun.load(Ordering::SeqCst) < 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(session.tasks.end().await, 8);
    assert_eq!(
        (
            session.stopped.load(Ordering::SeqCst),
            session.tasks.running()
        ),
        (8, 0)
    );
    assert_eq!(
        session.failed("tools.spawn.exec('slow', {})").await.1,
        "cannot start a task: the session has ended"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_is_one_of_the_calls_a_script_may_make() {
    let session = Session::new(Answer::Once);
    let source = "let n = 0;
        try { for (; n < 100; n++) { const t = tools.spawn.exec('fails'); await Promise.allSettled([t.done]); } }
        catch (error) { return [n, error.name] }";
    // Each task is waited for, which is a call, too.
    assert_eq!(
        session.value(source).await,
        json!([16, "ToolBudgetExceededError"])
    );
}
