//! What requests to the model of the memory used.

use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_memory::{DistillState, SmallModel, SmallModelAnswer, SmallModelError};
use selvedge_protocol::Usage;
use selvedge_text::count_noun;

use crate::chat::format_usage;

/// What requests used.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct MemoryUsage {
    pub(super) requests: u32,
    pub(super) tokens: Usage,
    pub(super) cost: Option<f64>,
}

impl MemoryUsage {
    /// Adds what the last pass of a project used.
    pub(super) fn add_pass(&mut self, state: &DistillState) {
        let Some(pass) = &state.last_pass else {
            return;
        };
        self.requests += pass.requests;
        self.tokens.input_tokens += pass.input_tokens;
        self.tokens.output_tokens += pass.output_tokens;
        self.add_cost(pass.cost);
    }

    fn add_cost(&mut self, cost: Option<f64>) {
        if let Some(cost) = cost {
            self.cost = Some(self.cost.unwrap_or_default() + cost);
        }
    }

    /// Returns whether there were requests whose tokens are known. Those of batches are not.
    pub(super) fn is_known(&self) -> bool {
        self.tokens.input_tokens > 0
    }

    /// Such as `2 requests · 12.3k in, 678 out · $0.0120`.
    pub(super) fn line(&self) -> String {
        let requests = count_noun(self.requests, "request");
        let cost = self.cost.map(|cost| format!(" · ${cost:.4}"));
        let cost = cost.unwrap_or_default();
        format!("{requests} · {}{cost}", format_usage(&self.tokens))
    }
}

/// A model that counts its requests, also those whose answer was too late.
pub(super) struct MeteredModel {
    model: Arc<dyn SmallModel>,
    used: Mutex<MemoryUsage>,
}

impl MeteredModel {
    pub(super) fn new(model: Arc<dyn SmallModel>) -> Self {
        Self {
            model,
            used: Mutex::default(),
        }
    }

    pub(super) fn used(&self) -> MemoryUsage {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn count(&self, count: impl FnOnce(&mut MemoryUsage)) {
        count(&mut self.used.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl SmallModel for MeteredModel {
    fn ask<'a>(&'a self, prompt: &'a str) -> BoxFuture<'a, Result<String, SmallModelError>> {
        async move { Ok(self.ask_counted(prompt).await?.text) }.boxed()
    }

    fn ask_counted<'a>(
        &'a self,
        prompt: &'a str,
    ) -> BoxFuture<'a, Result<SmallModelAnswer, SmallModelError>> {
        async move {
            self.count(|used| used.requests += 1);
            let answer = self.model.ask_counted(prompt).await?;
            self.count(|used| {
                used.tokens += answer.usage;
                used.add_cost(answer.cost);
            });
            Ok(answer)
        }
        .boxed()
    }

    fn context_tokens(&self) -> u32 {
        self.model.context_tokens()
    }

    fn cost_of(&self, usage: &Usage) -> Option<f64> {
        self.model.cost_of(usage)
    }
}
