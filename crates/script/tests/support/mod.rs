//! Shared by the tests: tools over files in memory, an approver, a ledger, and runs with a timeout.
#![allow(dead_code, clippy::unwrap_used, clippy::expect_used, missing_docs)]

pub mod servers;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use schemars::JsonSchema;
use selvedge_protocol::{
    ApprovalRequest, ApprovalResponse, CallDecision, CallEnd, CallStart, EventSink, Ledger,
    LedgerError, Limits, RunStart, RuntimeEvent, ScriptToolCallOutput,
};
use selvedge_script::{Harness, RecordedRun, RunOptions};
use selvedge_tools::{Approver, Orchestrator, Registry, ToolError, tool, tool_with_context};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// The files that the test tools can read.
pub const FILES: &[(&str, &str)] = &[
    ("src/main.rs", "fn main() {\n    println!(\"hello\");\n}\n"),
    (
        "src/lib.rs",
        "// TODO: write docs\npub fn add(a: i32, b: i32) -> i32 {\n    a + b\n}\n",
    ),
    ("src/util.rs", "pub fn noop() {}\n// TODO: remove\n"),
    ("tests/a.test.ts", "describe('a', () => {});\n"),
    (
        "tests/b.test.ts",
        "describe('b', () => {});\n// TODO: more\n",
    ),
    ("README.md", "# Demo\n\nSee [docs](docs/guide.md).\n"),
    (
        "package.json",
        "{\"name\": \"demo\", \"version\": \"1.2.3\", \"dependencies\": {\"left-pad\": \
         \"^1.0.0\"}}\n",
    ),
];

