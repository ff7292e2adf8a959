//! Connects an agent to its memory: stores each turn when it has ended, recalls related turns
//! before the next one, and provides the history of prompts within a token budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_journal::StoredRun;
use selvedge_memory::{
    AGENT_ROLE, Band, CandidateFate, GradientOptions, LessonKind, Level, MEMORY_PROMPT, Memory,
    MemoryAccess, MemoryError, NewTurn, PlanStorage, ProjectPlace, RecallDeadlines, RecallRequest,
    RecalledMemory, SmallModel,
};
use selvedge_protocol::{
    ConversationItem, DocumentInfo, MemoryScope, MessageRole, RuntimeEvent, TurnItem,
};
use selvedge_script::{fair_share, truncate_json};
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::charged_model::{ChargeTime, ChargedModel, LateUsage};
use crate::history::{HistoryStrategy, OneShotHistory, PastTurns, RegularHistory};
use crate::session_record::SessionStepKind;
use crate::turn::steps_since_compaction;
use crate::{Session, TurnAdditions, TurnAuthor, TurnCharge, TurnHook};

/// The options of an agent's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentMemoryOptions {
    /// Which earlier turns a prompt contains.
    pub history: HistoryStrategyKind,
    /// The time limit of recall. What was found until then is used. `None` disables recall.
    pub recall_timeout: Option<Duration>,
    /// The maximum number of tokens of the recalled text.
    pub max_recall_tokens: u32,
    /// How long a session must be idle before its project is distilled, if that is due; `None`
    /// disables this.
    pub distill_idle_time: Option<Duration>,
    /// The project of the sessions.
    pub project: AgentProject,
}

/// The project of an agent's sessions, and what they read of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentProject {
    /// The folder of the sessions, and what identifies its project; `None` if they belong to none.
    pub place: Option<ProjectPlace>,
    /// Which sessions are read.
    pub scope: MemoryScope,
    /// Folders whose sessions may be read, whatever the scope is; `None` for no restriction.
    pub folders: Option<Vec<String>>,
    /// The maximum number of tokens of the brief with which a session starts.
    pub max_brief_tokens: u32,
}

impl AgentProject {
    /// Returns what a session may read.
    pub fn access(&self, session: &str) -> MemoryAccess {
        MemoryAccess {
            scope: self.scope,
            folders: self.folders.clone(),
            ..MemoryAccess::new(session)
        }
    }
}

/// Longest time in which the brief of a new session is composed, if recall is disabled. After it,
/// the session starts without a brief.
const DEFAULT_BRIEF_TIMEOUT: Duration = Duration::from_millis(1_200);

/// Which earlier turns a prompt contains.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum HistoryStrategyKind {
    /// All turns; the older a turn, the shorter its level.
    Gradient(GradientOptions),
    /// All turns in full; when the context is nearly full, the session is compacted.
    Regular,
    /// No earlier turns.
    OneShot,
}

/// An agent's memory, used as turn hook and as history strategy. Clones share their state.
#[derive(Clone)]
pub struct AgentMemory(Arc<AgentMemoryInner>);

struct AgentMemoryInner {
    memory: Arc<Memory>,
    options: AgentMemoryOptions,
    small_model: Option<Arc<dyn SmallModel>>,
    /// The beginning of the prompts of each session, by session id.
    prompt_prefixes: Mutex<HashMap<String, PromptPrefix>>,
    /// The background task that writes levels and vectors and distills lessons. Aborted when the
    /// next turn begins.
    background_task: Mutex<Option<AbortHandle>>,
    /// What was spent on levels after turns.
    late_usage: Arc<LateUsage>,
}

impl Drop for AgentMemoryInner {
    fn drop(&mut self) {
        // The task has no work left: it waits for the time to distill, for an agent that is gone.
        let task = self.background_task.get_mut();
        if let Some(task) = task.unwrap_or_else(PoisonError::into_inner).take() {
            task.abort();
        }
    }
}

/// The history with which the prompts of a session begin.
#[derive(Debug, Clone, Default)]
struct PromptPrefix {
    text: String,
    /// The last turn that the text covers.
    last_turn: u32,
    /// The first turn that a prompt contains in full.
    first_full_turn: u32,
    /// The levels of all turns.
    bands: Vec<Band>,
}

