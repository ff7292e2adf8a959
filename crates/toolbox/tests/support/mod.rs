//! A temporary workspace, and helpers that make each call in two ways: as a structured call and
//! from a script.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    ApprovalPolicy, ApprovalRequest, ApprovalResponse, CallDecision, CallRecord, ErrorCode,
    EventSink, Limits, SandboxPolicy,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_toolbox::{CommandSettings, ShellFlavour, Toolbox, ToolsConfig, Workspace};
use selvedge_tools::{
    Approver, Orchestrator, Registry, Scope, ScopeLimits, StructuredCall, ToolRouter,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

/// Placeholder in arguments for the terminal that the previous call opened.
const LAST: &str = "\"sessionId\":\"last\"";

/// Returns a router for a model that is offered the tools in these flavours.
pub fn router(orchestrator: Orchestrator, config: &ToolsConfig) -> ToolRouter {
    let offered = config.offer(orchestrator.registry());
    ToolRouter::new(orchestrator, offered)
}

/// How a call is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    Structured,
    Script,
}

pub const BOTH: [Way; 2] = [Way::Structured, Way::Script];

/// A temporary folder with a workspace in `work`, a folder `outside` it, and a `private` folder.
pub struct TestToolbox {
    dir: TempDir,
    /// The workspace folder, relative to the temporary folder.
    pub workspace: &'static str,
    /// Further writable folders.
    pub writable_too: Vec<PathBuf>,
    pub sandbox: SandboxPolicy,
    pub policy: ApprovalPolicy,
    pub person: Arc<Person>,
    pub settings: Mutex<Option<CommandSettings>>,
    pub limits: Limits,
    pub events: EventSink,
    pub cancel: CancellationToken,
    /// Changes the tools before they are registered.
    pub outfit: Box<dyn Fn(&mut Toolbox) + Send + Sync>,
}

/// The result of a call, with its ledger records and the approvals that were requested.
#[derive(Debug)]
pub struct CallResult {
    pub value: Option<Value>,
    pub error: Option<(ErrorCode, String)>,
    pub ledger: Vec<CallRecord>,
    pub asked: Vec<ApprovalRequest>,
}

/// An approver that gives the same answer to every call and records the requests.
pub struct Person {
    /// `None` never answers.
    pub answer: Option<CallDecision>,
    pub asked: Mutex<Vec<ApprovalRequest>>,
}

impl Person {
    pub fn who_says(answer: CallDecision) -> Arc<Self> {
        Arc::new(Self {
            answer: Some(answer),
            asked: Mutex::default(),
        })
    }

    /// An approver that never answers.
    pub fn silent() -> Arc<Self> {
        Arc::new(Self {
            answer: None,
            asked: Mutex::default(),
        })
    }
}

impl Approver for Person {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.asked.lock().unwrap().push(request.clone());
        match &self.answer {
            Some(answer) => {
                let answers = vec![answer.clone(); request.calls.len()];
                std::future::ready(ApprovalResponse::Decided(answers)).boxed()
            }
            None => std::future::pending().boxed(),
        }
    }
}

