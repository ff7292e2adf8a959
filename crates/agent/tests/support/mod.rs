//! The test environment: a project in a temporary folder, a journal, real tools, and a model server
//! on loopback.
#![allow(dead_code)]

pub mod answer_encoding;
pub mod server;

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Agent, AgentModel, AgentOptions, Session, SubAgents, TurnOptions};
use selvedge_journal::Journal;
use selvedge_models::{Model, ModelClient, Prices, Provider};
use selvedge_protocol::{
    ApprovalPolicy, ApprovalRequest, ApprovalResponse, CallDecision, ConversationItem, EventSink,
    RuntimeEvent, SandboxPolicy, TurnItem, WireApi,
};
use selvedge_sandbox::Runtime;
use selvedge_script::Harness;
use selvedge_toolbox::{Toolbox, ToolsConfig, Workspace};
use selvedge_tools::{Approver, Orchestrator, Registry, tool};
use tempfile::TempDir;
use tokio::sync::Notify;

use server::Server;

pub const APIS: [WireApi; 3] = [WireApi::Responses, WireApi::Chat, WireApi::Messages];

pub struct TestAgent {
    pub dir: TempDir,
    pub journal: Arc<Journal>,
    pub api: WireApi,
    pub model: Model,
    pub settings: AgentOptions,
    pub policy: ApprovalPolicy,
    pub approver: Option<Arc<dyn Approver>>,
    pub events: Arc<Mutex<Vec<RuntimeEvent>>>,
    /// Notified whenever an event is emitted.
    pub event_added: Arc<Notify>,
    pub runtime: Option<Arc<dyn Runtime>>,
}

impl TestAgent {
    pub fn new(api: WireApi) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::create_dir(dir.path().join("work")).unwrap();
        std::fs::write(dir.path().join("work/a.txt"), "one\ntwo\nthree\n").unwrap();
        std::fs::write(dir.path().join("work/b.txt"), "four\n").unwrap();
        let journal = Journal::open(&dir.path().join("home")).unwrap();
        Self {
            journal,
            api,
            model: Model {
                freeform_tools: false,
                ..Model::from_table("claude-sonnet-5")
            },
            settings: AgentOptions::default(),
            policy: ApprovalPolicy::OnRequest,
            approver: None,
            events: Arc::default(),
            event_added: Arc::default(),
            runtime: None,
            dir,
        }
    }

    pub fn work(&self) -> PathBuf {
        self.dir.path().join("work")
    }

    pub fn client(&self, server: &Server) -> ModelClient {
        let mut provider = Provider::new("mock", &server.url, self.api);
        provider.retries.request_max_retries = 0;
        provider.retries.stream_max_retries = 0;
        ModelClient::new(provider).unwrap()
    }

    pub fn registry(&self, agents: &SubAgents) -> Registry {
        let mut registry = Registry::new();
        let work =
            Workspace::open_with_writable(&self.work(), SandboxPolicy::WorkspaceWrite, &[], &[])
                .unwrap();
        let mut toolbox = Toolbox::new(work);
        toolbox.cabinet = self.journal.clone();
        toolbox.register(&mut registry).unwrap();
        agents.register(&mut registry).unwrap();
        #[derive(serde::Deserialize, schemars::JsonSchema)]
        struct HangArgs {}
        // Ends only when it is cancelled.
        registry
            .register(tool("hang", "Never ends.", |_: HangArgs| async {
                std::future::pending::<Result<i32, _>>().await
            }))
            .unwrap();
        registry
    }

    pub fn agent(&self, server: &Server) -> Agent {
        let agents = SubAgents::default();
        agents.store_results_in(self.journal.clone());
        let mut orchestrator = Orchestrator::new(self.registry(&agents))
            .with_policy(self.policy)
            .with_ledger(self.journal.clone());
        if let Some(approver) = &self.approver {
            orchestrator = orchestrator.with_approver(approver.clone());
        }
        let harness = match &self.runtime {
            Some(runtime) => Harness::with_runtime(runtime.clone(), orchestrator),
            None => Harness::new(orchestrator).unwrap(),
        };
        let settings = AgentOptions {
            directory: self.work().display().to_string(),
            ..self.settings.clone()
        };
        let priced = Some(Prices {
            input: 1.0,
            output: 1.0,
            ..Prices::default()
        });
        Agent::new(self.client(server), self.model.clone(), harness, settings)
            .with_offer(|registry, model, _| {
                let config = ToolsConfig {
                    view_image: model.images,
                    ..ToolsConfig::default()
                };
                config.offer(registry)
            })
            .with_model_lookup(move |own, name| {
                let model = Model {
                    prices: priced.filter(|_| name == "priced"),
                    ..Model::from_table(name)
                };
                Ok(AgentModel::new(own.clone(), model))
            })
            .with_sub_agents(&agents, Some(self.journal.clone()))
    }

    pub async fn session(&self) -> Session {
        Session::begin(&self.journal, &self.work().display().to_string())
            .await
            .unwrap()
    }

    pub fn options(&self) -> TurnOptions {
        let (events, event_added) = (self.events.clone(), self.event_added.clone());
        let sink = EventSink::new(move |event| {
            events.lock().unwrap().push(event);
            event_added.notify_one();
        });
        TurnOptions {
            events: sink,
            ..TurnOptions::default()
        }
    }

    pub fn events(&self) -> Vec<RuntimeEvent> {
        self.events.lock().unwrap().clone()
    }

    /// Returns the items of all `item.completed` events, in order.
    pub fn completed_items(&self) -> Vec<TurnItem> {
        let item = |event| match event {
            RuntimeEvent::ItemCompleted { item, .. } => Some(item),
            _ => None,
        };
        self.events().into_iter().filter_map(item).collect()
    }

    /// Waits until a matching event was emitted.
    pub async fn until(&self, matches: impl Fn(&RuntimeEvent) -> bool) {
        loop {
            if self.events().iter().any(&matches) {
                return;
            }
            self.event_added.notified().await;
        }
    }
}

