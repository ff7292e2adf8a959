//! The host side of a script: answers its questions and keeps what it says.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use selvedge_protocol::{ErrorCode, Event, LogEntry, LogLevel, OutputPart};
use selvedge_sandbox::{Host, Position};
use selvedge_tools::{
    DecisionError, Found, Means, Orchestrator, Registry, ResumeDecision, SPAWN, Scope, Tasks,
    declarations,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::compile::Compiled;
use crate::meter::{LogMeter, ProgressMeter};
use crate::outcome::shortened;
use crate::session::SessionView;
use crate::tape::Head;
use crate::unicode::whole_unicode;

/// Bytes a script may show with `text()`, `image()` and `audio()`.
const MAX_OUTPUT_BYTES: usize = 16 << 20;
/// Times a script may speak to its host out of turn.
const MAX_NOTIFICATIONS: u32 = 50;
/// Warnings worth reading.
const MAX_WARNINGS: usize = 20;

/// What a script has said so far. Shared by the bridge, which the sandbox owns, and the run.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Said {
    pub(crate) logs: LogMeter,
    pub(crate) progress: ProgressMeter,
    pub(crate) output: Vec<OutputPart>,
    pub(crate) warnings: Vec<String>,
    pub(crate) session: SessionView,
    pub(crate) last_approval: Option<String>,
    /// Failed promises nobody has handled, in words.
    pub(crate) rejections: BTreeMap<u32, String>,
    output_bytes: usize,
    notified: u32,
}

impl Said {
    fn may_notify(&mut self) -> bool {
        self.notified += 1;
        self.notified <= MAX_NOTIFICATIONS
    }

    pub(crate) fn new(logs: LogMeter, progress: ProgressMeter, session: SessionView) -> Self {
        Self {
            logs,
            progress,
            output: Vec::new(),
            warnings: Vec::new(),
            session,
            last_approval: None,
            rejections: BTreeMap::new(),
            output_bytes: 0,
            notified: 0,
        }
    }

    pub(crate) fn warn(&mut self, warning: impl Into<String>) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(shortened(&warning.into(), 2048));
        }
    }

    /// Logs, and everything else the author should know.
    pub(crate) fn finish(&mut self) -> (Vec<LogEntry>, Vec<String>) {
        for words in std::mem::take(&mut self.rejections).into_values() {
            self.warn(format!("a promise failed and {words}"));
        }
        let (logs, dropped) = self.logs.finish();
        self.warnings.extend(dropped);
        (logs, std::mem::take(&mut self.warnings))
    }
}

/// A script's [`Host`].
pub(crate) struct Bridge {
    pub(crate) said: Arc<Mutex<Said>>,
    pub(crate) head: Arc<Mutex<Head>>,
    pub(crate) compiled: Arc<Compiled>,
    pub(crate) orchestrator: Orchestrator,
    pub(crate) scope: Scope,
    /// `context` as JSON, but for the names of the tools: there may be hundreds, and few scripts ask.
    pub(crate) context: Value,
    pub(crate) max_depth: u32,
    /// Work in the background, where there may be any.
    pub(crate) tasks: Option<(Tasks, Means)>,
}

impl Host for Bridge {
    fn now(&mut self) -> f64 {
        self.head().now() as f64
    }

    fn locate(&mut self, compiled: Position) -> Option<Position> {
        self.compiled.locate(compiled)
    }

    fn message(&mut self, channel: &str, text: &str) -> Option<String> {
        let text = whole_unicode(text);
        let text = text.as_ref();
        let reply = match channel {
            // Done whether it is played or not; whether there was room is known from then.
            "store" => Some(self.store(text)),
            channel if QUESTIONS.contains(&channel) => None,
            channel => return self.take(channel, text),
        };
        if let Some(played) = self.head().reply(channel, text) {
            return played;
        }
        let reply = reply.unwrap_or_else(|| self.answer(channel, text));
        self.head().write_reply(channel, text, &reply);
        reply
    }
}

/// Channels on which a script asks for what it cannot know.
const QUESTIONS: [&str; 12] = [
    "resolve", "exists", "names", "tools", "context", "depth", "budget", "approval", "help",
    "load", "spawn", "resume",
];

