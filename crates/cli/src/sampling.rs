//! Answers sampling requests of MCP servers with the model of the current turn.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use selvedge_agent::{SubAgents, TurnSamplingRequest};
use selvedge_mcp::{
    McpSamplingRequest, McpSamplingResponse, McpSamplingStopReason, SamplingHandler,
    ServerRequestError,
};
use selvedge_protocol::{FinishReason, new_id};

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

/// The turns that share the MCP servers of a workspace. A request is answered by the turn whose
/// script called the server.
#[derive(Default)]
pub(crate) struct RunningTurns(Mutex<HashMap<String, SubAgents>>);

/// A turn that answers requests until this is dropped.
pub(crate) struct RunningTurnGuard {
    turns: Arc<RunningTurns>,
    id: String,
}

impl RunningTurns {
    /// Adds a turn with its sub-agents.
    pub(crate) fn add(self: &Arc<Self>, agents: &SubAgents) -> RunningTurnGuard {
        let id = new_id("trn");
        self.lock().insert(id.clone(), agents.clone());
        RunningTurnGuard {
            turns: self.clone(),
            id,
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, SubAgents>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RunningTurnGuard {
    fn drop(&mut self) {
        self.turns.lock().remove(&self.id);
    }
}

impl SamplingHandler for RunningTurns {
    fn sample<'a>(
        &'a self,
        request: &'a McpSamplingRequest,
    ) -> BoxFuture<'a, Result<McpSamplingResponse, ServerRequestError>> {
        async move {
            let turns: Vec<SubAgents> = self.lock().values().cloned().collect();
            let turn = turns
                .into_iter()
                .find(|turn| turn.has_run(&request.scope_id));
            let turn = turn.ok_or_else(|| {
                ServerRequestError::Failed("the run belongs to no running turn".to_owned())
            })?;
            TurnSampler(turn).sample(request).await
        }
        .boxed()
    }
}
