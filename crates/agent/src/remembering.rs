//! Connects an agent to its memory: stores each turn when it has ended, recalls related turns
//! before the next one, and provides the history of prompts within a token budget.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{
    EXPLAINED, Gradient, Keep, Level, Memory, MemoryError, NewTurn, Recall, SmallModel,
};
use selvedge_protocol::{Entry, Item, Role, TurnItem};
use serde_json::Value;
use tokio::task::AbortHandle;

use crate::history::{OneShot, Past, Regular, Strategy};
use crate::record::StepKind;
use crate::turn::since_compaction;
use crate::{Companion, Session};

/// The options of an agent's memory.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberSettings {
    /// Which earlier turns a prompt contains.
    pub telling: Telling,
    /// The time limit of recall. What was found until then is used. `None` disables recall.
    pub recall: Option<Duration>,
    /// The maximum number of tokens of the recalled text.
    pub recall_tokens: u32,
    /// How long a session must be idle before lessons are distilled from it; `None` disables this.
    pub distill_after: Option<Duration>,
}

/// Which earlier turns a prompt contains.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Telling {
    /// All turns; the older a turn, the shorter its level.
    Gradient(Gradient),
    /// All turns in full, until the context is nearly full.
    Regular,
    /// No earlier turns.
    OneShot,
}

/// An agent's memory, used as turn hook and as history strategy. Clones share their state.
#[derive(Clone)]
pub struct Remembering(Arc<Inner>);

struct Inner {
    memory: Arc<Memory>,
    settings: RememberSettings,
    small: Option<Arc<dyn SmallModel>>,
    /// The beginning of the prompts of each session, by session id.
    told: Mutex<HashMap<String, Told>>,
    /// The background task that distills lessons. Aborted when the next turn begins.
    idle: Mutex<Option<AbortHandle>>,
}

/// The history with which the prompts of a session begin.
#[derive(Debug, Clone, Default)]
struct Told {
    text: String,
    /// The last turn that the text covers.
    through: u32,
    /// The first turn that a prompt contains in full.
    full_from: u32,
}

impl Remembering {
    /// Connects an agent to `memory`. The small model, if given, writes summaries and filters
    /// recall.
    pub fn new(
        memory: Arc<Memory>,
        settings: RememberSettings,
        small: Option<Arc<dyn SmallModel>>,
    ) -> Self {
        Self(Arc::new(Inner {
            memory,
            settings,
            small,
            told: Mutex::default(),
            idle: Mutex::default(),
        }))
    }

    fn told(&self) -> MutexGuard<'_, HashMap<String, Told>> {
        self.0.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores the missing turns, and returns the part of memory that the prompts of this turn start
    /// with.
    async fn prepare(&self, session: &Session, missing: Vec<Vec<u8>>) -> Result<Told, MemoryError> {
        let telling = self.0.settings.telling;
        let (id, turn) = (session.id().to_owned(), session.turn());
        let whole_from = since_compaction(session.steps())
            .first()
            .map_or(turn, |step| step.turn);
        let prepare = move |memory: &Memory| {
            store(memory, &id, &missing)?;
            let Telling::Gradient(gradient) = telling else {
                let regular = telling == Telling::Regular;
                return Ok(Told {
                    full_from: if regular { whole_from } else { turn },
                    ..Told::default()
                });
            };
            let strategy = selvedge_memory::Strategy::Gradient(gradient);
            let assembled = memory.assemble(&id, strategy, Keep::Pinned)?;
            let bands = assembled.bands.iter().rev();
            let raw = bands.take_while(|band| band.span.level == Level::Raw);
            let text = assembled.text.get(..assembled.pinned);
            Ok(Told {
                text: text.unwrap_or_default().to_owned(),
                through: assembled.planned,
                full_from: raw.last().map_or(turn, |band| band.span.first),
            })
        };
        self.blocking(prepare).await
    }

    /// Runs work that may block on the blocking thread pool.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let memory = self.0.memory.clone();
        let done = tokio::task::spawn_blocking(move || work(&memory)).await;
        done.unwrap_or_else(|_| {
            Err(MemoryError::Damaged(
                "the task that reads the memory panicked or was cancelled".to_owned(),
            ))
        })
    }

    /// Starts a background task that writes the shorter levels, and distills lessons once the
    /// session has been idle for a while.
    fn learn_later(&self, session: &str) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (inner, id) = (self.0.clone(), session.to_owned());
        let task = runtime.spawn(async move {
            let (memory, name) = (inner.memory.clone(), id.clone());
            let written = tokio::task::spawn_blocking(move || {
                while memory.write_levels(Some(&name))?.waiting > 0 {}
                // Writes some vectors now and the others after later turns, so that the process can
                // exit quickly.
                memory.write_vectors(&name)?;
                Ok::<_, MemoryError>(())
            });
            // If this fails, the levels are written when they are needed.
            let _ = written.await;
            if let Some(small) = &inner.small {
                let _ = inner.memory.summarise(&id, small.as_ref()).await;
            }
            let Some(idle_time) = inner.settings.distill_after else {
                return;
            };
            tokio::time::sleep(idle_time).await;
            loop {
                match inner.memory.distill(&id, inner.small.as_deref()).await {
                    Ok(distilled) if distilled.waiting > 0 => {}
                    // Done, failed, or another process distills the same session.
                    _ => return,
                }
            }
        });
        if let Some(earlier) = self.idle().replace(task.abort_handle()) {
            earlier.abort();
        }
    }

    fn idle(&self) -> MutexGuard<'_, Option<AbortHandle>> {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the turns up to `last` that memory does not have yet.
    async fn missing(&self, session: &Session, last: u32) -> Result<Vec<Vec<u8>>, MemoryError> {
        let id = session.id().to_owned();
        let stored = self.blocking(move |memory| memory.turns(&id)).await?;
        Ok((stored + 1..=last)
            .map(|turn| exchange(&session.items_of(turn)))
            .collect())
    }
}