impl AgentMemory {
    /// Connects an agent to `memory`. The small model, if given, writes summaries, removes
    /// irrelevant turns from recall, and distills lessons.
    pub fn new(
        memory: Arc<Memory>,
        options: AgentMemoryOptions,
        small: Option<Arc<dyn SmallModel>>,
    ) -> Self {
        Self(Arc::new(AgentMemoryInner {
            memory,
            options,
            small_model: small,
            prompt_prefixes: Mutex::default(),
            background_task: Mutex::default(),
            late_usage: Arc::default(),
        }))
    }

    fn lock_prompt_prefixes(&self) -> MutexGuard<'_, HashMap<String, PromptPrefix>> {
        self.0
            .prompt_prefixes
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the turns that memory does not have yet, and returns the rendered history with which
    /// the prompts of this turn begin.
    async fn prepare_prefix(
        &self,
        session: &Session,
        missing: Vec<Vec<u8>>,
    ) -> Result<PromptPrefix, MemoryError> {
        let history = self.0.options.history;
        let (id, turn) = (session.id().to_owned(), session.turn_number());
        let first_full_turn = steps_since_compaction(session.steps())
            .first()
            .map_or(turn, |step| step.turn);
        let project = &self.0.options.project;
        let (place, is_bounded) = (project.place.clone(), project.folders.is_some());
        let prepare = move |memory: &Arc<Memory>| {
            if let Some(place) = &place {
                memory.join_project(&id, place)?;
            }
            if is_bounded {
                memory.bound_to_folder(&id)?;
            }
            store_turns(memory, &id, &missing)?;
            let HistoryStrategyKind::Gradient(gradient) = history else {
                let regular = history == HistoryStrategyKind::Regular;
                return Ok(PromptPrefix {
                    first_full_turn: if regular { first_full_turn } else { turn },
                    ..PromptPrefix::default()
                });
            };
            let assembled = memory.assemble(&id, gradient, PlanStorage::Store)?;
            let bands = assembled.bands.iter().rev();
            let raw = bands.take_while(|band| band.span.level == Level::Raw);
            let text = assembled.text.get(..assembled.planned_bytes);
            Ok(PromptPrefix {
                text: text.unwrap_or_default().to_owned(),
                last_turn: assembled.last_planned_turn,
                first_full_turn: raw.last().map_or(turn, |band| band.span.first),
                bands: assembled.bands,
            })
        };
        self.0.memory.run_blocking(prepare).await
    }

    /// Returns the small model, whose requests are charged to the budget of a turn.
    fn charged_model(&self, charge: &TurnCharge, time: ChargeTime) -> Option<Arc<dyn SmallModel>> {
        let model = self.0.small_model.clone()?;
        let charge = charge.clone();
        Some(Arc::new(ChargedModel {
            model,
            charge,
            time,
        }))
    }

