//! The small model, as far as memory needs one: a prompt in, a text out. Everything works without it.

use futures_util::future::{BoxFuture, FutureExt, join_all};

/// Answers short prompts. Whoever assembles the program brings one.
pub trait SmallModel: Send + Sync {
    /// Answers a prompt; what went wrong is told in a line.
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, String>>;

    /// Answers many prompts, in their order. A provider that takes batches at a lower price can do that here.
    fn ask_all<'a>(&'a self, prompts: &'a [String]) -> BoxFuture<'a, Vec<Result<String, String>>> {
        join_all(prompts.iter().map(|prompt| self.ask(prompt))).boxed()
    }
}

/// The JSON in an answer, whatever was written around it.
pub(crate) fn json_in(answer: &str) -> Option<serde_json::Value> {
    let start = answer.find(['{', '['])?;
    let end = answer.rfind(['}', ']'])?;
    serde_json::from_str(answer.get(start..=end)?).ok()
}