impl Companion for Remembering {
    fn explained(&self) -> Option<&str> {
        Some(EXPLAINED)
    }

    fn before<'a>(
        &'a self,
        session: &'a Session,
        prompt: &'a str,
    ) -> BoxFuture<'a, Option<String>> {
        async move {
            if let Some(idle) = self.idle().take() {
                idle.abort();
            }
            let told = async {
                let before = session.turn().saturating_sub(1);
                let missing = self.missing(session, before).await?;
                self.prepare(session, missing).await
            };
            let told = match told.await {
                Ok(told) => told,
                Err(error) => {
                    // The turn continues with the history of the session.
                    tracing::warn!(target: "selvedge::memory", %error, "recall is skipped");
                    self.told().remove(session.id());
                    return None;
                }
            };
            let full_from = told.full_from;
            self.told().insert(session.id().to_owned(), told);
            let recall = Recall {
                told_from: full_from,
                deadline: self.0.settings.recall?,
                tokens: self.0.settings.recall_tokens,
                model: self.0.small.clone(),
                ..Recall::new(session.id(), prompt)
            };
            let recalled = self.0.memory.recall(&recall).await;
            for missing in &recalled.missing {
                tracing::info!(target: "selvedge::memory", %missing, "recall is incomplete");
            }
            (!recalled.text.is_empty()).then_some(recalled.text)
        }
        .boxed()
    }

    fn kept<'a>(&'a self, session: &'a Session, documents: Vec<Entry>) -> BoxFuture<'a, ()> {
        let id = session.id().to_owned();
        let announce = move |memory: &Memory| {
            for document in documents {
                if let Err(error) = memory.announce_document(&id, &document) {
                    tracing::warn!(target: "selvedge::memory", %error, "a document is not announced");
                }
            }
            Ok(())
        };
        self.blocking(announce).map(drop).boxed()
    }

    fn after<'a>(&'a self, session: &'a Session) -> BoxFuture<'a, ()> {
        let stored = async {
            let missing = self.missing(session, session.turn()).await?;
            let id = session.id().to_owned();
            self.blocking(move |memory| store(memory, &id, &missing))
                .await
        };
        async move {
            match stored.await {
                Ok(()) => self.learn_later(session.id()),
                // The turn is stored before the next turn, or when the session is continued.
                Err(error) => {
                    tracing::warn!(target: "selvedge::memory", %error, "the turn is not remembered yet")
                }
            }
        }
        .boxed()
    }
}

impl Strategy for Remembering {
    fn before(&self, past: &Past<'_>) -> Vec<Item> {
        let prefix = match self.0.settings.telling {
            Telling::Regular => return Regular.before(past),
            Telling::OneShot => return OneShot.before(past),
            Telling::Gradient(_) => self.told().get(past.session).cloned().unwrap_or_default(),
        };
        let from = past
            .steps
            .partition_point(|step| step.turn <= prefix.through);
        let steps = &past.steps[from..];
        // A later compaction covers everything before it.
        let compacted = steps.iter().any(|step| step.kind == StepKind::Compacted);
        let mut items = Vec::new();
        if !prefix.text.is_empty() && !compacted {
            let text = format!(
                "Earlier turns of this conversation; older turns are shorter:\n{}",
                prefix.text
            );
            // Some servers require that the roles alternate.
            items.push(Item::message(Role::User, text));
            items.push(Item::message(Role::Assistant, "Understood."));
        }
        items.extend(steps.iter().flat_map(|step| step.wire.iter().cloned()));
        items
    }
}

fn store(memory: &Memory, session: &str, turns: &[Vec<u8>]) -> Result<(), MemoryError> {
    if !turns.is_empty() {
        memory.append_all(turns.iter().map(|raw| (session, NewTurn::exchange(raw))))?;
    }
    Ok(())
}

/// Returns the items of a turn as JSON lines for the memory, without ids, metadata and logs.
fn exchange(items: &[TurnItem]) -> Vec<u8> {
    let mut raw = Vec::new();
    for item in items {
        let Ok(mut value) = serde_json::to_value(item.shown()) else {
            continue;
        };
        if let Value::Object(fields) = &mut value {
            for field in ["metadata", "logs", "id", "native"] {
                fields.remove(field);
            }
            let calls = fields.get_mut("calls").and_then(Value::as_array_mut);
            for call in calls.into_iter().flatten().filter_map(Value::as_object_mut) {
                call.retain(|field, _| matches!(field.as_str(), "tool" | "status" | "error"));
            }
        }
        without_pictures(&mut value);
        raw.extend_from_slice(value.to_string().as_bytes());
        raw.push(b'\n');
    }
    raw
}

/// Replaces the data of images and audio by a placeholder. The session keeps the data.
fn without_pictures(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            let media = fields.contains_key("mime_type");
            for (name, value) in fields {
                match name.as_str() {
                    "data" if media => *value = Value::from("…"),
                    _ => without_pictures(value),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(without_pictures),
        _ => {}
    }
}
