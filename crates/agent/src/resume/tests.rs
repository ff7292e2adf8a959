//! Tests of resumed scripts with a real journal.
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU32, Ordering};

use selvedge_protocol::{ApprovalPolicy, ScriptToolCallOutput, ToolSpec};
use selvedge_script::{Harness, RunOptions};
use selvedge_tools::{
    CallContext, CallFuture, Orchestrator, Registry, TaskSet, Tool, ToolError, ToolOutput,
    UnconfinedRetry, spec_of, tool, typed_call,
};
use serde_json::Value;

use super::*;

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct NoArgs {}

/// A tool that only reads and costs money. Counts its calls.
struct PaidSearch(Arc<AtomicU32>);

impl Tool for PaidSearch {
    fn spec(&self) -> ToolSpec {
        spec_of::<NoArgs, u32>("search", "Searches.").as_read_only()
    }

    fn costs_money(&self) -> bool {
        true
    }

    fn call(&self, args: Value, _: CallContext) -> CallFuture<'_> {
        let count = || Ok(self.0.fetch_add(1, Ordering::SeqCst));
        typed_call(args, move |_: NoArgs| async move { count() }, |_| None)
    }
}

#[tokio::test]
async fn a_task_that_only_reads_is_reused_if_it_cost_money() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let [paid, free] = [(); 2].map(|()| Arc::new(AtomicU32::new(0)));
    let (tasks, mut registry) = (TaskSet::default(), Registry::new());
    registry.register(PaidSearch(paid.clone())).unwrap();
    let looks = free.clone();
    let look = tool("look", "Looks.", move |_: NoArgs| {
        std::future::ready(Ok(looks.fetch_add(1, Ordering::SeqCst)))
    });
    registry.register(look.read_only()).unwrap();
    tasks.register(&mut registry).unwrap();
    let orchestrator = Orchestrator::new(registry).with_ledger(journal.clone());
    let harness = Harness::new(orchestrator).unwrap().with_tasks(&tasks);
    let script = b"await tools.spawn.exec('look').done; const task = tools.spawn.exec('search');
        await task.done; throw task.id";
    let message = |output: ScriptToolCallOutput| output.error.unwrap().message;
    let first = harness.run_with(script, RunOptions::default()).await;
    let options = RunOptions {
        resume: Some(resume_input(&journal, &first.id, "").unwrap()),
        ..RunOptions::default()
    };
    let second = harness.run_with(script, options).await;
    assert_eq!(message(first), message(second));
    let counts = [paid, free].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [1, 2]);
}

#[derive(serde::Deserialize, schemars::JsonSchema)]
struct PayArgs {
    #[allow(dead_code)]
    unconfined: Option<bool>,
}

/// A tool whose first call has an unknown outcome. Its confinement blocks all others; their
/// retry returns the idempotency key.
struct Pay(AtomicU32);

impl Tool for Pay {
    fn spec(&self) -> ToolSpec {
        spec_of::<PayArgs, String>("pay", "Pays.")
    }

    fn call(&self, args: Value, call: CallContext) -> CallFuture<'_> {
        let is_first = self.0.fetch_add(1, Ordering::SeqCst) == 0;
        Box::pin(std::future::ready(match args["unconfined"] == true {
            _ if is_first => Err(ToolError::new("no answer").outcome_unknown()),
            true => Ok(ToolOutput::from(Value::from(call.idempotency_key))),
            false => Ok(ToolOutput {
                unconfined_retry: Some(UnconfinedRetry {
                    args: serde_json::json!({"unconfined": true}),
                    reason: "it was blocked".to_owned(),
                }),
                ..ToolOutput::from(Value::Null)
            }),
        }))
    }
}

#[tokio::test]
async fn a_retry_of_a_repeated_call_has_its_key_and_takes_its_place() {
    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::open(dir.path()).unwrap();
    let mut registry = Registry::new();
    registry.register(Pay(AtomicU32::new(0))).unwrap();
    let orchestrator = Orchestrator::new(registry)
        .with_policy(ApprovalPolicy::OnFailure)
        .with_ledger(journal.clone());
    let harness = Harness::new(orchestrator).unwrap();
    let first = harness
        .run_with(b"await tools.pay({})", RunOptions::default())
        .await;
    let script = format!(
        "resume.repeat('{}/tool_1'); throw await tools.pay({{}})",
        first.id
    );
    let resume = async || {
        let options = RunOptions {
            resume: Some(resume_input(&journal, &first.id, "").unwrap()),
            ..RunOptions::default()
        };
        harness.run_with(script.as_bytes(), options).await
    };
    let key = format!("{}.tool_1", first.id);
    // The second time, the result of the retry is reused.
    for reused in [false, true] {
        let output = resume().await;
        let message = output.error.unwrap().message;
        assert!(message.contains(&key), "{message}");
        assert_eq!(output.calls.last().unwrap().reused, reused);
    }
}
