//! Tasks: they outlive their script, need approval and are recorded like any call, and end with the
//! session.
#![allow(clippy::unwrap_used, missing_docs)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use selvedge_protocol::{ApprovalPolicy, CallDecision, ErrorCode, ScriptToolCallOutput};
use selvedge_script::{Harness, ResumeInput, RunOptions};
use selvedge_tools::{
    CallContext, Orchestrator, PriorCall, PriorCalls, PriorUse, Registry, Risk, TaskSet, ToolError,
    tool, tool_with_context,
};
use serde::Deserialize;
use serde_json::{Value, json};
use support::{FixedApprover, MemoryLedger};
use tokio::sync::Notify;

#[derive(Deserialize, JsonSchema)]
struct WordArgs {
    /// Returned when the call completes.
    word: Option<String>,
}

/// A session: consecutive scripts with one set of tasks.
struct TaskSession {
    harness: Harness,
    tasks: TaskSet,
    ledger: Arc<MemoryLedger>,
    /// Lets one call of `slow` return.
    release: Arc<Notify>,
    started: Arc<AtomicU32>,
    stopped: Arc<AtomicU32>,
}

impl TaskSession {
    fn new(answer: CallDecision) -> Self {
        let (release, started, stopped) = (
            Arc::new(Notify::new()),
            Arc::new(AtomicU32::new(0)),
            Arc::new(AtomicU32::new(0)),
        );
        let (tasks, ledger) = (TaskSet::default(), Arc::<MemoryLedger>::default());
        let mut registry = Registry::new();
        let counters = (release.clone(), started.clone(), stopped.clone());
        let slow = tool_with_context("slow", "Waits.", move |args: WordArgs, call| {
            let (release, started, stopped) = counters.clone();
            started.fetch_add(1, Ordering::SeqCst);
            async move {
                tokio::select! {
                    () = release.notified() => Ok(args.word.unwrap_or_default()),
                    () = call.cancel.cancelled() => {
                        stopped.fetch_add(1, Ordering::SeqCst);
                        Err(ToolError::new("stopped"))
                    }
                }
            }
        });
        registry.register(slow).unwrap();
        let fails =
            |_: WordArgs| async { Err::<Value, _>(ToolError::new("it broke").suggest("fix it")) };
        registry.register(tool("fails", "Fails.", fails)).unwrap();
        let risky = tool("risky", "Needs approval.", |args: WordArgs| async {
            Ok(args.word)
        });
        registry
            .register(risky.risk(|_| Risk::NeedsApproval {
                reason: "it is risky".into(),
            }))
            .unwrap();
        let keyed = |_: WordArgs, call: CallContext| std::future::ready(Ok(call.idempotency_key));
        registry
            .register(tool_with_context(
                "keyed",
                "Returns its idempotency key.",
                keyed,
            ))
            .unwrap();
        registry
            .register(tool("look", "Looks.", |_: WordArgs| async { Ok("as it is") }).read_only())
            .unwrap();
        registry
            .register(tool("spawn_vm", "Starts a machine.", |_: WordArgs| async {
                Ok("up")
            }))
            .unwrap();
        let warns = |_: WordArgs, call: CallContext| {
            call.warn("1 of 2 lines");
            std::future::ready(Ok("short"))
        };
        registry
            .register(tool_with_context("warns", "Warns.", warns))
            .unwrap();
        tasks.register(&mut registry).unwrap();
        let orchestrator = Orchestrator::new(registry)
            .with_policy(ApprovalPolicy::OnRequest)
            .with_approver(Arc::new(FixedApprover::new(answer)))
            .with_ledger(ledger.clone());
        let harness = Harness::new(orchestrator).unwrap().with_tasks(&tasks);
        Self {
            harness,
            tasks,
            ledger,
            release,
            started,
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
    let session = TaskSession::new(CallDecision::Once);
    let output = session
        .run("const task = tools.spawn.exec('slow', { word: 'done' }); return task")
        .await;
    assert!(
        output.warnings.is_empty(),
        "a task need not be awaited: {:?}",
        output.warnings
    );
    let id = output.value().unwrap()["id"].as_str().unwrap().to_owned();
    assert_eq!(session.tasks.running_count(), 1);
    session.release.notify_one();
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
async fn warnings_of_a_task_reach_the_script_that_waits_for_it() {
    let session = TaskSession::new(CallDecision::Once);
    let output = session
        .run("const t = tools.spawn.exec('warns'); return [t.id, await t.done]")
        .await;
    let value = output.value().unwrap();
    assert_eq!(value[1], json!("short"));
    assert_eq!(output.warnings, ["spawn.wait: warns: 1 of 2 lines"]);
    // They are recorded with the task.
    let outputs = session.ledger.outputs.lock().unwrap();
    let task = outputs.iter().find(|output| value[0] == output.id.as_str());
    assert_eq!(task.unwrap().warnings, ["warns: 1 of 2 lines"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_has_done_and_cancel() {
    let session = TaskSession::new(CallDecision::Once);
    session.release.notify_one();
    assert_eq!(
        session
            .value(
                "const t = tools.spawn.exec('slow', { word: 'x' }); \
            return [await t.done, await t.done]"
            )
            .await,
        json!(["x", "x"])
    );
    let source = "const t = tools.spawn.exec('slow', {});
        const cancelled = await t.cancel();
        try { await t.done } catch (error) { return [cancelled, error.name, error.message] }";
    let value = session.value(source).await;
    // The message says whether the call had started, which depends on timing.
    assert!(
        value[2].as_str().unwrap().starts_with("slow was cancelled"),
        "{value}"
    );
    assert_eq!(
        (&value[0], &value[1]),
        (&json!(true), &json!("ToolExecutionError"))
    );
    let source = "try { await tools.spawn.exec('fails').done } catch (error) { \
        return [error.message, error.suggestions, error.metadata.code] }";
    assert_eq!(
        session.value(source).await,
        json!(["it broke", ["fix it"], "ToolExecutionError"])
    );
    for (source, message) in [
        (
            "tools.spawn.exec('spawn.exec', { tool: 'slow' })",
            "a task cannot start a task",
        ),
        (
            "tools.spawn.exec('Spawn.Exec', { tool: 'slow' })",
            "a task cannot start a task",
        ),
        (
            "tools.spawn.exec(...[3])",
            "spawn.exec takes a tool's name and its arguments",
        ),
    ] {
        assert_eq!(session.failed(source).await.1, message);
    }
    // An embedder's tool may have a name that begins like the tools for tasks.
    let source = "return await tools.spawn.exec('spawnVm', {}).done";
    assert_eq!(session.value(source).await, json!("up"));
    let source = "try { await tools.spawn.exec('nonsense', {}).done } catch (error) { \
        return [error.message, error.metadata.code] }";
    let value = session.value(source).await;
    assert!(
        value[0]
            .as_str()
            .unwrap()
            .starts_with("there is no tool `nonsense`")
            && value[1] == "ToolNotFoundError",
        "{value}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_needs_approval_and_is_recorded_like_any_call() {
    let session = TaskSession::new(CallDecision::Deny(None));
    let source = "try { await tools.spawn.exec('risky', { word: 'x' }).done } catch (error) { \
        return error.metadata.code }";
    assert_eq!(session.value(source).await, json!("ApprovalDeniedError"));
    let session = TaskSession::new(CallDecision::Once);
    assert_eq!(
        session
            .value("return await tools.spawn.exec('risky', { word: 'x' }).done")
            .await,
        json!("x")
    );
    let values = session.ledger.values.lock().unwrap();
    let (_, call, value) = values
        .iter()
        .find(|(run, ..)| run.starts_with("tsk_"))
        .unwrap();
    assert_eq!((call.as_str(), value), ("tool_1", &json!("x")));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_of_unknown_outcome_is_decided_like_any_call() {
    let session = TaskSession::new(CallDecision::Once);
    let start = "const start = () => tools.spawn.exec('keyed', {});";
    session.value(&format!("{start} await start().done")).await;
    let digest = {
        let digests = session.ledger.digests.lock().unwrap();
        let task = digests.iter().find(|(id, _)| id.starts_with("tsk_"));
        task.unwrap().1.clone()
    };
    let resumed = async |source: &str| {
        let first = PriorCall {
            id: "tsk_first".into(),
            tool: "spawn.exec".into(),
            args: json!({"tool": "keyed", "args": {}}),
            digest: digest.clone(),
            use_as: PriorUse::Undecided,
            idempotency_key: "tsk_first.tool_1".into(),
        };
        let options = RunOptions {
            resume: Some(ResumeInput {
                run_id: "scr_first".into(),
                prior_calls: Arc::new(PriorCalls::new(
                    "scr_first",
                    vec![first],
                    Default::default(),
                )),
                seed: None,
            }),
            ..Default::default()
        };
        let source = format!("{start} {source}");
        let output = session.harness.run_with(source.as_bytes(), options).await;
        assert!(output.error.is_none(), "{:?}", output.error);
        output.value()
    };
    let value = resumed("try { start() } catch (error) { return error.name }").await;
    assert_eq!(value, Some(json!("OutcomeUnknownError")));
    let value = resumed(
        "resume.repeat('tsk_first');
         const first = await start().done;
         return [first, await start().done === first]",
    )
    .await;
    assert_eq!(value, Some(json!(["tsk_first.tool_1", false])));
    let value = resumed("resume.skip('tsk_first', 'paid'); return await start().done").await;
    assert_eq!(value, Some(json!("paid")));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_number_of_tasks_is_limited_and_they_end_with_the_session() {
    let session = TaskSession::new(CallDecision::Once);
    let source =
        "for (let i = 0; i < 8; i++) tools.spawn.exec('slow', {}); tools.spawn.exec('slow', {})";
    assert_eq!(
        session.failed(source).await.1,
        "8 tasks are running, which is the limit"
    );
    while session.started.load(Ordering::SeqCst) < 8 {
        tokio::task::yield_now().await;
    }
    assert_eq!(session.tasks.end().await, 8);
    assert_eq!(
        (
            session.stopped.load(Ordering::SeqCst),
            session.tasks.running_count()
        ),
        (8, 0)
    );
    assert_eq!(
        session.failed("tools.spawn.exec('slow', {})").await.1,
        "cannot start a task: the session has ended"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_counts_as_a_call_of_its_script() {
    let session = TaskSession::new(CallDecision::Once);
    let source = "let n = 0;
        try { for (; n < 100; n++) { const t = tools.spawn.exec('fails'); \
        await Promise.allSettled([t.done]); } }
        catch (error) { return [n, error.name] }";
    // Waiting for a task does not leave the process.
    assert_eq!(
        session.value(source).await,
        json!([32, "ToolBudgetExceededError"])
    );
}