    /// Starts a background task that writes the shorter levels, and distills the project once the
    /// session has been idle for a while, if that is due.
    fn spawn_background_work(&self, session: &str, charge: &TurnCharge) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (inner, id) = (self.0.clone(), session.to_owned());
        let time = ChargeTime::AfterTurn(id.clone(), inner.late_usage.clone());
        let (small, charge) = (self.charged_model(charge, time), charge.clone());
        let task = runtime.spawn(async move {
            let name = id.clone();
            let written = inner.memory.run_blocking(move |memory| {
                while memory.write_levels(Some(&name))?.remaining_turns > 0 {}
                // Writes some vectors now and the others after later turns, so that the process can
                // exit quickly.
                memory.write_vectors(&name)
            });
            // If this fails, the levels are written when they are needed.
            let _ = written.await;
            if let Some(small) = small {
                let _ = inner.memory.summarise(&id, small.as_ref()).await;
                charge.0.settle().await;
            }
            let Some(idle_time) = inner.options.distill_idle_time else {
                return;
            };
            // While the session is idle, an agent that is no longer used frees its memory.
            let waiting = Arc::downgrade(&inner);
            drop(inner);
            tokio::time::sleep(idle_time).await;
            if let Some(inner) = waiting.upgrade() {
                // A task of its own, so that the next turn does not abort a request that is paid.
                tokio::spawn(distill_if_due(inner, id));
            }
        });
        if let Some(earlier) = self.lock_background_task().replace(task.abort_handle()) {
            earlier.abort();
        }
    }

    fn lock_background_task(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0
            .background_task
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the brief of a session, which is composed and stored if it has none. `None` if that
    /// fails.
    async fn session_brief(&self, session: &str) -> Option<String> {
        let project = &self.0.options.project;
        let (access, max_tokens) = (project.access(session), project.max_brief_tokens);
        if project.place.is_none() || max_tokens == 0 {
            return None;
        }
        let memory = &self.0.memory;
        let id = session.to_owned();
        let brief = async {
            let stored = memory.run_blocking(move |memory| memory.brief(&id));
            let place = project.place.clone().filter(|_| project.folders.is_some());
            if let Some(place) = place {
                // A session of another program may have the brief of more folders.
                let id = session.to_owned();
                let is_own = move |memory: &Arc<Memory>| {
                    Ok(memory.project_of(&id)? == memory.find_project(&place.root)?)
                };
                if !memory.run_blocking(is_own).await? {
                    return Ok(String::new());
                }
            }
            if let Some(stored) = stored.await? {
                return Ok(stored);
            }
            let compose = move |memory: &Arc<Memory>| memory.compose_brief(&access, max_tokens);
            let composed = memory.run_blocking(compose);
            let limit = self.0.options.recall_timeout;
            let limit = limit.unwrap_or(DEFAULT_BRIEF_TIMEOUT);
            let brief = match tokio::time::timeout(limit, composed).await {
                Ok(brief) => brief?,
                // The session keeps what it began with: nothing.
                Err(_) => String::new(),
            };
            let id = session.to_owned();
            let store = move |memory: &Arc<Memory>| memory.store_brief(&id, &brief);
            memory.run_blocking(store).await
        };
        let brief: Result<String, MemoryError> = brief.await;
        brief
            .inspect_err(|error| {
                tracing::warn!(target: "selvedge::memory", %error, "there is no brief of the project");
            })
            .ok()
    }

    /// Returns the turns up to `last` that memory does not have yet.
    async fn missing_turns(
        &self,
        session: &Session,
        last: u32,
    ) -> Result<Vec<Vec<u8>>, MemoryError> {
        let id = session.id().to_owned();
        let count = move |memory: &Arc<Memory>| memory.turn_count(&id);
        let stored = self.0.memory.run_blocking(count).await?;
        let mut turns = Vec::new();
        for turn in stored + 1..=last {
            let items = session.turn_items(turn);
            let mut runs = HashMap::new();
            for item in &items {
                if let TurnItem::ScriptToolCallOutput(output) = item
                    && !output.calls.is_empty()
                    && let Some(run) = session.stored_run(&output.id).await
                {
                    runs.insert(output.id.clone(), run);
                }
            }
            let requester = match session.turn_author(turn) {
                TurnAuthor::Agent => AGENT_ROLE,
                TurnAuthor::Person => "user",
            };
            turns.push(encode_turn(&items, &runs, requester));
        }
        Ok(turns)
    }
}

impl TurnHook for AgentMemory {
    fn memory_section(&self) -> Option<&str> {
        Some(MEMORY_PROMPT)
    }

