//! The host side of a script: answers its messages and collects its output.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_protocol::{
    LimitKind, LimitSurface, Limits, LogLevel, OutputPart, ResultView, RuntimeEvent, SPAWN_TOOL,
};
use selvedge_sandbox::{Host, Position};
use selvedge_tools::{
    CallFailure, DecisionError, Orchestrator, ResumeDecision, Scope, TaskContext, TaskSet,
    ToolLookup, declarations,
};
use serde_json::{Value, json};

use crate::compile::CompiledScript;
use crate::errors::truncate_bytes;
use crate::globals::path_below_tools;
use crate::help::help_overview;
use crate::output_buffer::{MAX_NOTIFICATIONS, OutputBuffer, OutputFull};
use crate::recording::Recorder;
use crate::unicode::replace_lone_surrogates;

/// Longest text that `help()` looks up, in bytes.
const MAX_HELP_BYTES: usize = 1000;

/// A script's [`Host`].
pub(crate) struct ScriptHost {
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    pub(crate) recorder: Arc<Mutex<Recorder>>,
    pub(crate) compiled: Arc<CompiledScript>,
    pub(crate) orchestrator: Orchestrator,
    pub(crate) scope: Scope,
    /// `context` as JSON, without the names of the tools: there may be hundreds, and few scripts
    /// read them.
    pub(crate) script_context_json: Value,
    /// Limits of this run.
    pub(crate) limits: Limits,
    pub(crate) surface: LimitSurface,
    /// Tasks, if scripts may start them.
    pub(crate) tasks: Option<(TaskSet, TaskContext)>,
}

impl Host for ScriptHost {
    fn now(&mut self) -> f64 {
        self.lock_recorder().now() as f64
    }

    fn locate(&mut self, compiled: Position) -> Option<Position> {
        self.compiled.original_position(compiled)
    }

    fn message<'a>(&'a mut self, channel: &'a str, text: &'a str) -> BoxFuture<'a, Option<String>> {
        async move {
            let text = replace_lone_surrogates(text);
            let text = text.as_ref();
            let stored = match channel {
                // Stored on replay too. The reply is the recorded one: it says whether the value
                // fitted.
                "store" => Some(self.store(text).await),
                channel if REPLY_CHANNELS.contains(&channel) => None,
                channel => return self.handle_notice(channel, text),
            };
            let recorded = self.lock_recorder().recorded_reply(channel, text);
            if let Some(recorded) = recorded {
                return recorded;
            }
            let reply = match (stored, channel) {
                (Some(stored), _) => stored,
                (None, "load") => self.load(text).await,
                (None, "spawn") => Some(self.start_task(text).await),
                (None, _) => self.reply_to(channel, text),
            };
            self.lock_recorder().record_reply(channel, text, &reply);
            reply
        }
        .boxed()
    }
}

/// Channels on which a script expects a reply. Replies are recorded.
const REPLY_CHANNELS: [&str; 12] = [
    "resolve", "exists", "names", "tools", "context", "depth", "budget", "approval", "help",
    "load", "spawn", "resume",
];

impl ScriptHost {
    /// Replies to a message on one of the [`REPLY_CHANNELS`].
    fn reply_to(&self, channel: &str, text: &str) -> Option<String> {
        match channel {
            "resolve" => Some(self.resolve(text)),
            "exists" => (!matches!(
                self.orchestrator.registry().look_up(text),
                ToolLookup::NotFound(_)
            ))
            .then(|| "yes".to_owned()),
            "names" => Some(json!(self.orchestrator.registry().child_names(text)).to_string()),
            "tools" => Some(self.tool_list()),
            "context" => {
                let tools = self.orchestrator.registry().iter();
                let tools: Vec<_> = tools.map(|tool| &tool.spec.js_name).collect();
                let mut context = self.script_context_json.clone();
                context["capabilities"] = json!({"tools": tools});
                Some(context.to_string())
            }
            "depth" => Some(self.limits.max_value_depth.to_string()),
            "budget" => Some(self.scope.calls_left().to_string()),
            "approval" => self.lock_output().last_approval_id.clone(),
            "help" => Some(self.help(text)),
            "resume" => self.decide_prior_call(text),
            _ => None,
        }
    }