impl Bridge {
    fn answer(&self, channel: &str, text: &str) -> Option<String> {
        match channel {
            "resolve" => Some(self.resolve(text)),
            "exists" => (!matches!(self.orchestrator.registry().find(text), Found::Nothing(_)))
                .then(|| "yes".to_owned()),
            "names" => Some(json!(self.orchestrator.registry().names_below(text)).to_string()),
            "tools" => Some(self.catalogue()),
            "context" => {
                let tools: Vec<&String> = self
                    .orchestrator
                    .registry()
                    .iter()
                    .map(|tool| &tool.spec.js_name)
                    .collect();
                let mut context = self.context.clone();
                context["capabilities"] = json!({"tools": tools});
                Some(context.to_string())
            }
            "depth" => Some(self.max_depth.to_string()),
            "budget" => Some(self.scope.calls_left().to_string()),
            "approval" => self.said().last_approval.clone(),
            "help" => Some(self.help(text)),
            "spawn" => Some(self.spawn(text)),
            "resume" => self.decide(text),
            "load" => match self
                .said()
                .session
                .load(&serde_json::from_str::<String>(text).ok()?)
            {
                Ok(value) => value,
                Err(message) => Some(thrown(&json!({"name": "Error", "message": message}))),
            },
            _ => None,
        }
    }

    /// Something the script says.
    fn take(&self, channel: &str, text: &str) -> Option<String> {
        match channel {
            "log" => self.log(text),
            "progress" => self.progress(text),
            "text" => self.show(OutputPart::Text {
                text: text.to_owned(),
            }),
            "image" => self.media("image", text),
            "audio" => self.media("audio", text),
            "notify" => self.notify(text),
            "yield" => {
                if self.said().may_notify() {
                    self.scope.events.emit(Event::Yield {
                        script_id: self.scope.id.clone(),
                    });
                }
                None
            }
            "warning" => {
                self.said().warn(text);
                None
            }
            "rejected" => {
                let (id, facts) = text.split_once('\n')?;
                let facts: Value = serde_json::from_str(facts).unwrap_or_default();
                let part = |key: &str| facts[key].as_str().unwrap_or_default().to_owned();
                let place = crate::outcome::first_position(&part("stack"))
                    .map(|at| format!(" (line {})", at.line));
                let words = format!(
                    "nobody awaited it{}: {}: {}",
                    place.unwrap_or_default(),
                    part("name"),
                    part("message")
                );
                self.said()
                    .rejections
                    .insert(id.parse().ok()?, shortened(&words, 500));
                None
            }
            "handled" => {
                self.said().rejections.remove(&text.parse().ok()?);
                None
            }
            _ => None,
        }
    }

