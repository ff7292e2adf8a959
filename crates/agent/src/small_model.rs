//! The small model that memory uses: takes a prompt, returns a text.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{
    BatchSmallModel, BatchSubmission, SmallModel, SmallModelAnswer, SmallModelBatchStatus,
    SmallModelError,
};
use selvedge_models::{BatchClient, BatchState, Model, ModelClient, ModelError, Prompt};
use selvedge_protocol::{ConversationItem, MessageRole, ModelErrorKind, Usage};

use crate::sub_agents::read_text;

/// A model that answers single prompts, without tools or history.
#[derive(Debug, Clone)]
pub struct SmallModelClient {
    client: ModelClient,
    model: Model,
    /// Submits prompts as batches, if the provider supports them.
    batches: Option<SmallModelBatches>,
}

/// Submits prompts through the batch API of the provider.
#[derive(Debug, Clone)]
struct SmallModelBatches {
    batches: BatchClient,
    model: Model,
    /// The name of the provider. The ids of batches begin with it, so that a batch is not looked
    /// for at another provider after the configuration has changed.
    provider: String,
    /// Set when the provider turned out to have no batches.
    is_unsupported: Arc<AtomicBool>,
}

impl SmallModelClient {
    /// Creates a small model. It sends no request again that may have been paid for.
    pub fn new(client: ModelClient, model: Model) -> Self {
        Self {
            client: client.without_paid_retries(),
            model,
            batches: None,
        }
    }

    /// Uses the provider's batch API to distill lessons: answers take up to a day and cost less.
    pub fn with_batches(mut self) -> Self {
        self.batches = Some(SmallModelBatches {
            batches: self.client.batches(),
            model: self.model.clone(),
            provider: self.client.provider().name.clone(),
            is_unsupported: Arc::default(),
        });
        self
    }
}

impl SmallModel for SmallModelClient {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move { Ok(self.ask_counted(prompt).await?.text) }.boxed()
    }

    fn ask_counted<'a>(
        &'a self,
        prompt: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        async move {
            let prompt = single_message_prompt(prompt);
            let mut text = String::new();
            let usage = read_text(&self.client, &prompt, &self.model, &mut text).await;
            let usage = usage.map_err(|error| {
                let message = format!("provider `{}`: {error}", self.client.provider().name);
                tracing::warn!(target: "selvedge::memory", error = message, "no answer");
                match error.is_unprocessed() && is_unavailable(error.kind) {
                    true => SmallModelError::Unavailable(message),
                    false => SmallModelError::Failed(message),
                }
            })?;
            Ok(SmallModelAnswer {
                text,
                usage,
                cost: self.cost_of(&usage),
            })
        }
        .boxed()
    }

    fn cost_of(&self, usage: &Usage) -> Option<f64> {
        let prices = self.model.prices.as_ref();
        prices.map(|prices| prices.cost(usage))
    }

    fn context_tokens(&self) -> u32 {
        u32::try_from(self.model.context_window).unwrap_or(u32::MAX)
    }

    fn batch_model(&self) -> Option<&dyn BatchSmallModel> {
        self.batches
            .as_ref()
            .filter(|batches| !batches.is_unsupported.load(Ordering::Relaxed))
            .map(|batches| batches as &dyn BatchSmallModel)
    }
}

impl BatchSmallModel for SmallModelBatches {
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<BatchSubmission, SmallModelError>> {
        async move {
            let prompts: Vec<Prompt> = prompts
                .iter()
                .map(|prompt| single_message_prompt(prompt))
                .collect();
            match self.batches.submit(&prompts, &self.model).await {
                Ok(batch) => Ok(BatchSubmission::Accepted(format!(
                    "{}/{batch}",
                    self.provider
                ))),
                // The endpoint is compatible with a provider that has batches, but has none itself.
                Err(error) if matches!(error.status, Some(404 | 405 | 501)) => {
                    self.is_unsupported.store(true, Ordering::Relaxed);
                    Ok(BatchSubmission::Unsupported)
                }
                Err(error) if matches!(error.status, Some(400..=499)) => {
                    Ok(BatchSubmission::Rejected(small_model_error(&error)))
                }
                Err(error) => Err(small_model_error(&error)),
            }
        }
        .boxed()
    }

    fn poll<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>> {
        async move {
            let Some((provider, batch)) = batch.split_once('/') else {
                let message = format!("batch `{batch}` names no provider");
                return Err(SmallModelError::Failed(message));
            };
            if provider != self.provider {
                return Err(SmallModelError::Failed(format!(
                    "the batch was submitted to `{provider}`, and memory.model is one of `{}`",
                    self.provider
                )));
            }
            let state = self.batches.poll(batch, prompts, &self.model).await;
            Ok(match state.map_err(|error| small_model_error(&error))? {
                BatchState::InProgress => SmallModelBatchStatus::Running,
                BatchState::Ended(answers) => SmallModelBatchStatus::Completed(
                    answers
                        .into_iter()
                        .map(|answer| answer.map_err(|error| small_model_error(&error)))
                        .collect(),
                ),
                BatchState::Failed(_) => SmallModelBatchStatus::Failed,
            })
        }
        .boxed()
    }
}

/// Returns whether a request that failed with this error, before the provider processed it, can be
/// sent again later.
fn is_unavailable(kind: ModelErrorKind) -> bool {
    use ModelErrorKind::{
        Auth, BaseUrl, Network, Overloaded, Quota, RateLimit, Server, UnknownModel,
    };
    matches!(
        kind,
        Auth | Quota | RateLimit | UnknownModel | BaseUrl | Overloaded | Server | Network
    )
}

fn small_model_error(error: &ModelError) -> SmallModelError {
    SmallModelError::Failed(error.to_string())
}

fn single_message_prompt(text: &str) -> Prompt {
    Prompt {
        history: vec![ConversationItem::message(MessageRole::User, text)],
        ..Prompt::default()
    }
}
