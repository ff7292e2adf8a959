//! Answers sampling requests of MCP servers with the model of the current turn.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{SubAgents, TurnSamplingRequest};
use selvedge_mcp::{
    McpSamplingRequest, McpSamplingResponse, McpSamplingStopReason, SamplingHandler,
    ServerRequestError,
};
use selvedge_protocol::FinishReason;

/// The model of the turn whose script called the server.
pub(crate) struct TurnSampler(pub(crate) SubAgents);

impl SamplingHandler for TurnSampler {
    fn sample<'a>(
        &'a self,
        request: &'a McpSamplingRequest,
    ) -> BoxFuture<'a, Result<McpSamplingResponse, ServerRequestError>> {
        async move {
            let prompt = TurnSamplingRequest {
                system: request.system_prompt.clone(),
                messages: request
                    .messages
                    .iter()
                    .map(|message| (message.role, message.text.clone()))
                    .collect(),
                max_tokens: request.max_tokens,
            };
            let answer = self.0.sample(&request.scope_id, prompt).await;
            let answer = answer.map_err(|error| ServerRequestError::Failed(error.to_string()))?;
            let end = match answer.finish_reason {
                Some(FinishReason::Length) => McpSamplingStopReason::MaxTokens,
                _ => McpSamplingStopReason::EndTurn,
            };
            Ok(McpSamplingResponse {
                text: answer.text,
                model: answer.model,
                stop_reason: end,
            })
        }
        .boxed()
    }
}
