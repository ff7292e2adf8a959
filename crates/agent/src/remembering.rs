//! Memory as an agent has it: turns are stored when they are over, what matters is recalled before the next, and the
//! past is told within a budget.

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

/// How much an agent remembers, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct RememberSettings {
    /// How the past is told.
    pub telling: Telling,
    /// How long recall may take; what has arrived by then is used. `None` recalls nothing.
    pub recall: Option<Duration>,
    /// Tokens of what is recalled, at most.
    pub recall_tokens: u32,
    /// Draw lessons when nothing has happened for so long.
    pub distill_after: Option<Duration>,
}

/// How the past is told.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum Telling {
    /// Every turn, the older the shorter.
    Gradient(Gradient),
    /// As it was, until the context is nearly full.
    Regular,
    /// Not at all.
    OneShot,
}

/// An agent's memory: its companion, and its way to tell the past. Clones share it.
#[derive(Clone)]
pub struct Remembering(Arc<Inner>);

struct Inner {
    memory: Arc<Memory>,
    settings: RememberSettings,
    small: Option<Arc<dyn SmallModel>>,
    /// What the prompts of a session begin with, by session.
    told: Mutex<HashMap<String, Told>>,
    /// Draws lessons if nothing else happens.
    idle: Mutex<Option<AbortHandle>>,
}

/// The beginning of a session's prompts.
#[derive(Debug, Clone, Default)]
struct Told {
    text: String,
    /// The last turn it tells of.
    through: u32,
    /// The first turn that a prompt has in full.
    full_from: u32,
}

impl Remembering {
    /// Remembers with this memory. A small model, where there is one, writes the shorter levels and filters recall.
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

    /// What prompts begin with in this turn.
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

    /// Does work that may block, off the threads that run everything else.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Memory) -> Result<T, MemoryError> + Send + 'static,
    ) -> Result<T, MemoryError> {
        let memory = self.0.memory.clone();
        let done = tokio::task::spawn_blocking(move || work(&memory)).await;
        done.unwrap_or_else(|_| Err(MemoryError::Damaged("memory was given up".to_owned())))
    }

    /// Writes the shorter levels, then waits for nothing to happen and draws lessons.
    fn learn_later(&self, session: &str) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let (inner, id) = (self.0.clone(), session.to_owned());
        let task = runtime.spawn(async move {
            let (memory, name) = (inner.memory.clone(), id.clone());
            let written = tokio::task::spawn_blocking(move || {
                while memory.write_levels(Some(&name))?.waiting > 0 {}
                // Where there is an encoder: some now, the others after the next turns, so that nobody who ends waits long.
                memory.write_vectors(&name)?;
                Ok::<_, MemoryError>(())
            });
            // What fails here is done when the levels are next wanted.
            let _ = written.await;
            if let Some(small) = &inner.small {
                let _ = inner.memory.summarise(&id, small.as_ref()).await;
            }
            let Some(patience) = inner.settings.distill_after else {
                return;
            };
            tokio::time::sleep(patience).await;
            loop {
                match inner.memory.distill(&id, inner.small.as_deref()).await {
                    Ok(distilled) if distilled.waiting > 0 => {}
                    // Whoever else is at it does the same.
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

    /// The turns that memory lacks, up to and with this one.
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
                    // The turn goes on with what the session has.
                    tracing::warn!(target: "selvedge::memory", %error, "nothing is recalled in this turn");
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
                tracing::info!(target: "selvedge::memory", %missing, "recall went on without it");
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
                // It is stored before the next turn, or when the session is next gone on with.
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
        let told = match self.0.settings.telling {
            Telling::Regular => return Regular.before(past),
            Telling::OneShot => return OneShot.before(past),
            Telling::Gradient(_) => self.told().get(past.session).cloned().unwrap_or_default(),
        };
        let from = past.steps.partition_point(|step| step.turn <= told.through);
        let steps = &past.steps[from..];
        // What was made shorter since tells of everything before it.
        let shortened = steps.iter().any(|step| step.kind == StepKind::Compacted);
        let mut items = Vec::new();
        if !told.text.is_empty() && !shortened {
            let text = format!(
                "What was said and done before, the older the shorter:\n{}",
                told.text
            );
            // The answer keeps the roles in turn, which some servers insist on.
            items.push(Item::message(Role::User, text));
            items.push(Item::message(Role::Assistant, "I have that in mind."));
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

/// A turn's items, one per line, without what only machines read.
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

/// Pictures and sounds stay in the session; here it says that they were there.
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
