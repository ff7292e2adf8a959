//! Connects an agent to its memory: stores each turn when it has ended, recalls related turns
//! before the next one, and provides the history of prompts within a token budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{
    Band, CandidateFate, DEADLINE_EXCEEDED, GradientOptions, LessonKind, Level, MEMORY_PROMPT,
    Memory, MemoryAccess, MemoryError, PlanStorage, ProjectPlace, RecallDeadlines, RecallRequest,
    RecalledMemory, SmallModel,
};
use selvedge_protocol::{ConversationItem, DocumentInfo, MemoryScope, MessageRole, RuntimeEvent};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::charged_model::{ChargeTime, ChargedModel};
use crate::history::{HistoryStrategy, OneShotHistory, PastTurns, RegularHistory};
use crate::missing_turns::MissingTurns;
use crate::session_record::SessionStepKind;
use crate::turn::steps_since_compaction;
use crate::{Session, TurnAdditions, TurnCharge, TurnHook};

/// The options of an agent's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentMemoryOptions {
    /// Which earlier turns a prompt contains.
    pub history: HistoryStrategyKind,
    /// The time limit of recall. What was found until then is used. `None` disables recall. With
    /// everything else that memory does before the first request of a turn, at most this time or
    /// 1.2 seconds pass, whichever is longer.
    pub recall_timeout: Option<Duration>,
    /// The maximum number of tokens of the recalled text.
    pub max_recall_tokens: u32,
    /// Where the small model and the encoder work after a turn.
    pub background_work: BackgroundWork,
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

/// Longest time that memory takes before the first request of a turn, unless recall may take
/// longer. What is not ready by then is missing in the turn.
const BEFORE_TURN_TIMEOUT: Duration = Duration::from_millis(1_200);

/// Where the levels of a model and the vectors of a turn are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundWork {
    /// In this process, after the turn.
    #[default]
    InProcess,
    /// In another one, because this one ends with the turn.
    NextProcess,
}

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
    /// Cancelled when the next turn begins: the session is not idle any more. Work that may have
    /// been paid for is not interrupted.
    idle: Mutex<CancellationToken>,
}

impl Drop for AgentMemoryInner {
    fn drop(&mut self) {
        // A task that waits for the time to distill has no work left: its agent is gone.
        let idle = self.idle.get_mut();
        idle.unwrap_or_else(PoisonError::into_inner).cancel();
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
            idle: Mutex::default(),
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
        missing: MissingTurns,
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
            missing.store(memory, &id)?;
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
        let idle = self.next_idle_time();
        let small = self.charged_model(charge, ChargeTime::AfterTurn);
        let charge = charge.clone();
        runtime.spawn(async move {
            let name = id.clone();
            let work = inner.options.background_work;
            let written = inner.memory.run_blocking(move |memory| {
                while memory.write_levels(Some(&name))?.remaining_turns > 0 {}
                match work {
                    // Some vectors now and the others after later turns, so that the process can
                    // exit quickly.
                    BackgroundWork::InProcess => memory.write_vectors(&name),
                    BackgroundWork::NextProcess => Ok(0),
                }
            });
            // If this fails, the levels are written when they are needed.
            let _ = written.await;
            if let (Some(small), BackgroundWork::InProcess) = (small, work) {
                let _ = inner.memory.summarise(&id, small.as_ref()).await;
                charge.0.settle().await;
            }
            let Some(idle_time) = inner.options.distill_idle_time else {
                return;
            };
            // While the session is idle, an agent that is no longer used frees its memory.
            let waiting = Arc::downgrade(&inner);
            drop(inner);
            tokio::select! {
                biased;
                () = idle.cancelled() => return,
                () = tokio::time::sleep(idle_time) => {}
            }
            if let Some(inner) = waiting.upgrade() {
                distill_if_due(inner, id).await;
            }
        });
    }

    /// Ends the time in which the session is idle, and returns the token of the next one.
    fn next_idle_time(&self) -> CancellationToken {
        let mut idle = self.0.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.cancel();
        *idle = CancellationToken::new();
        idle.clone()
    }

