//! A workspace with a neighbourhood, and calls made both ways: structured, and from a script.
#![allow(dead_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    Answer, ApprovalDecision, ApprovalPolicy, ApprovalRequest, CallRecord, ErrorCode, EventSink,
    Limits, SandboxPolicy,
};
use selvedge_script::{Harness, RunOptions};
use selvedge_toolbox::{CommandSettings, ShellFlavour, Toolbox, ToolsConfig, Workspace};
use selvedge_tools::{
    Approver, Orchestrator, Registry, Scope, ScopeLimits, StructuredCall, ToolRouter,
};
use serde_json::Value;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

const LAST: &str = "\"sessionId\":\"last\"";

/// A router for a model that is offered the tools in these flavours.
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

/// A workspace in `work`, a folder `outside` it, one that is `private`.
pub struct Desk {
    dir: TempDir,
    /// The workspace's own name.
    pub workspace: &'static str,
    /// More folders that may be written.
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

/// What became of a call.
#[derive(Debug)]
pub struct Ran {
    pub value: Option<Value>,
    pub error: Option<(ErrorCode, String)>,
    pub ledger: Vec<CallRecord>,
    pub asked: Vec<ApprovalRequest>,
}

/// Answers every call of a question in the same way, and remembers what was asked.
pub struct Person {
    pub answer: Option<Answer>,
    pub asked: Mutex<Vec<ApprovalRequest>>,
}

impl Person {
    pub fn who_says(answer: Answer) -> Arc<Self> {
        Arc::new(Self {
            answer: Some(answer),
            asked: Mutex::default(),
        })
    }

    /// Somebody who never answers.
    pub fn silent() -> Arc<Self> {
        Arc::new(Self {
            answer: None,
            asked: Mutex::default(),
        })
    }
}

impl Approver for Person {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalDecision> {
        self.asked.lock().unwrap().push(request.clone());
        match &self.answer {
            Some(answer) => {
                let answers = vec![answer.clone(); request.calls.len()];
                std::future::ready(ApprovalDecision::Answered(answers)).boxed()
            }
            None => std::future::pending().boxed(),
        }
    }
}

impl Desk {
    pub fn new() -> Self {
        // Not below /tmp, which may be written whatever the workspace is.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let desk = Self {
            dir,
            workspace: "work",
            writable_too: Vec::new(),
            sandbox: SandboxPolicy::WorkspaceWrite,
            policy: ApprovalPolicy::OnRequest,
            person: Person::who_says(Answer::No(Some("not today".into()))),
            settings: Mutex::default(),
            limits: Limits::default(),
            events: EventSink::silent(),
            cancel: CancellationToken::new(),
            outfit: Box::new(|_| {}),
        };
        for folder in ["work/.git/hooks", "outside", "private"] {
            std::fs::create_dir_all(desk.path(folder)).unwrap();
        }
        desk.write("outside/file.txt", "outside\n");
        // Its own secret: other desks stand beside it.
        desk.write(
            "private/journal",
            format!("hunter2 of {}\n", desk.path("").display()),
        );
        desk
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
            Workspace::open_with(&root, self.sandbox, &private, &self.writable_too).unwrap();
        let settings = self.settings.lock().unwrap().take().unwrap_or_default();
        let mut toolbox = Toolbox::with_commands(workspace, settings);
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
    pub fn call(&self, way: Way, tool: &str, args: &Value) -> Ran {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(self.make(way, tool, args))
    }

    async fn make(&self, way: Way, tool: &str, args: &Value) -> Ran {
        let orchestrator = self.orchestrator(&self.toolbox());
        let (value, error, ledger) = match way {
            Way::Structured => {
                // A model that uses terminals is offered those.
                let terminal =
                    ["exec_command", "execCommand", "write_stdin", "writeStdin"].contains(&tool);
                let shell = if terminal {
                    ShellFlavour::Terminal
                } else {
                    ShellFlavour::Words
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
        Ran {
            value,
            error,
            ledger: ledger.into_iter().map(comparable).collect(),
            asked,
        }
    }

    /// Makes calls one after the other in one turn, or in one script, and returns their lines of the ledger. The
    /// `sessionId` "last" is the terminal that the call before left open.
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

    /// Makes calls at once.
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

    /// The same calls as a script, or as batches of structured calls.
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
            ShellFlavour::Words
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

    /// How often a person was asked.
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

/// A line of the ledger without what differs from run to run.
fn comparable(mut record: CallRecord) -> CallRecord {
    record.duration_ms = 0.0;
    if record.tool == "write_stdin" {
        // Terminals have other numbers each time.
        record.args_digest.clear();
    }
    record.line = None;
    record
}

/// Makes the same call both ways, each on a desk of its own, and sees to it that the ledgers are the same.
pub fn both_ways(
    desk: impl Fn() -> Desk,
    tool: &str,
    args: impl Fn(&Desk) -> Value,
    check: impl Fn(&Desk, &Ran),
) {
    let mut ledgers = Vec::new();
    for way in BOTH {
        let desk = desk();
        let args = args(&desk);
        let ran = desk.call(way, tool, &args);
        check(&desk, &ran);
        // Arguments that name the desk's own folder differ, and so do their digests, and errors that name it.
        let same = |mut record: CallRecord| {
            let path = desk.path("").display().to_string();
            if args.to_string().contains(&path) {
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

/// Makes the same calls both ways, each on a desk of its own, and sees to it that the ledgers are the same.
pub fn both_ways_many(
    desk: impl Fn() -> Desk,
    make: impl Fn(&Desk, Way) -> Vec<CallRecord>,
    check: impl Fn(&Desk, &[CallRecord]),
) {
    let mut ledgers = Vec::new();
    for way in BOTH {
        let desk = desk();
        let ledger = make(&desk, way);
        check(&desk, &ledger);
        ledgers.push(ledger);
    }
    assert_eq!(ledgers[0], ledgers[1], "the ledgers differ");
}
