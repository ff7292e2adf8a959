//! The interface of the optional small model: it answers prompts, at once or through a batch API.

use futures_util::future::{BoxFuture, FutureExt, join_all};
use selvedge_protocol::Usage;

/// The reason why a small model did not answer, as one line of text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SmallModelError {
    /// The model did not process the prompt: the connection could not be made, or the request was
    /// rejected. The prompt can be sent again later.
    #[error("{0}")]
    Unavailable(String),
    /// The model rejected the prompt, or its answer broke off. It may have been paid for.
    #[error("{0}")]
    Failed(String),
}

/// The context of a model that does not tell its size, in tokens.
const DEFAULT_CONTEXT_TOKENS: u32 = 32_000;

/// An answer of a small model, and what it cost.
#[derive(Debug, Clone, PartialEq)]
pub struct SmallModelAnswer {
    /// The text of the answer.
    pub text: String,
    /// The tokens used; zero if they are not known.
    pub usage: Usage,
    /// The cost in the currency of the prices; `None` if the prices are not known.
    pub cost: Option<f64>,
}

impl SmallModelAnswer {
    /// An answer of which only the text is known.
    pub fn without_usage(text: String) -> Self {
        Self {
            text,
            usage: Usage::default(),
            cost: None,
        }
    }
}

/// A model that answers short prompts. The caller of this crate implements it.
pub trait SmallModel: Send + Sync {
    /// Answers a prompt.
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>>;

    /// Answers a prompt, and counts what the answer cost.
    fn ask_counted<'a>(
        &'a self,
        prompt: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        let answer = self.ask(prompt);
        async move { answer.await.map(SmallModelAnswer::without_usage) }.boxed()
    }

    /// Returns what a request costs; `None` if the prices are not known.
    fn cost_of(&self, usage: &Usage) -> Option<f64> {
        let _ = usage;
        None
    }

    /// Returns the size of the model's context, in tokens.
    fn context_tokens(&self) -> u32 {
        DEFAULT_CONTEXT_TOKENS
    }

    /// Answers many prompts. The answers are in the order of the prompts.
    fn ask_all<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Vec<Result<String, SmallModelError>>> {
        join_all(prompts.iter().map(|prompt| self.ask(prompt))).boxed()
    }

    /// Returns the model's batch API, if it has one and distilling should use it.
    fn batch_model(&self) -> Option<&dyn BatchSmallModel> {
        None
    }
}

/// The batch API of a model: it answers many prompts within a day, at a lower price. A batch has an
/// id, with which another process can fetch its answers.
pub trait BatchSmallModel: Send + Sync {
    /// Submits prompts. Fails if it is not known whether the provider accepted them.
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<BatchSubmission, SmallModelError>>;

    /// Returns the status of a batch. `prompts` is the number of prompts in it.
    fn poll<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>>;
}

/// What a provider did with prompts that were submitted as a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BatchSubmission {
    /// It processes them; the id of the batch.
    Accepted(String),
    /// It rejected them, and nothing is charged. They can be submitted again later.
    Rejected(SmallModelError),
    /// It does not support batches.
    Unsupported,
}

/// The status of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmallModelBatchStatus {
    /// The provider is processing the batch.
    Running,
    /// The answers, in the order of the prompts.
    Completed(Vec<Result<String, SmallModelError>>),
    /// The batch failed, expired or was cancelled.
    Failed,
}

/// Parses the JSON object or array in an answer, and ignores the text around it.
pub(crate) fn extract_json(answer: &str) -> Option<serde_json::Value> {
    let start = answer.find(['{', '['])?;
    let end = answer.rfind(['}', ']'])?;
    serde_json::from_str(answer.get(start..=end)?).ok()
}
