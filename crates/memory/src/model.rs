//! The small model, as far as memory needs one: a prompt in, a text out. Everything works without it.

use futures_util::future::{BoxFuture, FutureExt, join_all};

/// Why a small model did not answer, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SmallModelError(pub String);

/// Answers short prompts. Whoever assembles the program brings one.
pub trait SmallModel: Send + Sync {
    /// Answers a prompt.
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>>;

    /// Answers many prompts, in their order.
    fn ask_all<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Vec<Result<String, SmallModelError>>> {
        join_all(prompts.iter().map(|prompt| self.ask(prompt))).boxed()
    }

    /// How to have prompts answered later, where that is possible and wanted: lessons are drawn that way.
    fn later(&self) -> Option<&dyn Later> {
        None
    }
}

/// Answers many prompts later, at a lower price. What was handed over has a name, by which another process finds it.
pub trait Later: Send + Sync {
    /// Hands prompts over and tells the batch's name; `None` where the provider turns out to take no batches.
    fn submit<'a>(
        &'a self,
        prompts: &'a [String],
    ) -> BoxFuture<'a, Result<Option<String>, SmallModelError>>;

    /// Where the batch of this name stands, which has so many prompts.
    fn look<'a>(
        &'a self,
        batch: &'a str,
        prompts: usize,
    ) -> BoxFuture<'a, Result<Batch, SmallModelError>>;
}

/// Where a batch stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Batch {
    /// It is being worked on.
    Working,
    /// What each prompt came to, in their order.
    Answered(Vec<Result<String, SmallModelError>>),
    /// Nothing will come of it.
    Lost,
}

/// The JSON in an answer, whatever was written around it.
pub(crate) fn json_in(answer: &str) -> Option<serde_json::Value> {
    let start = answer.find(['{', '['])?;
    let end = answer.rfind(['}', ']'])?;
    serde_json::from_str(answer.get(start..=end)?).ok()
}