    /// Handles a message on any other channel. The reply, if any, is an error.
    fn handle_notice(&self, channel: &str, text: &str) -> Option<String> {
        match channel {
            "log" => self.log(text),
            "progress" => self.progress(text),
            "text" => self.show(OutputPart::Text {
                text: text.to_owned(),
            }),
            "image" => self.show_media("image", text),
            "audio" => self.show_media("audio", text),
            "notify" => self.notify(text),
            "yield" => {
                if self.lock_output().count_notification() {
                    self.scope.events.emit(RuntimeEvent::ScriptYield {
                        script_id: self.scope.id.clone(),
                    });
                }
                None
            }
            "warning" => {
                self.lock_output().warn(text);
                None
            }
            "rejected" => {
                let (id, fields) = text.split_once('\n')?;
                let fields: Value = serde_json::from_str(fields).unwrap_or_default();
                let part = |key: &str| fields[key].as_str().unwrap_or_default().to_owned();
                let line = crate::errors::first_position(&part("stack"));
                let line = line.map(|at| format!(" (line {})", at.line));
                let (line, name) = (line.unwrap_or_default(), part("name"));
                let message = part("message");
                let description =
                    format!("a promise that was not awaited failed{line}: {name}: {message}");
                let (id, description) = (id.parse().ok()?, truncate_bytes(&description, 500));
                self.lock_output()
                    .unhandled_rejections
                    .insert(id, description);
                None
            }
            "handled" => {
                self.lock_output()
                    .unhandled_rejections
                    .remove(&text.parse().ok()?);
                None
            }
            _ => None,
        }
    }

    fn lock_recorder(&self) -> MutexGuard<'_, Recorder> {
        self.recorder.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_output(&self) -> MutexGuard<'_, OutputBuffer> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says what a path below `tools` is.
    fn resolve(&self, path: &str) -> String {
        match self.orchestrator.registry().look_up(path) {
            ToolLookup::Tool(tool) if tool.spec.name == SPAWN_TOOL && self.tasks.is_some() => {
                "task".to_owned()
            }
            ToolLookup::Tool(tool) if tool.raw().is_some() => "tool with raw".to_owned(),
            ToolLookup::Tool(tool) if tool.spec.result_view == ResultView::TextLines => {
                "tool of text lines".to_owned()
            }
            ToolLookup::Tool(tool) if tool.spec.result_view == ResultView::Session => {
                "tool of a session".to_owned()
            }
            ToolLookup::Tool(_) => "tool".to_owned(),
            ToolLookup::Namespace => "namespace".to_owned(),
            ToolLookup::NotFound(_) if self.compiled.is_probed(path) => "absent".to_owned(),
            ToolLookup::NotFound(_) => failure_reply(&self.orchestrator.tool_not_found(path), path),
        }
    }

    /// Starts a task: a call that continues after the script has ended. Replies with its id.
    async fn start_task(&self, text: &str) -> String {
        let list: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let Some((tasks, task_context)) = &self.tasks else {
            return error_reply("Error", "tasks are not available in this run");
        };
        let started = tasks
            .start_from_script(list, &self.scope, task_context.clone())
            .await;
        started.unwrap_or_else(|failure| failure_reply(&failure, SPAWN_TOOL))
    }

    /// Handles `resume.repeat(callId)` and `resume.skip(callId, value)`.
    fn decide_prior_call(&self, text: &str) -> Option<String> {
        let mut args: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let value = (args.len() > 1).then(|| args.swap_remove(1));
        let id = args.first().and_then(Value::as_str).unwrap_or_default();
        let decision = value.map_or(ResumeDecision::Repeat, ResumeDecision::Skip);
        let decided = match &self.scope.prior_calls {
            Some(prior) => prior.decide(id, decision),
            None => Err(DecisionError::NotResumed(id.chars().take(80).collect())),
        };
        Some(error_reply("RangeError", &decided.err()?.to_string()))
    }