impl TestToolbox {
    pub fn new() -> Self {
        // Not below /tmp, which is writable for every workspace.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let fixture = Self {
            dir,
            workspace: "work",
            writable_too: Vec::new(),
            sandbox: SandboxPolicy::WorkspaceWrite,
            policy: ApprovalPolicy::OnRequest,
            person: Person::who_says(CallDecision::Deny(Some("not today".into()))),
            settings: Mutex::default(),
            limits: Limits::default(),
            events: EventSink::silent(),
            cancel: CancellationToken::new(),
            outfit: Box::new(|_| {}),
        };
        for folder in ["work/.git/hooks", "outside", "private"] {
            std::fs::create_dir_all(fixture.path(folder)).unwrap();
        }
        fixture.write("outside/file.txt", "outside\n");
        // Each workspace has its own secret, because others are created in the same folder.
        fixture.write(
            "private/journal",
            format!("hunter2 of {}\n", fixture.path("").display()),
        );
        fixture
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) {
        std::fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        std::fs::write(self.path(name), text).unwrap();
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    pub fn toolbox(&self) -> Toolbox {
        let (root, private) = (self.path(self.workspace), [self.path("private")]);
        let workspace =
            Workspace::open_with_writable(&root, self.sandbox, &private, &self.writable_too)
                .unwrap();
        let settings = self.settings.lock().unwrap().take().unwrap_or_default();
        let mut toolbox = Toolbox::with_command_settings(workspace, settings);
        (self.outfit)(&mut toolbox);
        toolbox
    }

    pub fn orchestrator(&self, toolbox: &Toolbox) -> Orchestrator {
        let mut registry = Registry::new();
        toolbox.register(&mut registry).unwrap();
        Orchestrator::new(registry)
            .with_policy(self.policy)
            .with_approver(self.person.clone())
    }

    /// Makes one call.
    pub fn call(&self, way: Way, tool: &str, args: &Value) -> CallResult {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(self.make(way, tool, args))
    }

    async fn make(&self, way: Way, tool: &str, args: &Value) -> CallResult {
        let orchestrator = self.orchestrator(&self.toolbox());
        let (value, error, ledger) = match way {
            Way::Structured => {
                // The terminal tools are offered only in this flavour.
                let terminal =
                    ["exec_command", "execCommand", "write_stdin", "writeStdin"].contains(&tool);
                let shell = if terminal {
                    ShellFlavour::Terminal
                } else {
                    ShellFlavour::Argv
                };
                let router = router(
                    orchestrator,
                    &ToolsConfig {
                        shell,
                        ..ToolsConfig::default()
                    },
                );
                let limits = ScopeLimits::from(&self.limits);
                let scope = Scope::new("turn".into(), limits, &self.cancel, self.events.clone());
                let call = StructuredCall {
                    call_id: "tool_1".into(),
                    name: tool.to_owned(),
                    arguments: args.to_string(),
                };
                let mut outputs = router.route(&scope, vec![call]).await;
                scope.end();
                let output = outputs.pop().unwrap();
                let error = output.records.last().unwrap().error.clone();
                (
                    output.value,
                    error.map(|error| (error.code, error.message)),
                    output.records,
                )
            }
            Way::Script => {
                let harness = Harness::new(orchestrator)
                    .unwrap()
                    .with_limits(self.limits.clone());
                let source = format!("return await tools.{tool}({args})");
                let options = RunOptions {
                    cancel: self.cancel.clone(),
                    events: self.events.clone(),
                    ..RunOptions::default()
                };
                let output = harness.run_with(source.as_bytes(), options).await;
                let error = output
                    .error
                    .as_ref()
                    .map(|error| (error.code, error.message.clone()));
                (
                    output.value().filter(|_| output.error.is_none()),
                    error,
                    output.calls,
                )
            }
        };
        let asked = std::mem::take(&mut *self.person.asked.lock().unwrap());
        CallResult {
            value,
            error,
            ledger: ledger.into_iter().map(comparable).collect(),
            asked,
        }
    }

    /// Makes calls one after the other in one turn or in one script, and returns their ledger
    /// records. The `sessionId` "last" is the terminal that the previous call left open.
    pub fn in_turn(&self, way: Way, calls: &[(&str, Value)]) -> Vec<CallRecord> {
        let each = calls.iter().map(|(tool, args)| {
            let args = args
                .to_string()
                .replace(LAST, "\"sessionId\":last.sessionId");
            format!("try {{ last = await tools.{tool}({args}) }} catch {{}}\n")
        });
        self.many(
            way,
            calls,
            &format!("let last;\n{}", each.collect::<String>()),
            1,
        )
    }

    /// Makes calls concurrently, and returns their ledger records.
    pub fn at_once(&self, way: Way, calls: &[(&str, Value)]) -> Vec<CallRecord> {
        let each: Vec<String> = calls
            .iter()
            .map(|(tool, args)| format!("tools.{tool}({args})"))
            .collect();
        self.many(
            way,
            calls,
            &format!("await Promise.allSettled([{}])", each.join(",\n")),
            calls.len(),
        )
    }

    /// Makes calls as a script or as batches of structured calls.
    fn many(
        &self,
        way: Way,
        calls: &[(&str, Value)],
        script: &str,
        batch: usize,
    ) -> Vec<CallRecord> {
        if way == Way::Script {
            return self
                .script(script)
                .calls
                .into_iter()
                .map(comparable)
                .collect();
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let terminal = calls
            .iter()
            .any(|(tool, _)| tool.starts_with("exec_command"));
        let shell = if terminal {
            ShellFlavour::Terminal
        } else {
            ShellFlavour::Argv
        };
        let orchestrator = self.orchestrator(&self.toolbox());
        let router = router(
            orchestrator,
            &ToolsConfig {
                shell,
                ..ToolsConfig::default()
            },
        );
        let scope = Scope::new(
            "turn".into(),
            ScopeLimits::from(&self.limits),
            &self.cancel,
            self.events.clone(),
        );
        let numbered: Vec<_> = calls.iter().enumerate().collect();
        let mut ledger = Vec::new();
        let mut terminal = Value::Null;
        for batch in numbered.chunks(batch) {
            let calls = batch.iter().map(|(n, (tool, args))| StructuredCall {
                call_id: format!("tool_{}", n + 1),
                name: (*tool).to_owned(),
                arguments: args
                    .to_string()
                    .replace(LAST, &format!("\"sessionId\":{terminal}")),
            });
            let outputs = runtime.block_on(router.route(&scope, calls.collect()));
            terminal = outputs
                .first()
                .and_then(|output| output.value.as_ref()?.get("sessionId").cloned())
                .unwrap_or_default();
            ledger.extend(
                outputs
                    .into_iter()
                    .flat_map(|output| output.records)
                    .map(comparable),
            );
        }
        runtime.block_on(async { scope.end() });
        ledger
    }

    /// Returns the number of approval requests.
    pub fn questions(&self) -> usize {
        self.person.asked.lock().unwrap().len()
    }

    /// Runs a whole script.
    pub fn script(&self, source: &str) -> selvedge_protocol::ScriptToolCallOutput {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let harness = Harness::new(self.orchestrator(&self.toolbox()))
            .unwrap()
            .with_limits(self.limits.clone());
        let options = RunOptions {
            cancel: self.cancel.clone(),
            events: self.events.clone(),
            ..RunOptions::default()
        };
        runtime.block_on(harness.run_with(source.as_bytes(), options))
    }
}

/// Returns a ledger record without the fields that differ between runs.
fn comparable(mut record: CallRecord) -> CallRecord {
    record.duration_ms = 0.0;
    if record.tool == "write_stdin" {
        // The ids of terminals are random.
        record.args_digest.clear();
    }
    record.line = None;
    record
}

/// Makes the same call in both ways, each in a new workspace, and checks that the ledger records
/// are the same.
pub fn both_ways(
    fixture: impl Fn() -> TestToolbox,
    tool: &str,
    args: impl Fn(&TestToolbox) -> Value,
    check: impl Fn(&TestToolbox, &CallResult),
) {
    let mut ledgers = Vec::new();
    for way in BOTH {
        let fixture = fixture();
        let args = args(&fixture);
        let ran = fixture.call(way, tool, &args);
        check(&fixture, &ran);
        // Digests of arguments and errors differ if they contain the path of the workspace.
        let same = |mut record: CallRecord| {
            let path = fixture.path("").display().to_string();
            // Structured calls have other defaults, which are part of their arguments.
            let has_defaults = ["read_file", "list_dir", "grep_files", "file_search"];
            if args.to_string().contains(&path) || has_defaults.contains(&record.tool.as_str()) {
                record.args_digest.clear();
            }
            if let Some(error) = &mut record.error {
                error.message = error.message.replace(&path, "");
            }
            record
        };
        ledgers.push(ran.ledger.into_iter().map(same).collect::<Vec<_>>());
    }
    assert_eq!(ledgers[0], ledgers[1], "the ledgers of {tool} differ");
}

/// Makes the same calls in both ways, each in a new workspace, and checks that the ledger records
/// are the same.
pub fn both_ways_many(
    fixture: impl Fn() -> TestToolbox,
    make: impl Fn(&TestToolbox, Way) -> Vec<CallRecord>,
    check: impl Fn(&TestToolbox, &[CallRecord]),
) {
    let mut ledgers = Vec::new();
    for way in BOTH {
        let fixture = fixture();
        let ledger = make(&fixture, way);
        check(&fixture, &ledger);
        ledgers.push(ledger);
    }
    assert_eq!(ledgers[0], ledgers[1], "the ledgers differ");
}