/// Returns a short text for an item, without ids and times.
pub fn brief(item: &TurnItem) -> String {
    match item {
        TurnItem::ScriptToolCall(call) => format!("script: {}", call.source_code),
        TurnItem::ScriptToolCallOutput(output) => match &output.error {
            Some(error) => format!("script failed: {}: {}", error.code, error.message),
            None => format!(
                "script returned: {}",
                output.output_json.as_deref().unwrap_or("nothing")
            ),
        },
        TurnItem::Conversation(ConversationItem::Message(message)) => {
            format!("{:?}: {}", message.role, message.text())
        }
        TurnItem::Conversation(ConversationItem::Reasoning(reasoning)) => {
            format!(
                "thought: {}",
                reasoning
                    .summary
                    .iter()
                    .chain(&reasoning.content)
                    .cloned()
                    .collect::<String>()
            )
        }
        TurnItem::Conversation(ConversationItem::FunctionCall(call)) => {
            format!("call {}: {} {}", call.call_id, call.name, call.arguments)
        }
        TurnItem::Conversation(ConversationItem::FunctionCallOutput(output)) => {
            format!("result {}: {}", output.call_id, output.text())
        }
        TurnItem::Conversation(ConversationItem::Native(_)) => "native".to_owned(),
    }
}

pub fn history(session: &Session) -> Vec<String> {
    session
        .history()
        .iter()
        .map(|(_, item)| brief(item))
        .collect()
}

/// An approver that gives every request the same answer and records the requests.
pub struct AgentPerson {
    pub answer: CallDecision,
    pub asked: Mutex<Vec<ApprovalRequest>>,
}

impl AgentPerson {
    pub fn who_says(answer: CallDecision) -> Arc<Self> {
        Arc::new(Self {
            answer,
            asked: Mutex::default(),
        })
    }
}

impl Approver for AgentPerson {
    fn ask<'a>(&'a self, request: &'a ApprovalRequest) -> BoxFuture<'a, ApprovalResponse> {
        self.asked.lock().unwrap().push(request.clone());
        std::future::ready(ApprovalResponse::Decided(vec![
            self.answer.clone();
            request.calls.len()
        ]))
        .boxed()
    }
}

/// Returns all strings of a request, for any API.
pub fn text_of(body: &serde_json::Value) -> String {
    fn walk(value: &serde_json::Value, out: &mut String) {
        match value {
            serde_json::Value::String(text) => {
                out.push_str(text);
                out.push('\n');
            }
            serde_json::Value::Array(items) => items.iter().for_each(|item| walk(item, out)),
            serde_json::Value::Object(fields) => fields.values().for_each(|value| walk(value, out)),
            _ => {}
        }
    }
    let mut out = String::new();
    walk(body, &mut out);
    out
}
