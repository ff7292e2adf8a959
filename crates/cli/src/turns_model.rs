//! What MCP servers ask the model: put to the one of the turn on whose way they ask.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Agents, ForeignPrompt};
use selvedge_mcp::{AskError, AskModel, Sampled, SampledEnd, Sampling};
use selvedge_protocol::FinishReason;

/// The model of whichever turn is under way.
pub(crate) struct TurnsModel(pub(crate) Agents);

impl AskModel for TurnsModel {
    fn sample<'a>(&'a self, asked: &'a Sampling) -> BoxFuture<'a, Result<Sampled, AskError>> {
        async move {
            let prompt = ForeignPrompt {
                system: asked.system.clone(),
                messages: asked
                    .messages
                    .iter()
                    .map(|said| (said.role, said.text.clone()))
                    .collect(),
                max_tokens: asked.max_tokens,
            };
            let answer = self.0.answer_foreign(&asked.run, prompt).await;
            let answer = answer.map_err(|error| AskError::Failed(error.to_string()))?;
            let end = match answer.finish {
                Some(FinishReason::Length) => SampledEnd::Cut,
                _ => SampledEnd::Whole,
            };
            Ok(Sampled {
                text: answer.text,
                model: answer.model,
                end,
            })
        }
        .boxed()
    }
}
