//! The interface of the optional small model: it answers prompts, at once or through a batch API.

use futures_util::future::{BoxFuture, FutureExt, join_all};

/// The reason why a small model did not answer, as one line of text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SmallModelError(pub String);

/// A model that answers short prompts. The caller of this crate implements it.
pub trait SmallModel: Send + Sync {
    /// Answers a prompt.
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>>;

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
    /// Submits prompts and returns the id of the batch; `None` if the provider does not support
    /// batches.
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<Option<String>, SmallModelError>>;

    /// Returns the status of a batch. `prompts` is the number of prompts in it.
    fn poll<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<SmallModelBatchStatus, SmallModelError>>;
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