#[derive(Deserialize, JsonSchema)]
struct Path {
    /// File to read.
    path: String,
    /// First line, from one.
    offset: Option<u32>,
    /// Lines to read.
    limit: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct File {
    text: String,
    total_lines: usize,
}

#[derive(Deserialize, JsonSchema)]
struct Pattern {
    /// Text to look for.
    pattern: String,
    /// How many at most.
    limit: Option<u32>,
}

#[derive(Serialize, JsonSchema)]
struct Found {
    path: String,
    score: f64,
}

#[derive(Serialize, JsonSchema)]
struct Match {
    path: String,
    line: usize,
    text: String,
}

#[derive(Deserialize, JsonSchema)]
struct Command {
    /// Command line, or program and arguments.
    command: CommandWords,
    timeout_ms: Option<u64>,
    approval_context: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(inline)]
enum CommandWords {
    Line(String),
    Argv(Vec<String>),
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
struct Executed {
    exit_code: i32,
    stdout: String,
    stderr: String,
}

#[derive(Deserialize, JsonSchema)]
struct SamplePatchArgs {
    patch: String,
}

#[derive(Serialize, JsonSchema)]
struct Patched {
    success: bool,
    summary: String,
}

#[derive(Deserialize, JsonSchema)]
struct SleepArgs {
    /// Milliseconds.
    ms: u64,
    /// Given back.
    value: Option<Value>,
}

#[derive(Deserialize, JsonSchema)]
struct FailArgs {
    message: String,
}

#[derive(Deserialize, JsonSchema)]
struct Anything {
    value: Value,
}

#[derive(Deserialize, JsonSchema)]
struct SampleNoArgs {}

/// Counts what the tools did.
#[derive(Debug, Default)]
pub struct ToolActivity {
    pub running: AtomicU32,
    pub max_running: AtomicU32,
    pub stopped: AtomicU32,
    pub patches: Mutex<Vec<String>>,
}

/// Registers the tools of the tests: `readFile`, `fileSearch`, `grepFiles`, `exec` (`rm` needs
/// approval), `applyPatch`, `sleep`, `stubborn`, `fail`, `panic`, `echo`, `big`, and
/// `mcp.github.list_issues`.
pub fn registry(seen: &Arc<ToolActivity>) -> Registry {
    let mut tools = Registry::new();
    let read = |args: Path| async move {
        let (_, text) = FILES
            .iter()
            .find(|(path, _)| *path == args.path)
            .ok_or_else(|| {
                ToolError::new(format!("{} does not exist", args.path))
                    .suggest("fileSearch finds files")
            })?;
        let lines: Vec<&str> = text.lines().collect();
        let skip = args.offset.unwrap_or(1).max(1) as usize - 1;
        let take = args.limit.unwrap_or(2000) as usize;
        let text = lines
            .iter()
            .skip(skip)
            .take(take)
            .map(|line| format!("{line}\n"))
            .collect();
        Ok(File {
            text,
            total_lines: lines.len(),
        })
    };
    tools
        .register(tool("read_file", "Reads a file.", read).read_only())
        .unwrap();
    let search = |args: Pattern| async move {
        let wanted = args.pattern.trim_start_matches('*');
        let found = FILES
            .iter()
            .filter(|(path, _)| path.contains(wanted))
            .take(args.limit.unwrap_or(100) as usize);
        Ok(found
            .map(|(path, _)| Found {
                path: (*path).to_owned(),
                score: 1.0,
            })
            .collect::<Vec<_>>())
    };
    tools
        .register(tool("file_search", "Finds files by name.", search).read_only())
        .unwrap();
    let grep = |args: Pattern| async move {
        let mut matches = Vec::new();
        for (path, text) in FILES {
            for (number, line) in text
                .lines()
                .enumerate()
                .filter(|(_, line)| line.contains(&args.pattern))
            {
                matches.push(Match {
                    path: (*path).to_owned(),
                    line: number + 1,
                    text: line.to_owned(),
                });
            }
        }
        matches.truncate(args.limit.unwrap_or(100) as usize);
        Ok(matches)
    };
    tools
        .register(tool("grep_files", "Finds lines in files.", grep).read_only())
        .unwrap();
    let exec = |args: Command| async move {
        let line = match args.command {
            CommandWords::Line(line) => line,
            CommandWords::Argv(words) => words.join(" "),
        };
        let failing = line.contains('b');
        Ok(Executed {
            exit_code: i32::from(failing),
            stdout: format!("ran {line}\n"),
            stderr: if failing {
                "1 test failed".into()
            } else {
                String::new()
            },
        })
    };
    let risk = |args: &Value| match args["command"][0].as_str() {
        Some("rm") => selvedge_tools::Risk::NeedsApproval {
            reason: "removes files".into(),
        },
        _ => selvedge_tools::Risk::Moderate {
            reason: "runs a command".into(),
        },
    };
    tools
        .register(
            tool("exec", "Runs a command.", exec)
                .risk(risk)
                .approval_key(|args| args["command"][0].as_str().map(str::to_owned)),
        )
        .unwrap();
    tools.add_suggestions("bash shell", "exec");
    let log = seen.clone();
    let patch = move |args: SamplePatchArgs| {
        log.patches.lock().unwrap().push(args.patch.clone());
        async move {
            Ok(Patched {
                success: true,
                summary: format!("{} lines", args.patch.lines().count()),
            })
        }
    };
    tools
        .register(tool("apply_patch", "Changes files.", patch))
        .unwrap();
    let log = seen.clone();
    let sleep = move |args: SleepArgs, call: selvedge_tools::CallContext| {
        let log = log.clone();
        async move {
            let running = log.running.fetch_add(1, Ordering::SeqCst) + 1;
            log.max_running.fetch_max(running, Ordering::SeqCst);
            let result = tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(args.ms)) => {
                    Ok(args.value.unwrap_or(json!(args.ms)))
                }
                () = call.cancel.cancelled() => {
                    log.stopped.fetch_add(1, Ordering::SeqCst);
                    Err(ToolError::new("stopped"))
                }
            };
            log.running.fetch_sub(1, Ordering::SeqCst);
            result
        }
    };
    tools
        .register(tool_with_context("sleep", "Waits, then gives `value` back.", sleep).read_only())
        .unwrap();
    let stubborn = |args: SleepArgs| async move {
        tokio::time::sleep(Duration::from_millis(args.ms)).await;
        Ok(json!(null))
    };
    tools
        .register(tool(
            "stubborn",
            "Waits and ignores cancellation.",
            stubborn,
        ))
        .unwrap();
    let fail = |args: FailArgs| async move { Err::<Value, _>(ToolError::new(args.message)) };
    tools.register(tool("fail", "Fails.", fail)).unwrap();
    let panic = |_: SampleNoArgs| async move {
        if true {
            panic!("boom")
        } else {
            Ok(json!(null))
        }
    };
    tools.register(tool("panic", "Breaks.", panic)).unwrap();
    let echo = |args: Anything| async move { Ok(args.value) };
    tools
        .register(tool("echo", "Gives `value` back.", echo).read_only())
        .unwrap();
    let big = |args: SleepArgs| async move { Ok(json!("x".repeat(args.ms as usize))) };
    tools
        .register(tool("big", "A string of `ms` characters.", big).read_only())
        .unwrap();
    let issues = |_: SampleNoArgs| async move {
        Ok(json!([{"id": 1, "title": "bug"}, {"id": 2, "title": "idea"}]))
    };
    tools
        .register(tool("mcp.github.list_issues", "Lists issues.", issues).read_only())
        .unwrap();
    tools
}

