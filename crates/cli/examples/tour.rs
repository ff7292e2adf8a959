//! Runs the same task as structured calls, one per turn, and as one script. Part of `make demo`.

use schemars::JsonSchema;
use selvedge_protocol::{EventSink, Limits};
use selvedge_script::Harness;
use selvedge_tools::{
    BatchReport, CallArguments, CallRequest, Orchestrator, Registry, Scope, ScopeLimits, ToolError,
    tool,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

const SCRIPT: &str = r#"
const tests = await tools.listTests();
const runs = await Promise.all(tests.map(t => tools.runTest({ name: t.name })));
const failed = tests.filter((_, i) => !runs[i].passed);
const owners = await Promise.all(failed.map(t => tools.blame({ file: t.file })));
return failed.map((t, i) => `${t.name}: ask ${owners[i].owner}`);
"#;

#[derive(Deserialize, JsonSchema)]
struct TourNoArgs {}

#[derive(Deserialize, JsonSchema)]
struct TestNameArgs {
    /// Name of the test.
    name: String,
}

#[derive(Deserialize, JsonSchema)]
struct BlameArgs {
    /// Path of the file.
    file: String,
}

#[derive(Serialize, JsonSchema)]
struct TestEntry {
    name: String,
    file: String,
}

#[derive(Serialize, JsonSchema)]
struct TestRun {
    passed: bool,
    output: String,
}

#[derive(Serialize, JsonSchema)]
struct Blame {
    owner: String,
}

fn tools() -> Result<Registry, Box<dyn std::error::Error>> {
    let list = |_: TourNoArgs| async {
        let test = |name: &str| TestEntry {
            name: name.into(),
            file: format!("tests/{name}.ts"),
        };
        Ok(["login", "logout", "search", "billing"]
            .map(test)
            .into_iter()
            .collect::<Vec<_>>())
    };
    let run = |args: TestNameArgs| async move {
        let passed = args.name != "billing";
        let log = "  at step 1 … ok\n".repeat(60);
        Ok(TestRun {
            passed,
            output: format!(
                "{log}{}",
                if passed {
                    "passed"
                } else {
                    "AssertionError: 12.5 != 12.50"
                }
            ),
        })
    };
    let blame = |args: BlameArgs| async move {
        if args.file.contains("billing") {
            Ok(Blame {
                owner: "ada".into(),
            })
        } else {
            Err(ToolError::new("not in git"))
        }
    };
    Ok(Registry::new()
        .with(tool("list_tests", "Lists the tests.", list).read_only())?
        .with(tool("run_test", "Runs one test.", run))?
        .with(tool("blame", "Returns who changed a file last.", blame).read_only())?)
}

/// Makes one structured call, as a model does in one turn. Returns the whole result, which would go
/// back into the context.
async fn turn(orchestrator: &Orchestrator, tool: &str, args: Value) -> String {
    let limits = ScopeLimits::from(&Limits::default());
    let scope = Scope::new(
        "turn".into(),
        limits,
        &CancellationToken::new(),
        EventSink::silent(),
    );
    let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
    let cancel = scope.cancel.child_token();
    let call = CallRequest {
        id: "call_1".into(),
        tool: tool.into(),
        args: CallArguments::Object(args),
        line: None,
        cancel,
    };
    orchestrator.run_batch(&scope, vec![call], send).await;
    match receive.recv().await {
        Some(BatchReport::Finished(outcome)) => outcome
            .result
            .map_or_else(|failure| failure.message, |output| output.value.to_string()),
        _ => String::new(),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let orchestrator = Orchestrator::new(tools()?);
    println!("task: which tests fail, and whom do I ask?\n\nas structured calls:");
    let mut through_model = 0;
    let mut calls = vec![("list_tests", json!({}))];
    calls.extend(
        ["login", "logout", "search", "billing"].map(|name| ("run_test", json!({"name": name}))),
    );
    calls.push(("blame", json!({"file": "tests/billing.ts"})));
    for (number, (tool, args)) in calls.iter().enumerate() {
        let result = turn(&orchestrator, tool, args.clone()).await;
        through_model += result.len();
        println!(
            "  turn {}  {tool}({args})  → {} bytes to the model",
            number + 1,
            result.len()
        );
    }
    println!(
        "  {} turns, {through_model} bytes of results read by the model\n\nas one script:",
        calls.len()
    );
    println!(
        "{}",
        SCRIPT
            .trim()
            .lines()
            .map(|line| format!("  | {line}\n"))
            .collect::<String>()
    );
    let output = Harness::new(orchestrator)?.run(SCRIPT).await;
    let value = output.output_json.unwrap_or_default();
    for call in &output.calls {
        println!(
            "  {}  {} {} in {:.2} ms",
            call.id,
            call.tool,
            call.status.as_str(),
            call.duration_ms
        );
    }
    println!(
        "  → {value}\n  1 turn, {} bytes read by the model, {:.1} ms",
        value.len(),
        output.metadata.duration_ms
    );
    Ok(())
}