    fn head(&self) -> MutexGuard<'_, Head> {
        self.head.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn said(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn resolve(&self, path: &str) -> String {
        match self.orchestrator.registry().find(path) {
            Found::Tool(tool) if tool.spec.name == SPAWN && self.tasks.is_some() => {
                "task".to_owned()
            }
            Found::Tool(tool) if tool.raw().is_some() => "tool with raw".to_owned(),
            Found::Tool(_) => "tool".to_owned(),
            Found::Namespace => "namespace".to_owned(),
            Found::Nothing(_) if self.compiled.probed.iter().any(|name| name == path) => {
                "absent".to_owned()
            }
            Found::Nothing(_) => {
                let failure = self.orchestrator.not_found(path);
                thrown(&json!({
                    "name": failure.code, "code": failure.code, "message": failure.message, "toolName": path,
                    "retryable": failure.retryable, "suggestions": failure.suggestions,
                }))
            }
        }
    }

    /// Starts a task: a call that goes on when the script has ended.
    fn spawn(&self, text: &str) -> String {
        let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let Some((tasks, means)) = &self.tasks else {
            return thrown(&json!({"name": "Error", "message": "no task can be started here"}));
        };
        tasks.start_as_written(list, &self.scope, means.clone()).unwrap_or_else(|failure| {
            thrown(&json!({
                "name": failure.code, "code": failure.code, "message": failure.message, "toolName": SPAWN,
                "retryable": failure.retryable, "suggestions": failure.suggestions, "metadata": failure.metadata,
            }))
        })
    }

    /// `resume.repeat(callId)` and `resume.skip(callId, value)`.
    fn decide(&self, text: &str) -> Option<String> {
        let mut args: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let value = (args.len() > 1).then(|| args.swap_remove(1));
        let id = args.first().and_then(Value::as_str).unwrap_or_default();
        let decision = value.map_or(ResumeDecision::Repeat, ResumeDecision::Skip);
        let decided = match &self.scope.prior {
            Some(prior) => prior.decide(id, decision),
            None => Err(DecisionError::NotResumed(id.chars().take(80).collect())),
        };
        let error = decided.err()?;
        let message = error.to_string();
        Some(thrown(&json!({"name": "RangeError", "message": message})))
    }

    fn catalogue(&self) -> String {
        let tools = self.orchestrator.registry().iter();
        let list: Vec<Value> = tools
            .map(|tool| json!({"name": tool.spec.js_name, "description": tool.spec.description}))
            .collect();
        Value::Array(list).to_string()
    }

    fn help(&self, name: &str) -> String {
        let registry = self.orchestrator.registry();
        if name.is_empty() {
            return overview(registry);
        }
        let name = name.strip_prefix("tools.").unwrap_or(name);
        match registry.find(name) {
            Found::Tool(tool) => {
                let canonical = tool.spec.name.clone();
                declarations(&registry.filtered(|spec| spec.name == canonical))
            }
            Found::Namespace => declarations(
                &registry.filtered(|spec| spec.js_name.starts_with(&format!("{name}."))),
            ),
            // A slip of the pen is named; words that are no name are looked for.
            Found::Nothing(near) if !near.is_empty() => self.orchestrator.not_found(name).message,
            Found::Nothing(_) => {
                let found = registry.search(name, 5);
                match found.is_empty() {
                    true => self.orchestrator.not_found(name).message,
                    false => {
                        let names: Vec<String> =
                            found.iter().map(|tool| tool.spec.name.clone()).collect();
                        declarations(&registry.filtered(|spec| names.contains(&spec.name)))
                    }
                }
            }
        }
    }

    fn log(&self, text: &str) -> Option<String> {
        let (level, message) = text.split_once('\n').unwrap_or(("log", text));
        let level = match level {
            "warn" => LogLevel::Warn,
            "error" => LogLevel::Error,
            _ => LogLevel::Log,
        };
        let now = self.head().now();
        if self.said().logs.log(level, message, now) {
            self.scope.events.emit(Event::Log {
                script_id: self.scope.id.clone(),
                level,
                message: message.to_owned(),
            });
        }
        None
    }

    fn progress(&self, text: &str) -> Option<String> {
        let (kind, message) = text.split_once('\n').unwrap_or(("info", text));
        if self.said().progress.admit() {
            let level = if kind == "warn" {
                LogLevel::Warn
            } else {
                LogLevel::Log
            };
            let message = message.chars().take(500).collect();
            self.scope.events.emit(Event::Progress {
                script_id: self.scope.id.clone(),
                level,
                message,
            });
        }
        None
    }

    fn notify(&self, text: &str) -> Option<String> {
        if text.is_empty() {
            return Some(thrown(
                &json!({"name": "TypeError", "message": "notify needs something to say"}),
            ));
        }
        if !self.said().may_notify() {
            let message = format!("a script may notify {MAX_NOTIFICATIONS} times");
            return Some(thrown(&json!({"name": "RangeError", "message": message})));
        }
        let message = shortened(text, 4096);
        self.scope.events.emit(Event::Notify {
            script_id: self.scope.id.clone(),
            message,
        });
        None
    }

    fn store(&self, text: &str) -> Option<String> {
        let (key, json) = text.split_once('\n')?;
        let key: String = serde_json::from_str(key).ok()?;
        let stored = self.said().session.store(&key, json);
        stored
            .err()
            .map(|message| thrown(&json!({"name": "RangeError", "message": message})))
    }

    fn show(&self, part: OutputPart) -> Option<String> {
        let bytes = match &part {
            OutputPart::Text { text } => text.len(),
            OutputPart::Image { data, .. } | OutputPart::Audio { data, .. } => data.len(),
        };
        let mut said = self.said();
        if said.output_bytes + bytes > MAX_OUTPUT_BYTES || said.output.len() >= 10_000 {
            let message = format!("a script may show {} MB in all", MAX_OUTPUT_BYTES >> 20);
            return Some(thrown(&json!({"name": "RangeError", "message": message})));
        }
        said.output_bytes += bytes;
        said.output.push(part);
        None
    }

    /// `image(x)` and `audio(x)` take a `data:` URL or a content block as MCP tools return them.
    fn media(&self, kind: &str, text: &str) -> Option<String> {
        let refuse =
            |message: String| Some(thrown(&json!({"name": "TypeError", "message": message})));
        let args: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let given = args.into_iter().next().unwrap_or(Value::Null);
        let (data, mime) = match &given {
            Value::String(url) => match url
                .strip_prefix("data:")
                .and_then(|rest| rest.split_once(";base64,"))
            {
                Some((mime, data)) => (data.to_owned(), mime.to_owned()),
                None => {
                    return refuse(format!(
                        "{kind}() takes a base64 data: URL or a content block, not a link"
                    ));
                }
            },
            Value::Object(block) => {
                let field = |name: &str| block.get(name).and_then(Value::as_str).map(str::to_owned);
                match (
                    field("data"),
                    field("mimeType").or_else(|| field("mime_type")),
                ) {
                    (Some(data), Some(mime)) => (data, mime),
                    _ => {
                        return refuse(format!(
                            "{kind}() takes a content block with `data` and `mimeType`"
                        ));
                    }
                }
            }
            _ => {
                return refuse(format!(
                    "{kind}() takes a base64 data: URL or a content block"
                ));
            }
        };
        if !mime.starts_with(&format!("{kind}/")) {
            return refuse(format!("{kind}() was given {mime}"));
        }
        self.show(match kind {
            "image" => OutputPart::Image {
                data,
                mime_type: mime,
            },
            _ => OutputPart::Audio {
                data,
                mime_type: mime,
            },
        })
    }
}

/// Tools that `help()` names one by one; of more, only how many each server has.
const MAX_LISTED: usize = 100;

/// What `help()` says: how a script is written, and which tools there are.
pub fn overview(registry: &Registry) -> String {
    let mut text = String::from(HELP);
    let mut servers: BTreeMap<&str, usize> = BTreeMap::new();
    for tool in registry.iter() {
        let name = &tool.spec.js_name;
        if let Some(server) = name
            .strip_prefix("mcp.")
            .and_then(|rest| rest.split('.').next())
            && registry.len() > MAX_LISTED
        {
            *servers.entry(server).or_default() += 1;
            continue;
        }
        let first = tool.spec.description.lines().next().unwrap_or_default();
        text.push_str(&format!("  tools.{name}  {first}\n"));
    }
    for (server, tools) in servers {
        text.push_str(&format!(
            "  tools.mcp.{server}  {tools} tools: help(\"mcp.{server}\"), or tools.search(\"what it should do\")\n"
        ));
    }
    if registry.is_empty() {
        text.push_str("  (no tools are registered)\n");
    }
    text
}

/// An error reply: the sandbox throws it where the script asked.
fn thrown(facts: &Value) -> String {
    format!("!{facts}")
}

/// An error as a script sees it.
pub(crate) fn error_facts(
    code: ErrorCode,
    failure: &selvedge_tools::CallFailure,
    tool: &str,
    call_id: &str,
    at: Option<Position>,
) -> String {
    let mut facts = json!({
        "name": code, "code": code, "message": failure.message, "toolName": tool, "callId": call_id,
        "retryable": failure.retryable, "suggestions": failure.suggestions, "metadata": failure.metadata,
    });
    if let Some(at) = at {
        facts["at"] = Value::String(format!("{}:{}", at.line, at.column));
    }
    facts.to_string()
}

const HELP: &str = "\
A script is TypeScript with top-level await; `return value` gives a value back.
  await tools.name({...})                 call a tool; help(\"name\") shows its types
  await Promise.all([...])                several at once; four run at a time
  text(v), image(v)                       show something besides the returned value
  console.log(v)                          leave a note
  store(key, v), load(key)                keep a value for later scripts of the session
  await recall(id, {offset, limit})       what an earlier run or call returned
  context                                 ids, working directory, limits
  exit()                                  stop here, successfully
Results are frozen: copy before changing ({...x}, [...list], toSorted()).
Tools:
";