/// A harness with the test tools, their activity, and the events of its runs.
pub struct TestFixture {
    pub harness: Harness,
    pub seen: Arc<ToolActivity>,
    pub events: Arc<Mutex<Vec<RuntimeEvent>>>,
}

impl TestFixture {
    pub fn new() -> Self {
        Self::with(|orchestrator| orchestrator, Limits::default())
    }

    pub fn limited(limits: Limits) -> Self {
        Self::with(|orchestrator| orchestrator, limits)
    }

    pub fn with(change: impl Fn(Orchestrator) -> Orchestrator, limits: Limits) -> Self {
        let seen = Arc::new(ToolActivity::default());
        let harness = Harness::new(change(Orchestrator::new(registry(&seen))))
            .unwrap()
            .with_limits(limits);
        Self {
            harness,
            seen,
            events: Arc::default(),
        }
    }

    pub fn options(&self) -> RunOptions {
        let events = self.events.clone();
        RunOptions {
            events: EventSink::new(move |event| events.lock().unwrap().push(event)),
            ..RunOptions::default()
        }
    }

    /// Runs a script. Fails the test if it takes longer than a minute, even if it blocks its
    /// thread.
    pub fn run(&self, source: &str) -> ScriptToolCallOutput {
        self.run_with(source, self.options(), Duration::from_secs(60))
    }

    pub fn run_with(
        &self,
        source: &str,
        options: RunOptions,
        timeout: Duration,
    ) -> ScriptToolCallOutput {
        let harness = self.harness.clone();
        let text = source.to_owned();
        run_on_thread(source, timeout, async move {
            harness.run_with(text.as_bytes(), options).await
        })
    }

    pub fn value(&self, source: &str) -> Value {
        let output = self.run(source);
        assert_eq!(output.error, None, "{source}");
        output.value().unwrap_or(Value::Null)
    }

    /// Runs a script that fails, and returns the code and message of its error.
    pub fn error(&self, source: &str) -> (String, String) {
        let error = self
            .run(source)
            .error
            .unwrap_or_else(|| panic!("no error: {source}"));
        (error.code.to_string(), error.message)
    }
}

/// Runs a future on its own thread. Fails the test if it takes longer than `timeout`.
pub fn run_on_thread<T: Send + 'static>(
    what: &str,
    timeout: Duration,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let _ = done.send(runtime.block_on(work));
        runtime.shutdown_background();
    });
    match wait.recv_timeout(timeout) {
        Ok(value) => value,
        Err(error) => panic!("not done within {timeout:?} ({error}): {what}"),
    }
}

/// An approver that gives the same answer to every call, and records the requests. Without an
/// answer it never replies.
#[derive(Clone)]
pub struct FixedApprover {
    pub answer: Option<CallDecision>,
    pub delay: Duration,
    pub asked: Arc<Mutex<Vec<ApprovalRequest>>>,
}

impl FixedApprover {
    pub fn new(answer: CallDecision) -> Self {
        Self {
            answer: Some(answer),
            delay: Duration::ZERO,
            asked: Arc::default(),
        }
    }

    pub fn without_answer() -> Self {
        Self {
            answer: None,
            delay: Duration::ZERO,
            asked: Arc::default(),
        }
    }
}