    /// Returns `ALL_TOOLS` as JSON.
    fn tool_list(&self) -> String {
        let tools = self.orchestrator.registry().iter();
        let list: Vec<Value> = tools
            .map(|tool| json!({"name": tool.spec.js_name, "description": tool.spec.description}))
            .collect();
        Value::Array(list).to_string()
    }

    /// Returns the text of `help(name)`.
    fn help(&self, name: &str) -> String {
        let registry = self.orchestrator.registry();
        if name.is_empty() {
            return help_overview(registry, &self.limits);
        }
        let name = truncate_bytes(name, MAX_HELP_BYTES);
        let name = name.strip_prefix("tools.").unwrap_or(&name);
        // A server's global has no `mcp.` before its name.
        let path = path_below_tools(name, registry).filter(|_| registry.get(name).is_none());
        let name = path.as_deref().unwrap_or(name);
        match registry.look_up(name) {
            ToolLookup::Tool(tool) => {
                let canonical = tool.spec.name.clone();
                declarations(&registry.filtered(|spec| spec.name == canonical))
            }
            ToolLookup::Namespace => declarations(
                &registry.filtered(|spec| spec.js_name.starts_with(&format!("{name}."))),
            ),
            // A misspelled name gets a suggestion; any other text is searched for.
            ToolLookup::NotFound(near) if !near.is_empty() => {
                self.orchestrator.tool_not_found(name).message
            }
            ToolLookup::NotFound(_) => {
                let found = registry.search(name, 5);
                match found.is_empty() {
                    true => self.orchestrator.tool_not_found(name).message,
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
        let now = self.lock_recorder().now();
        if self.lock_output().log(level, message, now) {
            self.scope.events.emit(RuntimeEvent::ScriptLog {
                script_id: self.scope.id.clone(),
                level,
                message: message.to_owned(),
            });
        }
        None
    }

    fn progress(&self, text: &str) -> Option<String> {
        let (kind, message) = text.split_once('\n').unwrap_or(("info", text));
        if self.lock_output().progress.try_acquire() {
            let level = if kind == "warn" {
                LogLevel::Warn
            } else {
                LogLevel::Log
            };
            let message = message.chars().take(500).collect();
            self.scope.events.emit(RuntimeEvent::ScriptProgress {
                script_id: self.scope.id.clone(),
                level,
                message,
            });
        }
        None
    }

    fn notify(&self, text: &str) -> Option<String> {
        if text.is_empty() {
            return Some(error_reply(
                "TypeError",
                "notify() takes a value that is not empty",
            ));
        }
        if !self.lock_output().count_notification() {
            let message = format!("a script may call notify() at most {MAX_NOTIFICATIONS} times");
            return Some(error_reply("RangeError", &message));
        }
        let message = truncate_bytes(text, 4096);
        if let Err(full) = self.lock_output().count_bytes(message.len()) {
            return Some(self.output_full_reply(&full));
        }
        self.scope.events.emit(RuntimeEvent::ScriptNotify {
            script_id: self.scope.id.clone(),
            message,
        });
        None
    }

    async fn load(&self, text: &str) -> Option<String> {
        let key: String = serde_json::from_str(text).ok()?;
        let written = self.lock_output().stored_values.written(&key);
        if written.is_some() {
            return written;
        }
        let backend = self.lock_output().stored_values.backend();
        let loaded = backend.get(&key).await;
        loaded
            .unwrap_or_else(|error| Some(error_reply("Error", &format!("load({key:?}): {error}"))))
    }

    async fn store(&self, text: &str) -> Option<String> {
        let (key, json) = text.split_once('\n')?;
        let key: String = serde_json::from_str(key).ok()?;
        let backend = self.lock_output().stored_values.backend();
        let stored = match backend.total_bytes().await {
            Ok(stored_bytes) => self
                .lock_output()
                .stored_values
                .store(&key, json, stored_bytes),
            Err(error) => Err(format!("store({key:?}): {error}")),
        };
        stored
            .err()
            .map(|message| error_reply("RangeError", &message))
    }

    fn show(&self, part: OutputPart) -> Option<String> {
        let shown = self.lock_output().add_part(part);
        shown.err().map(|full| self.output_full_reply(&full))
    }

    /// Creates the error reply to a script that shows too much.
    fn output_full_reply(&self, _: &OutputFull) -> String {
        let bytes = self.limits.max_output_bytes;
        let hint = self.surface.raise_hint(LimitKind::Output, &self.limits);
        let hint = hint.map_or(String::new(), |hint| format!(", or {hint}"));
        let message = format!(
            "a script may show at most {bytes} bytes with text(), image(), audio(), notify() and \
             logs together; show less{hint}"
        );
        error_reply("RangeError", &message)
    }

    /// Handles `image(x)` and `audio(x)`, which take a `data:` URL or a content block as MCP tools
    /// return it.
    fn show_media(&self, kind: &str, text: &str) -> Option<String> {
        let type_error = |message: String| Some(error_reply("TypeError", &message));
        let args: Vec<Value> = serde_json::from_str(text).unwrap_or_default();
        let given = args.into_iter().next().unwrap_or(Value::Null);
        let field = |name: &str| given.get(name).and_then(Value::as_str);
        let (data, mime) = match &given {
            Value::String(url) => match url
                .strip_prefix("data:")
                .and_then(|rest| rest.split_once(";base64,"))
            {
                Some((mime, data)) => (data, mime),
                None => {
                    return type_error(format!(
                        "{kind}() takes a base64 data: URL or a content block, not a link"
                    ));
                }
            },
            Value::Object(_) => match (field("data"), field("mimeType").or(field("mime_type"))) {
                (Some(data), Some(mime)) => (data, mime),
                _ => {
                    return type_error(format!(
                        "{kind}() takes a content block with `data` and `mimeType`"
                    ));
                }
            },
            _ => {
                return type_error(format!(
                    "{kind}() takes a base64 data: URL or a content block"
                ));
            }
        };
        if !mime.starts_with(&format!("{kind}/")) {
            return type_error(format!("{kind}() was given {mime}"));
        }
        let (data, mime_type) = (data.to_owned(), mime.to_owned());
        self.show(match kind {
            "image" => OutputPart::Image { data, mime_type },
            _ => OutputPart::Audio { data, mime_type },
        })
    }
}

/// Creates an error reply, which the guest throws where the script sent the message.
fn error_reply(name: &str, message: &str) -> String {
    format!("!{}", json!({"name": name, "message": message}))
}

/// Creates an error reply from the failure of a tool.
fn failure_reply(failure: &CallFailure, tool: &str) -> String {
    let fields = json!({
        "name": failure.code, "code": failure.code, "message": failure.message, "toolName": tool,
        "retryable": failure.retryable, "suggestions": failure.suggestions,
        "metadata": failure.metadata,
    });
    format!("!{fields}")
}

/// Describes the failure of a call as JSON, for the script.
pub(crate) fn call_error_json(
    failure: &CallFailure,
    tool: &str,
    call_id: &str,
    at: Option<(u32, u32)>,
) -> String {
    let code = failure.code;
    let mut fields = json!({
        "name": code, "code": code, "message": failure.message, "toolName": tool, "callId": call_id,
        "retryable": failure.retryable, "suggestions": failure.suggestions,
        "metadata": failure.metadata,
    });
    if let Some((line, column)) = at {
        fields["at"] = Value::String(format!("{line}:{column}"));
    }
    fields.to_string()
}
