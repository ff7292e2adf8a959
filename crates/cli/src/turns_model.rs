//! Answers sampling requests of MCP servers with the model of the current turn.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{Agents, ForeignPrompt};
use selvedge_mcp::{AskError, AskModel, Sampled, SampledEnd, Sampling};
use selvedge_protocol::FinishReason;

/// The model of the turn whose script called the server.
pub(crate) struct TurnsModel(pub(crate) Agents);

impl AskModel for TurnsModel {
    fn sample<'a>(&'a self, request: &'a Sampling) -> BoxFuture<'a, Result<Sampled, AskError>> {
        async move {
            let prompt = ForeignPrompt {
                system: request.system.clone(),
                messages: request
                    .messages
                    .iter()
                    .map(|message| (message.role, message.text.clone()))
                    .collect(),
                max_tokens: request.max_tokens,
            };
            let answer = self.0.answer_foreign(&request.run, prompt).await;
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