    /// Returns the brief of a session, which is composed and stored if it has none. `None` if that
    /// fails or is not ready in time.
    async fn session_brief(&self, session: &str, deadline: Instant) -> Option<String> {
        let project = &self.0.options.project;
        let (access, max_tokens) = (project.access(session), project.max_brief_tokens);
        if project.place.is_none() || max_tokens == 0 {
            return None;
        }
        let id = session.to_owned();
        let place = project.place.clone().filter(|_| project.folders.is_some());
        // If the turn does not wait for it, a later turn has it.
        let brief = self.0.memory.run_blocking(move |memory| {
            // A session of another program may have the brief of more folders.
            if let Some(place) = place
                && memory.project_of(&id)? != memory.find_project(&place.root)?
            {
                return Ok(String::new());
            }
            match memory.brief(&id)? {
                Some(stored) => Ok(stored),
                None => {
                    let brief = memory.compose_brief(&access, max_tokens)?;
                    memory.store_brief(&id, &brief)
                }
            }
        });
        let failed = |error: &dyn std::fmt::Display| {
            tracing::warn!(target: "selvedge::memory", %error, "there is no brief of the project");
        };
        match timeout_at(deadline, brief).await {
            Ok(brief) => brief.inspect_err(|error| failed(error)).ok(),
            Err(_) => {
                failed(&DEADLINE_EXCEEDED);
                None
            }
        }
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
            self.next_idle_time();
            let options = &self.0.options;
            let limit = options.recall_timeout.unwrap_or_default();
            let deadline = Instant::now() + limit.max(BEFORE_TURN_TIMEOUT);
            let prefix = async {
                let (id, charge) = (session.id().to_owned(), charge.clone());
                let count_late = move |memory: &Arc<Memory>| {
                    let (usage, cost) = memory.take_late_usage(&id)?;
                    charge.count_late_usage(usage, cost);
                    Ok(())
                };
                self.0.memory.run_blocking(count_late).await?;
                let before = session.turn_number().saturating_sub(1);
                let missing = MissingTurns::read(&self.0.memory, session, before).await?;
                self.prepare_prefix(session, missing).await
            };
            let prefix = match timeout_at(deadline, prefix).await {
                Ok(Ok(prefix)) => prefix,
                Ok(Err(error)) => {
                    // The turn continues with the history of the session.
                    tracing::warn!(target: "selvedge::memory", %error, "recall is skipped");
                    self.lock_prompt_prefixes().remove(session.id());
                    return TurnAdditions::default();
                }
                Err(_) => {
                    // The prompt begins as that of the turn before, or with the whole history.
                    let missing = vec![format!("memory: {DEADLINE_EXCEEDED}")];
                    let event = recall_event(&RecalledMemory {
                        missing,
                        elapsed: limit.max(BEFORE_TURN_TIMEOUT),
                        ..RecalledMemory::default()
                    });
                    return TurnAdditions {
                        event,
                        ..TurnAdditions::default()
                    };
                }
            };
            let (first_full_turn, bands) = (prefix.first_full_turn, prefix.bands.clone());
            self.lock_prompt_prefixes()
                .insert(session.id().to_owned(), prefix);
            let recall = async {
                let timeout = options.recall_timeout?;
                let left = deadline.saturating_duration_since(Instant::now());
                let request = RecallRequest {
                    access: options.project.access(session.id()),
                    exclude_from: first_full_turn,
                    deadlines: RecallDeadlines {
                        total: timeout.min(left),
                        ..RecallDeadlines::within(timeout)
                    },
                    max_tokens: options.max_recall_tokens,
                    model: self.charged_model(charge, ChargeTime::Turn),
                    bands,
                    ..RecallRequest::new(session.id(), prompt)
                };
                Some(self.0.memory.recall(&request).await)
            };
            let brief = self.session_brief(session.id(), deadline);
            let (brief, recalled) = tokio::join!(brief, recall);
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
            let last = session.turn_number();
            let missing = MissingTurns::read(&self.0.memory, session, last).await?;
            let id = session.id().to_owned();
            let store = move |memory: &Arc<Memory>| missing.store(memory, &id);
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