    fn before_turn<'a>(
        &'a self,
        session: &'a Session,
        prompt: &'a str,
        charge: &'a TurnCharge,
    ) -> BoxFuture<'a, TurnAdditions> {
        async move {
            if let Some(idle) = self.lock_background_task().take() {
                idle.abort();
            }
            self.0.late_usage.count(session.id(), charge);
            let prefix = async {
                let before = session.turn_number().saturating_sub(1);
                let missing = self.missing_turns(session, before).await?;
                self.prepare_prefix(session, missing).await
            };
            let prefix = match prefix.await {
                Ok(prefix) => prefix,
                Err(error) => {
                    // The turn continues with the history of the session.
                    tracing::warn!(target: "selvedge::memory", %error, "recall is skipped");
                    self.lock_prompt_prefixes().remove(session.id());
                    return TurnAdditions::default();
                }
            };
            let (first_full_turn, bands) = (prefix.first_full_turn, prefix.bands.clone());
            self.lock_prompt_prefixes()
                .insert(session.id().to_owned(), prefix);
            let options = &self.0.options;
            let recall = async {
                let request = RecallRequest {
                    access: options.project.access(session.id()),
                    exclude_from: first_full_turn,
                    deadlines: RecallDeadlines::within(options.recall_timeout?),
                    max_tokens: options.max_recall_tokens,
                    model: self.charged_model(charge, ChargeTime::Turn),
                    bands,
                    ..RecallRequest::new(session.id(), prompt)
                };
                Some(self.0.memory.recall(&request).await)
            };
            let (brief, recalled) = tokio::join!(self.session_brief(session.id()), recall);
            let recalled = recalled.unwrap_or_default();
            for missing in &recalled.missing {
                tracing::info!(target: "selvedge::memory", %missing, "recall is incomplete");
            }
            TurnAdditions {
                event: recall_event(&recalled),
                message_text: Some(recalled.text).filter(|text| !text.is_empty()),
                system_text: brief.filter(|brief| !brief.is_empty()),
            }
        }
        .boxed()
    }

    fn documents_used<'a>(
        &'a self,
        session: &'a Session,
        documents: Vec<DocumentInfo>,
    ) -> BoxFuture<'a, ()> {
        let access = self.0.options.project.access(session.id());
        let announce = move |memory: &Arc<Memory>| {
            for document in documents {
                if let Err(error) = memory.announce_document(&access, &document) {
                    tracing::warn!(target: "selvedge::memory", %error, "a document is not announced");
                }
            }
            Ok(())
        };
        self.0.memory.run_blocking(announce).map(drop).boxed()
    }

    fn after_turn<'a>(&'a self, session: &'a Session, charge: &'a TurnCharge) -> BoxFuture<'a, ()> {
        let stored = async {
            let missing = self.missing_turns(session, session.turn_number()).await?;
            let id = session.id().to_owned();
            let store = move |memory: &Arc<Memory>| store_turns(memory, &id, &missing);
            self.0.memory.run_blocking(store).await
        };
        async move {
            match stored.await {
                Ok(()) => self.spawn_background_work(session.id(), charge),
                // The turn is stored before the next turn, or when the session is continued.
                Err(error) => {
                    tracing::warn!(target: "selvedge::memory", %error, "the turn is not remembered yet")
                }
            }
        }
        .boxed()
    }
}

impl HistoryStrategy for AgentMemory {
    fn earlier_items(&self, past: &PastTurns<'_>) -> Vec<ConversationItem> {
        let prefix = match self.0.options.history {
            HistoryStrategyKind::Regular => return RegularHistory.earlier_items(past),
            HistoryStrategyKind::OneShot => return OneShotHistory.earlier_items(past),
            HistoryStrategyKind::Gradient(_) => self
                .lock_prompt_prefixes()
                .get(past.session)
                .cloned()
                .unwrap_or_default(),
        };
        let from = past
            .steps
            .partition_point(|step| step.turn <= prefix.last_turn);
        let steps = &past.steps[from..];
        // A later compaction covers everything before it.
        let compacted = steps
            .iter()
            .any(|step| step.kind == SessionStepKind::Compaction);
        let mut items = Vec::new();
        if !prefix.text.is_empty() && !compacted {
            let text = format!(
                "Earlier turns of this conversation; older turns are shorter:\n{}",
                prefix.text
            );
            // The request joins it with the user's message that follows.
            items.push(ConversationItem::message(MessageRole::User, text));
        }
        items.extend(
            steps
                .iter()
                .flat_map(|step| step.request_items.iter().cloned()),
        );
        items
    }
}

/// Distills the project of a session if that is due.
async fn distill_if_due(inner: Arc<AgentMemoryInner>, session: String) {
    let id = session.clone();
    let state = inner
        .memory
        .run_blocking(move |memory| memory.distill_state(&id));
    if !matches!(state.await, Ok(Some(state)) if state.is_due()) {
        return;
    }
    let model = inner.small_model.as_deref();
    loop {
        match inner.memory.distill(&session, model).await {
            Ok(done) if done.remaining_turns > 0 => {}
            // All is done, or another process distills the same project.
            Ok(_) | Err(MemoryError::DistillLocked(_)) => return,
            Err(error) => {
                tracing::warn!(target: "selvedge::memory", %error, "lessons are not distilled");
                return;
            }
        }
    }
}

