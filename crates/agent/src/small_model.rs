//! The small model that memory uses: takes a prompt, returns a text.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{Batch, Later, SmallModel, SmallModelError};
use selvedge_models::{BatchState, Batches, Client, Model, ModelError, Prompt};
use selvedge_protocol::{Item, Role};

/// A model that answers single prompts, without tools or history.
#[derive(Debug, Clone)]
pub struct Small {
    client: Client,
    model: Model,
    /// Submits prompts as batches, if the provider supports them.
    later: Option<ByBatches>,
}

/// Submits prompts through the batch API of the provider.
#[derive(Debug, Clone)]
struct ByBatches {
    batches: Batches,
    model: Model,
}

impl Small {
    /// Creates a small model.
    pub fn new(client: Client, model: Model) -> Self {
        Self {
            client,
            model,
            later: None,
        }
    }

    /// Uses the provider's batch API to distill lessons: answers take up to a day and cost less.
    pub fn with_batches(mut self) -> Self {
        self.later = Some(ByBatches {
            batches: self.client.batches(),
            model: self.model.clone(),
        });
        self
    }
}

impl SmallModel for Small {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move {
            let prompt = prompt_of(prompt);
            let answered = crate::agents::answer(&self.client, &prompt, &self.model).await;
            answered
                .map(|(text, _)| text)
                .map_err(|error| SmallModelError(error.message))
        }
        .boxed()
    }

    fn later(&self) -> Option<&dyn Later> {
        self.later.as_ref().map(|later| later as &dyn Later)
    }
}

impl Later for ByBatches {
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<Option<String>, SmallModelError>> {
        async move {
            let prompts: Vec<Prompt> = prompts.iter().map(|prompt| prompt_of(prompt)).collect();
            match self.batches.submit(&prompts, &self.model).await {
                Ok(batch) => Ok(Some(batch)),
                // The endpoint is compatible with a provider that has batches, but has none itself.
                Err(error) if matches!(error.status, Some(404 | 405 | 501)) => Ok(None),
                Err(error) => Err(failed(&error)),
            }
        }
        .boxed()
    }

    fn look<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<Batch, SmallModelError>> {
        async move {
            let state = self.batches.look(batch, prompts, &self.model).await;
            Ok(match state.map_err(|error| failed(&error))? {
                BatchState::Working => Batch::Working,
                BatchState::Ended(answers) => Batch::Answered(
                    answers
                        .into_iter()
                        .map(|answer| answer.map_err(|error| failed(&error)))
                        .collect(),
                ),
                BatchState::Lost(_) => Batch::Lost,
            })
        }
        .boxed()
    }
}

fn failed(error: &ModelError) -> SmallModelError {
    SmallModelError(error.to_string())
}

fn prompt_of(text: &str) -> Prompt {
    Prompt {
        history: vec![Item::message(Role::User, text)],
        ..Prompt::default()
    }
}