impl Approver for FixedApprover {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.asked.lock().unwrap().push(request.clone());
        async move {
            if !self.delay.is_zero() {
                tokio::time::sleep(self.delay).await;
            }
            match &self.answer {
                Some(answer) => {
                    ApprovalResponse::Decided(vec![answer.clone(); request.calls.len()])
                }
                None => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// A ledger in memory.
#[derive(Default)]
pub struct MemoryLedger {
    /// Values that calls returned: run, call id, value.
    pub values: Mutex<Vec<(String, String, Value)>>,
    /// Digests of finished calls: call id, digest.
    pub digests: Mutex<Vec<(String, String)>>,
    /// Arguments of calls that were about to be made.
    pub intended: Mutex<Vec<String>>,
    /// States of suspended runs, the latest last.
    pub suspended: Mutex<Vec<Vec<u8>>>,
    /// Recordings of ended runs: run, recording.
    pub recordings: Mutex<Vec<(String, Vec<u8>)>>,
    /// Outputs of ended runs.
    pub outputs: Mutex<Vec<ScriptToolCallOutput>>,
    /// Whether another process has claimed the suspended runs.
    pub taken: std::sync::atomic::AtomicBool,
    /// Whether the disk is full, so that calls and suspended runs cannot be recorded.
    pub full: std::sync::atomic::AtomicBool,
    /// Whether another process wants every run stopped, and how often that was checked.
    pub stop: std::sync::atomic::AtomicBool,
    pub looks: std::sync::atomic::AtomicU32,
}

impl MemoryLedger {
    pub fn values_of(&self, run: &str) -> Vec<(String, Value)> {
        let values = self.values.lock().unwrap();
        values
            .iter()
            .filter(|(of, ..)| of == run)
            .map(|(_, id, value)| (id.clone(), value.clone()))
            .collect()
    }

    fn check_space(&self) -> Result<(), LedgerError> {
        match self.full.load(Ordering::SeqCst) {
            true => Err(LedgerError::DiskFull("disk full".into())),
            false => Ok(()),
        }
    }

    /// Returns a recorded run, if it ended with a recording.
    pub fn recorded_run(&self, source: &str, output: &ScriptToolCallOutput) -> Option<RecordedRun> {
        let recordings = self.recordings.lock().unwrap();
        let (_, recording) = recordings.iter().rfind(|(run, _)| *run == output.id)?;
        let values = self.values_of(&output.id).into_iter().collect();
        Some(RecordedRun::new(source.to_owned(), recording, values, output.clone()).unwrap())
    }
}

#[async_trait]
impl Ledger for MemoryLedger {
    fn digest_key(&self) -> [u8; 32] {
        [7; 32]
    }
    async fn record_run_start(&self, _: RunStart<'_>) -> Result<(), LedgerError> {
        Ok(())
    }
    async fn record_call_start(&self, intent: CallStart<'_>) -> Result<(), LedgerError> {
        self.check_space()?;
        self.intended.lock().unwrap().push(intent.args.to_string());
        Ok(())
    }
    async fn record_call_end(&self, settled: CallEnd<'_>) -> Result<(), LedgerError> {
        self.check_space()?;
        let record = settled.record;
        let digest = (record.id.clone(), record.args_digest.clone());
        self.digests.lock().unwrap().push(digest);
        if let Some(value) = settled.value {
            let line = (
                settled.run.to_owned(),
                settled.record.id.clone(),
                value.clone(),
            );
            self.values.lock().unwrap().push(line);
        }
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
    async fn save_suspension(&self, _: &str, state: Vec<u8>) -> Result<(), LedgerError> {
        self.check_space()?;
        self.suspended.lock().unwrap().push(state);
        Ok(())
    }
    async fn claim_run(&self, _: &str) -> Result<(), LedgerError> {
        if self.taken.load(Ordering::SeqCst) {
            Err(LedgerError::ClaimedByOther)
        } else {
            Ok(())
        }
    }
    async fn is_cancel_requested(&self, _: &str) -> bool {
        self.looks.fetch_add(1, Ordering::SeqCst);
        self.stop.load(Ordering::SeqCst)
    }
    async fn record_run_end(
        &self,
        output: &ScriptToolCallOutput,
        recording: Option<Vec<u8>>,
    ) -> Result<(), LedgerError> {
        self.outputs.lock().unwrap().push(output.clone());
        let recorded = recording.map(|recording| (output.id.clone(), recording));
        self.recordings.lock().unwrap().extend(recorded);
        Ok(())
    }
}