/// Returns the event that says what was recalled; `None` if nothing was, and nothing failed.
fn recall_event(recalled: &RecalledMemory) -> Option<RuntimeEvent> {
    let turns = recalled.hits.len() + recalled.mentioned.len();
    let is_layer = |lesson: &&selvedge_memory::Lesson| lesson.kind == LessonKind::Layer;
    let quoted_layers = recalled.lessons.iter().filter(is_layer).count();
    let lessons = recalled.lessons.len() - quoted_layers;
    let layers = quoted_layers + recalled.mentioned_layers.len();
    if turns + lessons + layers == 0 && recalled.missing.is_empty() {
        return None;
    }
    let is_used = |fate| matches!(fate, CandidateFate::Quoted | CandidateFate::Mentioned);
    let candidates = recalled.candidates.iter();
    let used = candidates.filter(|candidate| is_used(candidate.fate));
    let used = used.map(|candidate| {
        let (kind, fate) = (candidate.kind, candidate.fate.as_str());
        format!("{kind} {} {fate}", candidate.name)
    });
    Some(RuntimeEvent::MemoryRecalled {
        turns: turns as u32,
        lessons: lessons as u32,
        layers: layers as u32,
        duration_ms: recalled.elapsed.as_millis() as u64,
        details: used.chain(recalled.missing.iter().cloned()).collect(),
    })
}

fn store_turns(memory: &Memory, session: &str, turns: &[Vec<u8>]) -> Result<(), MemoryError> {
    if !turns.is_empty() {
        memory.append_all(turns.iter().map(|raw| (session, NewTurn::from_items(raw))))?;
    }
    Ok(())
}

/// The most bytes of the arguments and results of all calls of a script in the raw text of a turn.
const MAX_CALLS_BYTES: usize = 64 << 10;

/// Returns the items of a turn as JSON lines for the memory, without ids, metadata and logs. `runs`
/// are the scripts, whose calls keep their arguments and results.
fn encode_turn(items: &[TurnItem], runs: &HashMap<String, StoredRun>, requester: &str) -> Vec<u8> {
    let mut raw = Vec::new();
    for item in items {
        let Ok(mut value) = serde_json::to_value(item.without_native()) else {
            continue;
        };
        if let Value::Object(fields) = &mut value {
            if fields.get("role").is_some_and(|role| role == "user") {
                fields.insert("role".to_owned(), requester.into());
            }
            let run = fields.get("id").and_then(Value::as_str);
            let run = run.and_then(|id| runs.get(id));
            for field in ["metadata", "logs", "id", "native"] {
                fields.remove(field);
            }
            if let Some(calls) = fields.get_mut("calls").and_then(Value::as_array_mut) {
                encode_calls(calls, run);
            }
        }
        strip_media(&mut value);
        raw.extend_from_slice(value.to_string().as_bytes());
        raw.push(b'\n');
    }
    raw
}

/// Reduces the calls of a script to tool, status and error, and adds the arguments and results that
/// `run` has. If these have more than [`MAX_CALLS_BYTES`], the longest are shortened.
fn encode_calls(calls: &mut [Value], run: Option<&StoredRun>) {
    let mut contents: Vec<(usize, &str, Value)> = Vec::new();
    for (at, call) in calls.iter_mut().enumerate() {
        let Some(call) = call.as_object_mut() else {
            continue;
        };
        let id = call.get("id").and_then(Value::as_str);
        let recorded = run.and_then(|run| run.calls.iter().find(|made| Some(&*made.id) == id));
        call.retain(|field, _| matches!(field.as_str(), "tool" | "status" | "error"));
        let Some(recorded) = recorded else {
            continue;
        };
        for (field, value) in [("args", &recorded.args), ("result", &recorded.value)] {
            if let Some(mut value) = value.clone() {
                strip_media(&mut value);
                contents.push((at, field, value));
            }
        }
    }
    let sizes: Vec<usize> = contents
        .iter()
        .map(|(.., value)| value.to_string().len())
        .collect();
    let share = fair_share(&sizes, MAX_CALLS_BYTES);
    for (at, field, value) in contents {
        if let Ok(value) = serde_json::from_str(&truncate_json(&value, share))
            && let Some(call) = calls[at].as_object_mut()
        {
            call.insert(field.to_owned(), value);
        }
    }
}

/// Replaces the data of images and audio by a placeholder. The session keeps the data.
fn strip_media(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let media = fields.contains_key("mime_type") || fields.contains_key("mimeType");
            for (name, value) in fields {
                match name.as_str() {
                    "data" if media => *value = Value::from("…"),
                    _ => strip_media(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(strip_media),
        _ => {}
    }
}
